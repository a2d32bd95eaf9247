// Large blocks of host memory, cut from one range of addresses on huge pages. Freed neighbours are joined, so memory of
// one block size can serve any other size. A free page is kept (it still has memory) or returned (the system has its
// memory back, and the next use of the page causes a page fault).
//
// Every training step allocates the same blocks. From the second step on, kept pages serve these blocks, so the step
// causes no page faults. A block takes the first kept range, by address, in which it fits (first fit). Measured over
// training steps of six networks (README of tests/bench), eager and compiled, in both layouts: the heap is 1.00 to 1.08
// times the peak bytes in use (median 1.016). With best fit it is 1.00 to 1.22 times.
//
// A call looks at some thousand ranges at most. With more ranges in the heap it may miss a better one.
//
// Not thread safe. Freeing allocates no memory for bookkeeping, so it cannot fail.
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
  // Rounds up to whole pages of the system (4 KB on most machines).
  static size_t round_up(size_t bytes);

  // Reserves `bytes` of address space, less if the system refuses. A reservation takes no memory.
  explicit PageHeap(size_t bytes);
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  // Sizes of blocks are whole pages. take_kept() and take() may throw std::bad_alloc, which leaves the heap unchanged.
  //
  // Takes a block of kept pages: the first fit by address. Returns null if there is none.
  void* take_kept(size_t bytes);
  // The place for a block that needs the fewest new pages: `fresh` bytes come from the system, the rest are kept pages.
  struct Place {
    Range* range = nullptr;  // where the block begins; null: no address space is left
    size_t skip = 0;         // bytes from the beginning of that range
    size_t fresh = 0;
  };
  Place cheapest(size_t bytes) const;
  // Takes a block at `place`. Returns null if the system refuses the memory. `place` is valid until the heap changes.
  void* take(const Place& place, size_t bytes);

  void put(void* data) noexcept;  // frees a block; its pages are kept
  bool contains(const void* data) const;
  // Gives up to `bytes` of kept pages back to the system, from the range that has been kept longest (among kMostLooked
  // ranges of each class). Returns the number of bytes given back: at most the size of that range, 0 if nothing is
  // kept.
  size_t give_back(size_t bytes) noexcept;

  size_t kept_bytes() const { return kept_bytes_; }
  size_t used_bytes() const { return used_bytes_; }

 private:
  static constexpr int kClasses = 65;
  static constexpr int kMostLooked = 64;      // ranges of one class that a search looks at, in order of addresses
  static constexpr int kMostLookedAt = 1024;  // ranges that cheapest() looks at: the last ones by address
  static int class_of(size_t bytes) { return std::bit_width(bytes); }

  enum class State { kUsed, kKept, kReturned };
  using Index = std::map<uintptr_t, Range*>;  // by address
  struct Range {
    uintptr_t address;
    size_t bytes;
    State state;
    uint64_t age = 0;  // time of the latest free in this range, counted in freed blocks
    Range *before = nullptr, *after = nullptr;
    Index::node_type node{};  // the range's node for kept_; held here while the range is not in kept_
  };

  static Range* make(uintptr_t address, size_t bytes, State state);
  Range* split(Range* range, size_t bytes);  // cuts a free range after `bytes`; returns the second part
  void absorb_after(Range* range);           // joins a range with the next one
  void index(Range* range);
  void unindex(Range* range);
  Range* join_with_neighbours(Range* range);
  bool make_writable(uintptr_t end);

  uintptr_t begin_ = 0, end_ = 0, writable_ = 0;  // pages below writable_ may be written
  Range *first_ = nullptr, *last_ = nullptr;      // list of all ranges in the order of addresses
  Index kept_[kClasses];                          // kept ranges by the highest bit of their size
  std::unordered_map<const void*, Range*> used_;
  uint64_t freed_ = 0;
  size_t kept_bytes_ = 0, used_bytes_ = 0;
};

}  // namespace rondo::allocator
