// Variance and standard deviation, in the bits of their decompositions (ops/statistics.cc). A mean is followed by the
// squares of the same elements, which are then still in a cache: memory is read once.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "rondo/runtime/autograd.h"
#include "rondo/runtime/cpu/column_reduce.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cpu {
namespace {

// How the elements of one result lie in x: a result k of (parts, results, length) is made of `parts` rows of `length`
// neighbours, a column of (outer, length, width) of elements that are `width` apart.
struct Layout {
  bool by_columns = false;
  int64_t parts = 1, results = 1, length = 1;
  int64_t outer = 1, width = 1;
};

// Nothing: the reduction is of another kind, or has too few results for all threads.
std::optional<Layout> layout_of(const Dims& sizes, int64_t mask, bool keepdim) {
  if (sizes.numel() == 0 || is_full_reduction(mask, keepdim, sizes.rank())) return std::nullopt;
  const ops::ReducedRun run = ops::last_run(sizes, mask);
  Layout layout{.by_columns = run.by_columns, .results = run.outer, .length = run.reduced};
  if (run.by_columns) {
    if (!run.is_all) return std::nullopt;
    layout.outer = run.outer;
    layout.width = run.inner;
    layout.results = run.outer * ((run.inner + kColumnBlock - 1) / kColumnBlock);
  } else if (!run.is_all) {
    const ops::ReducedRun before = ops::last_run(ops::kept_sizes(sizes, run.mask), mask & ~run.mask);
    if (!before.is_all || !before.by_columns || before.outer != 1) return std::nullopt;
    layout.parts = before.reduced;
    layout.results = before.inner;
  }
  return layout.results < 2 * num_threads() ? std::nullopt : std::optional(layout);
}

template <class T> class Variance {
 public:
  using C = ComputeType<T>;
  Variance(const Layout& layout, const T* x, T* out, double inverse, double share, bool is_root)
      : layout_(layout),
        x_(x),
        out_(out),
        inverse_(static_cast<C>(inverse)),
        share_(static_cast<C>(share)),
        is_root_(is_root) {}

  void run() const {
    const int64_t work = layout_.by_columns ? layout_.length * kColumnBlock : layout_.parts * layout_.length;
    parallel_for(layout_.results, std::max<int64_t>(1, kElementwiseGrain / work), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) layout_.by_columns ? block_of_columns(k) : rows_of(k);
    });
  }

 private:
  static C square(C d) { return d * d; }
  void write(int64_t at, C squares) const {
    const C variance = squares * share_;
    out_[at] = static_cast<T>(is_root_ ? std::sqrt(variance) : variance);
  }

  // The sum over all rows of result k: each in row order, then these in column order.
  template <class Value> C sum_of_rows(int64_t k, Value value) const {
    const auto row_sum = [&](int64_t part) {
      const T* const row = x_ + (part * layout_.results + k) * layout_.length;
      return sum_row<C>(layout_.length, [&](int64_t i) { return value(static_cast<C>(row[i])); });
    };
    if (layout_.parts == 1) return row_sum(0);
    C total;
    sum_columns<C>(
        layout_.parts, 1, [&](int64_t part, int64_t) { return row_sum(part); }, &total);
    return total;
  }
  void rows_of(int64_t k) const {
    const C mean = sum_of_rows(k, [](C v) { return v; }) * inverse_;
    write(k, sum_of_rows(k, [mean](C v) { return square(v - mean); }));
  }
  void block_of_columns(int64_t k) const {
    const int64_t blocks = layout_.results / layout_.outer, first = k % blocks * kColumnBlock, step = layout_.width,
                  count = std::min(kColumnBlock, step - first);
    const T* const from = x_ + k / blocks * layout_.length * step + first;
    const auto at = [=](int64_t r, int64_t c) { return static_cast<C>(from[r * step + c]); };
    C means[kColumnBlock], squares[kColumnBlock];
    sum_columns<C>(layout_.length, count, at, means);
    for (int64_t c = 0; c < count; ++c) means[c] = means[c] * inverse_;
    sum_columns<C>(
        layout_.length, count, [&](int64_t r, int64_t c) { return square(at(r, c) - means[c]); }, squares);
    for (int64_t c = 0; c < count; ++c) write(k / blocks * step + first + c, squares[c]);
  }

  const Layout layout_;
  const T* x_;
  T* out_;
  const C inverse_, share_;
  const bool is_root_;
};

void run_variance(const KernelContext& context, bool is_root) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const int64_t mask = context.attrs.ints[0];
  const Tensor x = context.in(0).contiguous();
  const std::optional<Layout> layout = layout_of(x.sizes(), mask, context.attrs.ints[1] != 0);
  if (!layout) {
    Tensor made;
    context.op.decompose(std::array{x}, context.attrs, {&made, 1});
    context.out().copy_(made);
    return;
  }
  const auto n = static_cast<double>(ops::reduced_numel(x.sizes(), mask));
  const double share = 1.0 / std::max(0.0, n - static_cast<double>(context.attrs.floats[0]));
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    Variance<T>(*layout, pointer<T>(x), pointer<T>(context.out()), 1.0 / n, share, is_root).run();
  });
}

}  // namespace

void var_kernel(const KernelContext& context) { run_variance(context, false); }
void std_kernel(const KernelContext& context) { run_variance(context, true); }

}  // namespace rondo::cpu
