// The base class of the emitters of kernels that walk their space in blocks of rows (emit_llvm_rows.cc,
// emit_llvm_tiles.cc). It emits what they share: the function, its extents, the offsets of rows, and loops.
#pragma once

#include <llvm/IR/Module.h>

#include <vector>

#include "rondo/compile/codegen/cpu/emit_llvm_values.h"

namespace rondo::compile {

class BlockEmitter : protected ValueEmitter {
 public:
  BlockEmitter(const LoopKernel& kernel, llvm::Module& module)
      : ValueEmitter(module.getContext()), kernel_(kernel), module_(module), context_(module.getContext()) {}

 protected:
  using BasicBlock = llvm::BasicBlock;
  struct AxisExtents {
    Value *divisor, *size, *stride;
  };
  struct OperandExtents {
    Value* col_stride = nullptr;
    std::vector<AxisExtents> axes;
    Value* base = nullptr;  // the operand's address
  };

  // Makes the function and a first block that reads its arguments. Later code goes to the end of that block.
  void begin_function();
  BasicBlock* block(const char* name) { return BasicBlock::Create(context_, name, function_); }
  // Returns the offset, in elements, of a row at column 0. For a vector of rows, returns a vector of offsets.
  Value* row_offset(size_t operand, Value* row);
  using ValueEmitter::constant;
  // Returns the value of a kConst or kScalar, in all lanes.
  Value* constant(const Instr& i) { return splat(arithmetic(i, scalar_array_, nullptr, nullptr, nullptr)); }
  static bool is_constant(const Instr& i) { return i.op == LoopOp::kConst || i.op == LoopOp::kScalar; }

  Value* number(int64_t value) { return b_.getInt64(static_cast<uint64_t>(value)); }
  Value* splat(Value* scalar) { return b_.CreateVectorSplat(kLanes, scalar); }
  Value* lane_numbers();
  Value* least(Value* a, Value* b) { return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, a, b); }
  // Returns a mask in which lane i is set if i < count.
  Value* lanes_below(Value* count) { return b_.CreateICmpSLT(lane_numbers(), splat(count)); }
  // Loads kLanes adjacent elements. `mask` null: all lanes.
  Value* load_vector(DType memory, Value* ptr, Value* mask);
  void store_vector(DType memory, Value* raw, Value* ptr, Value* mask);
  // True for operands that may be streamed, that is, written with non-temporal stores (LoopKernel::streams). is_line()
  // emits a check, at run time, that addresses and strides are multiples of a cache line. `bytes`: the addresses and
  // strides, in bytes.
  bool may_stream(size_t operand) const {
    return kernel_.streams && kernel_.operands[operand].is_output && size_of(kernel_.operands[operand].dtype) >= 4;
  }
  Value* is_line(llvm::ArrayRef<Value*> bytes);
  void stream_vector(Value* raw, Value* ptr);
  // Makes streamed stores visible before the call ends.
  void end_streams() {
    if (kernel_.streams) b_.CreateFence(llvm::AtomicOrdering::SequentiallyConsistent);
  }
  Value* all_lanes() { return llvm::ConstantInt::getTrue(widen(b_.getInt1Ty(), kLanes)); }

  // Emits a loop from `first` to `last` in steps of `step`, executed at least once. `carried`: values that each
  // iteration reads and replaces.
  template <class Body>
  void loop(Value* first, Value* last, Value* step, llvm::MutableArrayRef<Value*> carried, Body body) {
    BasicBlock *before = b_.GetInsertBlock(), *loop = block("loop");
    b_.CreateBr(loop);
    b_.SetInsertPoint(loop);
    auto* at = b_.CreatePHI(b_.getInt64Ty(), 2);
    at->addIncoming(first, before);
    llvm::SmallVector<llvm::PHINode*, 16> phis;
    for (Value*& v : carried) {
      phis.push_back(b_.CreatePHI(v->getType(), 2));
      phis.back()->addIncoming(v, before);
      v = phis.back();
    }
    body(at);
    Value* next = b_.CreateAdd(at, step, "", true, true);
    BasicBlock *end_of_body = b_.GetInsertBlock(), *after = block("after");
    at->addIncoming(next, end_of_body);
    for (size_t k = 0; k < phis.size(); ++k) phis[k]->addIncoming(carried[k], end_of_body);
    b_.CreateCondBr(b_.CreateICmpSLT(next, last), loop, after);
    b_.SetInsertPoint(after);
  }

  const Instr& instr(int32_t id) const { return kernel_.instrs[static_cast<size_t>(id)]; }
  const Operand& operand(const Instr& i) const { return kernel_.operands[static_cast<size_t>(i.index)]; }

  const LoopKernel& kernel_;
  llvm::Module& module_;
  llvm::LLVMContext& context_;
  llvm::Function* function_ = nullptr;
  Value *begin_ = nullptr, *end_ = nullptr, *scalar_array_ = nullptr, *cols_ = nullptr;
  Value* inner_ = nullptr;                // the extent `inner`, if above 1
  std::vector<OperandExtents> operands_;  // by operand
};

// Emits a kernel with LoopKernel::inner above 1. A vector holds one column of kLanes neighbouring rows.
llvm::Function* emit_llvm_rows(const LoopKernel& kernel, llvm::Module& module);
// Emits a kernel for which goes_in_tiles() holds (codegen/tiles.h). It walks tiles of kLanes x kLanes elements.
llvm::Function* emit_llvm_tiles(const LoopKernel& kernel, llvm::Module& module);

}  // namespace rondo::compile
