// Reductions over sets of dimensions. Attributes of every op of kind kReduction: ints = {mask of reduced dims,
// keepdim}.
#include "rondo/runtime/cpu/reduction.h"

#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/recorder.h"

namespace rondo::ops {
void reduction_infer(InferContext& c) {
  Dims sizes;
  for (int i = 0; i < c.sizes(0).rank(); ++i) {
    if ((c.integer(0) >> i & 1) == 0) sizes.push_back(c.sizes(0)[i]);
    else if (c.integer(1)) sizes.push_back(1);
  }
  c.output(0, c.dtype(0), sizes);
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
    if (rank > 0) mask |= int64_t{1} << dim;
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

void decomposed_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  std::vector<Tensor> inputs, outputs(context.outputs.size());
  for (const Tensor* input : context.inputs) inputs.push_back(*input);
  context.op.decompose(inputs, context.attrs, outputs);
  for (size_t i = 0; i < outputs.size(); ++i) context.outputs[i].copy_(outputs[i]);
}

constexpr OpDef kSum = {
    .name = "sum",
    .kind = OpKind::kReduction,
    .amp = AmpPolicy::kFloat32,
    .infer = &reduction_infer,
    .kernel = {&cpu::sum_kernel},
    .grad =
        [](const GradContext& g) {
          const Tensor kept = reshape(g.grad_out(), kept_sizes(g.input_sizes(0), g.integer(0)));
          g.set(0, expand(kept, g.input_sizes(0)));
        },
    .lower = [](LoopBuilder& b) { b.output(0, b.reduce(LoopOp::kReduceSum, b.input(0))); },
    .additive = true,
};

namespace {

// Equal maxima (minima) share the gradient evenly.
void extremum_grad(const GradContext& g) {
  const Dims kept = kept_sizes(g.input_sizes(0), g.integer(0));
  const Tensor hit = cast(equal(g.input(0), reshape(g.output(0), kept)), g.input_dtype(0));
  const Tensor count = call(kSum, {hit}, {.ints = {g.integer(0), 1}});
  g.set(0, hit * (reshape(g.grad_out(), kept) / count));
}

}  // namespace

constexpr OpDef kMax = {
    .name = "max",
    .kind = OpKind::kReduction,
    .saved = {.inputs = kFirst, .outputs = kFirst},
    .infer = &reduction_infer,
    .kernel = {&cpu::max_kernel},
    .grad = &extremum_grad,
    .lower = [](LoopBuilder& b) { b.output(0, b.reduce(LoopOp::kReduceMax, b.input(0))); },
};

// As max of -x, negated.
constexpr OpDef kMin = {
    .name = "min",
    .kind = OpKind::kReduction,
    .saved = {.inputs = kFirst, .outputs = kFirst},
    .infer = &reduction_infer,
    .kernel = {&cpu::min_kernel},
    .grad = &extremum_grad,
    .lower = [](LoopBuilder& b) { b.output(0, -b.reduce(LoopOp::kReduceMax, -b.input(0))); },
};

Tensor sum(TensorArg x, const ReduceDims& dims, bool keepdim) {
  return call(kSum, {x}, reduction_attrs("sum", x, dims, keepdim));
}

Tensor mean(TensorArg x, const ReduceDims& dims, bool keepdim) {
  const Attrs attrs = reduction_attrs("mean", x, dims, keepdim);
  const int64_t n = reduced_numel(x.tensor.sizes(), attrs.ints[0]);
  if (!is_floating(x.tensor.dtype())) throw_op_error("mean", "needs a floating-point tensor; cast it first", x.where);
  return mul({call(kSum, {x}, attrs), x.where}, 1.0 / static_cast<double>(n));
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

}  // namespace rondo::ops
