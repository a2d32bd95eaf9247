// The CUDA target on hand-built kernels: every operation, type, layout, reduction and column sum.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/tests/cuda_on_host/hand_built.h"

namespace rondo::compile::cuda {
namespace {

constexpr int64_t kColumns[] = {1, 3, 4, 20, 100, 133};

TEST(CudaEmit, EveryOp) {
  Batch batch;
  for (DType type : {kF32, kF64})
    for (int64_t cols : kColumns) batch.add_both(every_op(type, 9, cols), {.scalars = {0.3, 1.00390625}});
  batch.check();
}

TEST(CudaEmit, RandomNumbers) {
  Batch batch;
  for (int64_t cols : kColumns)
    for (double p : {0.2, 1.0}) batch.add_both(random_numbers(9, cols, cols, 1), {.scalars = {p}});
  for (int64_t cols : {8, 64, 1024}) batch.add_both(random_numbers(5, cols, cols, 1), {.scalars = {0.3}});
  batch.add_both(random_numbers(9, 37, 1, 9), {.scalars = {0.6}});
  for (int64_t n : {1, 6, 33, 1000}) batch.add_both(random_columns(n, 7), {.scalars = {0.5}});
  constexpr int64_t kBorder = int64_t{1} << 34;  // where counters leave 32 bits
  for (int64_t row_stride : {kBorder, kBorder - 4, kBorder - 1})
    batch.add_both(random_numbers(3, 20, row_stride, 1), {.scalars = {0.25}});
  batch.check();
}

TEST(CudaEmit, StoresAndLoadsOfEveryType) {
  Batch batch;
  for (DType from : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool}) {
    for (int64_t cols : {int64_t{16}, int64_t{37}}) {
      KernelBuilder b("convert", 8, cols);
      const int32_t x = b.dense(from);
      for (DType type : {kF64, kF32, kBF16, kF16, kBool}) {
        const LoopValue v = b.load(x, type);
        for (DType to : {kF64, kF32, kBF16, kF16, kBool}) b.store(b.dense(to, true), v);
        if (type == kF32) b.store(b.dense(kU8, true), v);
      }
      batch.add(b.kernel);
    }
  }
  batch.check();
}

TEST(CudaEmit, Integers) {
  Batch batch;
  for (int64_t cols : kColumns) {
    for (DType type : {kI64, kI32, kU8}) batch.add_both(every_integer_op(type, 9, cols), {.scalars = {3.7, -1e12}});
    for (DType from : {kF64, kF32, kBF16, kBool})
      for (double scale : {1.0, 0x1p31, 0x1p62}) batch.add_both(floats_to_integers(from, scale, 20, cols));
  }
  batch.check();
}

TEST(CudaEmit, Picks) {
  Batch batch;
  for (DType type : {kF32, kBF16, kF64, kI64, kU8, kBool})
    for (int64_t cols : kColumns) batch.add_both(picks(type, 11, cols));
  batch.check();
}

TEST(CudaEmit, ChecksOfIndices) {
  Batch batch;
  for (int64_t cols : kColumns)
    for (int64_t first : {0, 1})
      for (int64_t less : {0, 1}) batch.add_both(checked_places(7, cols, first, less));
  batch.check();
}

// Every rounding case of bf16 and f16: all upper halves of an f32 with the lower halves that decide; and back.
TEST(CudaEmit, RoundsLikeTheRuntime) {
  constexpr uint32_t kLower[] = {0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 65536; ++upper)
    for (uint32_t lower : kLower) values.push_back(std::bit_cast<float>(upper << 16 | lower));
  const auto n = static_cast<int64_t>(values.size());
  KernelBuilder b("round", 1, n);
  b.kernel.split_columns = true;
  const int32_t x = b.dense(kF32);
  const LoopValue v = b.load(x, kF32);
  for (DType to : {kBF16, kF16}) {
    b.store(b.dense(to, true), v);
    b.store(b.dense(kF32, true), b.cast(v, to));
  }
  Batch batch;
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  batch.add(b.kernel, {}, Batch::Sizes::kConstant, {{x, Buffer(bytes, bytes + values.size() * sizeof(float))}});
  batch.check();
}

// An f64 register holds integers that an f32 one does not.
TEST(CudaEmit, LargeIntegers) {
  const std::vector<int64_t> values = {(int64_t{1} << 24) + 1, -(int64_t{1} << 40) - 1, (int64_t{1} << 53) - 1, 7};
  KernelBuilder b("integers", 1, std::ssize(values));
  const int32_t x = b.dense(kI64);
  for (const DType type : {kF64, kF32}) b.store(b.dense(type, true), b.load(x, type));
  Batch batch;
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  batch.add(b.kernel, {}, Batch::Sizes::kConstant, {{x, Buffer(bytes, bytes + values.size() * sizeof(int64_t))}});
  batch.check();
}

// Broadcast, transposed and repeated operands.
TEST(CudaEmit, Layouts) {
  Batch batch;
  for (int64_t cols : kColumns) {
    KernelBuilder b("layouts", 12, cols);
    const int32_t operands[] = {b.dense(kF32),
                                b.per_row(kF32),
                                b.per_column(kBF16),
                                b.single(kF32),
                                b.operand(kF32, {{1, 12, 1}}, 12, false),  // transposed
                                b.operand(kF32, {{4, 3, cols}, {1, 4, 3 * cols}}, 1, false),
                                b.operand(kF32, {{1, 4, cols}}, 1, false),  // repeats every 4 rows
                                b.operand(kF32, {{3, 4, 2}}, 2, false)};
    LoopValue sum = b.constant(0.5, kF32);
    for (int32_t operand : operands) {
      const bool row = b.kernel.operands[static_cast<size_t>(operand)].col_stride == 0;
      if (row) b.in_row();
      const LoopValue v = b.load(operand, kF32);
      b.in_column();
      sum = b.emit(LoopOp::kAdd, kF32, sum, v);
    }
    b.store(b.dense(kF32, true), sum);
    b.store(b.operand(kBF16, {{1, 12, 1}}, 12, true), sum);
    batch.add_both(b.kernel);
  }
  batch.check();
}

constexpr int64_t kLong[] = {1, 2, 3, 7, 20, 64, 127, 768, 1024, 1025, 3000, 5001};

TEST(CudaEmit, RowReductions) {
  Batch batch;
  for (int64_t cols : kLong) batch.add_both(softmax(kF32, 7, cols));
  for (DType type : {kF64, kBF16, kF16})
    for (int64_t cols : {20, 1500}) batch.add_both(softmax(type, 70, cols));
  batch.check();
}

TEST(CudaEmit, ReductionsAlongRows) {
  Batch batch;
  for (int64_t cols : {1, 5, 16, 17, 40, 1100}) batch.add_both(softmax_along_rows(kF32, 2, cols, 37));
  for (DType type : {kF64, kBF16})
    for (int64_t inner : {2, 300}) batch.add_both(softmax_along_rows(type, 3, 50, inner));
  batch.check();
}

TEST(CudaEmit, ExtremaAndPlaces) {
  Batch batch;
  for (DType type : {kF32, kF64, kBF16, kI64, kI32, kU8, kBool})
    for (int64_t cols : {1, 4, 37, 300, 1030}) batch.add_both(extrema(type, 9, cols));
  for (DType type : {kF32, kI64, kI32, kU8, kBool})
    for (int64_t cols : {1, 20, 130}) batch.add_both(extrema_along_rows(type, 2, cols, 37));
  batch.check();
}

TEST(CudaEmit, RunningSums) {
  Batch batch;
  for (DType type : {kF32, kF64, kBF16, kI64, kU8, kBool})
    for (int64_t cols : {2, 17, 130}) {
      batch.add_both(running_sums(type, 40, cols));
      batch.add_both(running_sums(type, 3, cols, 21));
    }
  batch.check();
}

TEST(CudaEmit, ReductionsOverRows) {
  Batch batch;
  for (DType type : {kF32, kF64, kBF16, kI64, kI32, kU8})
    for (int64_t rows : {1, 37, 600})
      for (int64_t cols : {1, 5, 100}) {
        LoopKernel kernel = over_rows(type, rows, cols);
        split(kernel);
        batch.add_both(kernel);
      }
  batch.check();
}

TEST(CudaEmit, SumsOfSegments) {
  Batch batch;
  for (DType type : {kF32, kF64, kI64})
    for (int64_t cols : {1, 5, 64, 100})
      for (int64_t segments : {1, 40}) {
        const LoopKernel kernel = segment_sums(type, 53, cols, segments);
        for (const Batch::Sizes sizes : {Batch::Sizes::kConstant, Batch::Sizes::kDynamic, Batch::Sizes::kWide})
          batch.add(kernel, {}, sizes);
      }
  batch.check();
}

TEST(CudaEmit, ColumnSums) {
  Batch batch;
  for (int64_t rows : {1, 8, 37, 600})
    for (int64_t cols : {1, 5, 100, 300}) {
      batch.add_both(bias_backward(kF32, rows, cols));
      batch.add_both(norm_backward(kF32, rows, cols));
    }
  for (int64_t cols : {1025, 3001}) batch.add_both(norm_backward(kF32, 19, cols));
  for (DType type : {kF64, kBF16}) {
    batch.add_both(bias_backward(type, 4200, 12));
    batch.add_both(norm_backward(type, 70, 24));
  }
  batch.check();
}

// The order of a sum moves it by rounding errors only: n additions of relative error u each, in two orders, of terms
// whose magnitudes add up to m, differ by at most 2 n u m (Higham, Accuracy and Stability, section 4.2).
TEST(CudaEmit, OrdersDifferByRoundingOnly) {
  for (int64_t cols : kLong) {
    KernelBuilder b("sums", 5, cols, 2);
    const int32_t x = b.dense(kF32), sums = b.per_row(kF32, true), maxima = b.per_row(kF32, true);
    const LoopValue v = b.stage(0).load(x, kF32);
    const LoopValue sum = b.reduce(LoopOp::kReduceSum, v), max = b.reduce(LoopOp::kReduceMax, v);
    b.stage(1).in_row().store(sums, sum);
    b.store(maxima, max);
    std::mt19937 random(3);
    const auto as_floats = [](Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); };
    std::vector<Buffer> here = {random_buffer(kF32, 5 * cols, random, Samples::kTame), Buffer(20), Buffer(20)};
    std::vector<Buffer> there = here;
    const Schedule s = schedule(b.kernel);
    interpret_in_order(b.kernel, s, {}, here);  // what the CUDA kernel computes, bit for bit: RowReductions
    void* pointers[] = {there[0].data(), there[1].data(), there[2].data()};
    interpret(b.kernel, pointers, nullptr, 0, 5);
    for (int64_t row = 0; row < 5; ++row) {
      double magnitude = 0;
      for (int64_t c = 0; c < cols; ++c) magnitude += std::abs(as_floats(here[0])[row * cols + c]);
      const double bound = 2.0 * static_cast<double>(cols) * 0x1p-24 * magnitude;
      EXPECT_LE(std::abs(double{as_floats(here[1])[row]} - as_floats(there[1])[row]), bound) << cols;
      EXPECT_EQ(as_floats(here[2])[row], as_floats(there[2])[row]);
    }
  }
}

// A row's sum has the same bits in whatever kernel it is computed, a column's too.
TEST(CudaSchedule, OrdersFollowFromTheShape) {
  for (int64_t cols : kLong) {
    const Schedule alone = schedule(softmax(kF32, 600, cols)), fused = schedule(norm_backward(kBF16, 600, cols)),
                   simple = schedule(bias_backward(kF64, 600, cols));
    EXPECT_EQ(row_order(alone).lanes, row_order(fused).lanes);
    EXPECT_EQ(row_order(alone).distances, row_order(fused).distances);
    EXPECT_EQ(fused.chunk_rows, simple.chunk_rows);
  }
  // Neighbours of a thread first, then lanes of a warp, then warps: each distance once.
  using Distances = std::vector<int32_t>;
  EXPECT_EQ(row_order(schedule(softmax(kF32, 600, 1))).distances, Distances{});
  EXPECT_EQ(row_order(schedule(softmax(kF32, 600, 5))).distances, (Distances{2, 1, 4}));
  EXPECT_EQ(row_order(schedule(softmax(kF32, 600, 128))).distances, (Distances{2, 1, 64, 32, 16, 8, 4}));
  EXPECT_EQ(row_order(schedule(softmax(kF32, 600, 257))).distances, (Distances{2, 1, 64, 32, 16, 8, 4, 128}));
  EXPECT_EQ(row_order(schedule(softmax(kF32, 600, 1025))).distances,
            (Distances{2, 1, 64, 32, 16, 8, 4, 512, 256, 128}));
  for (int64_t rows : {1, 512 * 8, 512 * 8 + 1, 1 << 20}) {
    const Schedule s = schedule(bias_backward(kF32, rows, 12));
    EXPECT_LE(chunks(bias_backward(kF32, rows, 12), s), 512);
    EXPECT_GE(s.chunk_rows * chunks(bias_backward(kF32, rows, 12), s), rows);
  }
}

// How many rows a chunk has is an argument of the code; that there are chunks is not.
TEST(CudaSchedule, CodeServesChunksOfAnySize) {
  const Schedule s = schedule(bias_backward(kF32, 5000, 12));
  Schedule larger = s, none = s, wide = s;
  larger.chunk_rows *= 2;
  none.chunk_rows = 0;
  wide.wide = true;
  EXPECT_TRUE(same_code(s, larger));
  EXPECT_FALSE(same_code(s, none));
  EXPECT_FALSE(same_code(none, s));
  EXPECT_FALSE(same_code(s, wide));
}

// What is chosen, for kernels of every shape. Most of it decides only how long a kernel takes, so no other test sees it
// change.
std::string choice(const LoopKernel& kernel) {
  const Schedule s = schedule(kernel);
  const Grid g = grid(kernel, s);
  constexpr const char* kShapes[] = {"elements", "rows", "columns", "tiles"};
  std::string text = absl::StrCat(kShapes[static_cast<int>(s.shape)], ": ", g.x, " x ", g.y, " blocks of ", s.threads);
  if (s.threads_per_row > 1) absl::StrAppend(&text, ", ", s.threads_per_row, " a row");
  absl::StrAppend(&text, ", elements ", s.elements);
  if (s.chunk_rows > 0) absl::StrAppend(&text, ", chunks of ", s.chunk_rows);
  if (s.steps > 0) absl::StrAppend(&text, ", steps ", s.steps);
  return absl::StrCat(text, s.keeps_row ? ", keeps rows" : "", s.keeps_sums ? ", keeps sums" : "");
}
// y = 2 x, where x has gaps between its columns: no transposition.
LoopKernel with_gaps(int64_t rows, int64_t cols) {
  KernelBuilder b("with gaps", rows, cols);
  const int32_t x = b.operand(kF32, {{1, rows, 2 * cols}}, 2);
  b.store(b.dense(kF32, true), b.emit(LoopOp::kMul, kF32, b.load(x, kF32), b.constant(2, kF32)));
  return b.kernel;
}
// Code that serves any number of columns (or, with `which` 1, of rows in a chunk).
LoopKernel with_varying(LoopKernel kernel, size_t which) {
  kernel.varying.assign(extents(kernel).size(), false);
  kernel.varying[which] = true;
  return kernel;
}
TEST(CudaSchedule, Choices) {
  const std::pair<LoopKernel, const char*> kernels[] = {
      {scale(2.0, 100), "elements: 1 x 1 blocks of 256, elements 4"},
      {every_op(kF64, 9, 100), "elements: 2 x 1 blocks of 256, elements 2"},
      {every_op(kBF16, 9, 1), "elements: 1 x 1 blocks of 256, elements 1"},
      {softmax(kF32, 100, 1), "rows: 1 x 1 blocks of 256, elements 1, steps 1, keeps rows"},
      {softmax(kF32, 100, 3), "rows: 1 x 1 blocks of 256, elements 4, steps 1, keeps rows"},
      {softmax(kF32, 100, 5), "rows: 1 x 1 blocks of 256, 2 a row, elements 4, steps 1, keeps rows"},
      {softmax(kF32, 100, 128), "rows: 13 x 1 blocks of 256, 32 a row, elements 4, steps 1, keeps rows"},
      {softmax(kBF16, 100, 256), "rows: 13 x 1 blocks of 256, 32 a row, elements 4, steps 2, keeps rows"},
      {softmax(kF32, 100, 257), "rows: 100 x 1 blocks of 64, 64 a row, elements 4, steps 2, keeps rows"},
      {softmax(kF32, 100, 1024), "rows: 100 x 1 blocks of 128, 128 a row, elements 4, steps 2, keeps rows"},
      {softmax(kF64, 100, 1025), "rows: 100 x 1 blocks of 256, 256 a row, elements 4, steps 2, keeps rows"},
      {softmax(kF32, 100, 20'000), "rows: 100 x 1 blocks of 512, 512 a row, elements 4, steps 10, keeps rows"},
      {softmax(kF32, 100, 50'257), "rows: 100 x 1 blocks of 512, 512 a row, elements 4"},
      {norm_backward(kF32, 3, 32),
       "rows: 1 x 1 blocks of 128, 8 a row, elements 4, chunks of 8, steps 1, keeps rows, keeps sums"},
      {norm_backward(kBF16, 4096, 768),
       "rows: 512 x 1 blocks of 128, 128 a row, elements 4, chunks of 8, steps 2, keeps rows, keeps sums"},
      {norm_backward(kF32, 4097, 1600),
       "rows: 456 x 1 blocks of 256, 256 a row, elements 4, chunks of 9, steps 2, keeps rows, keeps sums"},
      {norm_backward(kF64, 100, 4096),
       "rows: 13 x 1 blocks of 512, 512 a row, elements 4, chunks of 8, steps 2, keeps rows, keeps sums"},
      {bias_backward(kF32, 8, 100), "columns: 1 x 1 blocks of 32, elements 4, chunks of 8"},
      {bias_backward(kBF16, 5000, 768), "columns: 2 x 500 blocks of 64, elements 8, chunks of 10"},
      {bias_backward(kF64, 5000, 3), "columns: 1 x 500 blocks of 32, elements 2, chunks of 10"},
      {transposed(kF32, 7, 100), "elements: 1 x 1 blocks of 256, elements 4"},
      {transposed(kF32, 100, 7), "elements: 1 x 1 blocks of 256, elements 4"},
      {transposed(kF32, 8, 8), "tiles: 1 x 1 blocks of 256, elements 1"},
      {transposed(kF64, 100, 33), "tiles: 8 x 1 blocks of 256, elements 1"},
      {with_gaps(40, 40), "elements: 2 x 1 blocks of 256, elements 4"},
      // A row and sums that do not both fit into registers: the sums stay.
      {norm_backward(kF64, 100, 6144),
       "rows: 13 x 1 blocks of 512, 512 a row, elements 4, chunks of 8, steps 3, keeps sums"},
      // How many steps a row takes must be known.
      {with_varying(softmax(kF32, 100, 128), 0), "rows: 13 x 1 blocks of 256, 32 a row, elements 4"},
      {with_varying(softmax(kF32, 100, 128), 1),
       "rows: 13 x 1 blocks of 256, 32 a row, elements 4, steps 1, keeps rows"},
  };
  for (const auto& [kernel, expected] : kernels)
    EXPECT_EQ(choice(kernel), expected) << kernel.name << " " << kernel.rows << " x " << kernel.cols;
}

// Indices have 64 bits where 32 are too few, and a grid that no device has is refused.
TEST(CudaSchedule, LargeTensors) {
  EXPECT_FALSE(schedule(softmax(kF32, 1 << 20, 1000)).wide);
  EXPECT_TRUE(schedule(softmax(kF32, 1 << 21, 1100)).wide);
  EXPECT_TRUE(schedule(scale(2.0, int64_t{1} << 31)).wide);
  EXPECT_FALSE(schedule(scale(2.0, (int64_t{1} << 31) - 4096)).wide);
  // The last index that has 32 bits: a block counts two steps of 256 threads with 4 elements past the end.
  EXPECT_FALSE(schedule(scale(2.0, (int64_t{1} << 31) - 1 - 2048)).wide);
  EXPECT_TRUE(schedule(scale(2.0, (int64_t{1} << 31) - 2048)).wide);
  const LoopKernel huge = softmax(kF32, int64_t{1} << 32, 3000);
  EXPECT_THROW(grid(huge, schedule(huge)), Error);
  // Their code, on small ones.
  Batch batch;
  for (int64_t cols : {20, 1500}) {
    for (const LoopKernel& kernel : {softmax(kF32, 70, cols), norm_backward(kF32, 70, cols),
                                     bias_backward(kF32, 70, cols), every_op(kF32, 9, cols), scale(2.0, cols)})
      batch.add(kernel, {.scalars = {0.3, 1.0}}, Batch::Sizes::kWide);
  }
  batch.check();
}

// Transposed operands go through shared memory: alone, in batches whose rows end within a tile, next to broadcast ones,
// and in place.
TEST(CudaEmit, Transposes) {
  Batch batch;
  for (DType type : {kF32, kF64, kBF16, kBool})
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{8, 8}, {32, 32}, {33, 95}, {70, 41}, {9, 130}}) {
      KernelBuilder b("transposes", rows, cols);
      const DType compute = type == kF64 ? kF64 : kF32;
      const int32_t x = b.operand(type, {{1, rows, 1}}, rows), y = b.dense(type), row = b.per_row(kF32),
                    column = b.per_column(kF32);
      const LoopValue vx = b.load(x, compute), vy = b.load(y, compute);
      const LoopValue vr = b.cast(b.load(row, kF32), compute), vc = b.cast(b.load(column, kF32), compute);
      const LoopValue sum = b.emit(LoopOp::kAdd, compute, b.emit(LoopOp::kSub, compute, vx, vy),
                                   b.emit(LoopOp::kMul, compute, vr, vc));
      b.store(b.dense(type, true), sum);
      b.store(b.operand(type, {{1, rows, 1}}, rows, true), sum);
      EXPECT_EQ(schedule(b.kernel).shape, Schedule::Shape::kTiles);
      batch.add_both(b.kernel);
      // Operand 4 in operand 1, and 5 in 0.
      batch.add_both(b.kernel, {.in_place = {{4, 1}, {5, 0}}});
      batch.add(b.kernel, {}, Batch::Sizes::kWide);
    }
  // [batch, cols, rows] in memory, as [batch * rows, cols].
  for (int64_t rows : {20, 32, 45}) {
    KernelBuilder b("batched", 3 * rows, 50);
    const int32_t x = b.operand(kF32, {{rows, 3, 50 * rows}, {1, rows, 1}}, rows);
    b.store(b.dense(kF32, true), b.load(x, kF32));
    batch.add_both(b.kernel);
  }
  // More of them than shared memory holds.
  KernelBuilder b("many", 40, 40);
  LoopValue sum = b.constant(0, kF64);
  for (int i = 0; i < 8; ++i) sum = b.emit(LoopOp::kAdd, kF64, sum, b.load(b.operand(kF64, {{1, 40, 1}}, 40), kF64));
  b.store(b.operand(kF64, {{1, 40, 1}}, 40, true), sum);
  batch.add_both(b.kernel);
  batch.check();
}

// Scalars that the kernel reads from device memory when it runs.
TEST(CudaEmit, ScalarsOfTheDevice) {
  Batch batch;
  for (auto from : {ScalarFrom::kDeviceF64, ScalarFrom::kDeviceF32})
    for (const LoopKernel& kernel : {every_op(kF32, 9, 100), every_op(kF64, 2, 7)}) {
      batch.add(kernel, {.scalars = {0.375, 1.00390625}}, Batch::Sizes::kConstant, {}, {from, from});
      batch.add(kernel, {.scalars = {0.375, 0.3}}, Batch::Sizes::kConstant, {}, {from, ScalarFrom::kArgument});
    }
  batch.check();
}

// An output in an input's memory: of elements, and of what all threads of a row read before one of them writes.
TEST(CudaEmit, InPlace) {
  Batch batch;
  for (int64_t cols : {5, 100, 2000}) {
    batch.add_both(in_place(6, cols), {.in_place = {{2, 0}, {3, 1}}});
    batch.add_both(in_place_at_once(6, cols), {.in_place = {{2, 0}, {3, 1}}});
  }
  batch.check();
}

}  // namespace
}  // namespace rondo::compile::cuda
