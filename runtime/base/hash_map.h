// HashMap and HashSet: absl's hash tables, made safe when memory runs out. tests/structure_test.sh checks that no other
// file uses absl's tables directly.
//
//   HashMap<std::string, Layer> layers;
//   auto [at, added] = layers.try_emplace("lm_head", 768, 50257);
//   if (const auto found = layers.find("wte"); found != layers.end()) use(found->second);
//
// A call that throws (std::bad_alloc, or from a constructor of a key or value) leaves the table unchanged. absl's own
// tables do not promise that: they set their capacity before they allocate, and mark a slot as full before they
// construct it, so after a failed insertion or a failed copy the destructor aborts.
//
// Inserting a new key invalidates iterators and references. Erasing an element invalidates only those to this element.
// Tables can be moved, not copied. Thread safety is that of the standard containers.
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

// The common part of HashMap and HashSet. `Table` is absl's table; moving its elements does not throw.
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

  // Returns how many elements were erased.
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
  // Erases all elements. A small table keeps its memory.
  void clear() {
    const size_t capacity = table_.capacity();
    table_.clear();
    if (table_.capacity() != capacity) room_ = 0;
    left_ = room_;
  }
  // Makes room for `count` elements in all.
  void reserve(size_t count) {
    if (count > table_.size() + left_) rebuild(count);
  }

 protected:
  // Ensures room for one more element.
  void make_room() {
    if (left_ > 0) return;
    // 7, 14, 28, ...: the elements that absl's tables of 7, 15, 31, ... slots hold. After many erasures the new table
    // may have the same size: erased slots use up room, and a rebuild frees them.
    size_t room = 7;
    while (room < table_.size() + table_.size() / 2 + 1) room *= 2;
    rebuild(room);
  }

  Table table_;
  size_t left_ = 0;  // how many new keys fit before the table must grow

 private:
  // If the table's allocation fails, the table's destructor would free memory that was never allocated. After such a
  // failure the table owns nothing, so the union skips the destructor.
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

  size_t room_ = 0;  // how many elements fit into the table when it is empty
};

}  // namespace detail

template <class Key, class Value> class HashMap : public detail::HashTable<absl::flat_hash_map<Key, Value>> {
  using Base = detail::HashTable<absl::flat_hash_map<Key, Value>>;
  using Base::left_;
  using Base::make_room;
  using Base::table_;
  static_assert(std::is_nothrow_move_constructible_v<Key> && std::is_nothrow_move_constructible_v<Value>);
  // If the pair has standard layout, absl moves the key, although the key is const. If not, absl copies the key.
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
