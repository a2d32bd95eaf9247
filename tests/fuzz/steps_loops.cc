// Steps that are loops over time: x[:, t] for every t, unrolled by C++, with a state that goes from step to step.
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

using Tensors = std::vector<Tensor>;

constexpr int64_t kMostSteps = 80;

// ints: {dim, cell}
bool pick_scan(Draft& draft, Step& step) {
  step.in = {draft.value(
      [](const Tensor& t) { return is_floating(t.dtype()) && t.rank() >= 2 && t.rank() <= 4 && t.numel() > 0; })};
  if (step.in[0] == kNone) return false;
  const Tensor& x = draft.tensor(step.in[0]);
  step.ints = {draft.random.below(x.rank()), draft.random.below(5)};
  step.scalar = draft.random.pick<double>({0.5, -0.7, 1});
  return x.size(step.ints[0]) <= kMostSteps;
}
// As pick_scan, with weights of a cell that mixes the last dimension, which is not time's.
bool pick_cell(Draft& draft, Step& step) {
  if (!pick_scan(draft, step)) return false;
  const Tensor x = draft.tensor(step.in[0]);
  const int64_t width = draft.coded(x.sizes()).back();
  if (step.ints[0] == x.rank() - 1 || width <= 0 || width > 17) return false;
  for (int i = 0; i < 2; ++i) step.in.push_back(draft.leaf(x.dtype(), {width, width}, true));
  return true;
}

// h after the step, of x there. `cell` chooses the formula.
Tensor cell(const Tensor& x, const Tensor& h, int64_t cell, double k) {
  switch (cell) {
    case 0: return ops::tanh(x * 0.5 + h * k);
    case 1: {
      const Tensor gate = ops::sigmoid(x + h);
      return gate * h + (1.0 - gate) * ops::tanh(x * k);
    }
    case 2: return ops::maximum(h * k, x);
    case 3: return h * k + x * (1 - k);
    default: return ops::where(ops::less(x, h), h * 0.9, x * k);
  }
}

Tensors scan(const Scene& s, const std::function<Tensor(const Tensor&, const Tensor&)>& next) {
  const Tensor& x = s.in[0];
  const int64_t dim = s.n(0), steps = std::min(x.size(dim), kMostSteps);
  if (steps == 0) return {x * 1.0, x * 2.0};
  Tensor h = x.select(dim, 0) * 0.0;
  Tensors all;
  for (int64_t t = 0; t < steps; ++t) {
    h = next(x.select(dim, t), h);
    all.push_back(h);
  }
  return {ops::stack(all, dim), h};
}

const StepKind kKinds[] = {
    {"scan", 5, &pick_scan,
     [](Scene& s) {
       return scan(s, [&](const Tensor& x, const Tensor& h) { return cell(x, h, s.n(1), s.step.scalar); });
     },
     kScalar},
    {"recurrent_cell", 4, &pick_cell,
     [](Scene& s) {
       return scan(s, [&](const Tensor& x, const Tensor& h) {
         return cell(ops::linear(x, s.in[1], {}) * 0.25, ops::linear(h, s.in[2], {}) * 0.25, s.n(1), s.step.scalar);
       });
     },
     kScalar | kMerges},
    // Slices of one element, from the end, and a sum in place of them.
    {"backward_scan", 3, &pick_scan,
     [](Scene& s) {
       const Tensor& x = s.in[0];
       const int64_t dim = s.n(0), steps = std::min(x.size(dim), kMostSteps);
       if (steps == 0) return Tensors{x * 1.0};
       Tensor sum = x.slice(dim, {steps - 1, steps}) * 0.5;
       for (int64_t t = steps - 1; t-- > 0;) sum = sum * s.step.scalar + x.slice(dim, {t, t + 1});
       return Tensors{sum};
     },
     kScalar},
    {"accumulate_in_place", 2, &pick_scan,
     [](Scene& s) {
       const Tensor& x = s.in[0];
       const int64_t dim = s.n(0), steps = std::min(x.size(dim), kMostSteps);
       if (steps == 0) return Tensors{x * 1.0};
       Tensor sum = x.select(dim, 0) * 0.5;
       for (int64_t t = 1; t < steps; ++t) sum.mul_(s.step.scalar).add_(x.select(dim, t));
       return Tensors{sum};
     },
     kScalar | kOwnMemory},
};

}  // namespace

std::span<const StepKind> loop_steps() { return kKinds; }

}  // namespace rondo::fuzz
