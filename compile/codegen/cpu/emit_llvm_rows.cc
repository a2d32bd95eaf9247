#include "rondo/compile/codegen/cpu/emit_llvm_rows.h"

#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/Module.h>

#include <array>

#include "rondo/compile/codegen/cpu/emit_llvm_values.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {
namespace {

using llvm::BasicBlock;
using llvm::Type;
using llvm::Value;

// A step takes so many vectors of rows: neighbours in memory, so that each column is read in whole cache lines that
// follow each other. Fewer where the code of a column is long.
constexpr int kMostCopies = 4;
constexpr int kLongCode = 48;  // instructions

// Code runs over blocks of rows. The rows of a block are neighbours: either one outer index is theirs, or (where inner
// is less than a vector) the addresses of each lane are computed.
class RowsEmitter : ValueEmitter {
 public:
  RowsEmitter(const LoopKernel& kernel, llvm::Module& module)
      : ValueEmitter(module.getContext()), kernel_(kernel), module_(module), context_(module.getContext()) {}

  llvm::Function* emit();

 private:
  enum class Level : uint8_t { kKernel, kRow, kColumn };
  // How the addresses of an operand change from a row to the next in a block.
  enum class Along : uint8_t { kSame, kNext, kStride, kAnyhow };
  struct AxisExtents {
    Value *divisor, *size, *stride;
  };
  struct Memory {
    Along along = Along::kSame;
    Value* col_stride = nullptr;
    std::vector<AxisExtents> axes;
    Value* base = nullptr;                    // of the kernel
    Value* first = nullptr;                   // of the block's first row; kAnyhow: the same as base
    std::array<Value*, kMostCopies> lanes{};  // kStride, kAnyhow: offsets from `first`
  };
  struct Block {
    int copies;
    Value* mask;  // null: all lanes
  };

  void read_extents();
  void find_levels();
  Along along(size_t operand) const;
  int copies() const;
  // Rows that are left in the line of `row`, up to the call's end.
  Value* rows_left(Value* row);
  void point_at(Value* row, const Block& block);
  void emit_block(Value* row, const Block& block);
  void emit_stage(const Stage& stage, const Block& block);
  void emit_instr(int32_t id, Value* column, const Block& block);
  void emit_columns(const Stage& stage, const Block& block, llvm::MutableArrayRef<Value*> sums);
  Value* load(const Instr& instr, Value* column, int copy, Value* mask);
  void store(const Instr& instr, Value* column, int copy, Value* mask);
  Value* address(const Memory& at, DType dtype, Value* column);
  template <class Body>
  void loop(Value* first, Value* last, llvm::MutableArrayRef<Value*> carried, Value* step, Body body);

  const Instr& instr(int32_t id) const { return kernel_.instrs[static_cast<size_t>(id)]; }
  const Operand& operand(const Instr& i) const { return kernel_.operands[static_cast<size_t>(i.index)]; }
  Memory& memory(const Instr& i) { return memory_[static_cast<size_t>(i.index)]; }
  Level& level(int32_t id) { return levels_[static_cast<size_t>(id)]; }
  Value*& value(int32_t id, int copy) { return values_[static_cast<size_t>(copy)][static_cast<size_t>(id)]; }
  Value* argument(int32_t id, int copy) { return id < 0 ? nullptr : value(id, copy); }
  bool is_sum(int32_t id) const { return instr(id).op == LoopOp::kReduceSum; }
  // Rows whose addresses follow from that of the first: those of one outer index, unless they are too few.
  bool lines_are_inner() const { return !llvm::isa<llvm::ConstantInt>(inner_) || kernel_.inner >= kLanes; }
  Value* splat(Value* scalar) { return b_.CreateVectorSplat(kLanes, scalar); }
  Value* lane_numbers() {
    llvm::SmallVector<llvm::Constant*, kLanes> lanes;
    for (int i = 0; i < kLanes; ++i) lanes.push_back(b_.getInt64(static_cast<uint64_t>(i)));
    return llvm::ConstantVector::get(lanes);
  }

  const LoopKernel& kernel_;
  llvm::Module& module_;
  llvm::LLVMContext& context_;
  llvm::Function* function_ = nullptr;
  Value *end_ = nullptr, *scalar_array_ = nullptr, *cols_ = nullptr, *inner_ = nullptr;
  std::vector<Memory> memory_;  // by operand
  std::vector<Level> levels_;   // by instruction
  std::array<std::vector<Value*>, kMostCopies> values_;  // by instruction: one value for each row
};

void RowsEmitter::find_levels() {
  levels_.assign(kernel_.instrs.size(), Level::kKernel);
  for (const Stage& stage : kernel_.stages) {
    for (const std::vector<int32_t>* list : {&stage.row, &stage.column})
      for (int32_t id : *list) {
        const Instr& i = instr(id);
        const bool moves = (i.op == LoopOp::kLoad && operand(i).col_stride != 0) || i.op == LoopOp::kStore;
        Level& own = level(id);
        if (i.op != LoopOp::kConst && i.op != LoopOp::kScalar) own = Level::kRow;
        if (moves && list == &stage.column) own = Level::kColumn;
        for (int32_t arg : {i.a, i.b, i.c})
          if (arg >= 0) own = std::max(own, level(arg));
      }
    for (int32_t id : stage.reductions) level(id) = Level::kRow;
  }
}

RowsEmitter::Along RowsEmitter::along(size_t index) const {
  const int64_t line = lines_are_inner() ? kernel_.inner : kernel_.rows;
  const OperandAxis* within = nullptr;
  for (const OperandAxis& axis : kernel_.operands[index].axes) {
    if (axis.stride == 0 || axis.size == 1 || along_inner(axis, line) == AlongInner::kNot) continue;
    if (within != nullptr || along_inner(axis, line) == AlongInner::kInPart) return Along::kAnyhow;
    within = &axis;
  }
  if (within == nullptr) return Along::kSame;
  return within->stride == 1 ? Along::kNext : Along::kStride;
}

int RowsEmitter::copies() const {
  int64_t work = 0;
  for (const Stage& stage : kernel_.stages)
    for (int32_t id : stage.column) work += instr(id).type == kF64 ? 2 : 1;
  return work > kLongCode ? kMostCopies / 2 : kMostCopies;
}

void RowsEmitter::read_extents() {
  const std::vector<int64_t> values = extents(kernel_);
  size_t next = 0;
  const auto read = [&]() -> Value* {
    const size_t at = next++;
    if (kernel_.varying.empty() || !kernel_.varying[at] || !may_vary(values[at]))
      return b_.getInt64(static_cast<uint64_t>(values[at]));
    return b_.CreateLoad(b_.getInt64Ty(),
                         b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), function_->getArg(2), at));
  };
  cols_ = read();
  read();  // chunk_rows: there are none
  for (const Operand& operand : kernel_.operands) {
    Memory& at = memory_.emplace_back();
    at.col_stride = read();
    for (size_t axis = 0; axis < operand.axes.size(); ++axis) {
      Value *divisor = read(), *size = read(), *stride = read();
      at.axes.push_back({divisor, size, stride});
    }
  }
  inner_ = read();
}

llvm::Function* RowsEmitter::emit() {
  Type* ptr = b_.getPtrTy();
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), {ptr, ptr, ptr, b_.getInt64Ty(), b_.getInt64Ty()}, false);
  function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, kernel_.name, module_);
  function_->setDoesNotThrow();
  for (unsigned i : {0u, 1u, 2u}) {
    function_->addParamAttr(i, llvm::Attribute::NoAlias);
    function_->addParamAttr(i, llvm::Attribute::ReadOnly);
  }
  scalar_array_ = function_->getArg(1);
  Value* begin = function_->getArg(3);
  end_ = function_->getArg(4);
  find_levels();
  for (std::vector<Value*>& copy : values_) copy.assign(kernel_.instrs.size(), nullptr);

  BasicBlock* entry = BasicBlock::Create(context_, "entry", function_);
  BasicBlock* header = BasicBlock::Create(context_, "rows", function_);
  BasicBlock* body = BasicBlock::Create(context_, "body", function_);
  BasicBlock* exit = BasicBlock::Create(context_, "exit", function_);
  b_.SetInsertPoint(entry);
  read_extents();
  for (size_t i = 0; i < kernel_.operands.size(); ++i) {
    memory_[i].along = along(i);
    memory_[i].base = b_.CreateLoad(ptr, b_.CreateConstInBoundsGEP1_64(ptr, function_->getArg(0), i));
  }
  for (size_t id = 0; id < kernel_.instrs.size(); ++id) {
    const Instr& i = kernel_.instrs[id];
    if (i.op != LoopOp::kConst && i.op != LoopOp::kScalar) continue;
    Value* all = splat(arithmetic(i, scalar_array_, nullptr, nullptr, nullptr));
    for (std::vector<Value*>& copy : values_) copy[id] = all;
  }
  b_.CreateBr(header);

  b_.SetInsertPoint(header);
  auto* row = b_.CreatePHI(b_.getInt64Ty(), 3, "r");
  row->addIncoming(begin, entry);
  b_.CreateCondBr(b_.CreateICmpSLT(row, end_), body, exit);

  b_.SetInsertPoint(body);
  Value* left = rows_left(row);
  const int wide = copies();
  const int64_t taken = int64_t{wide} * kLanes;
  BasicBlock* whole = BasicBlock::Create(context_, "whole", function_);
  BasicBlock* part = BasicBlock::Create(context_, "part", function_);
  b_.CreateCondBr(b_.CreateICmpSGE(left, b_.getInt64(static_cast<uint64_t>(taken))), whole, part);
  b_.SetInsertPoint(whole);
  emit_block(row, {wide, nullptr});
  row->addIncoming(b_.CreateAdd(row, b_.getInt64(static_cast<uint64_t>(taken)), "", true, true), b_.GetInsertBlock());
  b_.CreateBr(header);
  b_.SetInsertPoint(part);
  Value* few = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, left, b_.getInt64(kLanes));
  emit_block(row, {1, b_.CreateICmpSLT(lane_numbers(), splat(few))});
  row->addIncoming(b_.CreateAdd(row, few, "", true, true), b_.GetInsertBlock());
  b_.CreateBr(header);
  b_.SetInsertPoint(exit);
  b_.CreateRetVoid();
  return function_;
}

Value* RowsEmitter::rows_left(Value* row) {
  Value* left = b_.CreateSub(end_, row);
  if (!lines_are_inner()) return left;
  return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, left, b_.CreateSub(inner_, b_.CreateURem(row, inner_)));
}

// Sets where the block's rows lie.
void RowsEmitter::point_at(Value* row, const Block& block) {
  for (size_t i = 0; i < memory_.size(); ++i) {
    const Operand& operand = kernel_.operands[i];
    Memory& at = memory_[i];
    // The offset of one row, or of a vector of rows.
    const auto offset_of = [&](Value* rows, bool vector) {
      const auto wide = [&](Value* scalar) { return vector ? splat(scalar) : scalar; };
      Value* offset = wide(b_.getInt64(0));
      for (size_t a = 0; a < at.axes.size(); ++a) {
        Value* index = rows;
        if (operand.axes[a].divisor != 1) index = b_.CreateUDiv(index, wide(at.axes[a].divisor));
        if (wraps(kernel_, operand.axes[a])) index = b_.CreateURem(index, wide(at.axes[a].size));
        offset = b_.CreateAdd(offset, b_.CreateMul(index, wide(at.axes[a].stride)));
      }
      return offset;
    };
    at.first = at.base;
    if (at.along != Along::kAnyhow)
      at.first = b_.CreateGEP(memory_type(operand.dtype), at.base, offset_of(row, false));
    for (int copy = 0; copy < block.copies; ++copy) {
      Value* lanes = b_.CreateAdd(lane_numbers(), splat(b_.getInt64(static_cast<uint64_t>(copy) * kLanes)));
      if (at.along == Along::kAnyhow) at.lanes[copy] = offset_of(b_.CreateAdd(splat(row), lanes), true);
      if (at.along != Along::kStride) continue;
      Value* stride = nullptr;
      const int64_t line = lines_are_inner() ? kernel_.inner : kernel_.rows;
      for (size_t a = 0; a < at.axes.size(); ++a)
        if (along_inner(operand.axes[a], line) == AlongInner::kAll) stride = at.axes[a].stride;
      at.lanes[copy] = b_.CreateMul(lanes, splat(stride));
    }
  }
}

void RowsEmitter::emit_block(Value* row, const Block& block) {
  point_at(row, block);
  for (const Stage& stage : kernel_.stages) emit_stage(stage, block);
}

void RowsEmitter::emit_stage(const Stage& stage, const Block& block) {
  for (const std::vector<int32_t>* list : {&stage.row, &stage.column})
    for (int32_t id : *list)
      if (level(id) == Level::kRow) emit_instr(id, nullptr, block);
  bool has_columns = !stage.reductions.empty();
  for (int32_t id : stage.column) has_columns |= level(id) == Level::kColumn;
  if (!has_columns) return;

  // By reduction and copy. A maximum is carried as in Note [NaN flags] of emit_llvm.cc: with a flag for each lane.
  llvm::SmallVector<Value*, 16> sums;
  for (int32_t id : stage.reductions) {
    Type* type = register_type(instr(id).type, kLanes);
    for (int copy = 0; copy < block.copies; ++copy) {
      sums.push_back(is_sum(id) ? real(type, 0.0) : llvm::ConstantFP::getInfinity(type, /*Negative=*/true));
      sums.push_back(is_sum(id) ? real(type, 0.0) : llvm::Constant::getNullValue(register_type(kBool, kLanes)));
    }
  }
  emit_columns(stage, block, sums);
  Value** sum = sums.begin();
  for (int32_t id : stage.reductions)
    for (int copy = 0; copy < block.copies; ++copy, sum += 2) {
      Value* nan = is_sum(id) ? nullptr : llvm::ConstantFP::getNaN(sum[0]->getType());
      value(id, copy) = is_sum(id) ? sum[1] : b_.CreateSelect(sum[1], nan, sum[0]);
    }
}

// Note [Column order]: `sums` holds the sum of a chunk, and the total of the chunks before it.
void RowsEmitter::emit_columns(const Stage& stage, const Block& block, llvm::MutableArrayRef<Value*> sums) {
  const auto each_column = [&](Value* column) {
    for (int32_t id : stage.column)
      if (level(id) == Level::kColumn) emit_instr(id, column, block);
    Value** sum = sums.begin();
    for (int32_t id : stage.reductions)
      for (int copy = 0; copy < block.copies; ++copy, sum += 2) {
        Value* v = value(instr(id).a, copy);
        if (is_sum(id)) {
          sum[0] = b_.CreateFAdd(sum[0], v);
          continue;
        }
        sum[1] = b_.CreateOr(sum[1], b_.CreateFCmpUNO(v, v));
        sum[0] = b_.CreateSelect(b_.CreateFCmpOLT(v, sum[0]), sum[0], v);
      }
  };
  const bool has_sums = std::any_of(stage.reductions.begin(), stage.reductions.end(),
                                    [&](int32_t id) { return is_sum(id); });
  if (!has_sums) return loop(b_.getInt64(0), cols_, sums, b_.getInt64(1), each_column);
  // column_chunk_rows()
  Value* chunk = b_.CreateUDiv(b_.CreateAdd(cols_, b_.getInt64(63)), b_.getInt64(64));
  chunk = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, chunk, b_.getInt64(kLeastChunk));
  chunk = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, chunk, b_.getInt64(kMostChunk));
  loop(b_.getInt64(0), cols_, sums, chunk, [&](Value* first) {
    Value* last = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, cols_, b_.CreateAdd(first, chunk, "", true, true));
    loop(first, last, sums, b_.getInt64(1), each_column);
    Value** sum = sums.begin();
    for (int32_t id : stage.reductions)
      for (int copy = 0; copy < block.copies; ++copy, sum += 2) {
        if (!is_sum(id)) continue;
        sum[1] = b_.CreateFAdd(sum[1], sum[0]);
        sum[0] = real(sum[0]->getType(), 0.0);
      }
  });
}

void RowsEmitter::emit_instr(int32_t id, Value* column, const Block& block) {
  const Instr& i = instr(id);
  for (int copy = 0; copy < block.copies; ++copy) {
    switch (i.op) {
      case LoopOp::kLoad: value(id, copy) = load(i, column, copy, block.mask); break;
      case LoopOp::kStore: store(i, column, copy, block.mask); break;
      default:
        value(id, copy) = arithmetic(i, scalar_array_, argument(i.a, copy), argument(i.b, copy), argument(i.c, copy));
    }
  }
}

// A loop from `first` to `last` in steps of `step`, at least once. `carried`: what the body reads and replaces.
template <class Body>
void RowsEmitter::loop(Value* first, Value* last, llvm::MutableArrayRef<Value*> carried, Value* step, Body body) {
  BasicBlock* before = b_.GetInsertBlock();
  BasicBlock* loop = BasicBlock::Create(context_, "columns", function_);
  b_.CreateBr(loop);
  b_.SetInsertPoint(loop);
  auto* column = b_.CreatePHI(b_.getInt64Ty(), 2, "c");
  column->addIncoming(first, before);
  llvm::SmallVector<llvm::PHINode*, 16> phis;
  for (Value*& v : carried) {
    phis.push_back(b_.CreatePHI(v->getType(), 2));
    phis.back()->addIncoming(v, before);
    v = phis.back();
  }
  body(column);
  BasicBlock* end_of_body = b_.GetInsertBlock();
  Value* next = b_.CreateAdd(column, step, "", true, true);
  column->addIncoming(next, end_of_body);
  for (size_t k = 0; k < phis.size(); ++k) phis[k]->addIncoming(carried[k], end_of_body);
  BasicBlock* after = BasicBlock::Create(context_, "after", function_);
  b_.CreateCondBr(b_.CreateICmpSLT(next, last), loop, after);
  b_.SetInsertPoint(after);
}

// ---- Memory

Value* RowsEmitter::address(const Memory& at, DType dtype, Value* column) {
  if (column == nullptr) return at.first;
  return b_.CreateGEP(memory_type(dtype), at.first, b_.CreateMul(column, at.col_stride, "", false, true));
}

// `column` null: column 0.
Value* RowsEmitter::load(const Instr& i, Value* column, int copy, Value* mask) {
  const Memory& at = memory(i);
  const DType dtype = operand(i).dtype;
  Type *scalar = memory_type(dtype), *type = widen(scalar, kLanes);
  const llvm::Align align(size_of(dtype));
  Value *ptr = address(at, dtype, column), *raw = nullptr;
  switch (at.along) {
    case Along::kSame: return splat(from_memory(b_.CreateAlignedLoad(scalar, ptr, align), dtype, i.type));
    case Along::kNext:
      ptr = b_.CreateConstInBoundsGEP1_64(scalar, ptr, static_cast<uint64_t>(copy) * kLanes);
      raw = mask == nullptr ? static_cast<Value*>(b_.CreateAlignedLoad(type, ptr, align))
                            : b_.CreateMaskedLoad(type, ptr, align, mask, llvm::Constant::getNullValue(type));
      break;
    default:
      raw = b_.CreateMaskedGather(type, b_.CreateGEP(scalar, ptr, at.lanes[copy]), align,
                                  mask ? mask : llvm::ConstantInt::getTrue(widen(b_.getInt1Ty(), kLanes)),
                                  llvm::Constant::getNullValue(type));
  }
  return from_memory(raw, dtype, i.type);
}

void RowsEmitter::store(const Instr& i, Value* column, int copy, Value* mask) {
  const Memory& at = memory(i);
  const DType dtype = operand(i).dtype;
  Type* scalar = memory_type(dtype);
  const llvm::Align align(size_of(dtype));
  Value* raw = to_memory(value(i.a, copy), dtype, /*already_rounded=*/false);
  Value* ptr = address(at, dtype, column);
  if (at.along == Along::kNext) {
    ptr = b_.CreateConstInBoundsGEP1_64(scalar, ptr, static_cast<uint64_t>(copy) * kLanes);
    if (mask == nullptr) b_.CreateAlignedStore(raw, ptr, align);
    else b_.CreateMaskedStore(raw, ptr, align, mask);
    return;
  }
  b_.CreateMaskedScatter(raw, b_.CreateGEP(scalar, ptr, at.lanes[copy]), align,
                         mask ? mask : llvm::ConstantInt::getTrue(widen(b_.getInt1Ty(), kLanes)));
}

}  // namespace

llvm::Function* emit_llvm_rows(const LoopKernel& kernel, llvm::Module& module) {
  return RowsEmitter(kernel, module).emit();
}

}  // namespace rondo::compile
