// The loop IR's instructions on one vector or scalar, in LLVM IR; emit_llvm.cc makes the loops around it.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

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
  // 16-bit floats move as integers: masked moves of them are cheap on every target.
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
  Value* maximum(Value* a, Value* b);
  Value* lanes_to_scalar(Value* lanes, LoopOp op);

  llvm::IRBuilder<> b_;
};

}  // namespace rondo::compile
