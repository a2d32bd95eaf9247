#include "rondo/runtime/cpu/row_sums.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/cpu/streams.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/ops/wrapping.h"

namespace rondo::cpu {
namespace {

constexpr int64_t kBucketBytes = 1 << 16;      // bytes of a bucket's sums: about an L1 cache
constexpr int64_t kMostBytes = 1 << 19;        // limit of larger buckets: half of a core's L2 cache
constexpr int64_t kManyBuckets = 1 << 9;       // if there would be more buckets, they become larger
constexpr int64_t kMostBuckets = 1 << 12;      // limit: their write positions stay in the L1 cache in distribute()
constexpr int64_t kPiece = 1 << 14;            // least number of indices for which waking a thread is worthwhile
constexpr int64_t kBlock = 1 << 11;            // indices that are checked together and then counted
constexpr int64_t kBytesAhead = 12 << 10;      // bytes of values that are prefetched ahead
constexpr int64_t kMostAhead = 96;             // rows that are prefetched ahead, at most
constexpr int64_t kLine = 64;                  // bytes of a cache line
constexpr int64_t kMostPrefetched = 4 * 1024;  // bytes of a row; longer rows are left to the hardware prefetcher

// An index: its position in the list, and the row that it gives. Word is u32 if both fit, to reduce memory traffic.
template <class Word> struct Entry { Word position, row; };

// The entries of all buckets, one bucket after the other, each in ascending position.
template <class Word> class Buckets {
 public:
  explicit Buckets(const RowSums& sums) {
    const int64_t row_bytes = std::max<int64_t>(1,
                                                sums.cols * static_cast<int64_t>(size_of(compute_dtype(sums.dtype))));
    const int64_t wanted = std::max({int64_t{1}, kBucketBytes / row_bytes,
                                     std::min(sums.rows / kManyBuckets, kMostBytes / row_bytes),
                                     sums.rows / kMostBuckets});
    shift_ = std::bit_width(static_cast<uint64_t>(wanted)) - 1;
    count_ = ((sums.rows - 1) >> shift_) + 1;
    pieces_ = std::clamp<int64_t>(sums.n / kPiece, 1, num_threads());
    places_.assign(static_cast<size_t>(pieces_ * count_), 0);
    if (!count(sums)) return;
    make_starts();
    distribute(sums);
  }

  // True if an index is not in [0, rows); then there are no entries.
  bool failed() const { return starts_.empty(); }
  int64_t count() const { return count_; }
  int64_t first_row(int64_t bucket) const { return bucket << shift_; }
  const Entry<Word>* begin(int64_t bucket) const { return entries_ + starts_[static_cast<size_t>(bucket)]; }
  const Entry<Word>* end(int64_t bucket) const { return begin(bucket + 1); }

 private:
  // Calls fn(piece, first, last) for each piece of the indices, on several threads.
  template <class Fn> void for_each_piece(const RowSums& sums, Fn fn) const {
    parallel_for(pieces_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) fn(p, sums.n * p / pieces_, sums.n * (p + 1) / pieces_);
    });
  }
  // Counts the entries of each bucket in each piece. Returns false if an index is out of range.
  bool count(const RowSums& sums) {
    std::atomic<bool> bad = false;
    for_each_piece(sums, [&](int64_t p, int64_t first, int64_t last) {
      int64_t* const counts = places_.data() + p * count_;
      const auto row_at = [&](int64_t i) { return static_cast<uint64_t>(sums.index[i * sums.index_step]); };
      for (int64_t block = first; block < last; block += kBlock) {
        const int64_t end = std::min(last, block + kBlock);
        uint64_t largest = 0;  // negative indices are large as unsigned numbers
        for (int64_t i = block; i < end; ++i) largest = std::max(largest, row_at(i));
        if (largest >= static_cast<uint64_t>(sums.rows)) return bad.store(true, std::memory_order_relaxed);
        for (int64_t i = block; i < end; ++i) ++counts[row_at(i) >> shift_];
      }
    });
    return !bad;
  }
  // Replaces the counts in places_ by the position of the next entry for each piece and bucket.
  void make_starts() {
    starts_.reserve(static_cast<size_t>(count_) + 1);
    int64_t next = 0;
    for (int64_t bucket = 0; bucket < count_; ++bucket) {
      starts_.push_back(next);
      for (int64_t p = 0; p < pieces_; ++p) {
        int64_t& place = places_[static_cast<size_t>(p * count_ + bucket)];
        next += std::exchange(place, next);
      }
    }
    starts_.push_back(next);
  }
  void distribute(const RowSums& sums) {
    memory_ = Storage::allocate(static_cast<size_t>(sums.n + kMostAhead) * sizeof(Entry<Word>), kCPU);
    entries_ = reinterpret_cast<Entry<Word>*>(memory_.data());
    for_each_piece(sums, [&](int64_t p, int64_t first, int64_t last) {
      int64_t* const places = places_.data() + p * count_;
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = sums.index[i * sums.index_step];
        entries_[places[row >> shift_]++] = {static_cast<Word>(i), static_cast<Word>(row)};
      }
    });
    // Padding, because add_rows() reads entries up to kMostAhead ahead.
    std::fill_n(entries_ + sums.n, kMostAhead, Entry<Word>{});
  }

  int shift_ = 0;
  int64_t count_ = 0, pieces_ = 1;
  std::vector<int64_t> places_, starts_;
  Storage memory_;  // kept by the allocator for the next call
  Entry<Word>* entries_ = nullptr;
};

template <class T, class Word> class RowSummer {
 public:
  RowSummer(const RowSums& sums, const Buckets<Word>& buckets)
      : sums_(sums),
        buckets_(buckets),
        values_(static_cast<const T*>(sums.values)),
        onto_(static_cast<const T*>(sums.onto)),
        out_(static_cast<T*>(sums.out)),
        streams_(is_streamed(out_, sums.rows * row_bytes(), row_bytes())) {}

  void write() const {
    const int64_t work = std::max<int64_t>(1, (sums_.n + sums_.rows) * sums_.cols / buckets_.count());
    parallel_for(buckets_.count(), std::max<int64_t>(1, kElementwiseGrain / work), [&](int64_t begin, int64_t end) {
      for (int64_t bucket = begin; bucket < end; ++bucket) write_bucket(bucket);
      if (streams_) end_streams();
    });
  }

 private:
  using C = ComputeType<T>;

  int64_t row_bytes() const { return sums_.cols * static_cast<int64_t>(sizeof(T)); }

  // The sums of a bucket's rows. They are indexed by row, or, if there are fewer entries than rows, by the numbers that
  // `slots` gives to the rows with entries.
  struct Totals {
    C* first;
    int64_t first_row, cols;
    const int32_t* slots;  // by row, negative for rows without a sum; null: all rows have sums
    C* of(int64_t row) const {
      const int64_t at = row - first_row, slot = slots == nullptr ? at : slots[at];
      return slot < 0 ? nullptr : first + slot * cols;
    }
  };
  void write_bucket(int64_t bucket) const {
    const int64_t first = buckets_.first_row(bucket), last = std::min(sums_.rows, buckets_.first_row(bucket + 1)),
                  rows = last - first;
    const bool few = buckets_.end(bucket) - buckets_.begin(bucket) < rows;
    std::vector<int32_t> slots(few ? static_cast<size_t>(rows) : 0, -1);
    int32_t named = few ? 0 : static_cast<int32_t>(rows);
    if (few)
      for (const Entry<Word>* e = buckets_.begin(bucket); e != buckets_.end(bucket); ++e)
        if (int32_t& slot = slots[static_cast<size_t>(static_cast<int64_t>(e->row) - first)]; slot < 0) slot = named++;
    Scratch<C> scratch(named * sums_.cols);
    const Totals totals{scratch.take(named * sums_.cols), first, sums_.cols, few ? slots.data() : nullptr};
    std::fill_n(totals.first, named * sums_.cols, C(0));
    add(bucket, totals);
    for (int64_t row = first; row < last; ++row) {
      C* const total = totals.of(row);
      if (total == nullptr) write_unnamed(row);
      else write_row(row, total);
    }
  }

  // Adds the bucket's rows to their sums. Specialised code for rows of 1, 2, 4 or 8 cache lines takes half as long.
  void add(int64_t bucket, const Totals& totals) const {
    constexpr int64_t kInLine = kLine / static_cast<int64_t>(sizeof(T));
    if constexpr (is_floating(dtype_of<T>) && sizeof(Word) == 4) {
      switch (sums_.cols) {
        case kInLine: return add_rows<kInLine>(bucket, totals);
        case 2 * kInLine: return add_rows<2 * kInLine>(bucket, totals);
        case 4 * kInLine: return add_rows<4 * kInLine>(bucket, totals);
        case 8 * kInLine: return add_rows<8 * kInLine>(bucket, totals);
        default: break;
      }
    }
    add_rows<0>(bucket, totals);
  }
  // kCols: the number of columns if it is known at compile time, else 0.
  template <int64_t kCols> void add_rows(int64_t bucket, const Totals totals) const {
    const int64_t cols = kCols > 0 ? kCols : sums_.cols, step = sums_.values_step,
                  bytes = cols * static_cast<int64_t>(sizeof(T));
    const int64_t ahead = std::clamp<int64_t>(kBytesAhead / bytes, 1, kMostAhead);
    const int64_t fetched = bytes <= kMostPrefetched ? bytes : 0;
    const Entry<Word>* const end = buckets_.end(bucket);
    for (const Entry<Word>* e = buckets_.begin(bucket); e != end; ++e) {
      const char* const next = reinterpret_cast<const char*>(values_ + static_cast<int64_t>(e[ahead].position) * step);
      for (int64_t byte = 0; byte < fetched; byte += kLine) __builtin_prefetch(next + byte);
      add_row(totals.of(static_cast<int64_t>(e->row)), values_ + static_cast<int64_t>(e->position) * step, cols);
    }
  }
  [[gnu::always_inline]] static void add_row(C* __restrict to, const T* __restrict from, int64_t cols) {
    constexpr int64_t kStep = 16;  // inner loops of constant length need no length checks
    int64_t c = 0;
    for (; c + kStep <= cols; c += kStep)
      for (int64_t k = c; k < c + kStep; ++k) to[k] = sum_of(to[k], static_cast<C>(from[k]));
    for (; c < cols; ++c) to[c] = sum_of(to[c], static_cast<C>(from[c]));
  }
  static C sum_of(C a, C b) {
    if constexpr (std::is_same_v<C, bool>) return a || b;
    else return ops::wrapping_add(a, b);
  }

  void write_unnamed(int64_t row) const {
    T* const to = out_ + row * sums_.cols;
    const auto bytes = static_cast<size_t>(row_bytes());
    if (onto_ == nullptr)
      return streams_ ? stream_zeros(to, bytes) : (void)std::memset(static_cast<void*>(to), 0, bytes);
    const T* const from = onto_ + row * sums_.cols;
    if (from == to) return;
    if (streams_) stream_copy(to, from, bytes);
    else std::memcpy(static_cast<void*>(to), from, bytes);
  }
  // Writes a row of the result. May overwrite `total`.
  void write_row(int64_t row, C* total) const {
    T* const to = out_ + row * sums_.cols;
    const T* const from = onto_ == nullptr ? nullptr : onto_ + row * sums_.cols;
    if constexpr (std::is_same_v<T, C>) {
      if (streams_) {
        if (from != nullptr) add_row(total, from, sums_.cols);
        return stream_copy(to, total, static_cast<size_t>(row_bytes()));
      }
    }
    for (int64_t c = 0; c < sums_.cols; ++c) {
      const T sum = static_cast<T>(total[c]);
      to[c] = from == nullptr ? sum : static_cast<T>(sum_of(static_cast<C>(from[c]), static_cast<C>(sum)));
    }
  }

  const RowSums& sums_;
  const Buckets<Word>& buckets_;
  const T* values_;
  const T* onto_;
  T* out_;
  const bool streams_;  // stores bypass the caches
};

template <class Word> bool write_sums(const RowSums& sums) {
  const Buckets<Word> buckets(sums);
  if (buckets.failed()) return false;
  if (sums.cols == 0) return true;
  visit_dtype(sums.dtype, [&](auto tag) { RowSummer<typename decltype(tag)::type, Word>(sums, buckets).write(); });
  return true;
}

}  // namespace

bool write_row_sums(const RowSums& sums) {
  if (sums.rows == 0) return sums.n == 0;
  const bool fits_32_bits = std::max(sums.n, sums.rows) <= std::numeric_limits<uint32_t>::max();
  return fits_32_bits ? write_sums<uint32_t>(sums) : write_sums<int64_t>(sums);
}

}  // namespace rondo::cpu
