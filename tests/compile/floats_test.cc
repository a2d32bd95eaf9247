// Float attributes are arguments of a run: a factor that changes from call to call plans nothing, wherever it goes, and
// changes the results as in eager execution.
#include <gtest/gtest.h>

#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/exec/floats.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/region/region.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using namespace test;

// Formulas are compared with fresh derivations on every call.
class FloatArguments : public BlockTest {
 protected:
  void SetUp() override {
    BlockTest::SetUp();
    compile::set_check_floats(true);
  }
  void TearDown() override {
    compile::set_check_floats(compile::parse_checks(nullptr).floats);
    BlockTest::TearDown();
  }
};

void append(Tensors& all, const Tensors& more) { all.insert(all.end(), more.begin(), more.end()); }

double factor_at(int64_t step) { return 1.0 / static_cast<double>(step + 2) - 0.1; }

// A factor in kernels, in library calls' neighbours, in what is computed again, and beside a product.
Tensors annealed(Block& b, const Tensor& x) {
  const double factor = factor_at(b.state.step);
  const Tensor h = ops::gelu(ops::matmul(b.norm(x) * factor, b.weight)) + factor;
  return {ops::softmax(h * (1 + factor)) * x, ops::sum(ops::leaky_relu(h, factor), {0})};
}

// An entry serves a recording whose graphs differ from its own in floats, and in nothing else.
TEST(SameButFloats, ComparesAllElse) {
  const Tensor x = Tensor::ones({4, 4});
  const auto graph_of = [&](auto body) { return compile::record([&] { return std::vector<Tensor>{body(x)}; }); };
  const compile::Graph graph = graph_of([](const Tensor& t) { return ops::sum(t * 2.0, {0}); });
  EXPECT_TRUE(same_but_floats(graph, graph_of([](const Tensor& t) { return ops::sum(t * 3.0, {0}); })));
  EXPECT_FALSE(same_but_floats(graph, graph_of([](const Tensor& t) { return ops::sum(t * 2.0, {1}); })));
  EXPECT_FALSE(same_but_floats(graph, graph_of([](const Tensor& t) { return ops::max(t * 2.0, {0}); })));
  compile::Graph other = graph;
  other.outputs[0] = graph.nodes[0].outputs[0];
  EXPECT_FALSE(same_but_floats(graph, other));
}

TEST_F(FloatArguments, AnAnnealedFactorPlansNothing) {
  expect_as_eager(annealed, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 12; ++i) {
      b.state.step = i % 8;
      b.zero_grad();
      append(all, train_step(b, input()));
      for (const Tensor& p : b.parameters()) all.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
    }
    return all;
  });
  EXPECT_EQ(report.entries, 1);
  EXPECT_EQ(report.float_changes, 11);  // every call but the first has another factor than the one before
  EXPECT_LE(report.compilations, 1);
  EXPECT_EQ(report.last_recompile, "");
}

TEST_F(FloatArguments, WithoutGradients) {
  expect_as_eager(annealed, [](Block& b) {
    Tensors all;
    NoGrad off;
    for (int i = 0; i < 5; ++i) {
      b.state.step = i;
      append(all, b(Tensor::randn({4, 6})));
    }
    return all;
  });
  EXPECT_EQ(report.entries, 1);
  EXPECT_EQ(report.float_changes, 4);
}

// Gradients that are added to, backwards of some outputs only: each is bound to the floats when it is met.
TEST_F(FloatArguments, InBackwardsOfOtherGradients) {
  expect_as_eager(annealed, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 9; ++i) {
      b.state.step = i;
      const Tensor x = input();
      const Tensors y = b(x);
      ops::sum(y[static_cast<size_t>(i % 2)] * 0.7).backward();  // onto .grad
      all.push_back(x.grad());
      for (const Tensor& p : b.parameters()) all.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
    }
    return all;
  });
  EXPECT_EQ(report.entries, 1);
  EXPECT_LE(report.other_backwards, 4);
}

TEST_F(FloatArguments, InSecondDerivatives) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients with a history");
  expect_as_eager(
      [](Block& b, const Tensor& x) {
        return Tensors{ops::tanh(x * factor_at(b.state.step)) * b.bias * factor_at(b.state.step + 1)};
      },
      [](Block& b) {
        Tensors all;
        for (int i = 0; i < 4; ++i) {
          b.state.step = i;
          const Tensor x = input();
          const Tensor y = b(x)[0];
          const Tensor g = autograd::grad(std::vector{ops::sum(y)}, std::vector{x}, {}, true, true)[0];
          ops::sum(g * g).backward();
          all.push_back(g.detach());
          all.push_back(x.grad());
        }
        return all;
      });
  EXPECT_EQ(report.entries, 1);
  EXPECT_EQ(report.float_changes, 3);
}

// Where other floats lead to another graph, they are another recording: equal calls are one by common subexpressions.
TEST_F(FloatArguments, ThatChangeTheGraphAreAnotherEntry) {
  expect_as_eager(
      [](Block& b, const Tensor& x) {
        const double a = b.state.step % 2 == 0 ? 0.5 : 0.25, c = b.state.step < 2 ? 0.5 : 0.75;
        return Tensors{ops::exp(x * a) + ops::tanh(x * c) * b.bias};
      },
      [](Block& b) {
        Tensors all;
        for (int64_t step : {0, 1, 2, 3, 0, 2}) {
          b.state.step = step;
          append(all, train_step(b, input()));
        }
        return all;
      });
  EXPECT_EQ(report.entries, 2);  // the first has one product of x, the others two
}

struct Gate : nn::Module<Gate> {
  double factor = 1;
  nn::Linear in = child("in", 8, 8);
  Tensor forward(const Tensor& x) { return ops::sigmoid(in(x)*factor) * x + factor; }
};
struct Model : nn::Module<Model> {
  Gate first = child("first"), second = child("second");
  Tensor forward(const Tensor& x) { return second(first(x)); }
  void set(double factor) { first.factor = second.factor = factor; }
};

TEST_F(FloatArguments, InAWholeModelWithMarkedDimensions) {
  Model eager, compiled;
  compiled.load_state_dict(eager.state_dict());
  const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
  for (int i = 0; i < 8; ++i) {
    eager.set(factor_at(i));
    compiled.set(factor_at(i));
    const Tensor x = Tensor::randn({3 + 4 * (i % 2), 8});
    const Tensor a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
    compile::mark_dynamic(b, 0, {.min = 2, .max = 64});
    const Tensor y = eager(a), z = compiled(b);
    EXPECT_TRUE(same_bits(y, z)) << i;
    eager.zero_grad();
    compiled.zero_grad();
    ops::sum(y).backward();
    ops::sum(z).backward();
    EXPECT_TRUE(same_bits(a.grad(), b.grad())) << i;
    EXPECT_TRUE(same_bits(eager.second.in.weight.grad(), compiled.second.in.weight.grad())) << i;
  }
  EXPECT_EQ(regions.report()[0].entries, 2);  // of two sizes
  EXPECT_LE(regions.report()[0].compilations, 1);
  EXPECT_EQ(regions.report()[0].float_changes, 6);
}

// A replay trusts the recording, floats included, as it does with all that forward depends on; verification sees it.
TEST_F(FloatArguments, InReplays) {
  Gate eager, replayed, verified;
  replayed.load_state_dict(eager.state_dict());
  verified.load_state_dict(eager.state_dict());
  const compile::Regions fast = compile::compile_module(replayed,
                                                        {.exact = true, .capture = compile::Capture::kReplay});
  const compile::Regions careful = compile::compile_module(verified,
                                                           {.exact = true, .capture = compile::Capture::kVerify});
  const Tensor x = Tensor::randn({3, 8});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(eager(x), replayed(x))) << i;
    EXPECT_TRUE(same_bits(eager(x), verified(x))) << i;
  }
  EXPECT_EQ(fast.report()[0].replays, 2);
  eager.factor = verified.factor = 0.25;
  EXPECT_NE(error_of([&] { verified(x); }).find("scalar 0"), std::string::npos);
  // A recording that was bound to other floats is replayed with these.
  Gate late;
  late.load_state_dict(eager.state_dict());
  const compile::Regions both = compile::compile_module(late, {.exact = true, .capture = compile::Capture::kReplay});
  late(Tensor::randn({3, 8}));
  late.factor = 0.25;
  late.eval();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(eager(x), late(x))) << i;
  EXPECT_EQ(both.report()[0].entries, 1);
  EXPECT_EQ(both.report()[0].float_changes, 1);
  EXPECT_EQ(both.report()[0].replays, 1);
}

// A library call has its floats from the run, too.
TEST_F(FloatArguments, InALibraryCall) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor q = x.view({1, 2, 2, 6});
    return Tensors{ops::scaled_dot_product_attention(q, q, q, {}, {.scale = factor_at(b.state.step)})};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 4; ++i) {
      b.state.step = i;
      append(all, train_step(b, input()));
    }
    return all;
  });
  EXPECT_EQ(report.entries, 1);
}

// Only a call whose floats are not those of the call before evaluates formulas.
TEST_F(FloatArguments, ThatStayAreNotComputedAgain) {
  Gate gate;
  const compile::Regions regions = compile::compile_module(gate, {.max_entries = 2});
  const auto changes_after = [&](double factor) {
    gate.factor = factor;
    gate(Tensor::randn({3, 8}).requires_grad_());
    return regions.report()[0].float_changes;
  };
  const std::pair<double, int> calls[] = {{0.25, 0}, {0.25, 0}, {0.5, 1}, {0.5, 1}, {0.25, 2}, {0.25, 2}};
  for (const auto& [factor, expected] : calls) EXPECT_EQ(changes_after(factor), expected) << factor;
}

TEST_F(FloatArguments, AThousandOfThemAreOneCompilation) {
  Gate gate;
  const compile::Regions regions = compile::compile_module(gate);
  const Tensor x = Tensor::randn({3, 8});
  for (int i = 0; i < 1000; ++i) {
    gate.factor = 3e-4 * (1 + i);
    ops::sum(gate(x)).backward();
    gate.zero_grad();
  }
  const compile::RegionReport report = regions.report()[0];
  EXPECT_EQ(report.entries, 1);
  EXPECT_LE(report.compilations, 1);
  EXPECT_EQ(report.float_changes, 999);
  EXPECT_EQ(report.last_recompile, "");
}

// An integer that only feeds arithmetic is a float of the recording, whatever the dtype of the tensor.
TEST_F(FloatArguments, AreIntegersThatFeedArithmetic) {
  expect_as_eager(
      [](Block& b, const Tensor& x) {
        const int64_t step = b.state.step;
        const Tensor counts = (x.detach() * 100.0).to(kI64) * step + (step + 7);
        return Tensors{(x * b.weight[0] + step) * (2 * step + 1), counts, counts - step};
      },
      [](Block& b) {
        Tensors all;
        for (int i = 0; i < 6; ++i) {
          b.state.step = 3 * i;
          append(all, train_step(b, input()));
        }
        return all;
      });
  EXPECT_EQ(report.entries, 1);
  EXPECT_EQ(report.float_changes, 5);
}

// Each op that has floats, forward and backward, with floats that change: the results are eager's. Rules of ops that
// compute with floats do it on symbols, so no value gets an entry of its own.
TEST_F(FloatArguments, OfEveryOp) {
  for (const OpSpec& spec : op_specs())
    for (const OpSample& sample : samples_of(spec)) {
      if (sample.attrs.floats.size() == 0) continue;
      const OpDef& op = *find_op(spec.name);
      if (!is_swept(op)) continue;
      Attrs attrs = sample.attrs;
      Tensors inputs;
      const auto body = [&](Block&, const Tensor&) { return apply_op(op, inputs, attrs, sample.n_outputs); };
      Block eager(body), compiled(body);
      const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
      for (double share : {1.0, 0.875, 0.375, 0.875}) {
        for (size_t i = 0; i < attrs.floats.size(); ++i) attrs.floats[i] = sample.attrs.floats[i] * share;
        if (const double p = attrs.floats[0].value(); op.random_state() >= 0)
          attrs.floats[1] = p < 1 ? 1 / (1 - p) : 0;  // dropout's second float follows from its first
        const auto run = [&](Block& block) {
          inputs = sample.inputs_as(kF32);
          Tensors leaves, all;
          for (size_t i = 0; i < inputs.size(); ++i)
            if (inputs[i].defined() && is_floating(inputs[i].dtype()) && op.grad != nullptr && !spec.is_constant(i))
              leaves.push_back(inputs[i].requires_grad_());
          const Tensors results = block(Tensor());
          Tensor loss;
          for (size_t i = 0; i < results.size(); ++i) {
            all.push_back(results[i].detach());
            if (!spec.is_differentiable(i) || !results[i].requires_grad()) continue;
            const Tensor part = ops::sum(results[i] * 0.5);
            loss = loss.defined() ? loss + part : part;
          }
          if (loss.defined()) loss.backward();
          for (const Tensor& leaf : leaves) all.push_back(leaf.grad());
          return all;
        };
        const Tensors expected = run(eager), got = run(compiled);
        ASSERT_EQ(expected.size(), got.size());
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(same_bits(expected[i], got[i])) << spec.name << " " << sample.label << ", " << share << ", " << i;
      }
      const compile::RegionReport report = regions.report()[0];
      // To drop all is another program than to drop some.
      const bool drops_all = sample.label.find("dropout of all") != std::string::npos;
      EXPECT_LE(report.entries, drops_all ? 2 : 1) << spec.name << " " << sample.label << ": " << report.last_recompile;
    }
}

// More values of a factor than recordings are kept, with other recordings between: entries stay.
TEST_F(FloatArguments, DoNotDriveEntriesAway) {
  Gate gate;
  const compile::Regions regions = compile::compile_module(gate, {.max_entries = 4});
  no_grad([&] { return gate(Tensor::randn({2, 8})); });
  const int compilations = regions.report()[0].compilations;
  for (int i = 0; i < 20; ++i) {
    gate.factor = factor_at(i);
    gate(Tensor::randn({3, 8}).requires_grad_());
  }
  gate.factor = 1;
  no_grad([&] { return gate(Tensor::randn({2, 8})); });
  EXPECT_EQ(regions.report()[0].entries, 2);
  EXPECT_LE(regions.report()[0].compilations, compilations + 1);
  EXPECT_EQ(compile::explain(regions).regions[0].entries.size(), 2u);
}

}  // namespace
}  // namespace rondo
