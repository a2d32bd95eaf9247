#include "rondo/runtime/cpu/row_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/storage.h"

namespace rondo::cpu {
namespace {

constexpr int64_t kBucketBytes = 1 << 18;      // of the result's rows: half of a core's second cache
constexpr int64_t kMostBuckets = 1 << 12;      // their ends stay in the first cache while indices are distributed
constexpr int64_t kPiece = 1 << 14;            // indices that pay for waking a thread
constexpr int64_t kAhead = 24;                 // rows of values that are on their way
constexpr int64_t kLine = 64;                  // bytes of a cache line
constexpr int64_t kMostPrefetched = 4 * 1024;  // bytes of a row: longer ones are streams of their own

// Of an index: where it stands, and the row that it names. Word: u32 where both fit, as bytes are what counts.
template <class Word> struct Entry { Word position, row; };

// The entries of all buckets, one bucket after the other, each in ascending position.
template <class Word> class Buckets {
 public:
  explicit Buckets(const RowSums& sums) {
    const int64_t row_bytes = std::max<int64_t>(1,
                                                sums.cols * static_cast<int64_t>(size_of(compute_dtype(sums.dtype))));
    const int64_t wanted = std::max<int64_t>(1, std::max(kBucketBytes / row_bytes, sums.rows / kMostBuckets));
    shift_ = std::bit_width(static_cast<uint64_t>(wanted)) - 1;
    count_ = ((sums.rows - 1) >> shift_) + 1;
    const int64_t pieces = std::clamp<int64_t>(sums.n / kPiece, 1, num_threads());
    const auto begin_of = [&](int64_t piece) { return sums.n * piece / pieces; };
    // By piece and bucket: the number of entries, then where the next one goes.
    std::vector<int64_t> at(static_cast<size_t>(pieces * count_), 0);
    parallel_for(pieces, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        int64_t* counts = at.data() + p * count_;
        for (int64_t i = begin_of(p); i < begin_of(p + 1); ++i) ++counts[sums.index[i * sums.index_step] >> shift_];
      }
    });
    starts_.reserve(static_cast<size_t>(count_) + 1);
    int64_t next = 0;
    for (int64_t bucket = 0; bucket < count_; ++bucket) {
      starts_.push_back(next);
      for (int64_t p = 0; p < pieces; ++p) {
        int64_t& place = at[static_cast<size_t>(p * count_ + bucket)];
        next += std::exchange(place, next);
      }
    }
    starts_.push_back(next);
    memory_ = Storage::allocate(static_cast<size_t>(sums.n) * sizeof(Entry<Word>), kCPU);
    entries_ = reinterpret_cast<Entry<Word>*>(memory_.data());
    parallel_for(pieces, 1, [&](int64_t first, int64_t last) {
      for (int64_t p = first; p < last; ++p) {
        int64_t* places = at.data() + p * count_;
        for (int64_t i = begin_of(p); i < begin_of(p + 1); ++i) {
          const int64_t row = sums.index[i * sums.index_step];
          entries_[places[row >> shift_]++] = {static_cast<Word>(i), static_cast<Word>(row)};
        }
      }
    });
  }

  int64_t count() const { return count_; }
  int64_t first_row(int64_t bucket) const { return bucket << shift_; }
  const Entry<Word>* begin(int64_t bucket) const { return entries_ + starts_[static_cast<size_t>(bucket)]; }
  const Entry<Word>* end(int64_t bucket) const { return begin(bucket + 1); }

 private:
  int shift_ = 0;
  int64_t count_ = 0;
  std::vector<int64_t> starts_;
  Storage memory_;  // kept by the allocator for the next call
  Entry<Word>* entries_ = nullptr;
};

template <class T, class Word> class RowSummer {
 public:
  explicit RowSummer(const RowSums& sums)
      : sums_(sums), values_(static_cast<const T*>(sums.values)), out_(static_cast<T*>(sums.out)), buckets_(sums) {}

  // Every row of the result is written, once.
  void write_all() const {
    for_each_bucket([&](int64_t bucket) {
      const int64_t first = buckets_.first_row(bucket), end = std::min(sums_.rows, buckets_.first_row(bucket + 1));
      const size_t size = static_cast<size_t>((end - first) * sums_.cols);
      T* const out = out_ + first * sums_.cols;
      if constexpr (std::is_same_v<T, C>) {
        std::memset(static_cast<void*>(out), 0, size * sizeof(T));
        add(bucket, out);
      } else {
        Scratch<C> scratch(static_cast<int64_t>(size));
        C* const totals = scratch.take(static_cast<int64_t>(size));
        std::fill_n(totals, size, C(0));
        add(bucket, totals);
        for (size_t i = 0; i < size; ++i) out[i] = static_cast<T>(totals[i]);
      }
    });
  }

  // The named rows: `kOnto`: are added to; else written.
  template <bool kOnto> void write_named() const {
    const int64_t cols = sums_.cols;
    for_each_bucket([&](int64_t bucket) {
      if (buckets_.begin(bucket) == buckets_.end(bucket)) return;
      const int64_t first = buckets_.first_row(bucket),
                    rows = std::min(sums_.rows, buckets_.first_row(bucket + 1)) - first;
      Scratch<C> scratch(rows * cols);
      C* const totals = scratch.take(rows * cols);
      std::vector<bool> named(static_cast<size_t>(rows), false);
      for (const Entry<Word>* e = buckets_.begin(bucket); e != buckets_.end(bucket); ++e) {
        const int64_t row = static_cast<int64_t>(e->row) - first;
        if (named[static_cast<size_t>(row)]) continue;
        named[static_cast<size_t>(row)] = true;
        std::fill_n(totals + row * cols, cols, C(0));
      }
      add(bucket, totals);
      for (int64_t r = 0; r < rows; ++r) {
        if (!named[static_cast<size_t>(r)]) continue;
        T* const to = out_ + (first + r) * cols;
        const C* const total = totals + r * cols;
        for (int64_t c = 0; c < cols; ++c) {
          const T sum = static_cast<T>(total[c]);
          if constexpr (kOnto) to[c] = static_cast<T>(static_cast<C>(to[c]) + static_cast<C>(sum));
          else to[c] = sum;
        }
      }
    });
  }

 private:
  using C = ComputeType<T>;

  template <class Fn> void for_each_bucket(Fn fn) const {
    const int64_t work = std::max<int64_t>(1, (sums_.n + sums_.rows) * sums_.cols / buckets_.count());
    parallel_for(buckets_.count(), std::max<int64_t>(1, kElementwiseGrain / work), [&](int64_t begin, int64_t end) {
      for (int64_t bucket = begin; bucket < end; ++bucket) fn(bucket);
    });
  }

  // Adds the bucket's rows to its totals.
  void add(int64_t bucket, C* totals) const {
    const int64_t cols = sums_.cols, step = sums_.values_step, first = buckets_.first_row(bucket);
    const int64_t row_bytes = cols * static_cast<int64_t>(sizeof(T));
    const Entry<Word>* const end = buckets_.end(bucket);
    for (const Entry<Word>* e = buckets_.begin(bucket); e != end; ++e) {
      if (row_bytes <= kMostPrefetched && end - e > kAhead) {
        const char* next = reinterpret_cast<const char*>(values_ + static_cast<int64_t>(e[kAhead].position) * step);
        for (int64_t byte = 0; byte < row_bytes; byte += kLine) __builtin_prefetch(next + byte);
      }
      const T* const from = values_ + static_cast<int64_t>(e->position) * step;
      C* const to = totals + (static_cast<int64_t>(e->row) - first) * cols;
      add_row(to, from, cols);
    }
  }
  static void add_row(C* __restrict to, const T* __restrict from, int64_t cols) {
    constexpr int64_t kStep = 16;  // a loop of known length needs no checks of it
    int64_t c = 0;
    for (; c + kStep <= cols; c += kStep)
      for (int64_t k = c; k < c + kStep; ++k) to[k] = sum_of(to[k], static_cast<C>(from[k]));
    for (; c < cols; ++c) to[c] = sum_of(to[c], static_cast<C>(from[c]));
  }
  // Integers wrap around; bools are joined.
  static C sum_of(C a, C b) {
    if constexpr (std::is_same_v<C, bool>) return a || b;
    else if constexpr (std::is_integral_v<C>)
      return static_cast<C>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else return a + b;
  }

  const RowSums& sums_;
  const T* values_;
  T* out_;
  const Buckets<Word> buckets_;
};

template <class T, class Word> void write_sums(const RowSums& sums) {
  const RowSummer<T, Word> summer(sums);
  if (sums.n >= sums.rows) return summer.write_all();
  // Where most rows are not named, zeros stream past the caches, and the others are written again.
  parallel_for(sums.rows, std::max<int64_t>(1, kElementwiseGrain * 4 / sums.cols), [&](int64_t begin, int64_t end) {
    std::memset(static_cast<void*>(static_cast<T*>(sums.out) + begin * sums.cols), 0,
                static_cast<size_t>((end - begin) * sums.cols) * sizeof(T));
  });
  summer.template write_named<false>();
}

bool fits_32_bits(const RowSums& sums) { return std::max(sums.n, sums.rows) <= std::numeric_limits<uint32_t>::max(); }

}  // namespace

void write_row_sums(const RowSums& sums) {
  if (sums.rows == 0 || sums.cols == 0) return;
  visit_dtype(sums.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    fits_32_bits(sums) ? write_sums<T, uint32_t>(sums) : write_sums<T, int64_t>(sums);
  });
}

void add_row_sums(const RowSums& sums) {
  if (sums.n == 0 || sums.cols == 0) return;
  visit_floating(sums.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (fits_32_bits(sums)) RowSummer<T, uint32_t>(sums).template write_named<true>();
    else RowSummer<T, int64_t>(sums).template write_named<true>();
  });
}

}  // namespace rondo::cpu
