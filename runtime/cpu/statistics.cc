// Variance, mean and standard deviation, with the same bits as their decompositions (ops/statistics.cc). After the mean
// of a row or block of columns is known, the squared deviations of the same elements are summed while the elements are
// still in a cache. So x is read from memory only once.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/column_reduce.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/reduction_def.h"

namespace rondo::cpu {
namespace {

// The layout of the elements of one result in x. By rows, x is (parts, results, length): a result has `parts` rows of
// `length` adjacent elements. By columns, x is (outer, length, width): the elements of a result are `width` apart.
struct Layout {
  bool by_columns = false;
  int64_t parts = 1, results = 1, length = 1;
  int64_t outer = 1, width = 1;
};

// Returns nullopt if the reduction has another layout, or too few results for all threads.
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

// Out: the type of the results.
template <class T, class Out> class Variance {
 public:
  using C = ComputeType<T>;
  // If `mean` is null, the result is the standard deviation, else the variance.
  Variance(const Layout& layout, const T* x, Out* out, Out* mean, double n, double share)
      : layout_(layout),
        x_(x),
        out_(out),
        mean_(mean),
        inverse_(static_cast<C>(1.0 / n)),
        share_(static_cast<C>(share)) {}

  void run() const {
    const int64_t work = layout_.by_columns ? layout_.length * kColumnBlock : layout_.parts * layout_.length;
    parallel_for(layout_.results, std::max<int64_t>(1, kElementwiseGrain / work), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) layout_.by_columns ? block_of_columns(k) : rows_of(k);
    });
  }

 private:
  static C square(C d) { return d * d; }
  void write(int64_t at, C mean, C squares) const {
    const C variance = squares * share_;
    out_[at] = static_cast<Out>(mean_ == nullptr ? std::sqrt(variance) : variance);
    if (mean_ != nullptr) mean_[at] = static_cast<Out>(mean);
  }

  struct Row {
    C sum, mean, squares;
  };
  Row row_of(int64_t part, int64_t k, C inverse) const {
    const T* const row = x_ + (part * layout_.results + k) * layout_.length;
    const auto at = [row](int64_t i) { return static_cast<C>(row[i]); };
    const C sum = sum_row<C>(layout_.length, at), mean = sum * inverse;
    return {sum, mean, sum_row<C>(layout_.length, [&](int64_t i) { return square(at(i) - mean); })};
  }
  // Computes result k. The rows of its parts are summed in row order, and then the parts in column order: Note
  // [Moments] in ops/statistics.cc.
  void rows_of(int64_t k) const {
    const int64_t parts = layout_.parts;
    if (parts == 1) {
      const Row row = row_of(0, k, inverse_);
      return write(k, row.mean, row.squares);
    }
    const C inverse = static_cast<C>(1.0 / static_cast<double>(layout_.length)), n = static_cast<C>(layout_.length);
    Scratch<C> scratch(3 * parts);
    C *const sums = scratch.take(parts), *const means = scratch.take(parts), *const squares = scratch.take(parts);
    for (int64_t part = 0; part < parts; ++part) {
      const Row row = row_of(part, k, inverse);
      sums[part] = row.sum;
      means[part] = row.mean;
      squares[part] = row.squares;
    }
    C mean, total;
    sum_columns<C>(
        parts, 1, [sums](int64_t part, int64_t) { return sums[part]; }, &mean);
    mean = mean * inverse_;
    sum_columns<C>(
        parts, 1, [=](int64_t part, int64_t) { return squares[part] + square(means[part] - mean) * n; }, &total);
    write(k, mean, total);
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
    for (int64_t c = 0; c < count; ++c) write(k / blocks * step + first + c, means[c], squares[c]);
  }

  const Layout layout_;
  const T* x_;
  Out *out_, *mean_;
  const C inverse_, share_;
};

void run_variance(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const int64_t mask = context.attrs.ints[0];
  const Tensor x = context.in(0).contiguous();
  const std::optional<Layout> layout = layout_of(x.sizes(), mask, context.attrs.ints[1] != 0);
  if (!layout) {
    std::array<Tensor, 2> made;
    context.op.decompose(std::array{x}, context.attrs, std::span(made).first(context.outputs.size()));
    for (size_t i = 0; i < context.outputs.size(); ++i) context.outputs[i].copy_(made[i]);
    return;
  }
  const auto n = static_cast<double>(ops::reduced_numel(x.sizes(), mask));
  const double share = 1.0 / std::max(0.0, n - static_cast<double>(context.attrs.floats[0]));
  visit_floating(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto run = [&]<class Out>(TypeTag<Out>) {
      Out* const mean = context.outputs.size() > 1 ? pointer<Out>(context.out(1)) : nullptr;
      Variance<T, Out>(*layout, pointer<T>(x), pointer<Out>(context.out()), mean, n, share).run();
    };
    if (context.out().dtype() == x.dtype()) run(TypeTag<T>{});
    else run(TypeTag<ComputeType<T>>{});
  });
}

}  // namespace

void var_mean_kernel(const KernelContext& context) { run_variance(context); }
void std_kernel(const KernelContext& context) { run_variance(context); }

}  // namespace rondo::cpu
