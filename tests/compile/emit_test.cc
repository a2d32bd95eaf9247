// Generated code against the interpreter, on hand-built kernels: every operation, layout and reduction, bit for bit.
#include "rondo/tests/compile/kernel_fixture.h"

namespace rondo::compile {
namespace {

TEST(Emit, EveryOp) {
  for (DType type : {kF32, kF64})
    for (int64_t cols : kWidths) expect_equal_bits(every_op(type, 9, cols), {.scalars = {0.3, 1.00390625}});
}

// Rows that begin within a counter's four words, at a counter, at a whole vector of them; and numbers in other orders.
TEST(Emit, RandomNumbers) {
  for (int64_t cols : kWidths)
    for (double p : {0.2, 0.0, 1.0}) expect_equal_bits(random_numbers(9, cols, cols, 1), {.scalars = {p}});
  for (int64_t cols : {20, 64, 96, 384}) expect_equal_bits(random_numbers(5, cols, cols, 1), {.scalars = {0.3}});
  expect_equal_bits(random_numbers(9, 37, 1, 9), {.scalars = {0.6}});       // transposed
  expect_equal_bits(random_numbers(9, 40, 2 * 40, 2), {.scalars = {0.6}});  // every other one
  for (int64_t n : {1, 16, 33, 64, 1000}) expect_equal_bits(random_columns(n, 7), {.scalars = {0.5}});
  expect_equal_bits(random_columns(256, -1), {.scalars = {0.5}, .calls = {{64, 256}, {0, 64}}});
}

// Counters beyond 32 bits, and a vector of counters across that border.
TEST(Emit, RandomNumbersBeyond32BitCounters) {
  constexpr int64_t kBorder = int64_t{1} << 34;  // four numbers a counter
  for (int64_t row_stride : {kBorder, kBorder - 8, kBorder - 4, kBorder - 1, kBorder / 4 - 3})
    expect_equal_bits(random_numbers(3, 100, row_stride, 1), {.scalars = {0.25}});
}

TEST(Emit, StoresAndLoadsOfEveryType) {
  for (DType from : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool}) {
    for (int64_t cols : {int64_t{16}, int64_t{37}}) {
      KernelBuilder b("convert", 8, cols);
      const int32_t x = b.dense(from);
      for (DType type : {kF64, kF32, kBF16, kF16, kBool}) {
        const LoopValue v = b.load(x, type);
        for (DType to : {kF64, kF32, kBF16, kF16, kBool}) b.store(b.dense(to, true), v);
      }
      expect_equal_bits(b.kernel);
    }
  }
}

TEST(Emit, EveryIntegerOp) {
  for (DType type : {kI64, kI32, kU8})
    for (int64_t cols : kWidths) expect_equal_bits(every_integer_op(type, 9, cols), {.scalars = {3.7, -1e12}});
}

TEST(Emit, FloatsToIntegers) {
  for (DType from : {kF64, kF32, kBF16, kF16, kBool})
    for (double scale : {1.0, 0x1p31, 0x1p62, 1e300})
      for (int64_t cols : {int64_t{16}, int64_t{37}}) expect_equal_bits(floats_to_integers(from, scale, 50, cols));
}

TEST(Emit, Picks) {
  for (DType type : {kF32, kBF16, kF64, kI64, kI32, kU8, kBool})
    for (int64_t cols : kWidths) expect_equal_bits(picks(type, 11, cols));
}

TEST(Emit, ChecksOfIndices) {
  for (int64_t cols : kWidths)
    for (int64_t first : {0, 1})
      for (int64_t less : {0, 1}) {
        const LoopKernel kernel = checked_places(7, cols, first, less);
        expect_equal_bits(kernel);
        LoopKernel one_row = checked_places(1, 7 * cols, first, less);
        one_row.split_columns = true;
        expect_equal_bits(one_row);
      }
}

// What the code notes, and what it leaves alone.
TEST(Emit, AGoodIndexIsNotNoted) {
  const auto notes = [](int64_t rows, int64_t cols, int64_t first, int64_t less) {
    const LoopKernel kernel = checked_places(rows, cols, first, less);
    const auto executable = compile_kernels({&kernel, 1});
    std::vector<int64_t> found(kernel.operands.size(), 0), y(static_cast<size_t>(rows * cols));
    std::vector<void*> operands;
    for (size_t i = 0; i < kernel.operands.size(); ++i)
      operands.push_back(kernel.operands[i].is_output  ? static_cast<void*>(y.data())
                         : kernel.operands[i].is_check ? static_cast<void*>(&found[i])
                                                       : nullptr);
    executable->entry(0)(operands.data(), nullptr, extents(kernel).data(), 0, rows);
    std::vector<int64_t> noted;
    for (size_t i = 0; i < found.size(); ++i)
      if (kernel.operands[i].is_check) noted.push_back(found[i]);
    return noted;
  };
  using Notes = std::vector<int64_t>;  // of the rows; of all elements; of a bound that holds for those from 0 on
  for (const int64_t cols : {1, 15, 16, 37}) {
    EXPECT_EQ(notes(5, cols, 0, 0), (Notes{0, 0, 0}));
    EXPECT_EQ(notes(5, cols, 0, 1), (Notes{1, 1, 0}));
    EXPECT_EQ(notes(5, cols, 1, 0), (Notes{1, 1, 1}));
  }
}

// Every bf16 and f16 rounding case: all upper halves of an f32 with the lower halves that decide.
TEST(Emit, RoundsLikeTheRuntime) {
  constexpr uint32_t kLower[] = {0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  const int64_t n = 65536 * static_cast<int64_t>(std::size(kLower));
  KernelBuilder b("round", 1, n);
  b.kernel.split_columns = true;
  const int32_t x = b.dense(kF32), bf16 = b.dense(kBF16, true), f16 = b.dense(kF16, true), via = b.dense(kBF16, true);
  const LoopValue v = b.load(x, kF32);
  b.store(bf16, v);
  b.store(f16, v);
  b.store(via, b.cast(v, kBF16));
  std::vector<float> input(n);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(i / std::size(kLower)) << 16 | kLower[i % std::size(kLower)];
    input[i] = std::bit_cast<float>(bits);
  }
  std::vector<uint16_t> out_bf16(n), out_f16(n), out_via(n);
  void* operands[] = {input.data(), out_bf16.data(), out_f16.data(), out_via.data()};
  const auto executable = compile_kernels({&b.kernel, 1});
  executable->entry(0)(operands, nullptr, nullptr, 0, n);
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_EQ(out_bf16[i], BFloat16(input[i]).bits) << i;
    ASSERT_EQ(out_via[i], BFloat16(input[i]).bits) << i;
    ASSERT_EQ(out_f16[i], Float16(input[i]).bits) << i;
  }
}

TEST(Emit, Broadcasts) {
  for (DType type : {kF32, kBF16, kF64}) {
    for (int64_t cols : kWidths) {
      const DType compute = compute_dtype(type);
      KernelBuilder b("broadcast", 11, cols);
      const int32_t x = b.dense(type), row = b.per_row(type), column = b.per_column(type), one = b.single(type);
      const int32_t y = b.dense(type, true), copy = b.per_row(compute, true);
      // Chains of values that change with the row only, or not at all, are computed outside of the column loop.
      const LoopValue r = b.load(row, compute), o = b.load(one, compute);
      const LoopValue scale = b.emit(LoopOp::kMul, compute, r, b.emit(LoopOp::kSqrt, compute, o));
      b.store(y, b.emit(LoopOp::kFma, compute, b.load(x, compute), scale, b.load(column, compute)));
      b.in_row();
      b.store(copy, b.emit(LoopOp::kAdd, compute, b.load(row, compute), b.load(column, compute)));
      expect_equal_bits(b.kernel);
    }
  }
}

TEST(Emit, StridedColumns) {
  for (DType type : {kF32, kF64, kBF16, kF16, kBool}) {
    for (int64_t cols : kWidths) {
      const DType compute = type == kBool ? kBool : compute_dtype(type);
      KernelBuilder b("strided", 6, cols);
      const int32_t x = b.operand(type, {{1, 6, 1}}, 6);               // a transposed input
      const int32_t y = b.operand(type, {{1, 6, 2 * cols}}, 2, true);  // every second element
      b.store(y, b.load(x, compute));
      expect_equal_bits(b.kernel);
    }
  }
}

// (4, 3, 5) rows: the outer and inner dims move one operand, the middle one another; a third repeats with period 5.
TEST(Emit, RowsOfSeveralAxes) {
  for (int64_t cols : {int64_t{5}, int64_t{48}}) {
    KernelBuilder b("axes", 60, cols);
    const int32_t x = b.operand(kF32, {{15, 4, 5 * cols}, {1, 5, cols}}, 1);
    const int32_t y = b.operand(kF32, {{5, 3, cols}}, 1);
    const int32_t z = b.operand(kF32, {{1, 5, 7}}, 0);
    const int32_t out = b.operand(kF32, {{15, 4, cols}, {5, 3, 4 * 5 * cols}, {1, 5, 4 * cols}}, 1, true);
    LoopValue sum = b.emit(LoopOp::kAdd, kF32, b.load(x, kF32), b.load(y, kF32));
    b.store(out, b.emit(LoopOp::kMul, kF32, sum, b.load(z, kF32)));
    expect_equal_bits(b.kernel);
    expect_equal_bits(b.kernel, {.calls = {{0, 7}, {7, 31}, {31, 60}}});
  }
}

TEST(Emit, RowReductions) {
  for (DType type : {kF32, kF64, kBF16, kF16}) {
    for (Samples samples : {Samples::kWide, Samples::kSpecial}) {
      for (int64_t cols : {1, 15, 16, 17, 31, 32, 100, 1000}) {
        const DType compute = compute_dtype(type);
        KernelBuilder b("reduce", 23, cols, 2);
        const int32_t x = b.dense(type), sum = b.per_row(compute, true), max = b.per_row(type, true);
        const int32_t splats = b.per_row(compute, true), row = b.per_row(type);
        const LoopValue v = b.load(x, compute);
        const LoopValue s = b.reduce(LoopOp::kReduceSum, v), m = b.reduce(LoopOp::kReduceMax, v);
        const LoopValue repeated = b.reduce(LoopOp::kReduceSum, b.load(row, compute));  // of a value without columns
        b.stage(1).in_row();
        b.store(sum, s);
        b.store(max, m);
        b.store(splats, repeated);
        expect_equal_bits(b.kernel, {.samples = samples});
      }
    }
  }
}

TEST(Emit, ExtremaAndPlaces) {
  for (DType type : {kF32, kF64, kBF16, kI64, kI32, kU8, kBool})
    for (int64_t cols : {1, 15, 16, 17, 33, 100}) {
      expect_equal_bits(extrema(type, 11, cols));
      expect_equal_bits(extrema_along_rows(type, 3, cols, 19), {.calls = {{0, 7}, {7, 41}, {41, 57}}});
    }
}

TEST(Emit, RunningSums) {
  for (DType type : {kF32, kF64, kBF16, kI64, kU8, kBool})
    for (int64_t cols : {2, 15, 16, 17, 32, 33, 100}) {
      expect_equal_bits(running_sums(type, 7, cols), {.samples = Samples::kWide});
      expect_equal_bits(running_sums(type, 3, cols, 21), {.samples = Samples::kWide});
    }
}

TEST(Emit, ReductionsOverRows) {
  for (DType type : {kF32, kF64, kBF16, kI64, kI32, kU8})
    for (int64_t cols : {1, 15, 16, 17, 100}) {
      LoopKernel kernel = over_rows(type, 70, cols);
      kernel.chunk_rows = 16;
      expect_equal_bits(kernel);
    }
}

LoopKernel layer_norm(DType type, int64_t rows, int64_t cols) {
  const DType compute = compute_dtype(type);
  KernelBuilder b("layer_norm", rows, cols, 3);
  const int32_t x = b.dense(type), w = b.per_column(type), bias = b.per_column(type);
  const int32_t y = b.dense(type, true), mean_out = b.per_row(compute, true), rstd_out = b.per_row(compute, true);
  const LoopValue sum = b.reduce(LoopOp::kReduceSum, b.load(x, compute));
  b.stage(1).in_row();
  const LoopValue n = b.constant(static_cast<double>(cols), compute);
  const LoopValue mean = b.emit(LoopOp::kDiv, compute, sum, n);
  b.store(mean_out, mean);
  b.in_column();
  const LoopValue d = b.emit(LoopOp::kSub, compute, b.load(x, compute), mean);
  const LoopValue sum2 = b.reduce(LoopOp::kReduceSum, b.emit(LoopOp::kMul, compute, d, d));
  b.stage(2).in_row();
  const LoopValue one = b.constant(1.0, compute);
  const LoopValue variance = b.emit(LoopOp::kDiv, compute, sum2, n);
  const LoopValue rstd = b.emit(
      LoopOp::kDiv, compute, one,
      b.emit(LoopOp::kSqrt, compute, b.emit(LoopOp::kAdd, compute, variance, b.scalar(0, compute))));
  b.store(rstd_out, rstd);
  b.in_column();
  const LoopValue centred = b.emit(LoopOp::kSub, compute, b.load(x, compute), mean);
  const LoopValue scaled = b.emit(LoopOp::kMul, compute, centred, rstd);
  b.store(y, b.emit(LoopOp::kFma, compute, scaled, b.load(w, compute), b.load(bias, compute)));
  return b.kernel;
}

TEST(Emit, LayerNorm) {
  for (DType type : {kF32, kF64, kBF16})
    for (int64_t cols : {1, 16, 17, 100, 768})
      expect_equal_bits(layer_norm(type, 13, cols), {.scalars = {1e-5}, .samples = Samples::kWide});
}

LoopKernel softmax(DType type, int64_t rows, int64_t cols) {
  const DType compute = compute_dtype(type);
  KernelBuilder b("softmax", rows, cols, 3);
  const int32_t x = b.dense(type), y = b.dense(type, true);
  const LoopValue max = b.reduce(LoopOp::kReduceMax, b.load(x, compute));
  b.stage(1);
  const LoopValue e = scalar::exp(b.emit(LoopOp::kSub, compute, b.load(x, compute), max));
  const LoopValue sum = b.reduce(LoopOp::kReduceSum, e);
  b.stage(2);
  const LoopValue again = scalar::exp(b.emit(LoopOp::kSub, compute, b.load(x, compute), max));
  b.store(y, b.emit(LoopOp::kDiv, compute, again, sum));
  return b.kernel;
}

TEST(Emit, Softmax) {
  for (DType type : {kF32, kF64, kF16}) {
    for (int64_t cols : {1, 16, 17, 100, 1024}) {
      expect_equal_bits(softmax(type, 7, cols));
      expect_equal_bits(softmax(type, 7, cols), {.samples = Samples::kWide, .in_place = {{1, 0}}});
    }
  }
}

TEST(Emit, ColumnSums) {
  for (DType type : {kF32, kF64, kBF16}) {
    for (int64_t cols : kWidths) {
      const DType compute = compute_dtype(type);
      KernelBuilder b("column_sums", 53, cols, 2);
      b.kernel.chunk_rows = 16;
      const int32_t g = b.dense(type), x = b.dense(type), dx = b.dense(type, true);
      const int32_t dw = b.partial(compute), db = b.partial(compute);
      const LoopValue vg = b.load(g, compute), vx = b.load(x, compute);
      b.column_sum(db, vg);
      b.column_sum(dw, b.emit(LoopOp::kMul, compute, vg, vx));
      const LoopValue dot = b.reduce(LoopOp::kReduceSum, b.emit(LoopOp::kMul, compute, vg, vx));
      b.stage(1);
      b.store(dx, b.emit(LoopOp::kMul, compute, b.load(x, compute), dot));
      expect_equal_bits(b.kernel, {.samples = Samples::kWide});
    }
  }
}

TEST(Emit, SumsOfSegments) {
  for (DType type : {kF32, kF64, kI64})
    for (int64_t cols : {1, 5, 16, 33, 64, 100})
      for (int64_t segments : {1, 7, 90}) expect_equal_bits(segment_sums(type, 53, cols, segments));
  // Calls for some of the segments.
  expect_equal_bits(segment_sums(kF32, 53, 40, 9), {.calls = {{0, 2}, {2, 3}, {3, 9}}});
}

TEST(Emit, SplitColumns) {
  for (int64_t cols : {1, 16, 31, 48, 64, 1000, 1008}) {
    KernelBuilder b("split", 1, cols);
    b.kernel.split_columns = true;
    const int32_t x = b.dense(kF32), bias = b.single(kF32), y = b.dense(kBF16, true);
    b.store(y, b.emit(LoopOp::kAdd, kF32, scalar::exp(b.load(x, kF32)), b.load(bias, kF32)));
    expect_equal_bits(b.kernel);
    if (cols > 64) expect_equal_bits(b.kernel, {.calls = {{0, 192}, {192, 256}, {256, cols}}});
  }
}

TEST(Emit, InPlace) {
  KernelBuilder b("in_place", 5, 37);
  const int32_t x = b.dense(kF32), y = b.dense(kF32), out = b.dense(kF32, true), again = b.dense(kF32, true);
  const LoopValue vx = b.load(x, kF32), vy = b.load(y, kF32);
  b.store(out, b.emit(LoopOp::kAdd, kF32, vx, vy));
  b.store(again, b.emit(LoopOp::kMul, kF32, vx, vy));
  expect_equal_bits(b.kernel, {.in_place = {{out, x}}});
  expect_equal_bits(b.kernel, {.in_place = {{out, y}, {again, x}}});
}

TEST(Emit, EmptyRangeTouchesNothing) {
  const LoopKernel kernel = layer_norm(kF32, 4, 20);
  std::vector<void*> nothing(kernel.operands.size(), nullptr);
  compile_kernels({&kernel, 1})->entry(0)(nothing.data(), nullptr, nullptr, 2, 2);
}

TEST(Verify, NamesTheBrokenRule) {
  auto broken = [](auto change) {
    LoopKernel kernel = softmax(kF32, 4, 20);
    change(kernel);
    return verify(kernel);
  };
  EXPECT_EQ(broken([](LoopKernel&) {}), "");
  EXPECT_NE(broken([](LoopKernel& k) { k.stages[2].column.push_back(k.stages[1].column[0]); }).find("listed twice"),
            std::string::npos);
  EXPECT_NE(broken([](LoopKernel& k) {
              k.instrs[k.stages[2].column.back()].a = k.stages[1].column[0];
            }).find("outside of its stage"),
            std::string::npos);
  EXPECT_NE(broken([](LoopKernel& k) { k.operands[1].is_output = false; }).find("stores to an input"),
            std::string::npos);
  EXPECT_NE(broken([](LoopKernel& k) { k.instrs[k.stages[1].column[1]].type = kF64; }).find("types"),
            std::string::npos);
  EXPECT_NE(broken([](LoopKernel& k) {
              k.instrs.push_back({.op = LoopOp::kReduceSum, .type = kF32, .a = k.stages[1].reductions[0]});
              k.stages[1].reductions.push_back(static_cast<int32_t>(k.instrs.size()) - 1);
            }).find("in its own stage"),
            std::string::npos);
  for (const int64_t cols : {2, 1}) {
    LoopKernel kernel = softmax(kF32, 4, cols);
    kernel.operands[1].col_stride = 0;
    EXPECT_EQ(verify(kernel).find("every column stores to one element") != std::string::npos, cols == 2) << cols;
  }
}

}  // namespace
}  // namespace rondo::compile
