// Note [The host's floating-point state] (runtime/base/floating_point_scope.h), for ops that run eagerly. Whole
// programs: tests/optim/floating_point_test.cc.
#include "rondo/runtime/base/floating_point_scope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/host_floating_point.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using test::all_host_settings;
using test::FloatingPointRegisters;
using test::HostFloatingPoint;
using test::HostSettings;
using test::kTraps;
using test::same_bits;

constexpr float kInf = std::numeric_limits<float>::infinity();

// Raises every exception but those of subnormal operands.
void raise_all() {
  volatile float zero = 0, large = 1e38f, small = 1e-38f, result;
  result = zero / zero;
  result = 1 / zero;
  result = large * large;
  result = small * small;
  result = 1 / large;
  static_cast<void>(result);
}

// Not all halves and doubles of subnormal numbers are right if those are flushed, or rounded in another direction.
bool computes_as_ieee() {
  volatile float smallest = 0x1p-149f, half = smallest / 2, third = 0x1.8p-148f / 2, sum = smallest + smallest,
                 tenth = 1;
  tenth = tenth / 10;
  return half == 0 && third != 0 && sum == 0x1p-148f && tenth == 0.1f && fegetround() == FE_TONEAREST;
}

TEST(FloatingPointScope, ComputesByDefaultAndGivesTheHostsStateBack) {
  for (const HostSettings& settings : all_host_settings()) {
    SCOPED_TRACE(settings.name());
    bool ieee, inside, after_throw = false;
    std::vector<FloatingPointRegisters> seen;
    {
      const HostFloatingPoint host(settings);
      feraiseexcept(FE_INEXACT);
      seen.emplace_back();
      {
        const FloatingPointScope scope;
        ieee = computes_as_ieee();
        raise_all();
        const FloatingPointScope nested;
        inside = computes_as_ieee();
      }
      seen.emplace_back();
      try {
        const FloatingPointScope scope;
        raise_all();
        throw 1;
      } catch (int) {
        after_throw = true;
      }
      seen.emplace_back();
    }
    EXPECT_TRUE(ieee && inside && after_throw);
    EXPECT_EQ(seen[1], seen[0]);
    EXPECT_EQ(seen[2], seen[0]);
  }
}

// ---- The pool

uint64_t settings_of_this_thread() {
  FloatingPointRegisters registers;
  registers.forget_flags();
  return registers.settings;
}

TEST(FloatingPoint, ThreadsOfThePoolHaveTheCallersSettings) {
  const int threads = num_threads();
  set_num_threads(4);
  for (const HostSettings& settings : all_host_settings()) {
    constexpr int64_t kPieces = 64;
    std::vector<uint64_t> seen(kPieces);
    uint64_t own;
    {
      const HostFloatingPoint host(settings);
      own = settings_of_this_thread();
      parallel_for(kPieces, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)] = settings_of_this_thread();
      });
    }
    EXPECT_EQ(std::set<uint64_t>(seen.begin(), seen.end()), std::set<uint64_t>{own}) << settings.name();
  }
  set_num_threads(threads);
}

// ---- Ops

// A device that a test makes raises flags itself.
FloatingPointRegisters registers() {
  FloatingPointRegisters registers;
  if (!runs_at_once(default_device())) registers.forget_flags();
  return registers;
}

// Numbers of all sizes: subnormal ones, and those whose squares overflow.
Tensor all_sizes(int64_t n) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(std::ldexp(i % 3 == 0 ? -1.3f : 1.7f, static_cast<int>(i % 277) - 149));
  return Tensor::from(values, {n});
}

struct Call {
  const char* name;
  std::function<Tensor()> run;
};

// What traps, rounds or underflows somewhere. Large enough for several threads.
std::vector<Call> calls() {
  constexpr int64_t n = 1 << 16;
  const Tensor x = all_sizes(n), zero = Tensor::zeros({n}), matrix = x.view({256, 256});
  const Tensor masked = ops::where(ops::greater(matrix, 1.0), matrix, -kInf).clone();
  const Tensor q = Tensor::randn({1, 2, 64, 16});
  const Tensor none = Tensor::zeros({64, 64}).to(kBool);
  return {
      {"a subnormal times a half", [=] { return ops::mul(x, 0.5); }},
      {"squares", [=] { return ops::mul(x, x); }},
      {"subnormal sums", [=] { return ops::add(x, x); }},
      {"1 / 0", [=] { return ops::rdiv(zero, 1.0); }},
      {"0 / 0", [=] { return ops::div(zero, zero); }},
      {"log", [=] { return ops::log(x); }},
      {"exp", [=] { return ops::exp(ops::mul(x, 1e-30)); }},
      {"to bf16", [=] { return x.to(kBF16); }},
      {"to f16", [=] { return x.to(kF16); }},
      {"to f64", [=] { return x.to(kF64); }},
      {"to i32", [=] { return x.to(kI32); }},
      {"sum", [=] { return ops::sum(matrix, {1}); }},
      {"mean of nothing", [] { return ops::mean(Tensor::zeros({0})); }},
      {"var", [=] { return ops::var(matrix, {0}); }},
      {"softmax", [=] { return ops::softmax(masked); }},
      {"log_softmax", [=] { return ops::log_softmax(masked); }},
      {"matmul", [=] { return ops::matmul(matrix, matrix); }},
      {"matmul in f64", [=] { return ops::matmul(matrix.to(kF64), matrix.to(kF64)); }},
      {"conv2d",
       [=] {
         return ops::conv2d(x.view({4, 16, 32, 32}), Tensor::full({16, 16, 3, 3}, 1e-20), Tensor(), {});
       }},
      {"attention without keys", [=] { return ops::scaled_dot_product_attention(q, q, q, none); }},
      {"attention of no width",
       [] {
         const Tensor empty = Tensor::zeros({1, 1, 4, 0});
         return ops::scaled_dot_product_attention(empty, empty, empty);
       }},
      {"layer_norm", [=] { return ops::layer_norm(matrix, Tensor::ones({256}), Tensor::zeros({256})); }},
      {"arange", [] { return Tensor::arange(0.0, 1.0, 0.1); }},
      {"full", [] { return Tensor::full({3}, 1e300); }},
      {"literals",
       [] {
         return Tensor::from({1e300, 1e-310, 0.1}, {3});
       }},
      {"a number of 8 bits", [] { return ops::add(Tensor::zeros({3}).to(kBF16), 1e300); }},
      {"in place", [=] { return ops::mul(x, 1.0).mul_(1e30).mul_(1e30); }},
      {"norm and its gradient",
       [=] {
         const Tensor leaf = matrix.clone().requires_grad_();
         const Tensor y = ops::layer_norm(leaf, Tensor::ones({256}), Tensor::zeros({256}));
         ops::mean(ops::log(ops::softmax(y))).backward();
         return leaf.grad();
       }},
  };
}

TEST(FloatingPoint, OpsAreThoseOfTheDefaultStateAndChangeNothing) {
  std::vector<Tensor> expected;
  for (const Call& call : calls()) expected.push_back(call.run());
  for (const HostSettings& settings : all_host_settings()) {
    SCOPED_TRACE(settings.name());
    size_t i = 0;
    for (const Call& call : calls()) {
      Tensor got;
      std::vector<FloatingPointRegisters> seen;
      {
        const HostFloatingPoint host(settings);
        seen.push_back(registers());
        got = call.run();
        seen.push_back(registers());
      }
      EXPECT_TRUE(same_bits(got, expected[i++])) << call.name;
      EXPECT_EQ(seen[1], seen[0]) << call.name;
    }
  }
}

TEST(FloatingPoint, PrintsTheSameText) {
  const Tensor x = Tensor::from({0.00005, 0.00015, 1e-40, 12345.678, -kInf}, {5}), one = Tensor::full({}, 0.12345);
  const std::string text = x.to_string(), of_one = one.to_string();
  for (const HostSettings& settings : all_host_settings()) {
    std::string got, got_one;
    double item;
    std::vector<FloatingPointRegisters> seen;
    {
      const HostFloatingPoint host(settings);
      seen.push_back(registers());
      got = x.to_string();
      got_one = one.to_string();
      item = x[2].item();
      seen.push_back(registers());
    }
    EXPECT_EQ(got, text) << settings.name();
    EXPECT_EQ(got_one, of_one) << settings.name();
    EXPECT_EQ(item, static_cast<double>(1e-40f)) << settings.name();
    EXPECT_EQ(seen[1], seen[0]) << settings.name();
  }
}

TEST(FloatingPoint, AnErrorLeavesTheHostsStateToo) {
  const Tensor x = Tensor::zeros({2, 3});
  std::vector<FloatingPointRegisters> seen;
  std::string index, step;
  {
    const HostFloatingPoint host({kTraps, true, true, FE_UPWARD});
    seen.push_back(registers());
    index = test::error_of([&] { ops::index_select(x, 0, Tensor::from(std::vector<int64_t>{5}, {1})).to_string(); });
    seen.push_back(registers());
    step = test::error_of([&] { Tensor::arange(0.0, 1.0, 0.0); });
    seen.push_back(registers());
  }
  EXPECT_NE(index, "");
  EXPECT_NE(step, "");
  EXPECT_EQ(seen[1], seen[0]);
  EXPECT_EQ(seen[2], seen[0]);
}

// What the program does in a hook, or in a tape node of its own, it does in its own state.
TEST(FloatingPoint, TheProgramsCodeSeesItsOwnState) {
  struct Own final : Node {
    explicit Own(const Tensor& x) { edges.push_back(autograd::gradient_edge(x)); }
    const char* name() const override { return "own"; }
    void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
      seen.push_back(registers());
      grads_in[0] = grads_out[0] * 2.0;
    }
    std::vector<FloatingPointRegisters> seen;
  };
  const HostSettings settings{kTraps, true, true, FE_DOWNWARD};
  std::vector<FloatingPointRegisters> seen;
  Tensor x = Tensor::ones({4}).requires_grad_();
  const auto own = std::make_shared<Own>(x);
  Tensor y = no_grad([&] { return x * 1.0; });
  autograd::set_history(y, own, 0);
  {
    const HostFloatingPoint host(settings);
    seen.push_back(registers());
    Tensor z = y * 3.0;
    x.register_hook([&](const Tensor& grad) {
      seen.push_back(registers());
      return grad;
    });
    z.register_hook([&](const Tensor& grad) {
      seen.push_back(registers());
      return grad;
    });
    ops::sum(z).backward();
    seen.push_back(registers());
  }
  seen.insert(seen.end(), own->seen.begin(), own->seen.end());
  ASSERT_EQ(seen.size(), 5u);
  for (const FloatingPointRegisters& one : seen) EXPECT_EQ(one, seen[0]);
}

// Every op and its gradient, in the state that is furthest from the default one.
TEST(FloatingPoint, EveryOp) {
  const HostSettings settings{kTraps | FE_UNDERFLOW, true, true, FE_UPWARD};
  const auto run = [](const OpDef& op, const test::OpSpec& spec, const test::OpSample& sample,
                      std::span<const Tensor> inputs) {
    std::vector<Tensor> results = test::apply_op(op, inputs, sample.attrs, sample.n_outputs);
    std::vector<Tensor> roots, grads, leaves;
    for (size_t i = 0; i < results.size(); ++i)
      if (spec.is_differentiable(i) && results[i].defined() && results[i].requires_grad()) {
        roots.push_back(results[i]);
        grads.push_back(Tensor::full(results[i].sizes(), 0.3, {results[i].dtype()}));
      }
    for (const Tensor& input : inputs)
      if (input.defined() && input.requires_grad()) leaves.push_back(input);
    if (roots.empty() || op.grad == nullptr) return results;
    for (Tensor& gradient : autograd::grad(roots, leaves, grads, false, false, /*allow_unused=*/true))
      results.push_back(std::move(gradient));
    return results;
  };
  for (const OpDef* op : all_ops()) {
    const test::OpSpec* spec = test::find_spec(op->name);
    if (spec == nullptr || !test::is_swept(*op)) continue;
    for (const test::OpSample& sample : test::samples_of(*spec)) {
      SCOPED_TRACE(std::string(op->name) + ": " + sample.label);
      std::vector<Tensor> inputs = sample.inputs_as(kF32);
      for (size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i].defined() && is_floating(inputs[i].dtype()) && !spec->is_constant(i)) inputs[i].requires_grad_();
      const std::vector<Tensor> expected = run(*op, *spec, sample, inputs);
      std::vector<Tensor> got;
      std::vector<FloatingPointRegisters> seen;
      {
        const HostFloatingPoint host(settings);
        seen.push_back(registers());
        got = run(*op, *spec, sample, inputs);
        seen.push_back(registers());
      }
      EXPECT_EQ(seen[1], seen[0]);
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].defined(), expected[i].defined());
        if (!got[i].defined()) continue;
        EXPECT_TRUE(same_bits(got[i], expected[i])) << "result " << i;
      }
    }
  }
}

}  // namespace
}  // namespace rondo
