// Formulas and guards of floats: what rules compute with symbols is what they compute with numbers, and a decision that
// they make holds only for floats that decide alike.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rondo/compile/capture/float_trace.h"
#include "rondo/compile/exec/check_units.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;
using compile::FloatFormulas;
using compile::FloatGuards;
using compile::FloatTrace;

compile::Graph recording_of(double a, double b) {
  const Tensor x = Tensor::ones({4});
  return compile::record([&] { return Tensors{x * a + b}; });
}
SymFloat first(const FloatTrace& trace) { return trace.graph().nodes[0].attrs.floats[0]; }
SymFloat second(const FloatTrace& trace) { return trace.graph().nodes[1].attrs.floats[0]; }

// Every operation at once.
SymFloat computed(SymFloat a, SymFloat b) {
  return to_f32(1.0 / max(0.25, 7 - a)) * (a + b) - min(-b, a * 3) / 3 + (2 - b);
}

TEST(FloatTraces, FormulasComputeWhatRulesDo) {
  const double numbers[] = {0.5, -0.0, 3.25, 7.0, -1e300, std::numeric_limits<double>::infinity(), std::nan("")};
  FloatFormulas formulas;
  {
    FloatTrace trace(recording_of(2.0, 3.0));
    const SymFloat result = computed(first(trace), second(trace)), both[] = {result, 4.5, first(trace)};
    EXPECT_GE(result.symbol(), 0);
    EXPECT_EQ(result.value(), computed(2.0, 3.0).value());
    formulas = trace.formulas(both);
    EXPECT_TRUE(trace.guards().guards.empty());
  }
  EXPECT_TRUE(formulas.vary());
  for (double a : numbers)
    for (double b : numbers) {
      const double recorded[] = {a, b}, expected = computed(a, b).value();
      FloatFormulas::Registers registers;
      formulas.evaluate(recorded, registers);
      const auto result = [&](size_t i) { return registers[static_cast<size_t>(formulas.results[i])]; };
      const double got = result(0);
      EXPECT_TRUE(std::isnan(expected) ? std::isnan(got) : compile::same_bits({&expected, 1}, {&got, 1}))
          << a << " " << b;
      EXPECT_EQ(result(1), 4.5);
      EXPECT_TRUE(std::isnan(a) || result(2) == a);
    }
}

TEST(FloatTraces, ConstantsDoNotVary) {
  FloatTrace trace(recording_of(2.0, 3.0));
  const SymFloat constants[] = {1.0, computed(1.0, 2.0)};
  EXPECT_FALSE(trace.formulas(constants).vary());
}

bool holds(const FloatGuards& guards, double a, double b) {
  const double recorded[] = {a, b};
  return guards.hold(recorded);
}

TEST(FloatTraces, DecisionsAreGuards) {
  const double nan = std::nan("");
  const auto guards_of = [](auto decide) {
    FloatTrace trace(recording_of(2.0, 3.0));
    decide(first(trace), second(trace));
    return trace.guards();
  };
  const FloatGuards less = guards_of([](SymFloat a, SymFloat b) { EXPECT_TRUE(a < b); });
  EXPECT_TRUE(holds(less, 1, 2));
  EXPECT_FALSE(holds(less, 2, 2));
  EXPECT_FALSE(holds(less, nan, 2));
  const FloatGuards not_two = guards_of([](SymFloat, SymFloat b) { EXPECT_FALSE(b - 1 == 1.0); });
  EXPECT_TRUE(holds(not_two, 1, 3));
  EXPECT_FALSE(holds(not_two, 1, 2));
  EXPECT_TRUE(holds(not_two, 1, nan));
  const FloatGuards finite = guards_of([](SymFloat a, SymFloat) { EXPECT_TRUE(isfinite(a)); });
  EXPECT_FALSE(holds(finite, nan, 2));
  EXPECT_FALSE(holds(finite, -INFINITY, 2));
  EXPECT_TRUE(holds(finite, -1e308, 2));
  // A rule that wants a double gets one, for this value only.
  const FloatGuards pinned = guards_of([](SymFloat a, SymFloat) { EXPECT_EQ(std::exp2(double{a}), 4.0); });
  EXPECT_TRUE(holds(pinned, 2, nan));
  EXPECT_FALSE(holds(pinned, std::nextafter(2.0, 3.0), 3));
  EXPECT_TRUE(guards_of([](SymFloat a, SymFloat) { return a.value() + std::exp2(1.0); }).guards.empty());
}

TEST(FloatTraces, ASymbolDoesNotOutliveItsTrace) {
  SymFloat left;
  {
    FloatTrace trace(recording_of(2.0, 3.0));
    left = first(trace);
  }
  EXPECT_THROW(static_cast<void>(left + 1.0), InternalError);
  EXPECT_THROW(static_cast<void>(double{left}), InternalError);
  EXPECT_EQ(left.value(), 2.0);
}

// ---- Ops whose rules decide by floats, in regions

constexpr InferFn kLikeInput = [](InferContext& c) { c.output(0, c.dtype(0), c.sizes(0)); };

// x^s in products for s = 2, as a rule that knows the cheap case would have it. So is its gradient.
constexpr OpDef kPower = {
    .name = "power_of_test",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = 1},
    .infer = kLikeInput,
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const SymFloat s = attrs.floats[0];
          out[0] = s == 2.0 ? in[0] * in[0] : ops::pow(in[0], s);
        },
    .grad =
        [](const GradContext& g) {
          const SymFloat s = g.scalar(0);
          const Tensor slope = s == 2.0 ? g.input(0) * 2.0 : ops::pow(g.input(0), s - 1) * s;
          g.set(0, g.grad_out() * slope);
        },
};
// A rule that knows nothing of symbols.
constexpr OpDef kOpaqueRule = {
    .name = "opaque_rule_of_test",
    .kind = OpKind::kOpaque,
    .infer = kLikeInput,
    .decompose =
        [](std::span<const Tensor> in, const Attrs& attrs, std::span<Tensor> out) {
          const double s = attrs.floats[0];
          out[0] = in[0] * (s * s);
        },
};
// A rule that is wrong: it hides the float from the compiler.
constexpr OpDef kHidingRule = {
    .name = "hiding_rule_of_test",
    .kind = OpKind::kOpaque,
    .infer = kLikeInput,
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = in[0] * (attrs.floats[0].value() + 1.0); },
};

class FloatRules : public BlockTest {
 protected:
  Block::Body calls(const OpDef& op) {
    return [&op](Block& b, const Tensor& x) {
      return Tensors{call(op, {ops::abs(x * b.weight[0])}, {.floats = {0.5 * static_cast<double>(b.state.step)}})};
    };
  }
  static std::function<Tensors(Block&)> steps(std::vector<int64_t> steps, bool with_gradients) {
    return [=](Block& b) {
      Tensors all;
      for (int64_t step : steps) {
        b.state.step = step;
        const Tensor x = input();
        for (const Tensor& t : with_gradients ? train_step(b, x) : no_grad([&] { return b(x); })) all.push_back(t);
      }
      return all;
    };
  }
};

TEST_F(FloatRules, ABranchIsAGuard) {
  // s = 2 at 4, and at 6 the gradient's exponent is 2, which ops::pow decides by.
  expect_as_eager(calls(kPower), steps({3, 5, 6, 4, 3, 4, 7, 8}, true));
  EXPECT_EQ(report.entries, 3);
  EXPECT_EQ(report.float_changes, 4);  // all but the first of each entry, and 4 again, which is its entry's latest
}

TEST_F(FloatRules, AValueThatARuleReadsIsAGuard) {
  expect_as_eager(calls(kOpaqueRule), steps({3, 4, 3, 4, 5}, false));
  EXPECT_EQ(report.entries, 3);  // one for each value
  EXPECT_EQ(report.float_changes, 0);
}

TEST_F(FloatRules, AHiddenFloatIsCaughtByTheCheck) {
  compile::set_check_floats(true);
  std::string error;
  try {
    run(calls(kHidingRule), steps({3, 4}, false), true);
  } catch (const InternalError& e) {
    error = e.what();
  }
  compile::set_check_floats(compile::parse_checks(nullptr).floats);
  EXPECT_NE(error.find("floats: scalar 0 of the forward is 3.0, and its formula gives 2.5"), std::string::npos)
      << error;
}

// Floats that are equal by chance at first are not one for good.
TEST_F(FloatRules, EqualCallsAreOneWhileTheyAreEqual) {
  const auto body = [](Block& b, const Tensor& x) {
    const double a = 1.0 + static_cast<double>(b.state.step % 2), c = 1.0 + static_cast<double>(b.state.step / 2);
    return Tensors{ops::exp(x * a) + ops::tanh(x * c) * b.bias};
  };
  expect_as_eager(body, steps({0, 1, 2, 3, 5, 0, 9}, true));
  EXPECT_EQ(report.entries, 2);
}

}  // namespace
}  // namespace rondo
