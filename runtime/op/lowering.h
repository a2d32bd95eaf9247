// The language of OpDef::lower: one op's scalar program, written against LoopBuilder. compile/codegen implements it;
// the same templates of ops/scalar_math.h run on float and double (eager kernels) and on LoopValue (generated kernels),
// so the two agree bit for bit.
#pragma once

#include <cstdint>

#include "rondo/runtime/base/dtype.h"

#pragma GCC visibility push(default)
namespace rondo {

class LoopBuilder;

// Scalar operations of the loop IR. Every one is exactly defined by IEEE 754, so any correct back end gives equal bits.
enum class LoopOp : uint8_t {
  // Leaves
  kConst,   // Instr::value
  kScalar,  // run-time scalar Instr::index, rounded to the instruction's type
  kLoad,    // operand Instr::index at the current row and column
  kPick,    // as kLoad, but a (i64) is the index along the operand's picked axis; gives 0 if a is out of range
  kIndex,   // i64: the element's index, as operand Instr::index describes it (Operand::is_index)
  // Random numbers of the stream and the element that operand Instr::index describes (Operand::is_random)
  kRandomKeep,    // kBool: dropout with probability a keeps the element (DropoutRule of random_state.h); with a = 1, no
                  // element. a: f64, a run-time scalar or constant. The four 32-bit words of a counter
                  // serve four neighbouring elements.
  kRandomFirst,   // f32: uniform_from_bits() (random.h) of the first word of the element's own counter
  kRandomSecond,  // as kRandomFirst, of the counter's second word
  // Arithmetic on f32 or f64; kAdd, kSub, kMul, kNeg and kAbs also on integers
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFma,  // a * b + c, rounded once
  kSqrt,
  kAbs,
  kNeg,
  kRoundEven,  // a rounded to the nearest integer value, ties to even
  kFloor,
  kExp2Int,   // 2^a for an integer-valued a in the exponent range of normal numbers: on bits, for f32,
              // (bits(a + 1.5 * 2^23) << 23) + (127 << 23); for f64 likewise with 52 and 1023
              // The integer just below the range gives 0, the one just above gives infinity.
  kExponent,  // of a positive normal a: the integer e, as a float, with a = m * 2^e, m in [1, 2)
  kMantissa,  // of a positive normal a: m
  // On integers only: a shifted by b bits, as shift_left() and shift_right() of ops/bitwise.h.
  kShiftLeft,
  kShiftRight,
  // Comparisons give kBool; ordered: false if an operand is NaN, except kNe
  kLt,
  kLe,
  kEq,
  kNe,
  // On bools, or on the bits of integers.
  kAnd,
  kOr,
  kXor,
  kNot,
  kSelect,  // a ? b : c
  kCast,    // to the instruction's type; a cast to a 16-bit float and back rounds a value
  // Effects and reductions
  kStore,       // operand Instr::index = a
  kCheckIndex,  // reports a (i64) unless it is an index of the picked axis of operand Instr::index (Operand::is_check)
  kScan,        // the sum of a over the columns up to this one, in order: f64, f32 or i64
  // Reductions over the columns of a row, in the order of ops/reduction_order.h. The maximum of bools is true if any of
  // them is true.
  kReduceSum,
  kReduceMax,
  kReduceMin,
  // Reductions over the rows of a chunk. The results go into operand Instr::index, which holds one partial result per
  // chunk: f32, f64 or i64.
  kColumnSum,
  kColumnMax,
  kColumnMin,
};

// A value of the loop being built.
struct LoopValue {
  LoopBuilder* builder = nullptr;
  int32_t id = -1;
  DType type = kF32;  // kF32, kF64, kBool or, in generated kernels, an integer type
};

class LoopBuilder {
 public:
  virtual ~LoopBuilder() = default;
  // Returns input i at the current element, converted to the op's compute type (f32, or f64 if any float operand is
  // f64).
  virtual LoopValue input(int i) = 0;
  virtual bool has_input(int i) const = 0;
  // Returns float attribute i, as a run-time scalar.
  virtual LoopValue scalar(int i) = 0;
  virtual int64_t integer(int i) const = 0;
  virtual LoopValue constant(double value, DType type) = 0;
  virtual LoopValue emit(LoopOp op, DType type, LoopValue a, LoopValue b = {}, LoopValue c = {}) = 0;
  // Reduces over the dimensions that the op's attributes name. op: kReduceSum, kReduceMax or kReduceMin. Ops with
  // trait::Fold pass the result to output() as it is.
  virtual LoopValue reduce(LoopOp op, LoopValue v) = 0;
  // Defines output i; rounds to its dtype.
  virtual void output(int i, LoopValue v) = 0;
  // For ops with trait::Scan. Returns the sum of v over the elements along the op's dimension up to the current one, in
  // order. By default throws InternalError: only builders of ops that scan override it.
  virtual LoopValue scan(LoopValue v);
  // Returns the index of the current element along dimension `dim` of the op's iteration space, an i64. By default
  // throws InternalError: only builders of ops that ask for indices override it.
  virtual LoopValue index(int dim);
  // For ops with trait::Pick. Returns an element of input `table`. Along dimension ints[0] of the table its index is
  // the value of input `index`, along all other dimensions it is the index of the current element. By default throws
  // InternalError: only builders of ops that pick override it.
  virtual LoopValue pick(int table, int index);
  // Checks the index that input `index` holds: if it is not in [0, size), the call fails as the op's own kernel does.
  // By default throws InternalError: only builders of ops that check indices override it.
  virtual void check_index(int index, int64_t size);
  // Returns a random number of the current element of output 0. Input number `state` is the random state, which has
  // this increment (Note [Random state] in random_state.h). op: kRandomKeep, with float attribute `p`; kRandomFirst or
  // kRandomSecond. By default throws InternalError: only builders of ops that draw override it.
  virtual LoopValue random(LoopOp op, int state, int64_t increment, int p = -1);
};

}  // namespace rondo
#pragma GCC visibility pop
