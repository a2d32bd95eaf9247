#include "rondo/runtime/device/page_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

namespace rondo::allocator {
namespace {

// Pages become writable in steps of this many bytes. Each step is one system call and takes no memory.
constexpr size_t kWritableStep = 64 << 20;

}  // namespace

size_t PageHeap::round_up(size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

PageHeap::PageHeap(size_t bytes) {
  for (bytes = bytes / kHugePage * kHugePage; bytes >= kHugePage; bytes = bytes / 2 / kHugePage * kHugePage) {
    void* raw = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) continue;
    begin_ = (reinterpret_cast<uintptr_t>(raw) + kHugePage - 1) / kHugePage * kHugePage;
    // Unmaps the unused ends.
    if (begin_ != reinterpret_cast<uintptr_t>(raw)) munmap(raw, begin_ - reinterpret_cast<uintptr_t>(raw));
    end_ = begin_ + bytes;
    if (const size_t rest = reinterpret_cast<uintptr_t>(raw) + kHugePage - begin_; rest != 0)
      munmap(reinterpret_cast<void*>(end_), rest);
    // With huge pages a fresh activation of 12 MB causes 6 page faults, not 3,000.
    madvise(reinterpret_cast<void*>(begin_), bytes, MADV_HUGEPAGE);
    writable_ = begin_;
    first_ = last_ = make(begin_, bytes, State::kReturned);
    return;
  }
}

PageHeap::~PageHeap() {
  while (first_ != nullptr) delete std::exchange(first_, first_->after);
  if (end_ != begin_) munmap(reinterpret_cast<void*>(begin_), end_ - begin_);
}

PageHeap::Range* PageHeap::make(uintptr_t address, size_t bytes, State state) {
  Index one{{address, nullptr}};
  return new Range{.address = address, .bytes = bytes, .state = state, .node = one.extract(one.begin())};
}

void PageHeap::index(Range* range) {
  range->node.key() = range->address;
  range->node.mapped() = range;
  kept_[class_of(range->bytes)].insert(std::move(range->node));
  kept_bytes_ += range->bytes;
}

void PageHeap::unindex(Range* range) {
  range->node = kept_[class_of(range->bytes)].extract(range->address);
  kept_bytes_ -= range->bytes;
}

PageHeap::Range* PageHeap::split(Range* range, size_t bytes) {
  Range* rest = make(range->address + bytes, range->bytes - bytes, range->state);
  const bool kept = range->state == State::kKept;
  if (kept) unindex(range);
  rest->age = range->age;
  rest->before = range;
  rest->after = range->after;
  (rest->after != nullptr ? rest->after->before : last_) = rest;
  range->after = rest;
  range->bytes = bytes;
  if (kept) index(range), index(rest);
  return rest;
}

void PageHeap::absorb_after(Range* range) {
  Range* next = range->after;
  range->bytes += next->bytes;
  range->age = std::max(range->age, next->age);
  range->after = next->after;
  (range->after != nullptr ? range->after->before : last_) = range;
  delete next;
}

PageHeap::Range* PageHeap::join_with_neighbours(Range* range) {
  const auto join = [this](Range* left) {
    if (left->state == State::kKept) unindex(left), unindex(left->after);
    absorb_after(left);
    if (left->state == State::kKept) index(left);
  };
  if (range->after != nullptr && range->after->state == range->state) join(range);
  if (range->before != nullptr && range->before->state == range->state) join(range = range->before);
  return range;
}

bool PageHeap::make_writable(uintptr_t end) {
  if (end <= writable_) return true;
  const uintptr_t wanted = std::min(end_, begin_ + (end - begin_ + kWritableStep - 1) / kWritableStep * kWritableStep);
  for (const uintptr_t to : {wanted, begin_ + round_up(end - begin_)}) {
    if (mprotect(reinterpret_cast<void*>(writable_), to - writable_, PROT_READ | PROT_WRITE) != 0) continue;
    writable_ = to;
    return true;
  }
  return false;
}

void* PageHeap::take_kept(size_t bytes) {
  Range* first = nullptr;
  // In the class of `bytes` a range may be too small; in a higher class every range is large enough.
  for (int c = class_of(bytes); c < kClasses; ++c) {
    auto at = kept_[c].begin();
    for (int looked = 1; at != kept_[c].end() && at->second->bytes < bytes; ++at)
      if (looked++ == kMostLooked) {
        at = kept_[c].end();
        break;
      }
    if (at != kept_[c].end() && (first == nullptr || at->first < first->address)) first = at->second;
  }
  return first == nullptr ? nullptr : take({first, 0, 0}, bytes);
}

PageHeap::Place PageHeap::cheapest(size_t bytes) const {
  Place best{.fresh = SIZE_MAX};
  const auto offer = [&](Range* range, size_t skip) {
    size_t fresh = 0;
    for (size_t left = bytes, from = skip; left > 0; range = range->after, from = 0) {
      const size_t here = std::min(left, range->bytes - from);
      if (range->state == State::kReturned) fresh += here;
      left -= here;
    }
    return fresh;
  };
  Range* from = last_;
  for (int looked = 1; from != nullptr && from->before != nullptr; from = from->before)
    if (looked++ >= kMostLookedAt && from->state == State::kUsed) break;
  // Candidates within each run of free ranges: the block begins where a range begins, or it ends where a range ends.
  for (Range *run = from, *end = nullptr; run != nullptr; run = end) {
    if (run->state == State::kUsed) {
      end = run->after;
      continue;
    }
    size_t before = 0, all = 0;  // bytes of the run: before the current range, and in total
    for (end = run; end != nullptr && end->state != State::kUsed; end = end->after) all += end->bytes;
    if (all < bytes) continue;
    for (Range* range = run; range != end; before += range->bytes, range = range->after) {
      for (const bool at_end : {false, true}) {
        const size_t start = at_end ? before + range->bytes - bytes : before;  // if it wraps around, the check fails
        if (start > all - bytes) continue;
        Range* first = run;
        size_t skip = start;
        for (; skip >= first->bytes; first = first->after) skip -= first->bytes;
        if (const size_t fresh = offer(first, skip); fresh < best.fresh) best = {first, skip, fresh};
      }
    }
  }
  return best;
}

void* PageHeap::take(const Place& place, size_t bytes) {
  Range* range = place.range;
  if (!make_writable(range->address + place.skip + bytes)) return nullptr;
  const auto entry = used_.emplace(reinterpret_cast<void*>(range->address + place.skip), nullptr).first;
  try {
    // The splits may throw, so they come first. A split range that is then not used does no harm.
    if (place.skip > 0) range = split(range, place.skip);
    size_t left = bytes;
    for (Range* part = range; left > 0; part = part->after) {
      if (part->bytes > left) split(part, left);
      left -= part->bytes;
    }
  } catch (...) {
    used_.erase(entry);
    throw;
  }
  const auto use = [this](Range* part) {
    if (part->state == State::kKept) unindex(part);
    part->state = State::kUsed;
  };
  use(range);
  while (range->bytes < bytes) {
    use(range->after);
    absorb_after(range);
  }
  used_bytes_ += bytes;
  entry->second = range;
  return reinterpret_cast<void*>(range->address);
}

bool PageHeap::contains(const void* data) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return begin_ <= address && address < end_;
}

void PageHeap::put(void* data) noexcept {
  const auto found = used_.find(data);
  Range* range = found->second;
  used_.erase(found);
  used_bytes_ -= range->bytes;
  range->state = State::kKept;
  range->age = freed_++;
  index(range);
  join_with_neighbours(range);
}

size_t PageHeap::give_back(size_t bytes) noexcept {
  Range* range = nullptr;
  for (const Index& ranges : kept_) {
    int looked = 0;
    for (auto at = ranges.begin(); at != ranges.end() && looked < kMostLooked; ++at, ++looked)
      if (range == nullptr || at->second->age < range->age) range = at->second;
  }
  if (range == nullptr) return 0;
  bytes = round_up(bytes);
  if (bytes < range->bytes) {
    try {
      range = split(range, range->bytes - bytes);
    } catch (const std::bad_alloc&) {
      // There is no memory for a second range, so the whole range goes back.
    }
  }
  bytes = range->bytes;
  unindex(range);
  range->state = State::kReturned;
  madvise(reinterpret_cast<void*>(range->address), bytes, MADV_DONTNEED);
  join_with_neighbours(range);
  return bytes;
}

}  // namespace rondo::allocator
