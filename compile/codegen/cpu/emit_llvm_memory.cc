// The memory accesses of KernelEmitter.
#include <llvm/IR/Intrinsics.h>

#include "rondo/compile/codegen/cpu/emit_llvm_kernel.h"

namespace rondo::compile {

using llvm::Type;
using llvm::Value;

Value* KernelEmitter::row_offset(size_t index, Value* row) {
  const Operand& operand = kernel_.operands[index];
  Value* offset = nullptr;
  for (size_t a = 0; a < operand.axes.size(); ++a) {
    const OperandAxis& axis = operand.axes[a];
    const AxisExtents& at = strides_[index].axes[a];
    if (is_picked(axis) || axis.stride == 0 || axis.size == 1) continue;
    Value* i = row;
    if (axis.divisor != 1) i = b_.CreateUDiv(i, at.divisor);
    if (wraps(kernel_, axis)) i = b_.CreateURem(i, at.size);
    Value* term = b_.CreateMul(i, at.stride, "", false, true);
    offset = offset ? b_.CreateAdd(offset, term, "", false, true) : term;
  }
  return offset;
}

// Pointers to kLanes elements that are col_stride apart.
Value* KernelEmitter::element_pointers(int32_t index, Value* base, Value* column) {
  const Operand& operand = kernel_.operands[index];
  Type* type = memory_type(operand.dtype);
  Value* stride = strides_[index].col_stride;
  Value* first = b_.CreateGEP(type, base, b_.CreateMul(column, stride, "", false, true));
  // Uses 32-bit indices if they suffice, because they need one gather instruction instead of two.
  const bool narrow = llvm::isa<llvm::ConstantInt>(stride) ? std::abs(operand.col_stride) <= kNarrowStride
                                                           : strides_[index].small_col_stride;
  Type* wide = narrow ? b_.getInt32Ty() : b_.getInt64Ty();
  llvm::SmallVector<llvm::Constant*, kLanes> lanes;
  for (int i = 0; i < kLanes; ++i) lanes.push_back(llvm::ConstantInt::get(wide, i));
  Value* step = b_.CreateVectorSplat(kLanes, b_.CreateTrunc(stride, wide));
  return b_.CreateGEP(type, first, b_.CreateMul(llvm::ConstantVector::get(lanes), step));
}

Value* KernelEmitter::load_vector(int32_t index, Value* base, Value* column, Value* mask) {
  const Operand& operand = kernel_.operands[index];
  Type* scalar_type = memory_type(operand.dtype);
  Type* type = widen(scalar_type, kLanes);
  const llvm::Align align(size_of(operand.dtype));
  Value* zero = llvm::Constant::getNullValue(type);
  if (operand.col_stride != 1)
    return b_.CreateMaskedGather(type, element_pointers(index, base, column), align, or_all(mask), zero);
  Value* ptr = b_.CreateGEP(scalar_type, base, column);
  if (mask == nullptr) return b_.CreateAlignedLoad(type, ptr, align);
  return b_.CreateMaskedLoad(type, ptr, align, mask, zero);
}

// Loads a step's elements. If `column` is null, loads the element at the row's first column, as a scalar.
Value* KernelEmitter::load(const Instr& instr, Value* column, Value* mask, Value* base) {
  const Operand& from = operand(instr);
  if (base == nullptr) base = row_ptrs_[instr.index];
  Value* raw = column ? load_vector(instr.index, base, column, mask)
                      : b_.CreateAlignedLoad(memory_type(from.dtype), base, llvm::Align(size_of(from.dtype)));
  return from_memory(raw, from.dtype, instr.type);
}

Value* KernelEmitter::pick(int32_t id, Value* column, Value* mask, int copy) {
  const Instr& i = instr(id);
  if (levels_[i.a] != Level::kColumn) return load(i, column, mask, pick_ptrs_[id]);
  const Operand& from = operand(i);
  Value* places = picked(i, vector(i.a, copy));
  if (from.col_stride != 0) {
    Value* stride = b_.CreateVectorSplat(kLanes, strides_[i.index].col_stride);
    places = b_.CreateGEP(memory_type(from.dtype), places, b_.CreateMul(neighbours(column), stride));
  }
  return gather(places, from.dtype, i.type, or_all(mask));
}

void KernelEmitter::store(int32_t index, Value* base, Value* raw, Value* column, Value* mask) {
  const Operand& operand = kernel_.operands[index];
  const llvm::Align align(size_of(operand.dtype));
  if (operand.col_stride != 1) {
    b_.CreateMaskedScatter(raw, element_pointers(index, base, column), align, or_all(mask));
    return;
  }
  Value* ptr = b_.CreateGEP(memory_type(operand.dtype), base, column);
  if (mask == nullptr) b_.CreateAlignedStore(raw, ptr, align);
  else b_.CreateMaskedStore(raw, ptr, align, mask);
}

// True if the register is known to hold a value that is rounded to `type`, a 16-bit float.
bool KernelEmitter::is_rounded_to(int32_t id, DType type) const {
  const LoopOp op = instr(id).op;
  return instr(id).type == type &&
         (op == LoopOp::kCast || op == LoopOp::kLoad || op == LoopOp::kConst || op == LoopOp::kScalar);
}

}  // namespace rondo::compile
