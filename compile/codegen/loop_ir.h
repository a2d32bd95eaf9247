// The loop IR: one fused kernel as plain data. Made by lower.cc, read by the emitters of cpu/ and cuda/.
//
// A kernel walks a 2-D iteration space of `rows` x `cols`. For each row it runs its stages in order: first the stage's
// row instructions (scalars), then one sweep over the columns (vectors), then the sweep's reductions, whose results are
// scalars that later stages may read. A column instruction may read row instructions of its own and earlier stages.
//
//   layer norm:  stage 0: column: load x            reductions: sum(x)
//                stage 1: row: mean                 column: load x, sub, mul     reductions: sum((x-mean)^2)
//                stage 2: row: rstd, store rstd     column: load x, w, b, ..., store y
//
// Registers are f32, f64, booleans or integers (i64, i32, u8). A 16-bit float type on an instruction means an f32
// register; kCast, kLoad, kConst and kScalar of such a type round to it, arithmetic does not. kLoad converts from the
// operand's dtype, kStore to it; of an f32 it stores to u8 the low byte of the integer that the f32 holds: the low bits
// of a + 1.5 * 2^23.
//
// Arithmetic on integers wraps around: kAdd, kSub, kMul, kNeg and kAbs, and sums. Conversions are those of eager
// execution (convert() of runtime/ops/elementwise_body.h): kCast, kConst and kScalar cut the fraction of a float, take
// the nearest number of the type where it is out of range, and 0 for NaN; u8 takes the low byte of the i64.
//
// An output may be the same memory as an input, element for element (in place); no other operands overlap. Then all
// loads of an element must come before its store, in the order stage, row list, column list.
//
// This header is shared with the LLVM plug-in: data only, no functions that need linking.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {

// How an operand is addressed. Its element at (row, col) stands at
//   base + sum over axes of ((row / divisor) % size) * stride  +  col * col_stride        (in elements)
// The first axis may be a picked one, of divisor 0: its index is an argument of kPick or kCheckIndex, which alone have
// such operands.
struct OperandAxis {
  int64_t divisor;
  int64_t size;
  int64_t stride;
};
struct Operand {
  DType dtype = kF32;             // in memory
  std::vector<OperandAxis> axes;  // outermost first; one axis {1, rows, stride} in the common case, none if constant
  int64_t col_stride = 1;         // 0: the operand is loaded once per row
  bool is_output = false;
  // A partial result of kColumnSum, kColumnMax or kColumnMin: a dense [n_chunks, cols] array of the compute type; a
  // call for rows [begin, end) writes row begin / chunk_rows of it. With Note [Segments of rows], a whole result.
  bool is_partial = false;
  // Sums only: the dense operand to which the complete sum is added; -1: none.
  int32_t onto = -1;
  // A random state, i64 [2] = {seed, base}, read as a whole (Note [Random state] in runtime/random/random_state.h).
  // What would be the place of the element at (row, col) is its number in the stream (seed, base + increment).
  bool is_random = false;
  int64_t increment = 0;
  // No memory: what would be the place of the element at (row, col) is a number, for kIndex. dtype: i64. Its address is
  // null.
  bool is_index = false;
  // For kCheckIndex: the first axis is a picked one, whose size bounds the indices; the others and the columns give the
  // place of each, which its error tells. dtype: i64. Its address: where a CPU's code notes that an index was bad, as a
  // 1; on a GPU, the device's status.
  bool is_check = false;
};
// False for states, places and checks: loads and stores do not touch them.
inline bool has_elements(const Operand& operand) {
  return !operand.is_random && !operand.is_index && !operand.is_check;
}
inline bool is_random(LoopOp op) {
  return op == LoopOp::kRandomKeep || op == LoopOp::kRandomFirst || op == LoopOp::kRandomSecond;
}

// True for an operand that Operand::onto names: it has rows of segments.
inline bool is_onto(const std::vector<Operand>& operands, size_t index) {
  return std::any_of(operands.begin(), operands.end(),
                     [&](const Operand& o) { return o.onto == static_cast<int32_t>(index); });
}

inline bool is_picked(const OperandAxis& axis) { return axis.divisor == 0; }
inline bool is_picked(const Operand& operand) { return !operand.axes.empty() && is_picked(operand.axes[0]); }

// A loop over columns takes one or two steps of kLanes at a time.
inline constexpr int64_t kMaxStep = 2 * kLanes;
// Column strides up to here are gathered with 32-bit indices.
inline constexpr int64_t kNarrowStride = INT32_MAX / kLanes;
// Calls of a split_columns kernel meet at multiples of this: what vector loops and cache lines like.
inline constexpr int64_t kSplitGrain = 64;

inline bool is_integer(DType type) { return type == kI64 || type == kI32 || type == kU8; }

inline bool is_reduction(LoopOp op) { return op >= LoopOp::kReduceSum && op <= LoopOp::kReduceMin; }
// Over the rows of a chunk.
inline bool is_column_reduction(LoopOp op) { return op >= LoopOp::kColumnSum && op <= LoopOp::kColumnMin; }
// Nothing reads what it gives.
inline bool is_effect(LoopOp op) {
  return op == LoopOp::kStore || op == LoopOp::kCheckIndex || is_column_reduction(op);
}
// The reduction over columns of the same kind.
inline LoopOp along_row(LoopOp column_reduction) {
  return column_reduction == LoopOp::kColumnSum   ? LoopOp::kReduceSum
         : column_reduction == LoopOp::kColumnMax ? LoopOp::kReduceMax
                                                  : LoopOp::kReduceMin;
}
// What a reduction of values of `type` starts from, as a kConst.
inline double identity_of(LoopOp reduction, DType type) {
  if (reduction == LoopOp::kReduceSum) return 0;
  const bool is_min = reduction == LoopOp::kReduceMin;
  if (type == kBool) return is_min ? 1 : 0;
  return is_min ? __builtin_inf() : -__builtin_inf();
}
// Arithmetic, which integers have by rules of their own.
inline bool is_arithmetic(LoopOp op) { return op >= LoopOp::kAdd && op <= LoopOp::kShiftRight; }

struct Instr {
  LoopOp op;
  DType type = kF32;               // of the result
  int32_t a = -1, b = -1, c = -1;  // instruction ids
  int32_t index = -1;              // operand or scalar
  double value = 0;                // kConst
};

struct Stage {
  // Ids, in order; every instruction stands in exactly one list of one stage. A column value is seen by its own stage
  // only, a row value and a reduction by later stages too. Row instructions that touch an operand do so at column 0.
  std::vector<int32_t> row;
  std::vector<int32_t> column;
  std::vector<int32_t> reductions;  // is_reduction(): `a` is a column instruction of this stage (or a row one)
};

// The range that code may take for granted of an extent that it reads at run time. The kernel table checks it before
// the code is used.
struct ExtentRange {
  int64_t min = 0;
  int64_t max = INT64_MAX;
  int64_t multiple_of = 1;
  bool holds(int64_t extent) const { return extent >= min && extent <= max && extent % multiple_of == 0; }
  // True if whatever fits this range fits `other`, too.
  bool implies(const ExtentRange& other) const {
    return min >= other.min && max <= other.max && multiple_of % other.multiple_of == 0;
  }
  friend bool operator==(const ExtentRange&, const ExtentRange&) = default;
};

struct LoopKernel {
  std::string name;  // a valid identifier, unique in its module
  int64_t rows = 1;
  int64_t cols = 1;
  // Above 1: `inner` rows, from a multiple of it on, are neighbours in memory, and the columns of a row lie apart: the
  // space is (rows / inner, cols, inner). Vectors and threads go along the rows, and reductions over the columns add up
  // in column order (ops/reduction_order.h: the columns of a row are what that note calls rows). Such a kernel has no
  // column sums.
  int64_t inner = 1;
  // True: rows == 1 and a call covers columns [begin, end); begin is a multiple of kSplitGrain, and end is one too
  // unless it is cols. Such a kernel has one stage and no reductions.
  // False: a call covers rows [begin, end); with kColumnSum, exactly one chunk of chunk_rows (the last may be shorter).
  bool split_columns = false;
  int64_t chunk_rows = 0;
  // Note [Segments of rows]. The operand, i64 (segments + 1), that says where each segment of the rows begins; -1:
  // there
  //   are no segments. A call then covers segments [begin, end), and kColumnSum leaves the sum of each: row k of its
  //   operand belongs to segment k. Each row is in one segment.
  int32_t starts = -1;
  int64_t segments = 0;
  // One launch runs it on every item of a table (target/table.h): operands, scalars, and the width of rows (else the
  // number of columns) are those of the item; its own sizes stand for those of any.
  bool per_item = false;
  // On a CPU: results are larger than the caches, and are written past them where whole lines are written at once.
  bool streams = false;
  std::vector<Operand> operands;
  int32_t n_scalars = 0;
  std::vector<Instr> instrs;
  std::vector<Stage> stages;
  // By position in extents(): the code reads this one at run time, so that it serves other sizes, too. May be empty.
  std::vector<bool> varying;
  // By position in extents(), of those that vary, what useful_range() gives. May be empty.
  std::vector<ExtentRange> ranges;
};

// The sizes and strides that code depends on, in a fixed order. (Of `rows` it knows only whether an axis wraps around.)
inline std::vector<int64_t> extents(const LoopKernel& kernel) {
  std::vector<int64_t> list{kernel.cols, kernel.chunk_rows};
  for (const Operand& operand : kernel.operands) {
    list.push_back(operand.col_stride);
    for (const OperandAxis& axis : operand.axes) list.insert(list.end(), {axis.divisor, axis.size, axis.stride});
  }
  if (kernel.inner > 1) list.push_back(kernel.inner);
  return list;
}
// The part of an operand that belongs to one row of an item, in kernels that run on the items of a table.
enum class RowPart : uint8_t { kNone, kElement, kWhole };
inline RowPart row_part(const Operand& operand) {
  return operand.axes.empty() ? RowPart::kNone : operand.col_stride == 0 ? RowPart::kElement : RowPart::kWhole;
}
// For a kernel that runs on the items of a table: where in extents() a stride stands that is an item's width. (So is
// the number of columns, at position 0.)
inline std::vector<size_t> width_extents(const LoopKernel& kernel) {
  std::vector<size_t> positions;
  size_t next = 2;
  for (const Operand& operand : kernel.operands) {
    if (row_part(operand) == RowPart::kWhole) positions.push_back(next + 3);
    next += 1 + 3 * operand.axes.size();
  }
  return positions;
}
// 0 and 1 decide what code looks like (broadcast, contiguous): they are never read at run time.
inline bool may_vary(int64_t extent) { return extent != 0 && extent != 1; }
// Partial rows that a kernel with column sums leaves.
inline int64_t chunks(const LoopKernel& kernel) {
  return kernel.starts >= 0 ? kernel.segments : (kernel.rows + kernel.chunk_rows - 1) / kernel.chunk_rows;
}
// True if several indices of the axis stand for one element.
inline bool wraps(const LoopKernel& kernel, const OperandAxis& axis) {
  return !is_picked(axis) && axis.divisor * axis.size < kernel.rows;
}

// How an axis goes along the rows of one outer index, in kernels with inner above 1. Code depends on it.
enum class AlongInner : uint8_t {
  kNot,     // it has one index for all of them
  kAll,     // index 0 for the first of them, and the next for the next
  kInPart,  // it wraps around among them, or stays for some
};
inline AlongInner along_inner(const OperandAxis& axis, int64_t inner) {
  if (axis.divisor >= inner && axis.divisor % inner == 0) return AlongInner::kNot;
  return axis.divisor == 1 && axis.size % inner == 0 ? AlongInner::kAll : AlongInner::kInPart;
}

// How many steps of kLanes columns a row takes, the last perhaps in part, if that follows from the range; else 0.
inline int64_t steps_known(const ExtentRange& cols) {
  constexpr int64_t kMaxSteps = 4;  // beyond, a loop costs no more
  const int64_t steps = (cols.min + kLanes - 1) / kLanes;
  return steps > 0 && steps <= kMaxSteps && cols.max <= steps * kLanes ? steps : 0;
}
// The facts about the extent at `position` that improve code: a known number of steps needs no loop, steps that divide
// the columns leave no remainder, small strides are gathered with 32-bit indices. Other facts are dropped, so that
// kernels with equal code are one kernel.
inline ExtentRange useful_range(const LoopKernel& kernel, size_t position, const ExtentRange& known) {
  ExtentRange useful;
  if (position == 0 && kernel.inner > 1) return useful;
  if (position == 0) {  // cols
    for (int64_t step : {kMaxStep, int64_t{kLanes}}) {
      if (known.multiple_of % step == 0 && useful.multiple_of == 1) useful.multiple_of = step;
      if (!kernel.split_columns && known.min >= step && useful.min == 0) useful.min = step;
    }
    if (const int64_t steps = steps_known(known); steps > 0 && !kernel.split_columns)
      useful = {.min = (steps - 1) * kLanes + 1, .max = steps * kLanes, .multiple_of = useful.multiple_of};
    return useful;
  }
  size_t at = 2;
  for (const Operand& operand : kernel.operands) {
    if (position == at && known.min >= 0 && known.max <= kNarrowStride) useful.max = kNarrowStride;
    // Rows of whole counters, and of whole steps.
    for (size_t axis = 0; axis < operand.axes.size() && operand.is_random; ++axis)
      for (int64_t step : {kMaxStep, int64_t{4}})
        if (position == at + 3 * axis + 3 && known.multiple_of % step == 0 && useful.multiple_of == 1)
          useful.multiple_of = step;
    at += 1 + 3 * operand.axes.size();
  }
  return useful;
}

// operands: one base pointer each; scalars: the run-time scalars that this kernel reads; extents: those of the kernel
// that is run (read where they vary).
using KernelEntry = void (*)(void* const* operands, const double* scalars, const int64_t* extents, int64_t begin,
                             int64_t end);

}  // namespace rondo::compile
