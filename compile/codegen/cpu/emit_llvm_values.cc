#include "rondo/compile/codegen/cpu/emit_llvm_values.h"

#include <llvm/IR/Intrinsics.h>

#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {

using llvm::Type;
using llvm::Value;

namespace {

bool is_truth(const Value* v) { return v->getType()->getScalarType()->isIntegerTy(1); }
// u8 is the only type of 8 bits in a register, and the only one without a sign.
bool is_unsigned(const Value* v) { return v->getType()->getScalarType()->isIntegerTy(8); }
bool is_integer_value(const Value* v) { return v->getType()->isIntOrIntVectorTy() && !is_truth(v); }

}  // namespace

Value* ValueEmitter::from_memory(Value* raw, DType memory, DType type) {
  const int width = width_of(raw);
  Type* f32 = widen(b_.getFloatTy(), width);
  Value* v = raw;
  switch (memory) {
    case kF64:
    case kF32: break;
    case kBF16: v = b_.CreateBitCast(b_.CreateShl(b_.CreateZExt(raw, widen(b_.getInt32Ty(), width)), 16), f32); break;
    case kF16: v = b_.CreateFPExt(b_.CreateBitCast(raw, widen(b_.getHalfTy(), width)), f32); break;
    case kBool: v = b_.CreateICmpNE(raw, llvm::Constant::getNullValue(raw->getType())); break;
    default: break;
  }
  return memory == type ? v : convert(v, type);
}

Value* ValueEmitter::picked_place(Value* base, DType memory, Value* index, Value* size, Value* stride) {
  const int width = width_of(index);
  const auto extent = [&](Value* v) { return width == 1 ? v : b_.CreateVectorSplat(width, v); };
  Value* inside = b_.CreateICmpULT(index, extent(size));
  index = b_.CreateSelect(inside, index, llvm::Constant::getNullValue(index->getType()));
  return b_.CreateGEP(memory_type(memory), base, b_.CreateMul(index, extent(stride)));
}

Value* ValueEmitter::gather(Value* places, DType memory, DType type, Value* mask) {
  Type* wide = widen(memory_type(memory), kLanes);
  Value* raw = b_.CreateMaskedGather(wide, places, llvm::Align(size_of(memory)), mask,
                                     llvm::Constant::getNullValue(wide));
  return from_memory(raw, memory, type);
}

Value* ValueEmitter::neighbours(Value* first) {
  llvm::SmallVector<llvm::Constant*, kLanes> lanes;
  for (int lane = 0; lane < kLanes; ++lane) lanes.push_back(b_.getInt64(lane));
  return b_.CreateAdd(b_.CreateVectorSplat(kLanes, first), llvm::ConstantVector::get(lanes));
}

Value* ValueEmitter::to_memory(Value* v, DType memory, bool already_rounded) {
  const int width = width_of(v);
  Type* i16 = widen(b_.getInt16Ty(), width);
  if (is_integer(memory) && is_integer_value(v)) return convert(v, memory);
  if (memory == kU8 && !is_truth(v)) {  // the low byte of the integer, as in exp2_int: defined for every value
    Value* shifted = b_.CreateFAdd(v, real(v->getType(), 0x1.8p23));
    return b_.CreateTrunc(b_.CreateBitCast(shifted, widen(b_.getInt32Ty(), width)), widen(b_.getInt8Ty(), width));
  }
  if (memory == kBool || memory == kU8) return b_.CreateZExt(convert(v, kBool), widen(b_.getInt8Ty(), width));
  if (memory == kF64 || memory == kF32) return convert(v, memory);
  v = convert(v, kF32);
  if (memory == kF16) return b_.CreateBitCast(b_.CreateFPTrunc(v, widen(b_.getHalfTy(), width)), i16);
  Value* bits = already_rounded ? b_.CreateBitCast(v, widen(b_.getInt32Ty(), width)) : bf16_bits_in_upper_half(v);
  return b_.CreateTrunc(b_.CreateLShr(bits, 16), i16);
}

// Converts to the register type of `type`, rounded if `type` is a 16-bit float.
Value* ValueEmitter::convert(Value* v, DType type) {
  Type* wanted = register_type(type, width_of(v));
  if (type == kBool) {
    if (is_truth(v)) return v;
    Value* zero = llvm::Constant::getNullValue(v->getType());
    return is_integer_value(v) ? b_.CreateICmpNE(v, zero) : b_.CreateFCmpUNE(v, zero);
  }
  if (is_integer(type)) return convert_to_integer(v, type);
  if (is_truth(v)) return b_.CreateSelect(v, real(wanted, 1.0), real(wanted, 0.0));
  if (is_integer_value(v)) v = is_unsigned(v) ? b_.CreateUIToFP(v, wanted) : b_.CreateSIToFP(v, wanted);
  else v = b_.CreateFPCast(v, wanted);
  return round_to(v, type);
}

// Converts as to_integer() of runtime/ops/elementwise_body.h does.
Value* ValueEmitter::convert_to_integer(Value* v, DType type) {
  Type* wanted = register_type(type, width_of(v));
  if (is_truth(v)) return b_.CreateZExt(v, wanted);
  if (is_integer_value(v)) return b_.CreateIntCast(v, wanted, /*isSigned=*/!is_unsigned(v));
  Type* nearest = register_type(type == kU8 ? kI64 : type, width_of(v));
  v = b_.CreateIntrinsic(llvm::Intrinsic::fptosi_sat, {nearest, v->getType()}, {v});
  return b_.CreateTrunc(v, wanted);
}

Value* ValueEmitter::round_to(Value* v, DType type) {
  const int width = width_of(v);
  if (type == kF16) return b_.CreateFPExt(b_.CreateFPTrunc(v, widen(b_.getHalfTy(), width)), v->getType());
  if (type != kBF16) return v;
  return b_.CreateBitCast(b_.CreateAnd(bf16_bits_in_upper_half(v), integer(32, 0xFFFF0000u, width)), v->getType());
}

// Rounds as BFloat16(float) of runtime/base/dtype.h does, with integer operations: the hardware conversion flushes
// subnormals.
Value* ValueEmitter::bf16_bits_in_upper_half(Value* v) {
  const int width = width_of(v);
  Value* u = b_.CreateBitCast(v, widen(b_.getInt32Ty(), width));
  Value* odd = b_.CreateAnd(b_.CreateLShr(u, 16), integer(32, 1, width));
  Value* rounded = b_.CreateAdd(b_.CreateAdd(u, integer(32, 0x7FFF, width)), odd);
  Value* quiet_nan = b_.CreateOr(u, integer(32, 0x400000, width));
  return b_.CreateSelect(b_.CreateFCmpUNO(v, v), quiet_nan, rounded);
}

// The three bit operations below are the same as in scalar_math.h.
Value* ValueEmitter::exp2_int(Value* a) {
  const bool wide = a->getType()->getScalarType()->isDoubleTy();
  const int bits = wide ? 64 : 32, width = width_of(a);
  Value* shifted = b_.CreateFAdd(a, real(a->getType(), wide ? 0x1.8p52 : 0x1.8p23));
  Value* u = b_.CreateShl(b_.CreateBitCast(shifted, widen(b_.getIntNTy(bits), width)), wide ? 52 : 23);
  u = b_.CreateAdd(u, integer(bits, wide ? 0x3FF0000000000000u : 0x3F800000u, width));
  return b_.CreateBitCast(u, a->getType());
}
Value* ValueEmitter::exponent(Value* a) {
  const bool wide = a->getType()->getScalarType()->isDoubleTy();
  const int bits = wide ? 64 : 32, width = width_of(a);
  Value* u = b_.CreateAShr(b_.CreateBitCast(a, widen(b_.getIntNTy(bits), width)), wide ? 52 : 23);
  return b_.CreateSIToFP(b_.CreateSub(u, integer(bits, wide ? 1023 : 127, width)), a->getType());
}
Value* ValueEmitter::mantissa(Value* a) {
  const bool wide = a->getType()->getScalarType()->isDoubleTy();
  const int bits = wide ? 64 : 32, width = width_of(a);
  Value* u = b_.CreateBitCast(a, widen(b_.getIntNTy(bits), width));
  u = b_.CreateAnd(u, integer(bits, wide ? 0x000FFFFFFFFFFFFFu : 0x007FFFFFu, width));
  u = b_.CreateOr(u, integer(bits, wide ? 0x3FF0000000000000u : 0x3F800000u, width));
  return b_.CreateBitCast(u, a->getType());
}

Value* ValueEmitter::compare(LoopOp op, Value* a, Value* b) {
  if (a->getType()->isIntOrIntVectorTy()) {
    const bool is_signed = !is_truth(a) && !is_unsigned(a);
    switch (op) {
      case LoopOp::kLt: return is_signed ? b_.CreateICmpSLT(a, b) : b_.CreateICmpULT(a, b);
      case LoopOp::kLe: return is_signed ? b_.CreateICmpSLE(a, b) : b_.CreateICmpULE(a, b);
      case LoopOp::kEq: return b_.CreateICmpEQ(a, b);
      default: return b_.CreateICmpNE(a, b);
    }
  }
  switch (op) {
    case LoopOp::kLt: return b_.CreateFCmpOLT(a, b);
    case LoopOp::kLe: return b_.CreateFCmpOLE(a, b);
    case LoopOp::kEq: return b_.CreateFCmpOEQ(a, b);
    default: return b_.CreateFCmpUNE(a, b);
  }
}

// Integer arithmetic, which wraps around.
Value* ValueEmitter::integer_arithmetic(const Instr& instr, Value* a, Value* b) {
  switch (instr.op) {
    case LoopOp::kAdd: return b_.CreateAdd(a, b);
    case LoopOp::kSub: return b_.CreateSub(a, b);
    case LoopOp::kMul: return b_.CreateMul(a, b);
    case LoopOp::kNeg: return b_.CreateNeg(a);
    case LoopOp::kShiftLeft:
    case LoopOp::kShiftRight: return shift(instr.op, a, b);
    case LoopOp::kAbs:
      return is_unsigned(a) ? a : b_.CreateBinaryIntrinsic(llvm::Intrinsic::abs, a, /*poison=*/b_.getInt1(false));
    default: llvm_unreachable("an operation that integers do not have");
  }
}

// Shifts as shift_left() and shift_right() of ops/bitwise.h do.
Value* ValueEmitter::shift(LoopOp op, Value* a, Value* b) {
  Type* type = a->getType();
  const unsigned bits = type->getScalarSizeInBits();
  Value *zero = llvm::Constant::getNullValue(type), *most = llvm::ConstantInt::get(type, bits - 1);
  Value* inside = b_.CreateICmpULE(b, most);
  if (op == LoopOp::kShiftRight && !is_unsigned(a)) return b_.CreateAShr(a, b_.CreateSelect(inside, b, most));
  Value* within = b_.CreateSelect(inside, b, zero);
  Value* shifted = op == LoopOp::kShiftLeft ? b_.CreateShl(a, within) : b_.CreateLShr(a, within);
  return b_.CreateSelect(inside, shifted, zero);
}

Value* ValueEmitter::constant(double value, DType type) {
  if (type == kBool) return b_.getInt1(value != 0);
  if (!is_integer(type)) return convert(real(register_type(type, 1), value), type);
  const int64_t whole = visit_dtype(
      type, [&](auto tag) { return static_cast<int64_t>(ops::convert<typename decltype(tag)::type>(value)); });
  return llvm::ConstantInt::get(register_type(type, 1), static_cast<uint64_t>(whole));
}

Value* ValueEmitter::arithmetic(const Instr& instr, Value* scalars, Value* a, Value* b, Value* c) {
  if (is_integer(instr.type) && is_arithmetic(instr.op)) return integer_arithmetic(instr, a, b);
  switch (instr.op) {
    case LoopOp::kConst: return constant(instr.value, instr.type);
    case LoopOp::kScalar: {
      Value* address = b_.CreateConstInBoundsGEP1_64(b_.getDoubleTy(), scalars, instr.index);
      return convert(b_.CreateLoad(b_.getDoubleTy(), address), instr.type);
    }
    case LoopOp::kAdd: return b_.CreateFAdd(a, b);
    case LoopOp::kSub: return b_.CreateFSub(a, b);
    case LoopOp::kMul: return b_.CreateFMul(a, b);
    case LoopOp::kDiv: return b_.CreateFDiv(a, b);
    case LoopOp::kFma: return b_.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, c});
    case LoopOp::kSqrt: return b_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, a);
    case LoopOp::kAbs: return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, a);
    case LoopOp::kNeg: return b_.CreateFNeg(a);
    case LoopOp::kRoundEven: return b_.CreateUnaryIntrinsic(llvm::Intrinsic::roundeven, a);
    case LoopOp::kFloor: return b_.CreateUnaryIntrinsic(llvm::Intrinsic::floor, a);
    case LoopOp::kExp2Int: return exp2_int(a);
    case LoopOp::kExponent: return exponent(a);
    case LoopOp::kMantissa: return mantissa(a);
    case LoopOp::kLt:
    case LoopOp::kLe:
    case LoopOp::kEq:
    case LoopOp::kNe: return compare(instr.op, a, b);
    case LoopOp::kAnd: return b_.CreateAnd(a, b);
    case LoopOp::kOr: return b_.CreateOr(a, b);
    case LoopOp::kXor: return b_.CreateXor(a, b);
    case LoopOp::kNot: return b_.CreateNot(a);
    case LoopOp::kSelect: return b_.CreateSelect(a, b, c);
    case LoopOp::kCast: return convert(a, instr.type);
    default: llvm_unreachable("a load, store or reduction among the arithmetic");
  }
}

void ValueEmitter::fetch_line(Value* ptr, FetchTo to) {
  const uint32_t write = to == FetchTo::kWrite ? 1 : 0, second_cache = 2, data = 1;
  b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {b_.getPtrTy()},
                     {ptr, b_.getInt32(write), b_.getInt32(second_cache), b_.getInt32(data)});
}

// ---- Reductions

Value* ValueEmitter::add(Value* a, Value* b) {
  return a->getType()->isIntOrIntVectorTy() ? b_.CreateAdd(a, b) : b_.CreateFAdd(a, b);
}

Value* ValueEmitter::identity(LoopOp reduction, DType type) {
  return b_.CreateVectorSplat(kLanes, constant(identity_of(reduction, type), type));
}

void ValueEmitter::begin_lanes(const Instr& r, llvm::SmallVectorImpl<Value*>& lanes) {
  lanes.push_back(identity(r.op, r.type));
  if (has_flag(r)) lanes.push_back(llvm::Constant::getNullValue(register_type(kBool, kLanes)));
}

void ValueEmitter::step_lanes(const Instr& r, Value* v, Value* mask, Value** lanes) {
  const auto update = [&](Value*& old, Value* next) { old = mask ? b_.CreateSelect(mask, next, old) : next; };
  if (!has_flag(r)) return update(lanes[0], meet(r.op, lanes[0], v));
  Value* keeps = r.op == LoopOp::kReduceMax ? b_.CreateFCmpOLT(v, lanes[0]) : b_.CreateFCmpOLT(lanes[0], v);
  update(lanes[0], b_.CreateSelect(keeps, lanes[0], v));
  update(lanes[1], b_.CreateOr(lanes[1], b_.CreateFCmpUNO(v, v)));
}

Value* ValueEmitter::end_lanes(const Instr& r, Value** lanes) {
  if (!has_flag(r)) return lanes[0];
  return b_.CreateSelect(lanes[1], llvm::ConstantFP::getNaN(lanes[0]->getType()), lanes[0]);
}

// Floats are combined as by maximum() and minimum() of scalar_math.h.
Value* ValueEmitter::meet(LoopOp reduction, Value* a, Value* b) {
  if (reduction == LoopOp::kReduceSum) return add(a, b);
  const bool is_max = reduction == LoopOp::kReduceMax;
  if (is_truth(a)) return is_max ? b_.CreateOr(a, b) : b_.CreateAnd(a, b);
  if (is_integer_value(a)) {
    const llvm::Intrinsic::ID larger = is_unsigned(a) ? llvm::Intrinsic::umax : llvm::Intrinsic::smax,
                              smaller = is_unsigned(a) ? llvm::Intrinsic::umin : llvm::Intrinsic::smin;
    return b_.CreateBinaryIntrinsic(is_max ? larger : smaller, a, b);
  }
  Value* keeps = is_max ? b_.CreateFCmpOLT(b, a) : b_.CreateFCmpOLT(a, b);
  return b_.CreateSelect(b_.CreateFCmpUNO(a, a), a, b_.CreateSelect(keeps, a, b));
}

Value* ValueEmitter::scan(Value* lanes, Value*& total) {
  if (lanes->getType()->isIntOrIntVectorTy()) {
    // Any order gives the same integers: each step adds the value `apart` lanes before.
    Value* zeros = llvm::Constant::getNullValue(lanes->getType());
    for (int apart = 1; apart < kLanes; apart *= 2) {
      llvm::SmallVector<int, kLanes> before;
      for (int i = 0; i < kLanes; ++i) before.push_back(i < apart ? kLanes + i : i - apart);
      lanes = b_.CreateAdd(lanes, b_.CreateShuffleVector(lanes, zeros, before));
    }
    lanes = b_.CreateAdd(lanes, b_.CreateVectorSplat(kLanes, total));
    total = b_.CreateExtractElement(lanes, uint64_t{kLanes - 1});
    return lanes;
  }
  Value* sums = llvm::PoisonValue::get(lanes->getType());
  for (uint64_t i = 0; i < kLanes; ++i) {
    total = b_.CreateFAdd(total, b_.CreateExtractElement(lanes, i));
    sums = b_.CreateInsertElement(sums, total, i);
  }
  return sums;
}

// Combines the lanes in the tree of Note [Row order].
Value* ValueEmitter::lanes_to_scalar(Value* lanes, LoopOp reduction) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    llvm::SmallVector<int, kLanes> low, high;
    for (int i = 0; i < width; ++i) {
      low.push_back(i);
      high.push_back(i + width);
    }
    Value* a = b_.CreateShuffleVector(lanes, low);
    Value* b = b_.CreateShuffleVector(lanes, high);
    lanes = meet(reduction, a, b);
  }
  return b_.CreateExtractElement(lanes, uint64_t{0});
}

}  // namespace rondo::compile
