// Parts of a tensor in a region: as in eager execution in every bit, forward and backward, with one call that puts the
// gradients of all slices together.
#include <gtest/gtest.h>

#include "rondo/compile/explain.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;

class RegionSlices : public BlockTest {
 protected:
  void expect_compiled() const {
    EXPECT_EQ(report.failed_compilations, 0) << report.last_failed_compilation;
    EXPECT_EQ(report.eager_runs, 0);
    EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
    EXPECT_GT(report.kernels, 0);
  }
};

Tensors selects(const Tensor& x, int dim) {
  Tensors parts;
  for (int64_t t = 0; t < x.size(dim); ++t) parts.push_back(x.select(dim, t));
  return parts;
}
Tensors windows(const Tensor& x) {
  Tensors parts;
  for (int64_t t = 0; t + 4 <= x.size(1); ++t) parts.push_back(x.slice(1, {t, t + 4}));
  return parts;
}
Tensors mixture(const Tensor& x) {
  const Tensor middle = x.slice(1, {2, 9});
  return {middle.slice(1, {1, 5}),   x[1],    middle.select(1, 0), x.slice(2, {0, 4, 3}), x.select(1, -1), middle, x[1],
          x.slice(1, {0, 11, 2})[2], x * 0.5, x.select(1, 3)};
}

struct Kind {
  const char* name;
  Tensors (*parts)(const Tensor&);
};
constexpr Kind kKinds[] = {
    {"split", [](const Tensor& x) { return ops::split(x, 1, 1); }},
    {"split with a rest", [](const Tensor& x) { return ops::split(x, 2, 1); }},
    {"chunk", [](const Tensor& x) { return ops::chunk(x, 4, -1); }},
    {"unbind", [](const Tensor& x) { return ops::unbind(x, 1); }},
    {"select", [](const Tensor& x) { return selects(x, 1); }},
    {"select of rows", [](const Tensor& x) { return selects(x, 0); }},
    {"windows", &windows},
    {"mixture", &mixture},
};

// A loop over time: each part is read, some twice; one leaves the region without a gradient, one with.
Tensors loop(const Kind& kind, Block& b, const Tensor& x) {
  Tensors results;
  Tensor state;
  const Tensors parts = kind.parts(x);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i % 5 == 3) continue;
    const Tensor y = ops::tanh(parts[i] * (0.1 * static_cast<double>(i + 1)));
    if (state.defined() && state.sizes() == y.sizes()) state = state * 0.5 + y;
    else results.push_back(state = y + parts[i]);
  }
  results.push_back(state);
  b.state.kept = {parts[1], parts[0].detach()};
  return results;
}

TEST_F(RegionSlices, EqualEagerExecutionInEveryBit) {
  for (const Kind& kind : kKinds) {
    for (const bool inside : {false, true}) {  // what is cut into parts is computed in the region
      SCOPED_TRACE(testing::Message() << kind.name << inside);
      const auto body = [&](Block& b, const Tensor& x) { return loop(kind, b, inside ? ops::exp(x) : x); };
      expect_as_eager(body, [](Block& b) {
        const Tensor x = input({3, 11, 4});
        Tensors all;
        for (int step = 0; step < 2; ++step)  // the second adds to .grad
          for (const Tensor& t : train_step(b, x)) all.push_back(t.detach().clone());
        for (const Tensor& t : b.state.kept) all.push_back(t);
        return all;
      });
      expect_compiled();
    }
  }
}

// The tensor is used before, between and after its slices, outside of the region and in it.
TEST_F(RegionSlices, GradientsAddInTheOrderOfTheTape) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor first = x * b.bias[0], a = x.slice(1, {1, 4}), between = ops::sigmoid(x), c = x.select(1, 2);
    return Tensors{ops::sum(first) * ops::sum(a * a), between, ops::tanh(c), ops::exp(x.slice(1, {2, 5})) * 0.1};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor leaf = input({3, 6, 2}), x = leaf * 1.5, before = x.select(1, 3);
    Tensors y = b(x);
    Tensor loss = ops::sum(x.select(1, 3) * x.slice(0, {0, 1}).select(1, 0)) + ops::sum(before * before);
    for (const Tensor& t : y) loss = loss + ops::sum(t * Tensor::rand(t.sizes()));
    loss.backward();
    y.push_back(leaf.grad());
    return y;
  });
  expect_compiled();
}

TEST_F(RegionSlices, HooksAndRetainedGradientsOfParts) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensors parts = ops::unbind(x, 1);
    const Tensor slice = x.slice(1, {1, 5}), row = slice.select(1, 2);
    for (Tensor t : {parts[2], slice, row}) {
      t.retain_grad();
      t.register_hook([&b](const Tensor& g) { return ++b.state.hook_calls, g * 0.5; });
      b.state.kept.push_back(t);
    }
    return Tensors{parts[2] * parts[4], ops::exp(slice), row * 3.0};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all = train_step(b, input({2, 6, 3}));
    for (const Tensor& t : b.state.kept) all.push_back(t.grad());
    all.push_back(Tensor::full({1}, b.state.hook_calls));
    return all;
  });
}

TEST_F(RegionSlices, WritesInPlaceOnParts) {
  const auto body = [](Block&, const Tensor& x) {
    Tensor h = x * 2.0;
    const Tensors before = {h.select(1, 0) * 0.5};
    for (int64_t t = 0; t < 6; t += 2) h.select(1, t).mul_(0.25 * static_cast<double>(t + 1));
    return Tensors{before[0], ops::tanh(h.select(1, 2)), h.slice(1, {1, 4}) * 1.5};
  };
  expect_as_eager(body, [](Block& b) { return train_step(b, input({2, 6, 3})); });
}

TEST_F(RegionSlices, MixedDtypesUnderAutocast) {
  const auto body = [](Block& b, const Tensor& x) {
    const amp::Autocast lower(kBF16);
    Tensors results;
    for (const Tensor& part : ops::unbind(x, 1)) results.push_back(ops::matmul(part, b.weight));
    for (const Tensor& part : selects(x, 1)) results.push_back(ops::matmul(part.to(kBF16), b.weight).to(kF32));
    return Tensors{ops::stack(results, 0), ops::cat(results, 1)};
  };
  expect_as_eager(body, [](Block& b) { return train_step(b, input({2, 10, 6})); });
  expect_compiled();
}

TEST_F(RegionSlices, StackAndCatOfMany) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensors states = {ops::tanh(x.select(1, 0))};
    for (int64_t t = 1; t < 20; ++t) states.push_back(ops::tanh(x.select(1, t) + states.back() * b.bias));
    return Tensors{ops::stack(states, 1), ops::cat(states, 0),
                   ops::cat({ops::cat({states[1], states[2]}, 0), states[3]}, 0)};
  };
  expect_as_eager(body, [](Block& b) { return train_step(b, input({3, 20, 6})); });
  expect_compiled();
}

// Parts with the strides of the whole that lie in another tensor, or elsewhere in their own: they must be copied.
TEST_F(RegionSlices, CatOfRowsOfOtherTensors) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor y = ops::matmul(x, b.weight);
    return Tensors{ops::cat({y.slice(0, {2, 4}), y.slice(0, {0, 2})}, 0), ops::cat({x.slice(0, {0, 2}), y}, 0),
                   ops::cat({y.slice(0, {1, 3}), x.slice(0, {3, 4})}, 0)};
  };
  expect_as_eager(body, [](Block& b) { return train_step(b, input()); });
  expect_compiled();
}

TEST_F(RegionSlices, SecondDerivatives) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "gradients of gradients are replayed");
  const auto body = [](Block&, const Tensor& x) {
    Tensor sum = ops::sum(x.slice(1, {0, 3}));
    for (const Tensor& part : ops::unbind(x, 1)) sum = sum + ops::sum(part * part * part);
    for (const Tensor& part : selects(x, 1)) sum = sum + ops::sum(part * part);
    return Tensors{sum};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = Tensor::arange(40, {kF64}).view({2, 10, 2}).requires_grad_();  // whole numbers: any order
    const Tensor roots[] = {b(x)[0]}, inputs[] = {x};
    const Tensor first = autograd::grad(roots, inputs, {}, true, true)[0];
    const Tensor seconds[] = {ops::sum(first * first)};
    return Tensors{first, autograd::grad(seconds, inputs)[0]};
  });
}

// However many slices there are: one call gathers their gradients, and kernels grow with their ops.
TEST_F(RegionSlices, OneCallGathersAllGradients) {
  const Kind all[] = {kKinds[3], kKinds[4], kKinds[6]};
  for (const Kind& kind : all) {
    SCOPED_TRACE(kind.name);
    const auto body = [&](Block&, const Tensor& x) {
      Tensor sum;
      for (const Tensor& part : kind.parts(x)) {
        const Tensor y = ops::tanh(part);
        sum = sum.defined() ? sum + y : y;
      }
      return Tensors{sum};
    };
    expect_as_eager(body, [](Block& b) { return train_step(b, input({4, 200, 8})); });
    expect_compiled();
    EXPECT_EQ(report.library_calls, 1);
    EXPECT_LT(report.kernels, 80);
  }
}

// As on the eager tape: an op that saves nothing has nothing to free.
TEST_F(RegionSlices, AViewServesTwoBackwards) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{b.weight.view({4, 9}), x.select(1, 0) + b.bias, ops::exp(x.slice(1, {0, 3})), ops::unbind(x)[1],
                   ops::tril(x, 2) - ops::triu(x)};
  };
  std::vector<std::string> said;
  const auto use = [&](Block& b) {
    said.clear();
    const Tensor x = input({4, 6, 6});
    const Tensors y = b(x);
    Tensors all;
    for (const int i : {0, 1, 4, 2, 0, 3, 1, 4, 0, 2, 3}) {
      said.push_back(error_of([&] { ops::sum(y[static_cast<size_t>(i)] * 2.0).backward(); }));
      all.push_back(x.grad().defined() ? x.grad().clone() : Tensor());
      all.push_back(b.weight.grad().defined() ? b.weight.grad().clone() : Tensor());
    }
    return all;
  };
  expect_as_eager(body, use);
  for (size_t i = 0; i < said.size(); ++i) {
    if (i == 9) EXPECT_NE(said[i].find("backward of exp: its saved tensors were freed"), std::string::npos) << said[i];
    else EXPECT_EQ(said[i], "") << i;
  }
}

}  // namespace
}  // namespace rondo
