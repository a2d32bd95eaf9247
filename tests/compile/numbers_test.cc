// Numbers in comparisons and selections are arguments of a run, as in arithmetic: a replay repeats them, kVerify sees
// another one, and one that changes at every call compiles nothing.
#include "rondo/tests/numbers.h"

#include <atomic>
#include <cmath>
#include <thread>

#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/integer_blocks.h"

namespace rondo {
namespace {

using namespace test;
using compile::Capture;

class NumberTest : public BlockTest {};

constexpr DType kDTypes[] = {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool};

// Ties with `number_of(dtype)` are among them.
Tensor operand_of(DType dtype) {
  const Tensor halves = Tensor::from<double>({-1.5, 0.5, 2, 2.5, 0, 3, -0.5}, {7});
  return is_floating(dtype) ? halves.to(dtype) : ops::abs(halves).to(dtype);
}
Scalar number_of(DType dtype) {
  if (dtype == kBool) return true;
  return is_floating(dtype) ? Scalar(0.5) : Scalar(2);
}
Scalar other_number(DType dtype) {
  if (dtype == kBool) return false;
  return is_floating(dtype) ? Scalar(-0.3) : Scalar(3);
}

TEST_F(NumberTest, ReplaysRepeatThem) {
  for (DType dtype : kDTypes)
    for (const std::string op : kNumberOps) {
      SCOPED_TRACE(op + " " + std::string(name_of(dtype)));
      Scalar number = number_of(dtype);
      const auto fn = [&](const Tensor& x) { return apply_number(op, x, number); };
      FnModule replayed(fn), verified(fn);
      const compile::Regions fast = compile::compile_module(replayed, {.exact = true, .capture = Capture::kReplay});
      const compile::Regions careful = compile::compile_module(verified, {.exact = true, .capture = Capture::kVerify});
      for (int i = 0; i < 3; ++i) {
        const Tensor x = operand_of(dtype);
        EXPECT_TRUE(same_bits(replayed(x), fn(x)));
        EXPECT_TRUE(same_bits(verified(x), fn(x)));
      }
      for (const compile::Regions* regions : {&fast, &careful}) {
        const compile::RegionReport report = regions->report()[0];
        EXPECT_EQ(report.why_not_replayed, "");
        EXPECT_EQ(report.kernels, 1);
        EXPECT_EQ(report.library_calls, 0);
        EXPECT_EQ(report.eager_runs, 0);
      }
      EXPECT_EQ(fast.report()[0].replays, 2);
      number = other_number(dtype);
      EXPECT_NE(error_of([&] { verified(operand_of(dtype)); }).find("scalar 0"), std::string::npos);
    }
}

// Numbers that are no attribute of an op: integers that no double holds, two numbers at once, truths, a divisor without
// an inverse, what a scatter writes.
TEST_F(NumberTest, ReplaysRepeatTheOddOnes) {
  constexpr int64_t kBig = (int64_t{1} << 53) + 1;
  const Tensor x = Tensor::from<int64_t>({-5, kBig, kBig - 1, INT64_MAX, 0, 1}, {6});
  const Tensor reals = Tensor::from<float>({-5, 0.5f, 0, NAN, 1, 2}, {6});
  std::vector<std::pair<Tensor, std::function<Tensor(const Tensor&)>>> cases;
  for (const std::string op : kNumberOps) {
    for (int64_t number : {kBig, INT64_MAX, INT64_MIN, INT64_MIN + 1})
      cases.push_back({x, [=](const Tensor& t) { return apply_number(op, t, number); }});
    for (double number : {double{NAN}, double{INFINITY}, -double{INFINITY}})
      cases.push_back({reals, [=](const Tensor& t) { return apply_number(op, t, number); }});
  }
  cases.push_back({x, [](const Tensor& t) { return t + kBig; }});
  cases.push_back({x, [](const Tensor& t) { return t * -kBig; }});
  cases.push_back({x, [](const Tensor& t) { return INT64_MAX - t; }});
  cases.push_back({x, [](const Tensor& t) { return ops::bitwise_xor(t, kBig); }});
  cases.push_back({x, [](const Tensor& t) { return ops::clamp(t, -kBig, kBig); }});
  cases.push_back({x.to(kBool), [](const Tensor& t) { return ops::bitwise_and(t, true); }});
  cases.push_back({x, [](const Tensor& t) { return ops::where(t > 0, 0.0, -INFINITY); }});
  cases.push_back({x, [](const Tensor& t) { return ops::where(t > 0, kBig, INT64_MIN + 1); }});
  cases.push_back({reals, [](const Tensor& t) { return t / 0.0; }});
  cases.push_back({reals, [](const Tensor& t) { return ops::relu(t.to(kI32)); }});
  cases.push_back({reals, [](const Tensor& t) {
                     return ops::scatter(t + 1.0, 0, Tensor::arange(3, {kI64, t.device()}), 7.5);
                   }});
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& [input, fn] = cases[i];
    FnModule module(fn);
    const compile::Regions regions = compile::compile_module(module, {.exact = true, .capture = Capture::kReplay});
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(same_bits(module(input), fn(input)));
    EXPECT_EQ(regions.report()[0].replays, 2) << regions.report()[0].why_not_replayed;
    EXPECT_EQ(regions.report()[0].eager_runs, 0);
  }
}

// Forward and backward of a block with a number in each op.
Tensor gated(const Tensor& x, double n) {
  const Tensor h = ops::where(x > n, x * 2.0, n) + ops::maximum(x, n) * ops::minimum(x, -n);
  return ops::masked_fill(h, ops::less_equal(x, -n), n) * ops::where(x.detach() == n, 0.0, h);
}
struct GatedBlock : nn::Module<GatedBlock> {
  double number = 0;
  Tensor forward(const Tensor& x) { return gated(x, number); }
};

TEST_F(NumberTest, AThousandOfThemAreOneCompilation) {
  for (DType dtype : {kF32, kBF16}) {
    SCOPED_TRACE(name_of(dtype));
    GatedBlock block;
    const compile::Regions regions = compile::compile_module(block, {.exact = true});
    const MustRunCompiled here;
    for (int i = 0; i < 1000; ++i) {
      block.number = i / 512.0 - 0.7;
      const Tensor data = operand_of(dtype), x = data.clone().requires_grad_(), y = data.clone().requires_grad_();
      const Tensor got = block(x);
      ops::sum(got).backward();
      const Tensor expected = gated(y, block.number);
      ops::sum(expected).backward();
      ASSERT_TRUE(same_bits(got, expected)) << i;
      ASSERT_TRUE(same_bits(x.grad(), y.grad())) << i;
    }
    const compile::RegionReport report = regions.report()[0];
    EXPECT_EQ(report.entries, 1);
    EXPECT_LE(report.compilations, 1);
    EXPECT_GE(report.float_changes, dtype == kF32 ? 999 : 500);  // bf16 rounds neighbours to one number
    EXPECT_EQ(report.last_recompile, "");
  }
}

// One module, called by several threads, each with numbers of its own.
TEST_F(NumberTest, OfEachThreadAreItsOwn) {
  static thread_local double number = 0;
  FnModule module([](const Tensor& x) { return gated(x, number); });
  const compile::Regions regions = compile::compile_module(module, {.exact = true});
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        number = i / 64.0 - 0.3 * t;
        const Tensor data = operand_of(kF32), x = data.clone().requires_grad_(), y = data.clone().requires_grad_();
        const Tensor got = module(x), expected = gated(y, number);
        ops::sum(got).backward();
        ops::sum(expected).backward();
        wrong += !same_bits(got, expected) || !same_bits(x.grad(), y.grad());
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(regions.report()[0].entries, 1);
  EXPECT_EQ(regions.report()[0].eager_runs, 0);
}

}  // namespace
}  // namespace rondo
