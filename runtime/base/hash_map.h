// HashMap and HashSet: absl's tables, made safe against memory that runs short. The product uses no other hash table of
// absl (tests/structure_test.sh).
//
//   HashMap<std::string, Layer> layers;
//   auto [at, added] = layers.try_emplace("lm_head", 768, 50257);
//   if (const auto found = layers.find("wte"); found != layers.end()) use(found->second);
//
// What throws (std::bad_alloc, a constructor of a key or a value) leaves the table as it was. absl's own tables do not
// promise that: one sets its capacity before it asks for memory, and marks a slot as full before the slot is
// constructed, so both a failed insertion and a failed copy leave a table whose destructor aborts.
//
// Iterators and references live until an insertion of a new key; an erasure ends only those of its own element. Tables
// can be moved, not copied. Thread safety: as the standard library's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace rondo {
namespace detail {

// What map and set share. `Table` is absl's. Its elements are moved without throwing.
template <class Table> class HashTable {
 public:
  using value_type = typename Table::value_type;
  using iterator = typename Table::iterator;
  using const_iterator = typename Table::const_iterator;

  HashTable() = default;
  HashTable(HashTable&& other) noexcept { swap(other); }
  HashTable& operator=(HashTable&& other) noexcept {
    HashTable taken(std::move(other));
    swap(taken);
    return *this;
  }
  void swap(HashTable& other) noexcept {
    table_.swap(other.table_);
    std::swap(room_, other.room_);
    std::swap(left_, other.left_);
  }

  iterator begin() { return table_.begin(); }
  iterator end() { return table_.end(); }
  const_iterator begin() const { return table_.begin(); }
  const_iterator end() const { return table_.end(); }
  size_t size() const { return table_.size(); }
  bool empty() const { return table_.empty(); }
  template <class K> iterator find(const K& key) { return table_.find(key); }
  template <class K> const_iterator find(const K& key) const { return table_.find(key); }
  template <class K> bool contains(const K& key) const { return table_.contains(key); }

  // How many elements were erased.
  template <class K> size_t erase(const K& key) { return table_.erase(key); }
  void erase(const_iterator at) { table_.erase(at); }
  void erase(iterator at) { table_.erase(at); }
  // Erases the elements for which `drop(element)` holds.
  template <class F> void erase_if(F drop) {
    for (auto at = table_.begin(); at != table_.end();) {
      const auto element = at++;
      if (drop(*element)) table_.erase(element);
    }
  }
  // Small tables keep their memory.
  void clear() {
    const size_t capacity = table_.capacity();
    table_.clear();
    if (table_.capacity() != capacity) room_ = 0;
    left_ = room_;
  }
  // Room for `count` elements in all.
  void reserve(size_t count) {
    if (count > table_.size() + left_) rebuild(count);
  }

 protected:
  // There is room for one more element.
  void make_room() {
    if (left_ > 0) return;
    // 7, 14, 28, ...: what absl's tables of 7, 15, 31, ... slots take. A table that has seen many erasures may keep its
    // size: what they leave behind takes room, too.
    size_t room = 7;
    while (room < table_.size() + table_.size() / 2 + 1) room *= 2;
    rebuild(room);
  }

  Table table_;
  size_t left_ = 0;  // so many insertions of new keys do not make the table grow

 private:
  // A table that got no memory is broken, and its destructor would free memory that it does not have. It owns nothing,
  // so it is not destroyed.
  union Unfinished {
    Unfinished() : table() {}
    ~Unfinished() {}
    Table table;
  };
  void rebuild(size_t room) {
    Unfinished made;
    made.table.reserve(room);
    made.table.merge(table_);
    table_.swap(made.table);
    made.table.~Table();
    room_ = room;
    left_ = room - table_.size();
  }

  size_t room_ = 0;  // elements that the table takes if it is empty
};

}  // namespace detail

template <class Key, class Value> class HashMap : public detail::HashTable<absl::flat_hash_map<Key, Value>> {
  using Base = detail::HashTable<absl::flat_hash_map<Key, Value>>;
  using Base::left_;
  using Base::make_room;
  using Base::table_;
  static_assert(std::is_nothrow_move_constructible_v<Key> && std::is_nothrow_move_constructible_v<Value>);
  // Then absl moves a key, which is const in an element; otherwise it copies the key.
  static_assert(std::is_nothrow_copy_constructible_v<Key> || std::is_standard_layout_v<std::pair<Key, Value>>);

 public:
  using iterator = typename Base::iterator;

  // Constructs Value(args...) if the key is new.
  template <class K, class... Args> std::pair<iterator, bool> try_emplace(K&& key, Args&&... args) {
    if constexpr (std::is_nothrow_constructible_v<Key, K&&> && std::is_nothrow_constructible_v<Value, Args&&...>) {
      if (left_ > 0) {  // nothing can throw: one search is enough
        const auto result = table_.try_emplace(std::forward<K>(key), std::forward<Args>(args)...);
        left_ -= result.second ? 1 : 0;
        return result;
      }
    }
    if (const auto found = table_.find(key); found != table_.end()) return {found, false};
    std::pair<Key, Value> made(std::piecewise_construct, std::forward_as_tuple(std::forward<K>(key)),
                               std::forward_as_tuple(std::forward<Args>(args)...));
    make_room();
    --left_;
    return table_.insert(std::move(made));
  }
  template <class K, class V> std::pair<iterator, bool> insert_or_assign(K&& key, V&& value) {
    const auto result = try_emplace(std::forward<K>(key), std::forward<V>(value));
    if (!result.second) result.first->second = std::forward<V>(value);
    return result;
  }
  // Throws std::out_of_range if there is no such key.
  template <class K> const Value& at(const K& key) const { return table_.at(key); }
  template <class K> Value& operator[](K&& key) { return try_emplace(std::forward<K>(key)).first->second; }
};

template <class Key> class HashSet : public detail::HashTable<absl::flat_hash_set<Key>> {
  using Base = detail::HashTable<absl::flat_hash_set<Key>>;
  using Base::left_;
  using Base::make_room;
  using Base::table_;
  static_assert(std::is_nothrow_move_constructible_v<Key>);

 public:
  using iterator = typename Base::iterator;

  template <class K> std::pair<iterator, bool> insert(K&& key) {
    if constexpr (std::is_nothrow_constructible_v<Key, K&&>) {
      if (left_ > 0) {
        const auto result = table_.insert(Key(std::forward<K>(key)));
        left_ -= result.second ? 1 : 0;
        return result;
      }
    }
    if (const auto found = table_.find(key); found != table_.end()) return {found, false};
    Key made(std::forward<K>(key));
    make_room();
    --left_;
    return table_.insert(std::move(made));
  }
};

}  // namespace rondo
