// Reductions over sets of dimensions. Attributes of every op of kind kReduction: ints = {mask of reduced dims,
// keepdim}.
#include <algorithm>

#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

Dims reduced_sizes(const Dims& sizes, int64_t mask, bool keepdim) {
  Dims kept;
  for (int i = 0; i < sizes.rank(); ++i) {
    if ((mask >> i & 1) == 0) kept.push_back(sizes[i]);
    else if (keepdim) kept.push_back(1);
  }
  return kept;
}

void reduction_infer(InferContext& c) {
  c.output(0, c.dtype(0), reduced_sizes(c.sizes(0), c.integer(0), c.integer(1) != 0));
}

Dims kept_sizes(const Dims& sizes, int64_t mask) {
  Dims kept = sizes;
  for (int i = 0; i < sizes.rank(); ++i)
    if (mask >> i & 1) kept[i] = 1;
  return kept;
}

Attrs reduction_attrs(const char* op, TensorArg x, const Dims& dims, bool keepdim) {
  require_defined(op, x);
  const int rank = x.tensor.rank();
  int64_t mask = 0;
  for (int64_t d : dims) {
    const int dim = normalize_dim(op, d, x.tensor.sizes(), x.where);
    const int64_t bit = rank > 0 ? int64_t{1} << dim : 0;
    if ((mask & bit) != 0)
      throw_op_error(op, "dimension " + std::to_string(d) + " is given twice for " + to_string(x.tensor.sizes()),
                     x.where);
    mask |= bit;
  }
  if (dims.empty()) mask = (int64_t{1} << rank) - 1;
  return {.ints = {mask, keepdim}};
}

int64_t reduced_numel(const Dims& sizes, int64_t mask) {
  int64_t n = 1;
  for (int i = 0; i < sizes.rank(); ++i)
    if (mask >> i & 1) n *= sizes[i];
  return n;
}

bool reduces_rows_first(const Dims& sizes, const Attrs& attrs) {
  return is_full_reduction(attrs.ints[0], attrs.ints[1] != 0, sizes.rank()) &&
         full_row(sizes.numel(), sizes.back()) > 0;
}

ReducedRun last_run(const Dims& sizes, int64_t mask) {
  ReducedRun run;
  int d = sizes.rank() - 1;
  const auto reduces = [&](int i) { return (mask >> i & 1) != 0; };
  bool keeps_behind = false;
  for (; d >= 0 && (!reduces(d) || sizes[d] == 1); --d) {
    run.inner *= sizes[d];
    keeps_behind = keeps_behind || !reduces(d);
  }
  for (; d >= 0 && (reduces(d) || sizes[d] == 1); --d) {
    run.reduced *= sizes[d];
    if (reduces(d)) run.mask |= int64_t{1} << d;
  }
  for (; d >= 0; --d) {
    run.outer *= sizes[d];
    run.is_all = run.is_all && (!reduces(d) || sizes[d] == 1);
  }
  // Only dimensions of size 1 are reduced: the rows have one element.
  if (run.mask == 0) std::swap(run.outer, run.inner);
  else run.by_columns = run.inner > 1 || (run.outer == 1 && keeps_behind);
  return run;
}

namespace {

// Reduces x by several calls of `op`: one for each run (Note [Runs]), or one for the rows and one for their results
// (Note [Full order]). `types`: the dtypes of accumulators and of the result, for an op whose attributes name a dtype.
struct SumTypes {
  DType accumulator, result;
};
Tensor reduce_by_runs(const OpDef& op, Tensor x, const Attrs& attrs, std::optional<SumTypes> types) {
  int64_t mask = attrs.ints[0];
  const Dims sizes = x.sizes();
  if (reduces_rows_first(sizes, attrs)) {
    Attrs rows{.ints = {int64_t{1} << (sizes.rank() - 1), 0}};
    if (types) rows.ints.push_back(static_cast<int64_t>(types->accumulator));
    x = call(op, {x}, rows);
    Attrs rest{.ints = {1, 0}};
    if (types) rest.ints.push_back(static_cast<int64_t>(types->result));
    return call(op, {reshape(x, {x.numel()})}, rest);
  }
  for (;;) {
    const ReducedRun run = last_run(x.sizes(), mask);
    if (run.is_all) break;
    Attrs one{.ints = {run.mask, 1}};
    if (types) one.ints.push_back(static_cast<int64_t>(types->accumulator));
    x = call(op, {x}, one);
    mask &= ~run.mask;
  }
  Attrs last{.ints = {mask, mask == attrs.ints[0] ? attrs.ints[1] : 1}};
  if (types) last.ints.push_back(static_cast<int64_t>(types->result));
  return reshape(call(op, {x}, last), reduced_sizes(sizes, attrs.ints[0], attrs.ints[1] != 0));
}
// Returns the dtype of a sum's accumulators: for floats their compute dtype, for integers and bools i64.
DType sum_accumulator(DType dtype) { return is_floating(dtype) ? compute_dtype(dtype) : kI64; }
DType sum_dtype(DType dtype, const Attrs& attrs) {
  if (attrs.ints.size() > 2) return static_cast<DType>(attrs.ints[2]);
  return is_floating(dtype) ? dtype : kI64;
}

}  // namespace

// ints: {mask, keepdim} or {mask, keepdim, dtype of the result}. Without a dtype, floats keep theirs, and integers and
// bools add up in i64.
constexpr OpDef kSum = {
    .name = "sum",
    .kind = OpKind::kReduction,
    .amp = AmpPolicy::kFloat32,
    .infer =
        [](InferContext& c) {
          reduction_infer(c);
          c.output(0, sum_dtype(c.dtype(0), c.attrs()), Dims(c.outputs()[0].sizes));
        },
    .host = {&cpu::sum_kernel},
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const DType dtype = in[0].dtype();
          out[0] = reduce_by_runs(kSum, in[0], attrs, SumTypes{sum_accumulator(dtype), sum_dtype(dtype, attrs)});
        },
    .grad =
        [](const GradContext& g) {
          const Tensor kept = reshape(g.grad_out(), kept_sizes(g.input_sizes(0), g.integer(0)));
          g.set(0, expand(kept.to(g.input_dtype(0)), g.input_sizes(0)));
        },
    .lower =
        [](LoopBuilder& b) {
          LoopValue x = b.input(0);
          if (!is_floating(x.type)) x = b.emit(LoopOp::kCast, kI64, x);
          b.output(0, b.reduce(LoopOp::kReduceSum, x));
        },
    .trait = trait::Fold{.additive = true},
};

namespace {

// The gradient rule of max and min: equal maxima (minima) share the gradient evenly.
void extremum_grad(const GradContext& g) {
  const Dims kept = kept_sizes(g.input_sizes(0), g.integer(0));
  const Tensor hit = cast(equal(g.input(0), reshape(g.output(0), kept)), g.input_dtype(0));
  // Counts in the compute dtype: 16-bit floats are exact only for small counts.
  const DType compute = compute_dtype(g.input_dtype(0));
  const Tensor count = call(kSum, {hit}, {.ints = {g.integer(0), 1, static_cast<int64_t>(compute)}});
  g.set(0, hit * (reshape(g.grad_out(), kept) / count).to(g.input_dtype(0)));
}

}  // namespace

constexpr OpDef kMax = {
    .name = "max",
    .kind = OpKind::kReduction,
    .saved = {.inputs = kFirst, .outputs = kFirst},
    .infer = &reduction_infer,
    .host = {&cpu::max_kernel},
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = reduce_by_runs(kMax, in[0], attrs, std::nullopt); },
    .grad = &extremum_grad,
    .lower = [](LoopBuilder& b) { b.output(0, b.reduce(LoopOp::kReduceMax, b.input(0))); },
    .trait = trait::Fold{},
};

constexpr OpDef kMin = {
    .name = "min",
    .kind = OpKind::kReduction,
    .saved = {.inputs = kFirst, .outputs = kFirst},
    .infer = &reduction_infer,
    .host = {&cpu::min_kernel},
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = reduce_by_runs(kMin, in[0], attrs, std::nullopt); },
    .grad = &extremum_grad,
    .lower = [](LoopBuilder& b) { b.output(0, b.reduce(LoopOp::kReduceMin, b.input(0))); },
    .trait = trait::Fold{},
};

Tensor sum(TensorArg x, const ReduceDims& dims, bool keepdim) {
  return call(kSum, {x}, reduction_attrs("sum", x, dims, keepdim));
}

Tensor mean(TensorArg x, const ReduceDims& dims, bool keepdim) {
  const FloatingPointScope floating_point;
  const Attrs attrs = reduction_attrs("mean", x, dims, keepdim);
  const int64_t n = reduced_numel(x.tensor.sizes(), attrs.ints[0]);
  const DType dtype = x.tensor.dtype();
  if (!is_floating(dtype)) throw_op_error("mean", "needs a floating-point tensor; cast it first", x.where);
  const double share = 1.0 / static_cast<double>(n);
  if (!is_low_precision(dtype) || amp::autocast_dtype()) return mul({call(kSum, {x}, attrs), x.where}, share);
  // The sum of 16-bit floats may overflow their dtype even if the mean does not.
  Attrs wide = attrs;
  wide.ints.push_back(static_cast<int64_t>(compute_dtype(dtype)));
  return mul({call(kSum, {x}, wide), x.where}, share).to(dtype, x.where);
}

namespace {

Tensor extremum(const OpDef& op, TensorArg x, const Dims& dims, bool keepdim) {
  const Attrs attrs = reduction_attrs(op.name, x, dims, keepdim);
  for (int i = 0; i < x.tensor.rank(); ++i)
    if ((attrs.ints[0] >> i & 1) != 0 && x.tensor.sizes()[i] == 0)
      throw_op_error(op.name, "input has no elements (shape " + to_string(x.tensor.sizes()) + ")", x.where);
  return call(op, {x}, attrs);
}

}  // namespace

Tensor max(TensorArg x, const ReduceDims& dims, bool keepdim) { return extremum(kMax, x, dims, keepdim); }
Tensor min(TensorArg x, const ReduceDims& dims, bool keepdim) { return extremum(kMin, x, dims, keepdim); }

Tensor sum_to(TensorArg x, const Dims& sizes) {
  require_defined("sum_to", x);
  const Dims& from = x.tensor.sizes();
  if (from == sizes) return x.tensor;
  const int lead = from.rank() - sizes.rank();
  int64_t mask = 0;
  for (int i = 0; i < from.rank(); ++i)
    if (i < lead || (sizes[i - lead] == 1 && from[i] != 1)) mask |= int64_t{1} << i;
  const Tensor reduced = mask == 0 ? x.tensor : call(kSum, {x}, {.ints = {mask, 0}});
  return reshape({reduced, x.where}, sizes);
}

constexpr OpList kReductionOps = {&kSum, &kMax, &kMin};

}  // namespace rondo::ops

namespace rondo {

void GradContext::set_reduced(int i, Tensor grad) const {
  grad = ops::sum_to(grad, input_sizes(i));
  set(i, grad.dtype() == input_dtype(i) ? std::move(grad) : grad.to(input_dtype(i)));
}

}  // namespace rondo
