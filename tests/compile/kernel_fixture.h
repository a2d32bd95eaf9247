// Building small loop kernels by hand, and comparing compiled code with the interpreter bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "rondo/compile/codegen/interpret.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/codegen/loop_verify.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::compile {

// Appends instructions to a kernel of `stages` stages; also a LoopBuilder, so that scalar_math.h can be used: emit()
// adds to the current stage's columns, or to its row list after in_row().
class KernelBuilder : public LoopBuilder {
 public:
  KernelBuilder(std::string name, int64_t rows, int64_t cols, int stages = 1) {
    kernel.name = std::move(name);
    kernel.rows = rows;
    kernel.cols = cols;
    kernel.stages.resize(stages);
  }

  // A dense [rows, cols] operand.
  int32_t dense(DType type, bool output = false) { return operand(type, {{1, kernel.rows, kernel.cols}}, 1, output); }
  // One element for each row; for each column; for the kernel.
  int32_t per_row(DType type, bool output = false) { return operand(type, {{1, kernel.rows, 1}}, 0, output); }
  int32_t per_column(DType type) { return operand(type, {}, 1, false); }
  int32_t single(DType type) { return operand(type, {}, 0, false); }
  int32_t operand(DType type, std::vector<OperandAxis> axes, int64_t col_stride, bool output = false) {
    kernel.operands.push_back({type, std::move(axes), col_stride, output, false});
    return static_cast<int32_t>(kernel.operands.size() - 1);
  }
  int32_t partial(DType type) {
    kernel.operands.push_back({type, {}, 1, true, true});
    return static_cast<int32_t>(kernel.operands.size() - 1);
  }

  // The state of a stream; element (row, col) has the number row * row_stride + col * col_stride.
  int32_t stream(int64_t increment, int64_t row_stride, int64_t col_stride) {
    Operand state;
    state.dtype = kI64;
    state.col_stride = col_stride;
    state.is_random = true;
    state.increment = increment;
    if (row_stride != 0) state.axes = {{1, kernel.rows, row_stride}};
    kernel.operands.push_back(std::move(state));
    return static_cast<int32_t>(kernel.operands.size() - 1);
  }
  // `p`: of kRandomKeep.
  LoopValue random_number(LoopOp op, int32_t stream, LoopValue p = {}) {
    return add({op, op == LoopOp::kRandomKeep ? kBool : kF32, p.id, -1, -1, stream, 0}, list());
  }

  // The number of element (row, col): row * row_stride + col * col_stride.
  LoopValue place(int64_t row_stride, int64_t col_stride) {
    Operand place;
    place.dtype = kI64;
    place.col_stride = col_stride;
    place.is_index = true;
    if (row_stride != 0) place.axes = {{1, kernel.rows, row_stride}};
    kernel.operands.push_back(std::move(place));
    return add({.op = LoopOp::kIndex, .type = kI64, .index = static_cast<int32_t>(kernel.operands.size() - 1)}, list());
  }

  // `index` must be below `size`. Its place is the number of element (row, col), as in place().
  void check_below(LoopValue index, int64_t size, int64_t row_stride, int64_t col_stride) {
    Operand check;
    check.dtype = kI64;
    check.axes = {{0, size, 0}};
    check.col_stride = col_stride;
    check.is_check = true;
    if (row_stride != 0) check.axes.push_back({1, kernel.rows, row_stride});
    kernel.operands.push_back(std::move(check));
    const auto operand = static_cast<int32_t>(kernel.operands.size() - 1);
    add({.op = LoopOp::kCheckIndex, .type = kI64, .a = index.id, .index = operand}, list());
  }

  KernelBuilder& stage(int s) { return stage_ = s, row_ = false, *this; }
  KernelBuilder& in_row() { return row_ = true, *this; }
  KernelBuilder& in_column() { return row_ = false, *this; }

  LoopValue add(Instr i, std::vector<int32_t>& list) {
    kernel.instrs.push_back(i);
    list.push_back(static_cast<int32_t>(kernel.instrs.size() - 1));
    return {this, list.back(), i.type};
  }
  std::vector<int32_t>& list() {
    Stage& s = kernel.stages[stage_];
    return row_ ? s.row : s.column;
  }
  LoopValue emit(LoopOp op, DType type, LoopValue a, LoopValue b = {}, LoopValue c = {}) override {
    return add({op, type, a.id, b.id, c.id, -1, 0}, list());
  }
  LoopValue constant(double value, DType type) override {
    return add({LoopOp::kConst, type, -1, -1, -1, -1, value}, list());
  }
  LoopValue scalar(int i) override { return scalar(i, kF32); }
  LoopValue scalar(int i, DType type) {
    kernel.n_scalars = std::max(kernel.n_scalars, i + 1);
    return add({LoopOp::kScalar, type, -1, -1, -1, i, 0}, list());
  }
  LoopValue load(int32_t operand, DType type) { return add({LoopOp::kLoad, type, -1, -1, -1, operand, 0}, list()); }
  void store(int32_t operand, LoopValue v) { add({LoopOp::kStore, v.type, v.id, -1, -1, operand, 0}, list()); }
  void reduce_rows(LoopOp op, LoopValue v) {
    const int32_t to = partial(v.type);
    add({.op = op, .type = v.type, .a = v.id, .index = to}, list());
  }
  void column_sum(int32_t operand, LoopValue v) { add({LoopOp::kColumnSum, v.type, v.id, -1, -1, operand, 0}, list()); }
  LoopValue cast(LoopValue v, DType type) { return emit(LoopOp::kCast, type, v); }
  LoopValue reduce(LoopOp op, LoopValue v) override {
    return add({op, v.type, v.id, -1, -1, -1, 0}, kernel.stages[stage_].reductions);
  }

  LoopValue input(int) override { return {}; }
  bool has_input(int) const override { return true; }
  int64_t integer(int) const override { return 0; }
  void output(int, LoopValue) override {}

  LoopKernel kernel;

 private:
  int stage_ = 0;
  bool row_ = false;
};

// kSpecial: values that rounding and comparisons trip over, among ordinary ones; kWide: some large; kTame: none.
enum class Samples : uint8_t { kTame, kWide, kSpecial };

inline double sample(std::mt19937& random, Samples samples) {
  static const double kSpecials[] = {0.0,      -0.0, 1.0,    -1.0,   0.5,      1.5,       2.5,        -2.5,
                                     INFINITY, NAN,  1e-40,  -1e-42, 1e-310,   65504.0,   65520.0,    -INFINITY,
                                     6e-8,     88.0, -103.5, 1e30,   123456.5, 3.3895e38, 1.00390625, 1.01171875};
  if (samples == Samples::kSpecial && random() % 4 == 0) return kSpecials[random() % std::size(kSpecials)];
  return std::normal_distribution<double>(0.0, samples != Samples::kTame && random() % 8 == 0 ? 100.0 : 1.0)(random);
}

using Buffer = std::vector<std::byte>;

inline Buffer random_buffer(DType type, int64_t elements, std::mt19937& random, Samples samples) {
  Buffer buffer(elements * size_of(type));
  visit_dtype(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Real = std::conditional_t<sizeof(T) == 8, double, float>;
    for (int64_t i = 0; i < elements; ++i) {
      T value;
      if constexpr (std::is_same_v<T, bool>) value = random() % 2 == 0;
      else if constexpr (std::is_integral_v<T>) value = static_cast<T>(random() % 200) - static_cast<T>(50);
      else value = static_cast<T>(static_cast<Real>(sample(random, samples)));
      std::memcpy(buffer.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return buffer;
}

// The first element where the buffers differ, NaNs being equal, or "".
inline std::string first_difference(DType type, const Buffer& expected, const Buffer& actual) {
  std::string text;
  visit_dtype(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t i = 0; i < expected.size() / sizeof(T); ++i) {
      const std::byte *e = expected.data() + i * sizeof(T), *a = actual.data() + i * sizeof(T);
      if (std::memcmp(e, a, sizeof(T)) == 0) continue;
      if constexpr (!std::is_same_v<T, bool>) {
        T x, y;
        std::memcpy(&x, e, sizeof(T));
        std::memcpy(&y, a, sizeof(T));
        const double dx = static_cast<double>(x), dy = static_cast<double>(y);
        if (dx != dx && dy != dy) continue;
        char line[120];
        std::snprintf(line, sizeof(line), "element %zu: expected %.17g, got %.17g", i, dx, dy);
        text = line;
      } else {
        text = "element " + std::to_string(i);
      }
      return;
    }
  });
  return text;
}

inline int64_t elements_of(const LoopKernel& kernel, const Operand& operand) {
  if (operand.is_random) return 2;
  if (operand.is_index || operand.is_check) return 1;
  const auto index = static_cast<size_t>(&operand - kernel.operands.data());
  if (static_cast<int32_t>(index) == kernel.starts) return kernel.segments + 1;
  if (operand.is_partial || is_onto(kernel.operands, index)) return chunks(kernel) * kernel.cols;
  int64_t last = (kernel.cols - 1) * operand.col_stride;
  for (const OperandAxis& axis : operand.axes)
    last += (is_picked(axis) ? axis.size - 1 : std::min(axis.size, kernel.rows) - 1) * axis.stride;
  return last + 1;
}

// Where segments begin, of which some are empty: together they are all rows.
inline Buffer segment_starts(const LoopKernel& kernel) {
  std::vector<int64_t> starts;
  for (int64_t k = 0; k <= kernel.segments; ++k) {
    const int64_t share = k * kernel.rows / kernel.segments;
    starts.push_back(k == 0 || k == kernel.segments ? share
                     : k % 3 == 2                   ? starts.back()
                                                    : std::max(share, starts.back()));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(starts.data());
  return Buffer(bytes, bytes + starts.size() * sizeof(int64_t));
}

// Random contents of every operand, but for where segments begin, and for checks.
inline std::vector<Buffer> random_operands(const LoopKernel& kernel, std::mt19937& random, Samples samples) {
  std::vector<Buffer> buffers;
  for (const Operand& operand : kernel.operands)
    buffers.push_back(random_buffer(operand.dtype, elements_of(kernel, operand), random, samples));
  if (kernel.starts >= 0) buffers[static_cast<size_t>(kernel.starts)] = segment_starts(kernel);
  for (size_t i = 0; i < buffers.size(); ++i)
    if (kernel.operands[i].is_check) buffers[i].assign(sizeof(int64_t), std::byte{0});  // nothing bad yet
  return buffers;
}

// The end of the last call: of columns, segments or rows.
inline int64_t extent_of_calls(const LoopKernel& kernel) {
  return kernel.split_columns ? kernel.cols : kernel.starts >= 0 ? kernel.segments : kernel.rows;
}

struct RunOptions {
  std::vector<double> scalars = {};
  Samples samples = Samples::kSpecial;
  std::vector<std::pair<int, int>> in_place = {};       // (output, input): one buffer
  std::vector<std::pair<int64_t, int64_t>> calls = {};  // (begin, end); empty: one call, or one per chunk
  const Target* target = &target_of(kCPU);              // whose code runs
};

// The same kernel at other sizes, all of them read at run time: its code must serve `kernel`, too.
inline LoopKernel at_other_sizes(LoopKernel kernel) {
  kernel.varying.assign(extents(kernel).size(), true);
  const auto change = [](int64_t& extent) { extent += may_vary(extent) ? 7 : 0; };
  change(kernel.cols);
  change(kernel.chunk_rows);
  for (Operand& operand : kernel.operands) {
    change(operand.col_stride);
    for (OperandAxis& axis : operand.axes) change(axis.stride);
  }
  return kernel;
}

// That code again, which takes all for granted that may be useful: where the last step of a row ends, or what divides a
// row.
enum class Granted { kSteps, kMultiple };
inline LoopKernel at_other_sizes(const LoopKernel& kernel, Granted granted) {
  LoopKernel other = at_other_sizes(kernel);
  const std::vector<int64_t> sizes = extents(kernel);
  other.ranges.resize(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    ExtentRange known{.min = sizes[i], .max = sizes[i]};
    if (granted == Granted::kMultiple) known = {.multiple_of = std::max<int64_t>(sizes[i], 1)};
    if (may_vary(sizes[i])) other.ranges[i] = useful_range(kernel, i, known);
    EXPECT_TRUE(other.ranges[i].holds(sizes[i]));
  }
  return other;
}

// Compiles the kernel, runs it and the interpreter on equal random buffers and compares every operand.
inline void expect_equal_bits(const LoopKernel& kernel, const LoopKernel& compiled, RunOptions options) {
  SCOPED_TRACE(to_string(kernel));
  ASSERT_EQ(verify(kernel), "");
  // The interpreter runs what the text says, so every kernel here tests the text, too.
  const LoopKernel read = parse_loop_kernel(to_string(kernel));
  ASSERT_EQ(to_string(read), to_string(kernel));
  const auto executable = compile_kernels({&compiled, 1}, {}, *options.target);
  const std::vector<int64_t> sizes = extents(kernel);
  std::mt19937 random(42);
  std::vector<Buffer> expected = random_operands(kernel, random, options.samples), actual = expected;
  auto pointers = [&](std::vector<Buffer>& buffers) {
    std::vector<void*> result;
    for (Buffer& buffer : buffers) result.push_back(buffer.data());
    for (auto [output, input] : options.in_place) result[output] = result[input];
    return result;
  };
  if (options.calls.empty()) {
    const int64_t all = extent_of_calls(kernel);
    const int64_t step = kernel.chunk_rows > 0 ? kernel.chunk_rows : all;
    for (int64_t at = 0; at < all; at += step) options.calls.push_back({at, std::min(all, at + step)});
  }
  const std::vector<void*> expected_ptrs = pointers(expected), actual_ptrs = pointers(actual);
  for (auto [begin, end] : options.calls) {
    interpret(read, expected_ptrs.data(), options.scalars.data(), begin, end);
    executable->entry(0)(actual_ptrs.data(), options.scalars.data(), sizes.data(), begin, end);
  }
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(first_difference(kernel.operands[i].dtype, expected[i], actual[i]), "") << "operand " << i;
}

inline void expect_equal_bits(const LoopKernel& kernel, const RunOptions& options = {}) {
  expect_equal_bits(kernel, kernel, options);
  expect_equal_bits(kernel, at_other_sizes(kernel), options);
  for (Granted granted : {Granted::kSteps, Granted::kMultiple})
    expect_equal_bits(kernel, at_other_sizes(kernel, granted), options);
}

// y = factor * x, for tests that care about code and not about what it computes.
inline LoopKernel scale(double factor, int64_t cols = 100, std::string name = "scale") {
  KernelBuilder b(std::move(name), 1, cols);
  b.kernel.split_columns = true;
  const int32_t x = b.dense(kF32), y = b.dense(kF32, true);
  b.store(y, b.emit(LoopOp::kMul, kF32, b.load(x, kF32), b.constant(factor, kF32)));
  return b.kernel;
}

// Rows that are made, stored, and added up in segments: once alone, once onto an operand.
inline LoopKernel segment_sums(DType type, int64_t rows, int64_t cols, int64_t segments) {
  KernelBuilder b("segment_sums", rows, cols);
  const int32_t x = b.dense(type), weight = b.per_row(type), made = b.dense(type, true);
  b.kernel.segments = segments;
  b.kernel.starts = b.operand(kI64, {}, 1);
  const int32_t sums = b.partial(type), onto = b.operand(type, {}, 1), totals = b.partial(type);
  b.kernel.operands[static_cast<size_t>(totals)].onto = onto;
  const LoopValue value = b.load(x, type), product = b.emit(LoopOp::kMul, type, value, b.load(weight, type));
  b.store(made, product);
  b.column_sum(sums, product);
  b.column_sum(totals, value);
  return b.kernel;
}

// Every operation on two loaded values, each stored to an output of its own.
inline LoopKernel every_op(DType type, int64_t rows, int64_t cols) {
  KernelBuilder b("every_op", rows, cols);
  const int32_t x = b.dense(type), y = b.dense(type), z = b.dense(type);
  const auto output = [&](LoopValue v, DType stored) { b.store(b.dense(stored, true), v); };
  const LoopValue vx = b.load(x, type), vy = b.load(y, type), vz = b.load(z, type);
  for (LoopOp op : {LoopOp::kAdd, LoopOp::kSub, LoopOp::kMul, LoopOp::kDiv}) output(b.emit(op, type, vx, vy), type);
  output(b.emit(LoopOp::kFma, type, vx, vy, vz), type);
  // A product and a sum must stay two roundings (this product has no other use, so fusing would pay).
  output(b.emit(LoopOp::kAdd, type, b.emit(LoopOp::kMul, type, vx, vz), vy), type);
  const LoopValue magnitude = b.emit(LoopOp::kAbs, type, vx);
  for (LoopOp op : {LoopOp::kSqrt, LoopOp::kExponent, LoopOp::kMantissa}) output(b.emit(op, type, magnitude), type);
  for (LoopOp op : {LoopOp::kSqrt, LoopOp::kAbs, LoopOp::kNeg, LoopOp::kRoundEven, LoopOp::kFloor})
    output(b.emit(op, type, vx), type);
  output(b.emit(LoopOp::kExp2Int, type, b.emit(LoopOp::kRoundEven, type, vy)), type);
  for (LoopOp op : {LoopOp::kLt, LoopOp::kLe, LoopOp::kEq, LoopOp::kNe}) output(b.emit(op, kBool, vx, vy), kBool);
  const LoopValue less = b.emit(LoopOp::kLt, kBool, vx, vy), same = b.emit(LoopOp::kEq, kBool, vx, vz);
  output(b.emit(LoopOp::kAnd, kBool, less, b.emit(LoopOp::kNot, kBool, same)), kU8);
  output(b.emit(LoopOp::kOr, kBool, less, same), kBool);
  for (LoopOp op : {LoopOp::kLt, LoopOp::kLe, LoopOp::kEq, LoopOp::kNe}) output(b.emit(op, kBool, less, same), kBool);
  output(b.emit(LoopOp::kSelect, type, less, vx, vz), type);
  output(b.emit(LoopOp::kSelect, kBool, less, same, less), kBool);
  for (DType to : {kF32, kF64, kBF16, kF16, kBool}) output(b.cast(vx, to), to == kBool ? kBool : kF64);
  output(b.cast(less, type), type);
  for (double value : {0.1, -0.0, 1e-42, 3.4e38, double(INFINITY), double(NAN)}) output(b.constant(value, type), type);
  output(b.emit(LoopOp::kMul, type, vx, b.scalar(0, type)), type);
  output(b.scalar(1, kBF16), kF32);
  output(scalar::exp(vx), type);
  return b.kernel;
}

// Every operation that integers have, with sums and products that wrap around.
inline LoopKernel every_integer_op(DType type, int64_t rows, int64_t cols) {
  KernelBuilder b("every_integer_op", rows, cols);
  const int32_t x = b.dense(type), y = b.dense(type);
  const auto output = [&](LoopValue v) { b.store(b.dense(v.type, true), v); };
  LoopValue vx = b.load(x, type);
  const LoopValue vy = b.load(y, type);
  for (int i = 0; i < 4; ++i) vx = b.emit(LoopOp::kMul, type, vx, b.emit(LoopOp::kAdd, type, vx, vy));
  for (LoopOp op : {LoopOp::kAdd, LoopOp::kSub, LoopOp::kMul}) output(b.emit(op, type, vx, vy));
  for (LoopOp op : {LoopOp::kNeg, LoopOp::kAbs, LoopOp::kNot}) output(b.emit(op, type, vx));
  for (LoopOp op : {LoopOp::kAnd, LoopOp::kOr, LoopOp::kXor, LoopOp::kShiftLeft, LoopOp::kShiftRight})
    output(b.emit(op, type, vx, vy));
  const LoopValue few = b.emit(LoopOp::kSub, type, b.emit(LoopOp::kAnd, type, vy, b.constant(127, type)),
                               b.constant(20, type));
  for (LoopOp op : {LoopOp::kShiftLeft, LoopOp::kShiftRight}) output(b.emit(op, type, vx, few));
  for (LoopOp op : {LoopOp::kLt, LoopOp::kLe, LoopOp::kEq, LoopOp::kNe}) output(b.emit(op, kBool, vx, vy));
  const LoopValue less = b.emit(LoopOp::kLt, kBool, vx, vy);
  output(b.emit(LoopOp::kSelect, type, less, vx, vy));
  for (double value : {0.0, 1.0, -1.0, 255.0, 0x1p31, -0x1p31, 0x1p63, -0x1p63, 2.75, -2.75, 1e30, double(NAN)})
    output(b.constant(value, type));
  output(b.emit(LoopOp::kMul, type, vx, b.scalar(0, type)));
  output(b.scalar(1, type));
  for (DType to : {kF64, kF32, kI64, kI32, kU8, kBool}) output(b.cast(vx, to));
  for (DType to : {kBF16, kF16}) b.store(b.dense(to, true), b.cast(vx, to));
  output(b.cast(less, type));
  return b.kernel;
}

// Extrema and sums of a row, where the smallest stands, and places. `type`: any.
inline LoopKernel extrema(DType type, int64_t rows, int64_t cols) {
  KernelBuilder b("extrema", rows, cols, 3);
  const DType held = type == kBool ? kBool : compute_dtype(type);
  const int32_t x = b.dense(type), largest = b.per_row(held, true), smallest = b.per_row(held, true);
  const int32_t sums = b.per_row(kI64, true), at = b.per_row(kI64, true), places = b.dense(kI64, true);
  const LoopValue v = b.load(x, held);
  const LoopValue max = b.reduce(LoopOp::kReduceMax, v), min = b.reduce(LoopOp::kReduceMin, v);
  const LoopValue sum = b.reduce(LoopOp::kReduceSum, b.cast(v, kI64));
  b.stage(1).in_row().store(largest, max);
  b.store(smallest, min);
  b.store(sums, sum);
  b.in_column();
  const LoopValue hit = b.emit(LoopOp::kEq, kBool, b.load(x, held), min), place = b.place(1, 3);
  const LoopValue first = b.reduce(LoopOp::kReduceMin,
                                   b.emit(LoopOp::kSelect, kI64, hit, place, b.constant(0x1p63, kI64)));
  b.stage(2).in_row().store(at, first);
  b.store(b.per_row(kI64, true), b.place(7, 0));
  b.in_column().store(places, b.place(cols, 1));
  return b.kernel;
}
// The same over the columns of (outer, cols, inner).
inline LoopKernel extrema_along_rows(DType type, int64_t outer, int64_t cols, int64_t inner) {
  LoopKernel kernel = extrema(type, outer * inner, cols);
  kernel.inner = inner;
  for (Operand& operand : kernel.operands) {
    if (operand.col_stride == 0 || operand.is_index) continue;
    operand.axes = {{inner, outer, cols * inner}, {1, inner, 1}};
    operand.col_stride = inner;
  }
  return kernel;
}

// Running sums along the columns of (outer, cols, inner), and what is computed from them.
inline LoopKernel running_sums(DType type, int64_t outer, int64_t cols, int64_t inner = 1) {
  KernelBuilder b("running_sums", outer * inner, cols);
  const DType held = type == kBool ? kBool : compute_dtype(type), wide = is_floating(type) ? kF64 : kI64;
  const int32_t x = b.dense(type), per_row = b.per_row(type), sums = b.dense(wide, true), more = b.dense(wide, true);
  const auto sum_of = [&](LoopValue v) { return b.emit(LoopOp::kScan, wide, b.cast(v, wide)); };
  b.in_row();
  const LoopValue same = b.load(per_row, held);
  b.in_column();
  const LoopValue sum = sum_of(b.load(x, held));
  b.store(sums, sum);
  b.store(more, b.emit(LoopOp::kMul, wide, sum_of(same), sum));
  if (inner == 1) return b.kernel;
  b.kernel.inner = inner;
  for (Operand& operand : b.kernel.operands) {
    if (operand.col_stride == 0) continue;
    operand.axes = {{inner, outer, cols * inner}, {1, inner, 1}};
    operand.col_stride = inner;
  }
  return b.kernel;
}

// Reductions over the rows of each chunk. The kernel has no chunks yet.
inline LoopKernel over_rows(DType type, int64_t rows, int64_t cols) {
  KernelBuilder b("over_rows", rows, cols);
  const LoopValue v = b.load(b.dense(type), compute_dtype(type)), given = is_floating(type) ? v : b.cast(v, kI64);
  for (LoopOp op : {LoopOp::kColumnMax, LoopOp::kColumnMin, LoopOp::kColumnSum}) b.reduce_rows(op, given);
  return b.kernel;
}

// Numbers of each float type and bools, converted to integers.
inline LoopKernel floats_to_integers(DType from, double scale, int64_t rows, int64_t cols) {
  KernelBuilder b("floats_to_integers", rows, cols);
  const DType held = compute_dtype(from);
  LoopValue v = b.load(b.dense(from), held);
  if (held != kBool) v = b.emit(LoopOp::kMul, held, v, b.constant(scale, held));
  for (DType to : {kI64, kI32, kU8}) b.store(b.dense(to, true), b.cast(v, to));
  return b.kernel;
}

// A table of 100 rows, of which some indices are out of range, read in each way: rows of it, one element of each row,
// an element of its own for each column, and along the rows of another operand.
inline LoopKernel picks(DType type, int64_t rows, int64_t cols) {
  KernelBuilder b("picks", rows, cols);
  const DType held = type == kBool ? kBool : compute_dtype(type);
  const int32_t of_row = b.per_row(kI64), of_element = b.dense(kI64);
  const auto table = [&](std::vector<OperandAxis> axes, int64_t col_stride) {
    axes.insert(axes.begin(), {0, 100, cols});
    return b.operand(type, axes, col_stride);
  };
  const auto pick = [&](int32_t from, LoopValue index) {
    LoopValue v = b.emit(LoopOp::kPick, held, index);
    b.kernel.instrs.back().index = from;
    return v;
  };
  const int32_t whole = table({}, 1), first = table({}, 0), element = table({{1, rows, 100 * cols}}, 1);
  const LoopValue row = b.in_row().load(of_row, kI64);
  const LoopValue one = pick(first, row);
  const LoopValue at = b.in_column().load(of_element, kI64);
  for (LoopValue v : {pick(whole, row), pick(first, at), pick(element, at), pick(element, row), one})
    b.store(b.dense(type, true), v);
  return b.kernel;
}

// The places of a row's and of all elements, less `first`, as indices below `size`: with `first` 0 and as many as there
// are, none is bad; with one less, the last one is; with `first` 1, the first one.
inline LoopKernel checked_places(int64_t rows, int64_t cols, int64_t first, int64_t less) {
  KernelBuilder b("checked_places", rows, cols);
  const auto index = [&](int64_t row_stride, int64_t col_stride) {
    return b.emit(LoopOp::kSub, kI64, b.place(row_stride, col_stride), b.constant(static_cast<double>(first), kI64));
  };
  const int32_t y = b.dense(kI64, true);
  b.in_row();
  b.check_below(index(1, 0), std::max<int64_t>(rows - first - less, 0), 1, 0);
  b.in_column();
  const LoopValue at = index(cols, 1);
  b.check_below(at, rows * cols - first - less, cols, 1);
  b.check_below(at, rows * cols, cols, 1);
  b.store(y, at);
  return b.kernel;
}

// Dropout's masks in two sweeps of a row, uniform numbers, and a number for each row. Rows of the streams are
// row_stride numbers apart, columns col_stride.
inline LoopKernel random_numbers(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  KernelBuilder b("random_numbers", rows, cols, 2);
  const int32_t x = b.dense(kF32), y = b.dense(kF32, true), mask = b.dense(kBool, true), total = b.per_row(kF32, true);
  const int32_t first = b.dense(kF32, true), second = b.dense(kF32, true), of_row = b.per_row(kF32, true);
  const int32_t dropped = b.stream(3, row_stride, col_stride), drawn = b.stream(-2, row_stride, col_stride);
  const int32_t rows_stream = b.stream(int64_t{1} << 40, 1, 0);
  const LoopValue p = b.in_row().scalar(0, kF64);
  b.store(of_row, b.random_number(LoopOp::kRandomSecond, rows_stream));
  const auto masked = [&] {
    const LoopValue kept = b.random_number(LoopOp::kRandomKeep, dropped, p);
    return std::pair(kept, b.emit(LoopOp::kSelect, kF32, kept, b.load(x, kF32), b.constant(0, kF32)));
  };
  b.in_column();
  const LoopValue sum = b.reduce(LoopOp::kReduceSum, masked().second);
  b.stage(1).in_row().store(total, sum);
  b.store(b.per_row(kBool, true), b.random_number(LoopOp::kRandomKeep, rows_stream, p));
  b.in_column();
  const auto [kept, value] = masked();
  b.store(mask, kept);
  b.store(y, b.emit(LoopOp::kMul, kF32, value, sum));
  b.store(first, b.random_number(LoopOp::kRandomFirst, drawn));
  b.store(second, b.random_number(LoopOp::kRandomSecond, drawn));
  return b.kernel;
}
// Columns that several calls share: the numbers of a tensor in order.
inline LoopKernel random_columns(int64_t n, int64_t increment) {
  KernelBuilder b("random_columns", 1, n);
  b.kernel.split_columns = true;
  const int32_t y = b.dense(kBool, true), z = b.dense(kF32, true);
  const int32_t stream = b.stream(increment, 0, 1);
  const LoopValue p = b.in_row().scalar(0, kF64);
  b.in_column().store(y, b.random_number(LoopOp::kRandomKeep, stream, p));
  b.store(z, b.random_number(LoopOp::kRandomFirst, b.stream(increment, 0, 1)));
  return b.kernel;
}

inline const int64_t kWidths[] = {1, 15, 16, 17, 32, 100};

}  // namespace rondo::compile
