// Loop kernels as text. (That every kernel of the other tests survives the way to text and back is checked in
// kernel_fixture.h.)
#include <bit>
#include <limits>

#include "rondo/runtime/base/error.h"
#include "rondo/tests/compile/kernel_fixture.h"

namespace rondo::compile {
namespace {

LoopKernel scaled_row_sum() {
  KernelBuilder b("scaled_row_sum", 4, 20, 2);
  const int32_t x = b.dense(kBF16), scale = b.single(kF32), y = b.per_row(kF32, true);
  const LoopValue sum = b.reduce(LoopOp::kReduceSum, b.load(x, kF32));
  b.stage(1).in_row();
  const LoopValue scaled = b.emit(LoopOp::kMul, kF32, sum, b.load(scale, kF32));
  b.store(y, b.emit(LoopOp::kMul, kF32, scaled, b.constant(0.1, kF32)));
  b.kernel.n_scalars = 1;
  return b.kernel;
}

TEST(LoopText, OneInstructionALine) {
  LoopKernel kernel = scaled_row_sum();
  kernel.varying.assign(extents(kernel).size(), true);
  EXPECT_EQ(to_string(kernel), R"(kernel scaled_row_sum rows=4 cols=20? scalars=1
  @0: bf16 {/1 %4? *20?} col*1
  @1: f32 col*0
  @2: f32 {/1 %4? *1} col*0 output
  stage
    col %0: f32 = load @0
    red %1: f32 = reduce_sum %0
  stage
    row %2: f32 = load @1
    row %3: f32 = mul %1 %2
    row %4: f32 = const 0.1
    row %5: f32 = mul %3 %4
    row %6: f32 = store %5 @2
)");
}

TEST(LoopText, GivesBackEveryField) {
  LoopKernel kernel = scaled_row_sum();
  kernel.chunk_rows = 3;
  kernel.operands[1].is_partial = true;
  const LoopKernel read = parse_loop_kernel(to_string(kernel));
  EXPECT_EQ(read.name, kernel.name);
  EXPECT_EQ(read.chunk_rows, 3);
  EXPECT_EQ(read.n_scalars, 1);
  EXPECT_EQ(extents(read), extents(kernel));
  EXPECT_TRUE(read.varying.empty());
  EXPECT_TRUE(read.operands[1].is_partial);
  EXPECT_TRUE(read.operands[2].is_output);
  ASSERT_EQ(read.stages.size(), 2u);
  EXPECT_EQ(read.stages[0].reductions, kernel.stages[0].reductions);
  EXPECT_EQ(read.stages[1].row, kernel.stages[1].row);
  ASSERT_EQ(read.instrs.size(), kernel.instrs.size());
  for (size_t i = 0; i < read.instrs.size(); ++i) {
    EXPECT_EQ(read.instrs[i].op, kernel.instrs[i].op);
    EXPECT_EQ(read.instrs[i].a, kernel.instrs[i].a);
    EXPECT_EQ(read.instrs[i].index, kernel.instrs[i].index);
  }
  kernel.varying.assign(extents(kernel).size(), false);
  kernel.varying[2 + 1] = true;  // the divisor is 1, which never varies
  EXPECT_TRUE(parse_loop_kernel(to_string(kernel)).varying.empty());
  kernel.varying[2 + 2] = true;
  const std::vector<bool> marks = parse_loop_kernel(to_string(kernel)).varying;
  ASSERT_EQ(marks.size(), extents(kernel).size());
  EXPECT_TRUE(marks[2 + 2]);
  EXPECT_EQ(std::count(marks.begin(), marks.end(), true), 1);
}

// What code takes for granted is a part of its text, and so of the key under which it is kept.
TEST(LoopText, RangesOfVaryingExtents) {
  LoopKernel kernel = scaled_row_sum(), plain = kernel;
  for (LoopKernel* k : {&kernel, &plain}) k->varying.assign(extents(kernel).size(), true);
  kernel.ranges.resize(extents(kernel).size());
  EXPECT_EQ(to_string(kernel), to_string(plain));
  kernel.ranges[0] = {.min = 17, .max = 32, .multiple_of = 16};
  kernel.ranges[2 + 3].max = 99;
  const std::string text = to_string(kernel);
  EXPECT_NE(text.find("cols=20?[>=17][<=32][/16]"), text.npos) << text;
  EXPECT_NE(text.find("*20?[<=99]}"), text.npos) << text;
  const LoopKernel read = parse_loop_kernel(text);
  EXPECT_EQ(to_string(read), text);
  EXPECT_EQ(read.ranges[0], kernel.ranges[0]);
  EXPECT_NE(code_text(kernel), code_text(plain));
  EXPECT_NE(code_text(kernel).find("cols=2?[>=17][<=32][/16]"), text.npos) << code_text(kernel);
  EXPECT_THROW(parse_loop_kernel("kernel k rows=4 cols=20?[/0]\n"), Error);
  EXPECT_THROW(parse_loop_kernel("kernel k rows=4 cols=20?[20]\n"), Error);
}

// Code knows of its rows whether an axis begins again, which no extent says.
TEST(LoopText, AnAxisThatWrapsIsPartOfTheKey) {
  const auto text_of = [](int64_t rows) {
    KernelBuilder b("rows", rows, 8);
    const int32_t x = b.operand(kF32, {{1, 4, 8}}, 1), y = b.operand(kF32, {{1, 8, 8}}, 1, true);
    b.store(y, b.load(x, kF32));
    return code_text(b.kernel);
  };
  EXPECT_NE(text_of(4), text_of(8));
  EXPECT_EQ(text_of(3), text_of(4));
}

TEST(LoopText, NumbersKeepEveryBit) {
  using Limits = std::numeric_limits<double>;
  const double values[] = {0.0,
                           -0.0,
                           1.0,
                           -1.0,
                           0.1,
                           1.0 / 3,
                           1e300,
                           Limits::denorm_min(),
                           Limits::max(),
                           0x1.fffffep127,
                           Limits::infinity(),
                           -Limits::infinity(),
                           Limits::quiet_NaN(),
                           -Limits::quiet_NaN(),
                           std::bit_cast<double>(uint64_t{0x7FF8000000000123})};
  KernelBuilder b("constants", 1, 8);
  const int32_t out = b.operand(kF64, {}, 1, true);
  for (double value : values) b.store(out, b.constant(value, kF64));
  const LoopKernel read = parse_loop_kernel(to_string(b.kernel));
  for (size_t i = 0; i < std::size(values); ++i)
    EXPECT_EQ(std::bit_cast<uint64_t>(read.instrs[2 * i].value), std::bit_cast<uint64_t>(values[i]))
        << exact_text(values[i]);
}

TEST(LoopText, ErrorsNameTheLine) {
  auto complaint = [](std::string text) -> std::string {
    try {
      parse_loop_kernel(text);
    } catch (const Error& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(complaint("kernel k rows=1 cols=8\n"), "none");
  EXPECT_EQ(complaint(""), "line 1: no kernel");
  EXPECT_EQ(complaint("kernel k rows=one"), "line 1: expected an integer");
  EXPECT_EQ(complaint("kernel k rows=1 cols=8\n  @1: f32 col*1\n"), "line 2: operands must come in order");
  EXPECT_EQ(complaint("kernel k rows=1 cols=8\n\n  @0: f31 col*1\n"), "line 3: no dtype \"f31\"");
  EXPECT_EQ(complaint("kernel k rows=1 cols=8\n  stage\n    col %0: f32 = lode @0\n"),
            "line 3: no loop operation \"lode\"");
  EXPECT_EQ(complaint("kernel k rows=1 cols=8\n  stage\n    col %1: f32 = const 1.0\n"),
            "line 4: kernel k: an instruction is missing");
  EXPECT_EQ(complaint("kernel k rows=1 cols=8 # a comment\nkernel l rows=1 cols=8\n"),
            "line 2: nothing more was expected");
}

}  // namespace
}  // namespace rondo::compile
