// Steps that change something besides their result: writes in place, values that escape or are read, hooks, exceptions;
// tensors made inside.
#include <cmath>
#include <stdexcept>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {

ValueId Draft::floating() { return floating(0); }
ValueId Draft::floating(int min_rank) {
  return value([min_rank](const Tensor& t) { return is_floating(t.dtype()) && t.rank() >= min_rank; });
}
ValueId Draft::partner(ValueId id) {
  const Tensor& a = tensor(id);
  const bool other_dtype = random.chance(0.15);
  return value([&](const Tensor& t) {
    Dims ignored;
    return (other_dtype ? is_floating(t.dtype()) : t.dtype() == a.dtype()) && t.numel() * a.numel() < (1 << 20) &&
           broadcast_shapes(a.sizes(), t.sizes(), ignored);
  });
}

namespace {

using Tensors = std::vector<Tensor>;

bool pick_target(Draft& draft, Step& step) {
  step.in = {draft.floating()};
  constexpr double kScalars[] = {0.5, 2, -1, 1.1, 0};
  step.scalar = kScalars[draft.random.below(std::size(kScalars))];
  return step.in[0] != kNone;
}
// A source that broadcasts to the target.
bool pick_write(Draft& draft, Step& step) {
  if (!pick_target(draft, step)) return false;
  const Tensor target = draft.tensor(step.in[0]);
  const bool other_dtype = draft.random.chance(0.15);
  step.in.push_back(draft.value([&](const Tensor& t) {
    Dims sizes;
    return (other_dtype ? is_floating(t.dtype()) : t.dtype() == target.dtype()) &&
           broadcast_shapes(target.sizes(), t.sizes(), sizes) && sizes == target.sizes();
  }));
  return step.in[1] != kNone;
}
// x / x is 1 and has no gradient: what default mode leaves of it in 16 bits is the rounding of large terms.
bool pick_quotient(Draft& draft, Step& step) { return pick_write(draft, step) && step.in[0] != step.in[1]; }
bool pick_any(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor&) { return true; })};
  return step.in[0] != kNone;
}
bool pick_differentiable(Draft& draft, Step& step) {
  const bool leaf = draft.random.chance(0.2);
  step.in = {draft.value([leaf](const Tensor& t) { return t.requires_grad() && (leaf || !t.is_leaf()); })};
  return step.in[0] != kNone;
}
bool pick_floating(Draft& draft, Step& step) {
  step.in = {draft.floating()};
  return step.in[0] != kNone;
}
bool pick_read(Draft& draft, Step& step) {
  step.in = {draft.floating(), draft.value([](const Tensor& t) { return is_floating(t.dtype()) && t.numel() > 0; })};
  return step.in[0] != kNone && step.in[1] != kNone;
}
bool pick_throw(Draft& draft, Step& step) {
  step.ints = {draft.random.below(3)};
  return true;
}
bool pick_fresh(Draft& draft, Step& step) {
  step.in = {draft.floating()};
  if (step.in[0] == kNone) return false;
  step.sizes = draft.coded(draft.tensor(step.in[0]).sizes());
  return true;
}

bool pick_host_write(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return t.numel() > 0 && t.dtype() != kBool; })};
  if (step.in[0] == kNone) return false;
  step.ints = {draft.random.below(1 << 20), draft.random.below(2)};  // an index stays one
  return true;
}
// Writes one element through a pointer.
void host_write(Tensor target, int64_t element, double value) {
  if (target.numel() == 0) return;
  element %= target.numel();
  int64_t offset = 0;
  for (int d = target.rank(); d-- > 0;) {
    offset += element % target.size(d) * target.strides()[d];
    element /= target.size(d);
  }
  visit_dtype(target.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    static_cast<T*>(target.raw_mutable_data())[offset] = static_cast<T>(static_cast<float>(value));
  });
}
bool pick_backward(Draft& draft, Step& step) {
  step.in = {draft.value([](const Tensor& t) { return t.requires_grad() && !t.is_leaf() && t.numel() > 0; })};
  return step.in[0] != kNone;
}
// A result, and something that it may depend on.
bool pick_grad(Draft& draft, Step& step) {
  if (!pick_backward(draft, step)) return false;
  step.in.push_back(draft.value([](const Tensor& t) { return t.requires_grad() && t.numel() > 0; }));
  step.ints = {draft.random.below(2)};
  return step.in[1] != kNone;
}

double moderate(double value) { return std::isfinite(value) ? value / (1 + std::abs(value)) : 1.0; }

const StepKind kKinds[] = {
    {"add_", 3, &pick_write,
     [](Scene& s) {
       s.in[0].add_(s.in[1]);
       return Tensors{};
     },
     kEffect | kInPlace},
    {"sub_", 1, &pick_write,
     [](Scene& s) {
       s.in[0].sub_(s.in[1]);
       return Tensors{};
     },
     kEffect | kInPlace},
    {"mul_", 2, &pick_write,
     [](Scene& s) {
       s.in[0].mul_(s.in[1]);
       return Tensors{};
     },
     kEffect | kInPlace},
    {"div_", 1, &pick_quotient,
     [](Scene& s) {
       s.in[0].div_(s.in[1]);
       return Tensors{};
     },
     kEffect | kInPlace},
    {"copy_", 3, &pick_write,
     [](Scene& s) {
       s.in[0].copy_(s.in[1]);
       return Tensors{};
     },
     kEffect | kInPlace},
    {"add_scalar_", 2, &pick_target,
     [](Scene& s) {
       s.in[0].add_(s.step.scalar);
       return Tensors{};
     },
     kEffect | kScalar | kInPlace},
    {"mul_scalar_", 2, &pick_target,
     [](Scene& s) {
       s.in[0].mul_(s.step.scalar);
       return Tensors{};
     },
     kEffect | kScalar | kInPlace},
    {"fill_", 1, &pick_target,
     [](Scene& s) {
       s.in[0].fill_(s.step.scalar);
       return Tensors{};
     },
     kEffect | kScalar | kInPlace},
    {"host_write", 4, &pick_host_write,
     [](Scene& s) {
       host_write(s.in[0], s.n(0), static_cast<double>(s.n(1)));
       return Tensors{};
     },
     kEffect | kInPlace | kHost},
    {"backward_inside", 1, &pick_backward,
     [](Scene& s) {
       if (s.in[0].requires_grad() && grad_enabled())
         ops::sum(ops::tanh(s.in[0])).backward(Tensor(), /*retain_graph=*/true);
       return Tensors{};
     },
     kEffect | kTape},
    {"grad_inside", 2, &pick_grad,
     [](Scene& s) {
       if (!s.in[0].requires_grad() || !s.in[1].requires_grad() || !grad_enabled()) return Tensors{s.in[1] * 0.5};
       const Tensor roots[] = {ops::sum(ops::tanh(s.in[0]))}, inputs[] = {s.in[1]};
       const Tensor grad = autograd::grad(roots, inputs, {}, true, s.n(0) == 1, true)[0];
       return Tensors{grad.defined() ? grad * 0.5 : s.in[1] * 0.5};
     },
     kEffect | kTape},
    {"keep", 2, &pick_any,
     [](Scene& s) {
       s.kept.push_back(s.in[0]);
       return Tensors{};
     },
     kEffect},
    {"hook", 2, &pick_differentiable,
     [](Scene& s) {
       if (s.in[0].requires_grad())
         s.in[0].register_hook([&calls = s.hook_calls](const Tensor& g) {
           ++calls;
           return g * 0.5;
         });
       return Tensors{};
     },
     kEffect | kTape},
    {"retain_grad", 2, &pick_differentiable,
     [](Scene& s) {
       if (s.in[0].requires_grad()) {
         s.in[0].retain_grad();
         s.retained.push_back(s.in[0]);
       }
       return Tensors{};
     },
     kEffect | kTape},
    {"scale_by_item", 2, &pick_read,
     [](Scene& s) { return Tensors{s.in[0] * (1.5 + moderate(ops::sum(s.in[1]).item()))}; }, kHost},
    {"branch_on_item", 3, &pick_read,
     [](Scene& s) { return Tensors{ops::max(s.in[1]).item() > 0.5 ? ops::tanh(s.in[0]) : ops::sigmoid(s.in[0])}; },
     kHost},
    {"add_first_element", 2, &pick_read,
     [](Scene& s) {
       const std::vector<double> values = s.in[1].to_vector<double>();
       return Tensors{s.in[0] + (values.empty() ? 1.0 : moderate(values[0]))};
     },
     kReads | kHost},
    {"throw", 1, &pick_throw,
     [](Scene& s) {
       if (s.counter % 3 == s.n(0)) throw std::runtime_error("thrown in forward");
       return Tensors{};
     },
     kEffect},
    {"leaf_made_inside", 1, &pick_floating,
     [](Scene& s) {
       Tensor leaf = s.in[0].detach() * 1.5;
       leaf.requires_grad_();
       s.retained.push_back(leaf);
       return Tensors{leaf};
     },
     kEffect | kTape | kHost},
    {"zeros", 1, &pick_fresh, [](Scene& s) { return Tensors{Tensor::zeros(s.sizes(), {s.in[0].dtype()})}; }, kSizes},
    {"randn", 1, &pick_fresh, [](Scene& s) { return Tensors{Tensor::randn(s.sizes(), {s.in[0].dtype()})}; }, kSizes},
};

}  // namespace

std::span<const StepKind> effect_steps() { return kKinds; }

std::vector<const StepKind*> all_steps() {
  std::vector<const StepKind*> all;
  for (auto family : {pointwise_steps(), shape_steps(), layer_steps(), index_steps(), loop_steps(), write_steps(),
                      node_steps(), effect_steps()})
    for (const StepKind& kind : family) all.push_back(&kind);
  return all;
}

}  // namespace rondo::fuzz
