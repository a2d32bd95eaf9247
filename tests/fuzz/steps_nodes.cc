// Tape nodes of a program's own: formulas with a gradient written by hand. A region breaks at each, and keeps the
// gradient.
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

using Tensors = std::vector<Tensor>;

bool is_watched(const Tensor& x) { return grad_enabled() && x.requires_grad(); }

// The gradient of each edge is `factor` times the sum of what arrives.
class Times final : public Node {
 public:
  explicit Times(double factor) : factor_(factor) {}
  const char* name() const override { return "own times"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    Tensor sum;
    for (const Tensor& g : grads_out)
      if (g.defined()) sum = sum.defined() ? sum + g : g;
    for (Tensor& grad : grads_in) grad = sum * factor_;
  }

 private:
  const double factor_;
};

// a b, which saves both operands; its gradient has a gradient.
class Product final : public Node {
 public:
  Product(const Tensor& a, const Tensor& b) : a_(a, false), b_(b, false) {
    for (const Tensor* x : {&a, &b}) edges.push_back(autograd::gradient_edge(*x));
  }
  const char* name() const override { return "own product"; }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    if (edges[0].node) grads_in[0] = grads_out[0] * b_.get("own product", {});
    if (edges[1].node) grads_in[1] = grads_out[0] * a_.get("own product", {});
  }
  void release_saved() override { a_ = b_ = SavedTensor(); }

 private:
  SavedTensor a_, b_;
};

// tanh(x), which saves its result.
class Tanh final : public Node {
 public:
  const char* name() const override { return "own tanh"; }
  void save(const Tensor& y) { y_ = SavedTensor(y, true); }
  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    const Tensor& y = y_.get("own tanh", {});
    grads_in[0] = grads_out[0] * (1.0 - y * y);
  }
  void release_saved() override { y_ = SavedTensor(); }

 private:
  SavedTensor y_;
};

bool pick_operand(Draft& draft, Step& step) {
  step.in = {draft.floating()};
  step.scalar = draft.random.pick<double>({0.5, -1.25, 3});
  step.ints = {draft.random.below(2)};
  return step.in[0] != kNone;
}
bool pick_pair(Draft& draft, Step& step) {
  if (!pick_operand(draft, step)) return false;
  const Tensor first = draft.tensor(step.in[0]);
  step.in.push_back(
      draft.value([&](const Tensor& t) { return t.dtype() == first.dtype() && t.sizes() == first.sizes(); }));
  return true;
}

const StepKind kKinds[] = {
    // The node is made before the values, or after them: what is recorded up to there runs first.
    {"own_times", 1, &pick_operand,
     [](Scene& s) {
       const Tensor& x = s.in[0];
       const auto value = [&] { return no_grad([&] { return x * 1.5; }); };
       if (!is_watched(x)) return Tensors{value()};
       Tensor y = s.n(0) == 0 ? value() : Tensor();
       const auto node = std::make_shared<Times>(s.step.scalar);
       node->edges.push_back(autograd::gradient_edge(x));
       if (!y.defined()) y = value();
       autograd::set_history(y, node, 0);
       return Tensors{y};
     },
     kScalar | kOwnNode},
    {"own_product", 1, &pick_pair,
     [](Scene& s) {
       const Tensor &a = s.in[0], &b = s.in[1];
       Tensor y = no_grad([&] { return a * b; });
       if (is_watched(a) || is_watched(b)) autograd::set_history(y, std::make_shared<Product>(a, b), 0);
       return Tensors{y};
     },
     kScalar | kOwnNode},
    {"own_tanh", 1, &pick_operand,
     [](Scene& s) {
       Tensor y = no_grad([&] { return ops::tanh(s.in[0]); });
       if (!is_watched(s.in[0])) return Tensors{y};
       const auto node = std::make_shared<Tanh>();
       node->edges.push_back(autograd::gradient_edge(s.in[0]));
       autograd::set_history(y, node, 0);
       node->save(y);
       return Tensors{y};
     },
     kScalar | kOwnNode},
    // Two results; only one of them may get a gradient.
    {"own_pair", 1, &pick_operand,
     [](Scene& s) {
       Tensor y = no_grad([&] { return s.in[0] * 0.75; }), z = no_grad([&] { return ops::sin(s.in[0]); });
       if (!is_watched(s.in[0])) return Tensors{y, z};
       const auto node = std::make_shared<Times>(s.step.scalar);
       node->n_outputs = 2;
       node->edges.push_back(autograd::gradient_edge(s.in[0]));
       autograd::set_history(y, node, 0);
       autograd::set_history(z, node, 1);
       return Tensors{y, z};
     },
     kScalar | kOwnNode},
    // A constant that ops have read gets a history: what was made of it before has none. ints[0]: it is made inside.
    {"own_history", 1, &pick_pair,
     [](Scene& s) {
       Tensor constant = s.n(0) == 0 ? s.in[0].detach() : no_grad([&] { return s.in[0] * 0.5; });
       const Tensor before = constant * s.in[1];
       if (!is_watched(s.in[1])) return Tensors{before};
       const auto node = std::make_shared<Times>(s.step.scalar);
       node->edges.push_back(autograd::gradient_edge(s.in[1]));
       autograd::set_history(constant, node, 0);
       return Tensors{before + constant * s.in[1]};
     },
     kScalar | kOwnNode},
};

}  // namespace

std::span<const StepKind> node_steps() { return kKinds; }

}  // namespace rondo::fuzz
