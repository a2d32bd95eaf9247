// The loop IR: one fused kernel as plain data. lower.cc makes it, and the emitters of cpu/ and cuda/ read it.
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
// operand's dtype, and kStore to the operand's dtype. Storing an f32 `a` to u8 stores the low byte of its integer
// value, that is, the low bits of a + 1.5 * 2^23.
//
// Arithmetic on integers wraps around: kAdd, kSub, kMul, kNeg and kAbs, and sums. Conversions are those of eager
// execution (convert() of runtime/ops/elementwise_body.h): kCast, kConst and kScalar truncate a float toward zero,
// clamp it to the range of the type, and turn NaN into 0; u8 takes the low byte of the i64.
//
// An output may alias an input, element for element (in place); no other operands overlap. If an output aliases an
// input, all loads of an element must come before its store, in the order stage, row list, column list.
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

// How an operand is addressed. The offset of its element at (row, col), in elements, is
//   base + sum over axes of ((row / divisor) % size) * stride  +  col * col_stride
// The first axis may be a picked axis, with divisor 0: its index is an argument of kPick or kCheckIndex. Only these two
// instructions use operands with a picked axis.
struct OperandAxis {
  int64_t divisor;
  int64_t size;
  int64_t stride;
};
struct Operand {
  DType dtype = kF32;             // of the elements in memory
  std::vector<OperandAxis> axes;  // outermost first; usually one axis {1, rows, stride}; none if constant
  int64_t col_stride = 1;         // 0: the operand is loaded once per row
  bool is_output = false;
  // A partial result of kColumnSum, kColumnMax or kColumnMin: a dense [n_chunks, cols] array of the compute type; a
  // call for rows [begin, end) writes row begin / chunk_rows of it. If the kernel has segments (Note [Segments of
  // rows]), it is the complete result, [segments, cols].
  bool is_partial = false;
  // Sums of segments only: the index of a dense input that is added to the complete sum; -1: none.
  int32_t onto = -1;
  // A random state, i64 [2] = {seed, base}, read whole (Note [Random state] in runtime/random/random_state.h). The
  // offset of the element at (row, col) is its number in the stream (seed, base + increment).
  bool is_random = false;
  int64_t increment = 0;
  // An operand without memory (its address is null): the offset of the element at (row, col) is the integer that kIndex
  // gives. dtype: i64.
  bool is_index = false;
  // For kCheckIndex: the size of the first axis, a picked one, bounds the indices; the other axes and the columns give
  // the position of each index, for the error message. dtype: i64. CPU code writes 1 to the operand's address if an
  // index is out of range. On a GPU, the address is that of the device's status.
  bool is_check = false;
};
// True if loads and stores may use the operand. False for random states, and for operands of kIndex and kCheckIndex.
inline bool has_elements(const Operand& operand) {
  return !operand.is_random && !operand.is_index && !operand.is_check;
}
inline bool is_random(LoopOp op) {
  return op == LoopOp::kRandomKeep || op == LoopOp::kRandomFirst || op == LoopOp::kRandomSecond;
}

// True if another operand's Operand::onto is `index`. Operand `index` then has one row per segment, not per row.
inline bool is_onto(const std::vector<Operand>& operands, size_t index) {
  return std::any_of(operands.begin(), operands.end(),
                     [&](const Operand& o) { return o.onto == static_cast<int32_t>(index); });
}

inline bool is_picked(const OperandAxis& axis) { return axis.divisor == 0; }
inline bool is_picked(const Operand& operand) { return !operand.axes.empty() && is_picked(operand.axes[0]); }

// A loop over columns takes one or two steps of kLanes at a time.
inline constexpr int64_t kMaxStep = 2 * kLanes;
// Column strides up to this are gathered with 32-bit indices.
inline constexpr int64_t kNarrowStride = INT32_MAX / kLanes;
// Calls of a split_columns kernel begin and end at multiples of this (the last one ends at the last column), which
// suits vector loops and cache lines.
inline constexpr int64_t kSplitGrain = 64;

inline bool is_integer(DType type) { return type == kI64 || type == kI32 || type == kU8; }

inline bool is_reduction(LoopOp op) { return op >= LoopOp::kReduceSum && op <= LoopOp::kReduceMin; }
// True for reductions over the rows of a chunk, one result per column.
inline bool is_column_reduction(LoopOp op) { return op >= LoopOp::kColumnSum && op <= LoopOp::kColumnMin; }
// True for instructions without a result.
inline bool is_effect(LoopOp op) {
  return op == LoopOp::kStore || op == LoopOp::kCheckIndex || is_column_reduction(op);
}
// Returns the row reduction that corresponds to a column reduction.
inline LoopOp along_row(LoopOp column_reduction) {
  return column_reduction == LoopOp::kColumnSum   ? LoopOp::kReduceSum
         : column_reduction == LoopOp::kColumnMax ? LoopOp::kReduceMax
                                                  : LoopOp::kReduceMin;
}
// Returns the initial value of a reduction of values of `type`, as the value of a kConst.
inline double identity_of(LoopOp reduction, DType type) {
  if (reduction == LoopOp::kReduceSum) return 0;
  const bool is_min = reduction == LoopOp::kReduceMin;
  if (type == kBool) return is_min ? 1 : 0;
  return is_min ? __builtin_inf() : -__builtin_inf();
}
// True for arithmetic operations, for which integers have their own rules (see the top of this file).
inline bool is_arithmetic(LoopOp op) { return op >= LoopOp::kAdd && op <= LoopOp::kShiftRight; }

struct Instr {
  LoopOp op;
  DType type = kF32;               // of the result
  int32_t a = -1, b = -1, c = -1;  // the arguments, as instruction ids
  int32_t index = -1;              // of an operand or a scalar
  double value = 0;                // kConst: the constant
};

struct Stage {
  // Instruction ids, in order. Every instruction is in exactly one list of one stage. Only its own stage may read a
  // column value; later stages may also read row values and reductions. Row instructions access operands at column 0.
  std::vector<int32_t> row;
  std::vector<int32_t> column;
  std::vector<int32_t> reductions;  // is_reduction(): `a` is a column (or row) instruction of this stage
};

// The range that code may assume of an extent that it reads at run time. The kernel table checks the range before it
// uses the code.
struct ExtentRange {
  int64_t min = 0;
  int64_t max = INT64_MAX;
  int64_t multiple_of = 1;
  bool holds(int64_t extent) const { return extent >= min && extent <= max && extent % multiple_of == 0; }
  // True if every extent in this range is in `other`, too.
  bool implies(const ExtentRange& other) const {
    return min >= other.min && max <= other.max && multiple_of % other.multiple_of == 0;
  }
  friend bool operator==(const ExtentRange&, const ExtentRange&) = default;
};

struct LoopKernel {
  std::string name;  // a valid identifier, unique in its module
  int64_t rows = 1;
  int64_t cols = 1;
  // Above 1: the iteration space is (rows / inner, cols, inner): each group of `inner` rows is adjacent in memory,
  // and the columns of a row are not. Vectors and threads run along the rows. Reductions over the columns use Note
  // [Column order] of ops/reduction_order.h (the note's "rows" are the columns here). Such a kernel has no column
  // sums.
  int64_t inner = 1;
  // True: rows == 1 and a call covers columns [begin, end); begin is a multiple of kSplitGrain, and so is end unless it
  // is cols. Such a kernel has one stage and no reductions. False: a call covers rows [begin, end); with column
  // reductions, exactly one chunk of chunk_rows (the last may be shorter).
  bool split_columns = false;
  int64_t chunk_rows = 0;
  // Note [Segments of rows]. The index of an i64 (segments + 1) operand that holds where each segment of the rows
  // begins; -1: there are no segments. With segments, a call covers segments [begin, end), and kColumnSum computes the
  // sum of each: row k of its operand is the sum of segment k. Each row is in one segment.
  int32_t starts = -1;
  int64_t segments = 0;
  // One launch runs the kernel on every item of a table (target/table.h). Each item has its own operands, scalars and
  // width of rows (or, if columns are split, number of columns); the kernel's own sizes are only an example.
  bool per_item = false;
  // CPU only: results are larger than the caches, so whole lines of them are written with non-temporal stores.
  bool streams = false;
  std::vector<Operand> operands;
  int32_t n_scalars = 0;
  std::vector<Instr> instrs;
  std::vector<Stage> stages;
  // By position in extents(): true if the code reads this extent at run time, so that it serves other sizes, too.
  // May be empty.
  std::vector<bool> varying;
  // By position in extents(): the range that code assumes of an extent that varies (useful_range()). May be empty.
  std::vector<ExtentRange> ranges;
};

// Returns the sizes and strides that code depends on, in a fixed order. (Code does not depend on `rows`, only on
// whether an axis wraps around.)
inline std::vector<int64_t> extents(const LoopKernel& kernel) {
  std::vector<int64_t> list{kernel.cols, kernel.chunk_rows};
  for (const Operand& operand : kernel.operands) {
    list.push_back(operand.col_stride);
    for (const OperandAxis& axis : operand.axes) list.insert(list.end(), {axis.divisor, axis.size, axis.stride});
  }
  if (kernel.inner > 1) list.push_back(kernel.inner);
  return list;
}
// The part of an operand that belongs to one row of an item, in kernels that run on the items of a table: nothing, one
// element, or a whole row of elements.
enum class RowPart : uint8_t { kNone, kElement, kWhole };
inline RowPart row_part(const Operand& operand) {
  return operand.axes.empty() ? RowPart::kNone : operand.col_stride == 0 ? RowPart::kElement : RowPart::kWhole;
}
// For a kernel that runs on the items of a table: returns the positions in extents() of the strides that equal the
// item's width. (The number of columns, at position 0, is also the width, but is not in the list.)
inline std::vector<size_t> width_extents(const LoopKernel& kernel) {
  std::vector<size_t> positions;
  size_t next = 2;
  for (const Operand& operand : kernel.operands) {
    if (row_part(operand) == RowPart::kWhole) positions.push_back(next + 3);
    next += 1 + 3 * operand.axes.size();
  }
  return positions;
}
// Extents of 0 and 1 change the structure of code (broadcast, contiguous), so code never reads them at run time.
inline bool may_vary(int64_t extent) { return extent != 0 && extent != 1; }
// Returns the number of rows of partial results that a kernel with column sums writes.
inline int64_t chunks(const LoopKernel& kernel) {
  return kernel.starts >= 0 ? kernel.segments : (kernel.rows + kernel.chunk_rows - 1) / kernel.chunk_rows;
}
// True if the index of the axis wraps around to 0 at some row of the kernel.
inline bool wraps(const LoopKernel& kernel, const OperandAxis& axis) {
  return !is_picked(axis) && axis.divisor * axis.size < kernel.rows;
}

// How an axis varies over the `inner` rows of one outer index, in kernels with inner above 1. Code depends on it.
enum class AlongInner : uint8_t {
  kNot,     // all these rows have the same index
  kAll,     // the index is 0 for the first row and increases by 1 for each next one
  kInPart,  // the index wraps around among these rows, or is the same for some of them
};
inline AlongInner along_inner(const OperandAxis& axis, int64_t inner) {
  if (axis.divisor >= inner && axis.divisor % inner == 0) return AlongInner::kNot;
  return axis.divisor == 1 && axis.size % inner == 0 ? AlongInner::kAll : AlongInner::kInPart;
}

// Returns the number of steps of kLanes columns that a row takes, counting a partial last step. Returns 0 if the range
// does not determine it, or if a loop over the steps is as fast.
inline int64_t steps_known(const ExtentRange& cols) {
  constexpr int64_t kMaxSteps = 4;  // with more steps, a loop is as fast
  const int64_t steps = (cols.min + kLanes - 1) / kLanes;
  return steps > 0 && steps <= kMaxSteps && cols.max <= steps * kLanes ? steps : 0;
}
// Returns the facts about the extent at `position` that improve code: a known number of steps needs no loop, columns
// that are a multiple of a step need no remainder, and small strides need only 32-bit indices to gather. All other
// facts are dropped, so that kernels with equal code share it.
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
    // For random numbers: row strides that are multiples of 4, the numbers of a Philox counter, or of a whole step.
    for (size_t axis = 0; axis < operand.axes.size() && operand.is_random; ++axis)
      for (int64_t step : {kMaxStep, int64_t{4}})
        if (position == at + 3 * axis + 3 && known.multiple_of % step == 0 && useful.multiple_of == 1)
          useful.multiple_of = step;
    at += 1 + 3 * operand.axes.size();
  }
  return useful;
}

// operands: one base pointer each; scalars: the run-time scalars that this kernel reads; extents: those of the kernel
// that runs (read only where they vary).
using KernelEntry = void (*)(void* const* operands, const double* scalars, const int64_t* extents, int64_t begin,
                             int64_t end);

}  // namespace rondo::compile
