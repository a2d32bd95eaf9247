// Integers, masks and orders in compiled blocks: eager's bits, and how many kernels and library calls they take.
#include "rondo/tests/integer_blocks.h"

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using compile::LoopKernel;

class IntegerBlocks : public test::BlockTest {
 protected:
  // One recording of the compiled block, in exact mode.
  static compile::RegionReport compare(const Tensor& x, const std::function<Tensor(const Tensor&)>& fn) {
    test::FnModule eager(fn), compiled(fn);
    const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
    const NoGrad off;
    EXPECT_TRUE(test::same_bits(compiled(x), eager(x)));
    return regions.report()[0];
  }
};

TEST_F(IntegerBlocks, RunInKernelsWithEagersBits) {
  for (const test::IntegerBlock& block : test::integer_blocks()) {
    SCOPED_TRACE(block.name);
    const compile::RegionReport report = compare(block.x, block.fn);
    EXPECT_EQ(report.kernels, block.kernels);
    EXPECT_EQ(report.library_calls, 0);
    EXPECT_EQ(report.graph_breaks, 0);
    EXPECT_EQ(report.eager_runs, 0);
  }
}

// Rows of all lengths around a vector's, operands with strides, one column, and a dimension of 1.
TEST_F(IntegerBlocks, Layouts) {
  manual_seed(5);
  const auto all = [](const Tensor& t, int64_t dim) {
    const Tensor y = t * 2 + 1;
    const Tensor shown = t.to(kI64).to(kF32);
    return ops::argmax(y, dim, true).to(kF32) + ops::max(y, dim, true).to(kF32) * 0.5 +
           ops::sum(y.to(kI64), dim, true).to(kF32) + ops::where(ops::any(y > 3, dim, true), 1.0, 0.0) +
           ops::cumsum(y, dim).to(kF32) * shown;
  };
  for (const DType dtype : {kF32, kI32})
    for (const int64_t cols : {1, 2, 15, 16, 17, 31, 33, 64, 100}) {
      const Tensor x = Tensor::randint(-9, 9, {5, cols, 3}).to(dtype);
      for (const Tensor& view : {x, ops::transpose(x, 0, 1), ops::transpose(x, 1, 2), x.slice(2, {0, 3, 2})})
        for (const int64_t dim : {0, 1, 2}) {
          SCOPED_TRACE(to_string(view.sizes()) + " over " + std::to_string(dim));
          const compile::RegionReport report = compare(view, [&](const Tensor& t) { return all(t, dim); });
          EXPECT_EQ(report.eager_runs, 0);
        }
    }
}

// Long rows, many rows, and sizes that change: code for any size.
TEST_F(IntegerBlocks, LongRowsAndOtherSizes) {
  const auto fn = [](const Tensor& t) {
    const Tensor over_rows = ops::max(t, 0) + ops::min(t, 0) + ops::sum(t, 0);
    return ops::argmin(t, 1, true) + ops::sum(t, 1, true) * over_rows - ops::cumsum(t, 1);
  };
  test::FnModule eager(fn), compiled(fn);
  const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
  const NoGrad off;
  for (const int64_t cols : {70, 200, 131, 5000})
    for (const int64_t rows : {40, 3000}) {
      const Tensor x = Tensor::randint(-1000, 1000, {rows, cols});
      EXPECT_TRUE(test::same_bits(compiled(x), eager(x))) << rows << " x " << cols;
    }
  EXPECT_EQ(regions.report()[0].eager_runs, 0);
  EXPECT_EQ(regions.report()[0].library_calls, 0);
}

// A position that moves on at every call is an argument of the code.
TEST_F(IntegerBlocks, StartsOfPositionsChange) {
  int64_t start = 0;
  const auto fn = [&](const Tensor& t) { return t + Tensor::arange(start, start + 8).to(kF32) * 0.5; };
  test::FnModule eager(fn), compiled(fn);
  const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
  const NoGrad off;
  const Tensor x = Tensor::randn({4, 8});
  for (; start < 2000; start += 97) EXPECT_TRUE(test::same_bits(compiled(x), eager(x)));
  EXPECT_EQ(regions.report()[0].compilations, 1);
  EXPECT_EQ(regions.report()[0].library_calls, 0);
}

// Gradients pass through what has some: equal maxima share one, a running sum's runs backwards.
TEST_F(IntegerBlocks, Gradients) {
  const auto grads = [](bool compiled) {
    manual_seed(3);
    const auto fn = [](const Tensor& t) {
      return ops::max(t * 2.0, 0) + ops::min(t, 0) * 3.0 +
             ops::sum(ops::cumsum(t * t, 1) * Tensor::arange(9).to(kF32), 0);
    };
    test::FnModule block(fn);
    std::optional<compile::Regions> regions;
    if (compiled) regions.emplace(compile::compile_module(block, {.exact = true}));
    const Tensor x = (Tensor::randint(-3, 3, {20, 9}).to(kF32) * 0.5).requires_grad_();
    const Tensor y = block(x);
    ops::sum(y * Tensor::arange(9).to(kF32)).backward();
    return std::vector<Tensor>{y.detach(), x.grad()};
  };
  const std::vector<Tensor> eager = grads(false), made = grads(true);
  for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(test::same_bits(made[i], eager[i])) << i;
}

// ---- Planted

void change(LoopKernel& kernel, LoopOp from, LoopOp to) {
  for (compile::Instr& i : kernel.instrs)
    if (i.op == from) i.op = to;
}
void last_of_equals(LoopKernel& kernel) {  // the column of the last hit
  for (compile::Instr& i : kernel.instrs)
    if (i.op == LoopOp::kReduceMin && i.type == kI64) i.op = LoopOp::kReduceMax;
    else if (i.op == LoopOp::kConst && i.type == kI64 && i.value == 0x1p63) i.value = -1;
}
void forget_nan(LoopKernel& kernel) { change(kernel, LoopOp::kNe, LoopOp::kEq); }
void narrow_sums(LoopKernel& kernel) {
  for (compile::Instr& i : kernel.instrs)
    if (i.op == LoopOp::kScan && i.type == kF64) {
      i.type = kF32;
      for (compile::Instr& cast : kernel.instrs)
        if (cast.op == LoopOp::kCast && cast.type == kF64) cast.type = kF32;
    }
}
void step_of_two(LoopKernel& kernel) {
  for (compile::Operand& operand : kernel.operands)
    if (operand.is_index) operand.col_stride *= 2;
}

TEST_F(IntegerBlocks, PlantedBugsAreSeen) {
  manual_seed(6);
  const auto differs = [&](void (*bug)(LoopKernel&), const Tensor& x, const std::function<Tensor(const Tensor&)>& fn) {
    test::FnModule eager(fn), compiled(fn);
    const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
    const NoGrad off;
    compile::miscompile_for_tests = bug;
    const Tensor found = compiled(x);
    compile::miscompile_for_tests = nullptr;
    EXPECT_EQ(regions.report()[0].eager_runs, 0);
    return !static_cast<bool>(test::same_bits(found, eager(x)));
  };
  const Tensor reals = test::mixed_reals({20, 50}), integers = test::mixed_integers({20, 50});
  const auto best = [](const Tensor& t) { return ops::argmax(t * 2.0, 1); };
  const auto sums = [](const Tensor& t) { return ops::cumsum(t * 0.1, 1); };
  const auto places = [](const Tensor& t) { return t + Tensor::arange(50).to(kF32); };
  const auto rows = [](const Tensor& t) { return ops::max(t, 0); };
  const auto bits = [](const Tensor& t) { return ops::shift_right(ops::bitwise_or(t, 4), 1); };
  const Tensor plain = Tensor::randn({20, 50});
  EXPECT_FALSE(differs(nullptr, reals, best));
  EXPECT_TRUE(differs(&last_of_equals, reals, best));
  EXPECT_TRUE(differs(&forget_nan, reals, best));
  EXPECT_FALSE(differs(nullptr, plain, sums));
  EXPECT_TRUE(differs(&narrow_sums, plain, sums));
  EXPECT_FALSE(differs(nullptr, plain, places));
  EXPECT_TRUE(differs(&step_of_two, plain, places));
  EXPECT_FALSE(differs(nullptr, integers, rows));
  EXPECT_TRUE(differs([](LoopKernel& k) { change(k, LoopOp::kColumnMax, LoopOp::kColumnSum); }, integers, rows));
  EXPECT_FALSE(differs(nullptr, integers, bits));
  EXPECT_TRUE(differs([](LoopKernel& k) { change(k, LoopOp::kOr, LoopOp::kXor); }, integers, bits));
  EXPECT_TRUE(differs([](LoopKernel& k) { change(k, LoopOp::kShiftRight, LoopOp::kShiftLeft); }, integers, bits));
}

// ---- Errors of the new ops

TEST_F(IntegerBlocks, BadOperandsAreErrors) {
  const auto error = [](const std::function<void()>& fn) { return test::error_of(fn); };
  const Tensor i = Tensor::arange(3), f = Tensor::randn({3});
  EXPECT_NE(error([&] { ops::bitwise_and(f, i); }).find("bitwise_and: needs integers or bools"), std::string::npos);
  EXPECT_NE(error([&] { ops::bitwise_or(i, 1.5); }).find("bitwise_or: needs an integer"), std::string::npos);
  EXPECT_NE(error([&] { ops::shift_left(i > 1, i > 2); }).find("bools are not shifted"), std::string::npos);
  EXPECT_NE(error([&] { ops::bitwise_and(i.to(kI32), int64_t{1} << 40); }).find("bitwise_and"), std::string::npos);
  EXPECT_EQ(ops::bitwise_and(i, INT64_MAX).to_vector<int64_t>(), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(ops::shift_left(i, 63).to_vector<int64_t>(), (std::vector<int64_t>{0, INT64_MIN, 0}));
  EXPECT_EQ(ops::shift_left(i, -1).to_vector<int64_t>(), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(ops::shift_right(-i, 64).to_vector<int64_t>(), (std::vector<int64_t>{0, -1, -1}));
  EXPECT_EQ(ops::bitwise_xor(i > 0, true).to(kI64).to_vector<int64_t>(), (std::vector<int64_t>{1, 0, 0}));
}

}  // namespace
}  // namespace rondo
