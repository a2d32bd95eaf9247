// Large blocks of host memory, cut from one range of addresses on huge pages. Freed neighbours are joined, so what one
// size leaves serves any other size. A free page is kept (it has memory) or returned (the system has its memory back,
// and using the page again costs a fault).
//
// A training step asks for the same blocks again and again. From the second step on it finds them among what is kept,
// and causes no page fault. A block takes the first kept range that it fits into, by address. Over the steps of six
// networks (README of tests/bench), eager and compiled, in both layouts, the heap is then 1.00 to 1.08 times the most
// bytes in use (median 1.016); at best fit, 1.00 to 1.22.
//
// No call looks at more than some thousand ranges, however many there are: with more, it may miss a better one.
//
// Not thread safe. Nothing that frees allocates memory for bookkeeping, so it cannot fail.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>

namespace rondo::allocator {

class PageHeap {
  struct Range;

 public:
  static constexpr size_t kHugePage = 2 << 20;
  // To pages of the system, which are 4 KB on most machines.
  static size_t round_up(size_t bytes);

  // Reserves `bytes` of addresses, less if the system refuses so many. A reservation takes no memory.
  explicit PageHeap(size_t bytes);
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  // Sizes of blocks are whole pages. Both may throw std::bad_alloc, which changes nothing.
  //
  // A block of kept pages: the first ones by address. Null: there are none.
  void* take_kept(size_t bytes);
  // A place for a block that takes as little as possible from the system: `fresh` bytes. Its other pages are kept ones.
  struct Place {
    Range* range = nullptr;  // where it begins; null: no addresses are left
    size_t skip = 0;         // behind the begin of that range
    size_t fresh = 0;
  };
  Place cheapest(size_t bytes) const;
  // Null: the system refuses. `place` is valid until the heap changes.
  void* take(const Place& place, size_t bytes);

  void put(void* data) noexcept;  // pages are kept
  bool contains(const void* data) const;
  // Returns `bytes` of kept pages to the system, those of the range that has been kept longest (of kMostLooked in each
  // class). The bytes returned: at most one range's, 0 if nothing is kept.
  size_t give_back(size_t bytes) noexcept;

  size_t kept_bytes() const { return kept_bytes_; }
  size_t used_bytes() const { return used_bytes_; }

 private:
  static constexpr int kClasses = 65;
  static constexpr int kMostLooked = 64;      // of the ranges of a class, by address
  static constexpr int kMostLookedAt = 1024;  // of all ranges, by cheapest(): those at the end
  static int class_of(size_t bytes) { return std::bit_width(bytes); }

  enum class State { kUsed, kKept, kReturned };
  using Index = std::map<uintptr_t, Range*>;  // by address
  struct Range {
    uintptr_t address;
    size_t bytes;
    State state;
    uint64_t age = 0;  // the number of blocks that were freed before the last one of its blocks
    Range *before = nullptr, *after = nullptr;
    Index::node_type node{};  // its place in kept_, while it is not kept
  };

  static Range* make(uintptr_t address, size_t bytes, State state);
  Range* split(Range* range, size_t bytes);  // cuts a free range; what is behind its first `bytes`
  void absorb_after(Range* range);           // a range takes in the one behind it
  void index(Range* range);
  void unindex(Range* range);
  Range* join_with_neighbours(Range* range);
  bool make_writable(uintptr_t end);

  uintptr_t begin_ = 0, end_ = 0, writable_ = 0;  // pages below writable_ may be written
  Range *first_ = nullptr, *last_ = nullptr;      // of all ranges, in the order of addresses
  Index kept_[kClasses];                          // by the size's highest bit
  std::unordered_map<const void*, Range*> used_;
  uint64_t freed_ = 0;
  size_t kept_bytes_ = 0, used_bytes_ = 0;
};

}  // namespace rondo::allocator
