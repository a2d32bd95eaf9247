// The kernels of ops/segments.h: sorting of indices by segment, and sums of segments.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/bad_index.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/lookup.h"

namespace rondo::cpu {
namespace {

constexpr int64_t kSortPiece = 1 << 14;  // least number of indices for which waking a thread is worthwhile

// A stable counting sort. Each thread sorts a piece of the indices; within a segment the pieces stay in order.
class SegmentSort {
 public:
  SegmentSort(const int64_t* index, int64_t n, int64_t segments)
      : index_(index),
        n_(n),
        segments_(segments),
        pieces_(std::clamp<int64_t>(n / std::max(kSortPiece, segments), 1, num_threads())),
        places_(static_cast<size_t>(pieces_ * segments)) {}

  // Returns false if an index is out of range.
  [[nodiscard]] bool count() {
    std::atomic<bool> bad = false;
    for_each_piece([&](int64_t* places, int64_t first, int64_t last) {
      uint64_t largest = 0;  // negative indices are large as unsigned numbers
      for (int64_t i = first; i < last; ++i) largest = std::max(largest, static_cast<uint64_t>(index_[i]));
      if (first < last && largest >= static_cast<uint64_t>(segments_)) return bad.store(true);
      for (int64_t i = first; i < last; ++i) ++places[index_[i]];
    });
    return !bad;
  }
  // Writes the rows of each segment and where each segment begins. REQUIRES: count() has returned true.
  void write(int64_t* order, int64_t* starts) {
    int64_t next = 0;
    for (int64_t k = 0; k < segments_; ++k) {
      starts[k] = next;
      for (int64_t p = 0; p < pieces_; ++p)
        next += std::exchange(places_[static_cast<size_t>(p * segments_ + k)], next);
    }
    starts[segments_] = next;
    for_each_piece([&](int64_t* places, int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) order[places[index_[i]]++] = i;
    });
  }

 private:
  template <class Fn> void for_each_piece(Fn fn) {
    parallel_for(pieces_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p)
        fn(places_.data() + p * segments_, n_ * p / pieces_, n_ * (p + 1) / pieces_);
    });
  }
  const int64_t* index_;
  int64_t n_, segments_, pieces_;
  std::vector<int64_t> places_;  // by piece and segment: the number of indices, then the position of the next one
};

}  // namespace

void sort_segments_kernel(const KernelContext& context) {
  const RecorderScope run(nullptr);
  const Tensor index = context.in(0).contiguous();
  const int64_t segments = context.attrs.ints[0];
  SegmentSort sort(pointer<int64_t>(index), index.numel(), segments);
  if (!sort.count()) {
    const ops::LookupName lookup = ops::lookup_in(context.attrs.ints[1]);
    throw_bad_index(lookup.op, index, segments, lookup.at_position, context.where);
  }
  sort.write(pointer<int64_t>(context.out(0)), pointer<int64_t>(context.out(1)));
}

void sum_segments_kernel(const KernelContext& context) {
  const RecorderScope run(nullptr);
  const Tensor values = context.in(0).contiguous(), bounds = context.in(1).contiguous();
  const int64_t rows = values.sizes()[0], segments = bounds.numel() - 1;
  Dims row = values.sizes();
  row[0] = 1;
  const int64_t cols = row.numel();
  const int64_t* starts = pointer<int64_t>(bounds);
  const Tensor base = context.has(2) ? context.in(2).contiguous() : Tensor();
  if (starts[0] < 0 || starts[segments] > rows || !std::is_sorted(starts, starts + segments + 1))
    throw_op_error(context.op.name, absl::StrCat("segments must be parts of ", rows, " rows, in order"), context.where);
  visit_dtype(values.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = std::conditional_t<std::is_integral_v<T>, uint64_t, ComputeType<T>>;  // integers wrap around
    const T* const from = pointer<T>(values);
    const T* const onto = base.defined() ? pointer<T>(base) : nullptr;
    T* const to = pointer<T>(context.out());
    parallel_for(segments, std::max<int64_t>(1, kElementwiseGrain * segments / std::max<int64_t>(1, values.numel())),
                 [&](int64_t begin, int64_t end) {
                   Scratch<C> scratch(cols);
                   C* const sums = scratch.take(cols);
                   for (int64_t k = begin; k < end; ++k) {
                     std::fill_n(sums, cols, C(0));
                     for (int64_t row = starts[k]; row < starts[k + 1]; ++row)
                       for (int64_t c = 0; c < cols; ++c) sums[c] += static_cast<C>(from[row * cols + c]);
                     for (int64_t c = 0; c < cols; ++c) {
                       const T sum = static_cast<T>(sums[c]);
                       to[k * cols + c] = onto == nullptr ? sum
                                                          : static_cast<T>(static_cast<C>(onto[k * cols + c]) +
                                                                           static_cast<C>(sum));
                     }
                   }
                 });
  });
}

}  // namespace rondo::cpu
