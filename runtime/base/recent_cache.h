// An LRU cache for values that are slow to make: it keeps the `capacity` most recently used ones, for all threads.
//
//   RecentCache<MatmulCall, Product> cache(1024);
//   const std::shared_ptr<const Product> product = cache.get(call, [&] { return make_product(call); });
//
// A dropped value lives on as long as someone holds its pointer. Thread safe.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "rondo/runtime/base/hash_map.h"

namespace rondo {

template <class Key, class Value> class RecentCache {
 public:
  using Pointer = std::shared_ptr<const Value>;
  explicit RecentCache(size_t capacity) : capacity_(capacity) {}
  RecentCache(const RecentCache&) = delete;
  RecentCache& operator=(const RecentCache&) = delete;

  // Returns the value of `key`; calls make() if there is none. `make` runs under the lock: all other threads wait
  // meanwhile, and `make` may not use this cache.
  template <class Make> Pointer get(const Key& key, Make make) {
    const std::lock_guard lock(mutex_);
    if (Pointer found = find_and_touch(key)) return found;
    return insert(key, make());
  }
  // Returns null if `key` is not in the cache.
  Pointer find(const Key& key) {
    const std::lock_guard lock(mutex_);
    return find_and_touch(key);
  }
  // Adds a value that was made without the lock. If another thread has added a value for `key` meanwhile, returns the
  // other thread's value.
  Pointer add(const Key& key, Pointer value) {
    const std::lock_guard lock(mutex_);
    if (Pointer found = find_and_touch(key)) return found;
    return insert(key, std::move(value));
  }
  void clear() {
    HashMap<Key, Slot> dropped;  // destroyed after the lock is gone
    const std::lock_guard lock(mutex_);
    dropped.swap(slots_);
    order_.clear();
  }

 private:
  struct Slot {
    Pointer value;
    typename std::list<Key>::iterator position;
  };
  Pointer find_and_touch(const Key& key) {
    const auto found = slots_.find(key);
    if (found == slots_.end()) return nullptr;
    order_.splice(order_.begin(), order_, found->second.position);
    return found->second.value;
  }
  Pointer insert(const Key& key, Pointer value) {
    std::list<Key> position{key};
    slots_.try_emplace(key, value, position.begin());
    order_.splice(order_.begin(), position);
    if (slots_.size() > capacity_) {
      slots_.erase(order_.back());
      order_.pop_back();
    }
    return value;
  }

  const size_t capacity_;
  std::mutex mutex_;      // guards the members below
  std::list<Key> order_;  // the most recently used first
  HashMap<Key, Slot> slots_;
};

}  // namespace rondo
