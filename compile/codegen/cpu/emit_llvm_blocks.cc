#include "rondo/compile/codegen/cpu/emit_llvm_blocks.h"

#include <llvm/IR/Intrinsics.h>

namespace rondo::compile {

using llvm::Type;
using llvm::Value;

void BlockEmitter::begin_function() {
  Type* ptr = b_.getPtrTy();
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), {ptr, ptr, ptr, b_.getInt64Ty(), b_.getInt64Ty()}, false);
  function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, kernel_.name, module_);
  function_->setDoesNotThrow();
  for (unsigned i : {0u, 1u, 2u}) {
    function_->addParamAttr(i, llvm::Attribute::NoAlias);
    function_->addParamAttr(i, llvm::Attribute::ReadOnly);
  }
  scalar_array_ = function_->getArg(1);
  begin_ = function_->getArg(3);
  end_ = function_->getArg(4);
  b_.SetInsertPoint(block("entry"));

  const std::vector<int64_t> values = extents(kernel_);
  size_t next = 0;
  const auto read = [&]() -> Value* {
    const size_t at = next++;
    if (kernel_.varying.empty() || !kernel_.varying[at] || !may_vary(values[at])) return number(values[at]);
    return b_.CreateLoad(b_.getInt64Ty(), b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), function_->getArg(2), at));
  };
  cols_ = read();
  read();  // chunk_rows, which is 0
  for (size_t i = 0; i < kernel_.operands.size(); ++i) {
    OperandExtents& at = operands_.emplace_back();
    at.col_stride = read();
    for (size_t axis = 0; axis < kernel_.operands[i].axes.size(); ++axis) {
      Value *divisor = read(), *size = read(), *stride = read();
      at.axes.push_back({divisor, size, stride});
    }
    at.base = b_.CreateLoad(ptr, b_.CreateConstInBoundsGEP1_64(ptr, function_->getArg(0), i));
  }
  if (kernel_.inner > 1) inner_ = read();
}

Value* BlockEmitter::row_offset(size_t index, Value* row) {
  const Operand& operand = kernel_.operands[index];
  const bool vector = row->getType()->isVectorTy();
  const auto wide = [&](Value* scalar) { return vector ? splat(scalar) : scalar; };
  Value* offset = wide(number(0));
  for (size_t a = 0; a < operand.axes.size(); ++a) {
    const AxisExtents& at = operands_[index].axes[a];
    Value* i = row;
    if (operand.axes[a].divisor != 1) i = b_.CreateUDiv(i, wide(at.divisor));
    if (wraps(kernel_, operand.axes[a])) i = b_.CreateURem(i, wide(at.size));
    offset = b_.CreateAdd(offset, b_.CreateMul(i, wide(at.stride)));
  }
  return offset;
}

Value* BlockEmitter::lane_numbers() {
  llvm::SmallVector<llvm::Constant*, kLanes> lanes;
  for (uint64_t i = 0; i < kLanes; ++i) lanes.push_back(b_.getInt64(i));
  return llvm::ConstantVector::get(lanes);
}

Value* BlockEmitter::load_vector(DType memory, Value* ptr, Value* mask) {
  Type* type = widen(memory_type(memory), kLanes);
  const llvm::Align align(size_of(memory));
  if (mask == nullptr) return b_.CreateAlignedLoad(type, ptr, align);
  return b_.CreateMaskedLoad(type, ptr, align, mask, llvm::Constant::getNullValue(type));
}

void BlockEmitter::store_vector(DType memory, Value* raw, Value* ptr, Value* mask) {
  const llvm::Align align(size_of(memory));
  if (mask == nullptr) b_.CreateAlignedStore(raw, ptr, align);
  else b_.CreateMaskedStore(raw, ptr, align, mask);
}

Value* BlockEmitter::is_line(llvm::ArrayRef<Value*> bytes) {
  Value* all = number(0);
  for (Value* v : bytes) all = b_.CreateOr(all, v);
  return b_.CreateICmpEQ(b_.CreateAnd(all, number(kCacheLine - 1)), number(0));
}

void BlockEmitter::stream_vector(Value* raw, Value* ptr) {
  auto* store = b_.CreateAlignedStore(raw, ptr, llvm::Align(kCacheLine));
  store->setMetadata(llvm::LLVMContext::MD_nontemporal,
                     llvm::MDNode::get(context_, llvm::ConstantAsMetadata::get(b_.getInt32(1))));
}

}  // namespace rondo::compile
