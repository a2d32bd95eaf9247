// Emits the loop IR's instructions as LLVM IR, on one vector or scalar. Subclasses emit the loops around them
// (emit_llvm.cc, emit_llvm_rows.cc, emit_llvm_tiles.cc).
#pragma once

#include <llvm/IR/IRBuilder.h>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

inline constexpr int64_t kCacheLine = 64;  // bytes

class ValueEmitter {
 protected:
  using Type = llvm::Type;
  using Value = llvm::Value;

  explicit ValueEmitter(llvm::LLVMContext& context) : b_(context) {}

  // ---- Types
  Type* widen(Type* scalar, int width) {
    return width == 1 ? scalar : static_cast<Type*>(llvm::FixedVectorType::get(scalar, width));
  }
  Type* register_type(DType type, int width) {
    if (type == kBool) return widen(b_.getInt1Ty(), width);
    if (is_integer(type)) return widen(memory_type(type), width);
    return widen(type == kF64 ? b_.getDoubleTy() : b_.getFloatTy(), width);
  }
  // 16-bit floats are loaded and stored as integers: masked accesses to them are cheap on every target.
  Type* memory_type(DType type) {
    switch (type) {
      case kF64: return b_.getDoubleTy();
      case kF32: return b_.getFloatTy();
      case kBF16:
      case kF16: return b_.getInt16Ty();
      case kI64: return b_.getInt64Ty();
      case kI32: return b_.getInt32Ty();
      default: return b_.getInt8Ty();
    }
  }
  static int width_of(Value* v) {
    const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
    return vector ? static_cast<int>(vector->getNumElements()) : 1;
  }
  Value* integer(int bits, uint64_t value, int width) {
    return llvm::ConstantInt::get(widen(b_.getIntNTy(bits), width), value);
  }
  Value* real(Type* type, double value) { return llvm::ConstantFP::get(type, value); }

  // ---- Memory
  Value* from_memory(Value* raw, DType memory, DType type);
  Value* to_memory(Value* v, DType memory, bool already_rounded);
  // Returns the address of index `index` of a picked axis; for a vector of indices, a vector of addresses. An index out
  // of range counts as 0.
  Value* picked_place(Value* base, DType memory, Value* index, Value* size, Value* stride);
  // Loads the elements at a vector of addresses, for the lanes in the mask.
  Value* gather(Value* places, DType memory, DType type, Value* mask);
  // Returns the kLanes i64 numbers first, first + 1, ...
  Value* neighbours(Value* first);

  // Fetches the cache line of an address into the second-level cache.
  enum class FetchTo : uint8_t { kRead, kWrite };
  void fetch_line(Value* ptr, FetchTo to);

  // ---- Arithmetic. `scalars`: the array of run-time scalars.
  Value* arithmetic(const Instr& instr, Value* scalars, Value* a, Value* b, Value* c);
  Value* integer_arithmetic(const Instr& instr, Value* a, Value* b);
  Value* compare(LoopOp op, Value* a, Value* b);
  Value* convert(Value* v, DType type);
  Value* convert_to_integer(Value* v, DType type);
  Value* round_to(Value* v, DType type);
  Value* bf16_bits_in_upper_half(Value* v);
  Value* exp2_int(Value* a);
  Value* exponent(Value* a);
  Value* mantissa(Value* a);
  Value* shift(LoopOp op, Value* a, Value* b);
  // Returns a scalar constant.
  Value* constant(double value, DType type);

  // ---- Reductions. A loop carries the lanes: one vector, and a second one for the maximum or minimum of floats.
  // Note [NaN flags]. The running maximum is `new < old ? old : new`. That is one instruction, but it forgets a
  // NaN at the next step, so a flag records that one was seen. The result equals maximum() step by step, with
  // half the latency.
  static bool has_flag(const Instr& reduction) {
    return reduction.op != LoopOp::kReduceSum && reduction.type != kBool && !is_integer(reduction.type);
  }
  static size_t carried(const Instr& reduction) { return has_flag(reduction) ? 2 : 1; }
  Value* identity(LoopOp reduction, DType type);  // in all lanes
  void begin_lanes(const Instr& reduction, llvm::SmallVectorImpl<Value*>& lanes);
  void step_lanes(const Instr& reduction, Value* v, Value* mask, Value** lanes);
  Value* end_lanes(const Instr& reduction, Value** lanes);
  // Combines two results; a NaN in either wins.
  Value* meet(LoopOp reduction, Value* a, Value* b);
  Value* lanes_to_scalar(Value* lanes, LoopOp reduction);
  Value* add(Value* a, Value* b);
  // Returns the prefix sums of the lanes, added to `total`. `total` becomes the last of these sums.
  Value* scan(Value* lanes, Value*& total);

  llvm::IRBuilder<> b_;
};

}  // namespace rondo::compile
