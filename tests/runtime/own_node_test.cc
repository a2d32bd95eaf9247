// Nodes of a program's own, functions that are called when a leaf's gradient is there, and gradients that are retained.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::error_of;

using V = std::vector<double>;
V values(const Tensor& t) { return t.to_vector<double>(); }

// Its backward returns a fixed gradient and ignores the one that arrives.
class Returns final : public Node {
 public:
  Returns(const Tensor& input, Tensor gradient) : gradient_(std::move(gradient)) {
    edges.push_back(autograd::gradient_edge(input));
  }
  const char* name() const override { return "returns"; }
  void backward(std::span<Tensor>, std::span<Tensor> grads_in) override { grads_in[0] = gradient_; }

 private:
  Tensor gradient_;
};

class Leaf : public testing::Test {
 protected:
  Tensor leaf = Tensor::ones({2}, {kF64}).requires_grad_();
};

TEST_F(Leaf, AGradientOfAnotherKindIsRefused) {
  for (const Tensor& wrong :
       {Tensor::ones({5}, {kF64}), Tensor::ones({2}, {kF32}), Tensor::ones({}, {kF64}), Tensor::ones({2}, {kI64})}) {
    Tensor y = Tensor::ones({2}, {kF64});
    autograd::set_history(y, std::make_shared<Returns>(leaf, wrong), 0);
    const std::string error = error_of([&] { ops::sum(y).backward(); });
    EXPECT_NE(error.find("the gradient of a leaf f64[2] on " + to_string(leaf.device()) + " came as"),
              std::string::npos)
        << error;
    EXPECT_FALSE(leaf.grad().defined());
  }
  Tensor y = Tensor::ones({2}, {kF64});
  autograd::set_history(y, std::make_shared<Returns>(leaf, Tensor::full({2}, 3.0, kF64)), 0);
  ops::sum(y).backward();
  EXPECT_EQ(leaf.grad().to_vector<double>(), (std::vector<double>{3, 3}));
}

TEST_F(Leaf, WrongArgumentsOfAHistory) {
  Tensor nothing, y = Tensor::ones({2}, {kF64}), whole = Tensor::ones({2}, {kI64});
  const auto node = std::make_shared<Returns>(leaf, y);
  EXPECT_NE(error_of([&] { autograd::gradient_edge(nothing); }).find("gradient_edge: the tensor is undefined"),
            std::string::npos);
  EXPECT_NE(error_of([&] { autograd::set_history(nothing, node, 0); }).find("set_history: the tensor is undefined"),
            std::string::npos);
  EXPECT_NE(error_of([&] { autograd::set_history(y, nullptr, 0); }).find("set_history: there is no node"),
            std::string::npos);
  for (const int output : {-1, 1, 1000000})
    EXPECT_NE(error_of([&] { autograd::set_history(y, node, output); }).find("the node has 1 outputs"),
              std::string::npos);
  EXPECT_NE(error_of([&] { autograd::set_history(whole, node, 0); }).find("a tensor of i64 has no gradient"),
            std::string::npos);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_NE(error_of([&] { autograd::on_accumulated(leaf, nullptr); }).find("on_accumulated: the function is empty"),
            std::string::npos);
}

// A function may remove itself, and others, and add some: those run from the next backward on.
TEST_F(Leaf, FunctionsChangeTheirOwnList) {
  std::vector<std::string> calls;
  int64_t once = 0, removed = 0;
  auto note = std::make_shared<std::string>("once");
  once = autograd::on_accumulated(leaf, [&, note] {
    autograd::remove_on_accumulated(leaf, once);
    autograd::remove_on_accumulated(leaf, removed);
    for (int i = 0; i < 20; ++i) autograd::on_accumulated(leaf, [&] { calls.push_back("added"); });
    calls.push_back(*note);  // what the function holds is still there
  });
  note.reset();
  autograd::on_accumulated(leaf, [&] { calls.push_back("always"); });
  removed = autograd::on_accumulated(leaf, [&] { calls.push_back("removed"); });
  ops::sum(leaf * 2).backward();
  EXPECT_EQ(calls, (std::vector<std::string>{"once", "always"}));
  calls.clear();
  ops::sum(leaf * 2).backward();
  EXPECT_EQ(calls.size(), 21u);
  EXPECT_EQ(calls.front(), "always");
}

// As in PyTorch: the gradient is of what the tensor holds, and a hook sees that of the value it was registered for.
TEST(RetainedGradient, FollowsWritesInPlace) {
  const auto retained = [](bool again, const std::function<void(Tensor&)>& write) {
    Tensor w = Tensor::from<float>({1, 2}, {2}).requires_grad_(), h = w * 3.0;
    h.retain_grad();
    write(h);
    if (again) h.retain_grad();
    ops::sum(h * h).backward();
    EXPECT_EQ(values(h.grad()), values(h.detach() * 2.0));
    return values(w.grad());
  };
  for (const bool again : {false, true}) {
    std::vector<V> seen;
    const V direct = retained(again, [&](Tensor& h) {
      h.register_hook([&](const Tensor& g) {
        seen.push_back(values(g));
        return Tensor();
      });
      h.mul_(2.0);
      h.mul_(1.0);
    });
    EXPECT_EQ(direct, (V{72, 144}));  // h = 6 w
    EXPECT_EQ(seen, (std::vector<V>{{24, 48}}));
    EXPECT_EQ(retained(again, [](Tensor& h) { ops::slice(h, 0, {0, 1}).mul_(2.0); }), (V{72, 36}));
  }
  // A view whose base is written.
  Tensor w = Tensor::from<float>({1, 2}, {2}).requires_grad_(), base = w * 3.0, view = ops::slice(base, 0, {1, 2});
  view.retain_grad();
  base.mul_(2.0);
  ops::sum(view * view).backward();
  EXPECT_EQ(values(view.grad()), (V{24}));
  EXPECT_EQ(values(w.grad()), (V{0, 144}));
}

// A hook stays with the value for which it was registered. The tensor that has moved on still removes it.
TEST(Hooks, AreRemovedAfterAWriteInPlace) {
  for (const bool removed : {false, true}) {
    Tensor w = Tensor::from<float>({1, 2}, {2}).requires_grad_(), h = w * 3.0;
    const auto twice = [](const Tensor& g) { return g * 2.0; };
    const int64_t before = h.register_hook(twice);
    h.mul_(2.0);
    const int64_t after = h.register_hook(twice);
    ops::slice(h, 0, {0, 1}).mul_(1.0);
    if (removed) {
      h.remove_hook(after);
      h.remove_hook(before);
      h.remove_hook(before);  // it is gone already
    }
    ops::sum(h).backward();
    EXPECT_EQ(values(w.grad()), removed ? (V{6, 6}) : (V{24, 24}));
  }
}

}  // namespace
}  // namespace rondo
