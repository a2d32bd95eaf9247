#include "rondo/compile/codegen/cpu/emit_llvm.h"

#include <llvm/IR/Intrinsics.h>

#include <array>

#include "rondo/compile/codegen/cpu/emit_llvm_blocks.h"
#include "rondo/compile/codegen/cpu/emit_llvm_random.h"
#include "rondo/compile/codegen/cpu/emit_llvm_values.h"
#include "rondo/compile/codegen/cpu/levels.h"
#include "rondo/compile/codegen/tiles.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {
namespace {

using llvm::BasicBlock;
using llvm::Type;
using llvm::Value;

// The most steps that Note [Interleaving] takes in turn.
constexpr int kMaxCopies = 2;
static_assert(kMaxStep == kMaxCopies * kLanes && kSplitGrain % kMaxStep == 0);

class KernelEmitter : ValueEmitter {
 public:
  KernelEmitter(const LoopKernel& kernel, llvm::Module& module)
      : ValueEmitter(module.getContext()), kernel_(kernel), module_(module), context_(module.getContext()) {}

  llvm::Function* emit();

 private:
  // ---- Structure
  void read_extents();
  void emit_kernel_level();
  void zero_partials();
  void emit_row(Value* row);
  void emit_stage(const Stage& stage);
  // The instructions of a stage whose results are one value for the whole row.
  void emit_row_values(const Stage& stage);
  // What is no effect, at the row's first column.
  Value* row_value(const Instr& i) {
    if (i.op == LoopOp::kLoad) return load(i, nullptr, nullptr);
    if (i.op == LoopOp::kPick) return load(i, nullptr, nullptr, picked(i, scalar(i.a)));
    if (i.op == LoopOp::kIndex) return row_ptrs_[i.index];
    if (is_random(i.op)) return random_.scalar(i, scalar(i.a));
    return arithmetic(i, scalar_array_, scalar(i.a), scalar(i.b), scalar(i.c));
  }
  void emit_steps(const Stage& stage, Value* column, Value* mask, int copies);
  int copies_of(const Stage& stage) const;
  template <class Body>
  void loop(Value* first, Value* last, int64_t step, llvm::MutableArrayRef<Value*> carried, Body body);
  template <class Body> void guarded(Value* condition, llvm::MutableArrayRef<Value*> carried, Body body);
  template <class Body>
  void sweep(int copies, llvm::MutableArrayRef<Value*> carried, llvm::function_ref<void(Value*)> end_block, Body body);
  // True if a row may be longer than one block of Note [Row order].
  bool has_blocks() const {  // split columns are those of a row that has no reductions
    return !kernel_.split_columns && (llvm::isa<llvm::ConstantInt>(cols_) ? kernel_.cols : known(0).max) > kRowBlock;
  }
  void make_splats(const Stage& stage, Level level);
  // Integers may be added in any order.
  static bool adds_in_blocks(const Instr& i) { return i.op == LoopOp::kReduceSum && !is_integer(i.type); }

  // ---- Memory
  Value* row_offset(size_t index, Value* row);
  // `base`: null: the operand's part of the row.
  Value* load(const Instr& instr, Value* column, Value* mask, Value* base = nullptr);
  // kPick: where the operand's part of the row begins, for an index or a vector of them.
  Value* picked(const Instr& i, Value* index) {
    const AxisExtents& axis = strides_[i.index].axes[0];
    return picked_place(row_ptrs_[i.index], operand(i).dtype, index, axis.size, axis.stride);
  }
  Value* pick(int32_t id, Value* column, Value* mask, int copy);
  void store(int32_t index, Value* base, Value* raw, Value* column, Value* mask);
  Value* element_pointers(int32_t index, Value* base, Value* column);
  Value* load_vector(int32_t index, Value* base, Value* column, Value* mask);
  bool is_rounded_to(int32_t id, DType type) const;

  // The range that may be taken for granted of the extent at `position`.
  ExtentRange known(size_t position) const {
    if (position < kernel_.ranges.size()) return kernel_.ranges[position];
    return {};
  }
  const Instr& instr(int32_t id) const { return kernel_.instrs[id]; }
  const Operand& operand(const Instr& i) const { return kernel_.operands[i.index]; }
  // The value of an instruction as a vector, for the code of a column step.
  Value* vector(int32_t id, int copy = 0) { return id < 0 ? nullptr : vectors_[copy][id]; }
  Value* column_of(Value* column, int copy) {
    return copy == 0 ? column : b_.CreateAdd(column, b_.getInt64(copy * kLanes), "", true, true);
  }
  Value* scalar(int32_t id) { return id < 0 ? nullptr : scalars_[id]; }
  // Masks say which of kLanes columns exist; null: all of them.
  llvm::Constant* first_lanes(int64_t active) {
    llvm::SmallVector<llvm::Constant*, kLanes> bits;
    for (int i = 0; i < kLanes; ++i) bits.push_back(b_.getInt1(i < active));
    return llvm::ConstantVector::get(bits);
  }
  Value* or_all(Value* mask) { return mask ? mask : first_lanes(kLanes); }

  const LoopKernel& kernel_;
  llvm::Module& module_;
  llvm::LLVMContext& context_;
  llvm::Function* function_ = nullptr;
  Value *begin_ = nullptr, *end_ = nullptr, *scalar_array_ = nullptr;
  // The kernel's extents: constants, or read when the kernel starts.
  struct AxisExtents {
    Value *divisor, *size, *stride;
  };
  struct OperandExtents {
    Value* col_stride;
    bool small_col_stride;  // whatever it is when it is read
    std::vector<AxisExtents> axes;
  };
  Value *cols_ = nullptr, *chunk_rows_ = nullptr;
  std::vector<OperandExtents> strides_;
  std::vector<Level> levels_;    // by instruction
  std::vector<Value*> scalars_;  // by instruction: kernel and row level
  // By copy of the column step and instruction: column level, and splats of the others where needed.
  std::array<std::vector<Value*>, kMaxCopies> vectors_;
  std::vector<Value*> bases_, row_ptrs_;  // by operand; of places, the row's first number
  std::vector<Value**> scans_;            // by instruction: the running sum that is carried through the sweep
  std::vector<Value*> pick_ptrs_;         // by instruction: kPick at column level whose index is one for the row
  RandomEmitter random_{b_, kernel_};
};

llvm::Function* KernelEmitter::emit() {
  Type* ptr = b_.getPtrTy();
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), {ptr, ptr, ptr, b_.getInt64Ty(), b_.getInt64Ty()}, false);
  function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, kernel_.name, module_);
  function_->setDoesNotThrow();
  for (unsigned i : {0u, 1u, 2u}) {
    function_->addParamAttr(i, llvm::Attribute::NoAlias);
    function_->addParamAttr(i, llvm::Attribute::ReadOnly);
  }
  Value* operand_array = function_->getArg(0);
  scalar_array_ = function_->getArg(1);
  begin_ = function_->getArg(3);
  end_ = function_->getArg(4);
  levels_ = levels_of(kernel_);
  scalars_.assign(kernel_.instrs.size(), nullptr);
  pick_ptrs_ = scalars_;
  scans_.assign(kernel_.instrs.size(), nullptr);
  for (std::vector<Value*>& copy : vectors_) copy.assign(kernel_.instrs.size(), nullptr);

  // An empty range must touch nothing: the invariant loads below stand in front of the loop.
  BasicBlock* guard = BasicBlock::Create(context_, "guard", function_);
  BasicBlock* entry = BasicBlock::Create(context_, "entry", function_);
  BasicBlock* exit = BasicBlock::Create(context_, "exit");
  b_.SetInsertPoint(guard);
  b_.CreateCondBr(b_.CreateICmpSLT(begin_, end_), entry, exit);

  b_.SetInsertPoint(entry);
  read_extents();
  for (size_t i = 0; i < kernel_.operands.size(); ++i)
    bases_.push_back(b_.CreateLoad(ptr, b_.CreateConstInBoundsGEP1_64(ptr, operand_array, i)));
  for (size_t i = 0; i < kernel_.operands.size(); ++i) {
    const Operand& operand = kernel_.operands[i];
    if (!operand.is_partial) continue;
    Value* chunk = b_.CreateUDiv(begin_, chunk_rows_);
    bases_[i] = b_.CreateGEP(memory_type(operand.dtype), bases_[i], b_.CreateMul(chunk, cols_));
  }
  row_ptrs_ = bases_;
  for (size_t i = 0; i < kernel_.operands.size(); ++i)
    if (kernel_.operands[i].is_index) row_ptrs_[i] = b_.getInt64(0);
  random_.begin_call(bases_, [&](int32_t id) { return levels_[id] == Level::kKernel; });
  emit_kernel_level();
  zero_partials();

  if (kernel_.split_columns) {
    emit_row(b_.getInt64(0));
    b_.CreateBr(exit);
  } else {
    BasicBlock* before = b_.GetInsertBlock();
    BasicBlock* body = BasicBlock::Create(context_, "row", function_);
    b_.CreateBr(body);
    b_.SetInsertPoint(body);
    auto* row = b_.CreatePHI(b_.getInt64Ty(), 2, "r");
    row->addIncoming(begin_, before);
    emit_row(row);
    Value* next = b_.CreateAdd(row, b_.getInt64(1), "", true, true);
    row->addIncoming(next, b_.GetInsertBlock());
    b_.CreateCondBr(b_.CreateICmpSLT(next, end_), body, exit);
  }
  exit->insertInto(function_);
  b_.SetInsertPoint(exit);
  b_.CreateRetVoid();
  return function_;
}

void KernelEmitter::read_extents() {
  const std::vector<int64_t> values = extents(kernel_);
  std::vector<Value*> read;
  for (size_t i = 0; i < values.size(); ++i) {
    Value* constant = b_.getInt64(static_cast<uint64_t>(values[i]));
    const bool varies = !kernel_.varying.empty() && kernel_.varying[i] && may_vary(values[i]);
    read.push_back(
        varies ? b_.CreateLoad(b_.getInt64Ty(), b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), function_->getArg(2), i))
               : constant);
  }
  size_t next = 0;
  cols_ = read[next++];
  chunk_rows_ = read[next++];
  for (const Operand& operand : kernel_.operands) {
    strides_.push_back({read[next], known(next).max <= kNarrowStride, {}});
    ++next;
    for (size_t axis = 0; axis < operand.axes.size(); ++axis, next += 3)
      strides_.back().axes.push_back({read[next], read[next + 1], read[next + 2]});
  }
}

void KernelEmitter::emit_kernel_level() {
  for (const Stage& stage : kernel_.stages) {
    for (const std::vector<int32_t>* list : {&stage.row, &stage.column}) {
      for (int32_t id : *list) {
        if (levels_[id] != Level::kKernel) continue;
        const Instr& i = instr(id);
        scalars_[id] = row_value(i);
      }
    }
    make_splats(stage, Level::kKernel);
  }
}

void KernelEmitter::zero_partials() {
  for (const Instr& i : kernel_.instrs) {
    if (!is_column_reduction(i.op)) continue;
    Value* start = identity(along_row(i.op), i.type);
    sweep(1, {}, nullptr,
          [&](Value* column, Value* mask, int) { store(i.index, bases_[i.index], start, column, mask); });
  }
}

void KernelEmitter::emit_row(Value* row) {
  for (size_t i = 0; i < kernel_.operands.size(); ++i) {
    const Operand& operand = kernel_.operands[i];
    if (operand.is_partial || !moves_with_row(operand)) continue;
    if (operand.is_random) random_.begin_row(i, row_offset(i, row));
    else if (operand.is_index) row_ptrs_[i] = row_offset(i, row);
    else row_ptrs_[i] = b_.CreateGEP(memory_type(operand.dtype), bases_[i], row_offset(i, row));
  }
  random_.draw_masks(cols_, [&](int32_t id) { return scalar(id); });
  for (const Stage& stage : kernel_.stages) emit_stage(stage);
}

void KernelEmitter::emit_row_values(const Stage& stage) {
  for (const std::vector<int32_t>* list : {&stage.row, &stage.column}) {
    for (int32_t id : *list) {
      if (levels_[id] != Level::kRow) continue;
      const Instr& i = instr(id);
      if (i.op == LoopOp::kStore) {
        const Operand& out = operand(i);
        b_.CreateAlignedStore(to_memory(scalar(i.a), out.dtype, is_rounded_to(i.a, out.dtype)), row_ptrs_[i.index],
                              llvm::Align(size_of(out.dtype)));
      } else {
        scalars_[id] = row_value(i);
      }
    }
  }
}

void KernelEmitter::emit_stage(const Stage& stage) {
  emit_row_values(stage);
  make_splats(stage, Level::kRow);
  for (int32_t id : stage.column)
    if (instr(id).op == LoopOp::kPick && levels_[id] == Level::kColumn && levels_[instr(id).a] != Level::kColumn)
      pick_ptrs_[id] = picked(instr(id), scalar(instr(id).a));

  bool has_column_work = !stage.reductions.empty();
  for (int32_t id : stage.column) has_column_work |= levels_[id] == Level::kColumn;
  if (!has_column_work) return;

  // Lanes, totals of Note [Row order] (the sums of the blocks before this one), and running sums.
  llvm::SmallVector<Value*, 8> lanes;
  for (int32_t id : stage.reductions) begin_lanes(instr(id), lanes);
  const size_t n_lanes = lanes.size();
  if (has_blocks())
    for (int32_t id : stage.reductions)
      if (adds_in_blocks(instr(id))) lanes.push_back(real(register_type(instr(id).type, kLanes), 0.0));
  const bool in_blocks = lanes.size() > n_lanes;
  std::vector<int32_t> scans;
  for (int32_t id : stage.column)
    if (instr(id).op == LoopOp::kScan) scans.push_back(id);
  for (int32_t id : scans) lanes.push_back(constant(0, instr(id).type));
  for (size_t i = 0; i < scans.size(); ++i) scans_[scans[i]] = lanes.end() - scans.size() + i;
  const auto end_block = [&](Value* ends) {
    Value **lane = lanes.begin(), **total = lanes.begin() + n_lanes;
    for (int32_t id : stage.reductions) {
      if (adds_in_blocks(instr(id))) {
        Value *sum = b_.CreateFAdd(*total, *lane), *zero = real((*lane)->getType(), 0.0);
        *total = ends ? b_.CreateSelect(ends, sum, *total) : sum;
        *lane = ends ? b_.CreateSelect(ends, zero, *lane) : zero;
        ++total;
      }
      lane += carried(instr(id));
    }
  };
  sweep(copies_of(stage), lanes, in_blocks ? end_block : llvm::function_ref<void(Value*)>(),
        [&](Value* column, Value* mask, int copies) {
          emit_steps(stage, column, mask, copies);
          for (int copy = 0; copy < copies; ++copy) {
            Value** lane = lanes.begin();
            for (int32_t id : stage.reductions) {
              step_lanes(instr(id), vector(instr(id).a, copy), mask, lane);
              lane += carried(instr(id));
            }
          }
        });
  if (in_blocks) end_block(nullptr);
  Value **lane = lanes.begin(), **total = lanes.begin() + n_lanes;
  for (int32_t id : stage.reductions) {
    Value* all = in_blocks && adds_in_blocks(instr(id)) ? *total++ : end_lanes(instr(id), lane);
    lane += carried(instr(id));
    scalars_[id] = lanes_to_scalar(all, instr(id).op);
  }
}

// Broadcasts the values of `level` that the column code of this stage reads.
void KernelEmitter::make_splats(const Stage& stage, Level level) {
  auto want = [&](int32_t id) {
    if (id < 0 || levels_[id] != level || vectors_[0][id] != nullptr) return;
    Value* splat = b_.CreateVectorSplat(kLanes, scalars_[id]);
    for (std::vector<Value*>& copy : vectors_) copy[id] = splat;
  };
  for (int32_t id : stage.column) {
    if (levels_[id] != Level::kColumn) continue;
    for (int32_t source : {instr(id).a, instr(id).b, instr(id).c}) want(source);
  }
  for (int32_t id : stage.reductions) want(instr(id).a);
}

// Note [Interleaving]. A long chain of dependent operations fills the processor's schedulers with waiting instructions
// before the next step's independent ones are seen. Emitting two steps in turn, instruction by instruction, keeps two
// chains running. Measured on Zen 5: 15% faster for one exp, 25-40% for longer chains, nothing below some 20
// instructions; 20-50% more time to compile. Three and four steps gain more on the longest chains and double the time
// to compile.
int KernelEmitter::copies_of(const Stage& stage) const {
  int work = 0;  // in registers
  for (int32_t id : stage.column)
    if (levels_[id] == Level::kColumn)
      work += is_random(instr(id).op) ? random_.work_of(id) : instr(id).type == kF64 ? 2 : 1;
  return work >= 24 && work <= 256 ? kMaxCopies : 1;
}

// `copies` steps of kLanes columns each, from `column`; with a mask, one step.
void KernelEmitter::emit_steps(const Stage& stage, Value* column, Value* mask, int copies) {
  for (int32_t id : stage.column) {
    if (levels_[id] != Level::kColumn) continue;
    const Instr& i = instr(id);
    if (is_random(i.op)) {
      llvm::SmallVector<Value*, kMaxCopies> lanes(static_cast<size_t>(copies));
      random_.steps(id, scalar(i.a), column, strides_[static_cast<size_t>(i.index)].col_stride, lanes);
      for (int copy = 0; copy < copies; ++copy) vectors_[copy][id] = lanes[static_cast<size_t>(copy)];
      continue;
    }
    for (int copy = 0; copy < copies; ++copy) {
      Value*& result = vectors_[copy][id];
      Value *a = vector(i.a, copy), *at = column_of(column, copy);
      switch (i.op) {
        case LoopOp::kLoad: result = load(i, at, mask); break;
        case LoopOp::kPick: result = pick(id, at, mask, copy); break;
        case LoopOp::kStore: {
          const Operand& out = operand(i);
          store(i.index, row_ptrs_[i.index], to_memory(a, out.dtype, is_rounded_to(i.a, out.dtype)), at, mask);
          break;
        }
        case LoopOp::kColumnSum:
        case LoopOp::kColumnMax:
        case LoopOp::kColumnMin: {
          Value* all = meet(along_row(i.op), load_vector(i.index, bases_[i.index], at, mask), a);
          store(i.index, bases_[i.index], all, at, mask);
          break;
        }
        case LoopOp::kScan: result = scan(a, *scans_[id]); break;
        case LoopOp::kIndex: {
          Value* stride = strides_[static_cast<size_t>(i.index)].col_stride;
          Value* apart = b_.CreateMul(neighbours(at), b_.CreateVectorSplat(kLanes, stride));
          result = b_.CreateAdd(b_.CreateVectorSplat(kLanes, row_ptrs_[i.index]), apart);
          break;
        }
        default: result = arithmetic(i, scalar_array_, a, vector(i.b, copy), vector(i.c, copy));
      }
    }
  }
}

// A loop over `column` from `first` to `last` in steps of `step`, at least once. `carried` holds the loop-carried
// values: body reads and replaces them.
template <class Body>
void KernelEmitter::loop(Value* first, Value* last, int64_t step, llvm::MutableArrayRef<Value*> carried, Body body) {
  BasicBlock* before = b_.GetInsertBlock();
  BasicBlock* loop = BasicBlock::Create(context_, "columns", function_);
  b_.CreateBr(loop);
  b_.SetInsertPoint(loop);
  auto* column = b_.CreatePHI(b_.getInt64Ty(), 2, "c");
  column->addIncoming(first, before);
  llvm::SmallVector<llvm::PHINode*, 8> phis;
  for (Value*& v : carried) {
    phis.push_back(b_.CreatePHI(v->getType(), 2));
    phis.back()->addIncoming(v, before);
    v = phis.back();
  }
  body(column);
  BasicBlock* end_of_body = b_.GetInsertBlock();
  Value* next = b_.CreateAdd(column, b_.getInt64(step), "", true, true);
  column->addIncoming(next, end_of_body);
  for (size_t i = 0; i < phis.size(); ++i) phis[i]->addIncoming(carried[i], end_of_body);
  BasicBlock* after = BasicBlock::Create(context_, "after", function_);
  b_.CreateCondBr(b_.CreateICmpSLT(next, last), loop, after);
  b_.SetInsertPoint(after);
}

// Runs `body` if `condition` holds; null: always.
template <class Body> void KernelEmitter::guarded(Value* condition, llvm::MutableArrayRef<Value*> carried, Body body) {
  if (condition == nullptr) return body();
  BasicBlock* before = b_.GetInsertBlock();
  BasicBlock* then = BasicBlock::Create(context_, "then", function_);
  BasicBlock* done = BasicBlock::Create(context_, "done", function_);
  b_.CreateCondBr(condition, then, done);
  b_.SetInsertPoint(then);
  const llvm::SmallVector<Value*, 8> old(carried.begin(), carried.end());
  body();
  BasicBlock* end_of_body = b_.GetInsertBlock();
  b_.CreateBr(done);
  b_.SetInsertPoint(done);
  for (size_t i = 0; i < old.size(); ++i) {
    auto* merged = b_.CreatePHI(old[i]->getType(), 2);
    merged->addIncoming(old[i], before);
    merged->addIncoming(carried[i], end_of_body);
    carried[i] = merged;
  }
}

// Runs `body(column, mask, copies)` over the columns of this call: groups of `copies` whole steps in a loop, then what
// is left, step by step. In a split kernel only the call that reaches the last column has a rest. Where a row has
// several blocks of Note [Row order], end_block(condition; null: always) stands between them; else it is null.
template <class Body>
void KernelEmitter::sweep(int copies, llvm::MutableArrayRef<Value*> carried, llvm::function_ref<void(Value*)> end_block,
                          Body body) {
  const int64_t group = int64_t{kLanes} * copies;
  const bool split = kernel_.split_columns;
  Value* first = split ? begin_ : b_.getInt64(0);
  const auto groups = [&](Value* last) {
    if (!end_block) return loop(first, last, group, carried, [&](Value* c) { body(c, nullptr, copies); });
    loop(first, last, kRowBlock, carried, [&](Value* block) {
      end_block(nullptr);  // the one before; the first adds zeros
      Value* end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, last,
                                            b_.CreateAdd(block, b_.getInt64(kRowBlock), "", true, true));
      loop(block, end, group, carried, [&](Value* c) { body(c, nullptr, copies); });
    });
  };
  const auto rest_begins = [&](Value* grouped) {
    if (end_block) end_block(b_.CreateICmpEQ(b_.CreateURem(grouped, b_.getInt64(kRowBlock)), b_.getInt64(0)));
  };
  if (!llvm::isa<llvm::ConstantInt>(cols_)) {
    const ExtentRange range = known(0);
    const auto lanes_left = [&](Value* column) -> Value* {
      if (range.multiple_of % kLanes == 0) return nullptr;
      llvm::SmallVector<llvm::Constant*, kLanes> indices;
      for (int i = 0; i < kLanes; ++i) indices.push_back(b_.getInt64(i));
      return b_.CreateICmpSLT(llvm::ConstantVector::get(indices),
                              b_.CreateVectorSplat(kLanes, b_.CreateSub(cols_, column)));
    };
    if (const int64_t steps = split ? 0 : steps_known(range); steps > 0) {
      const int64_t last = (steps - 1) * kLanes;
      for (int64_t at = 0; at < last;) {
        const int together = at + group <= last ? copies : 1;
        body(b_.getInt64(static_cast<uint64_t>(at)), nullptr, together);
        at += int64_t{kLanes} * together;
      }
      Value* column = b_.getInt64(static_cast<uint64_t>(last));
      return body(column, lanes_left(column), 1);
    }
    const bool divides = range.multiple_of % group == 0;
    Value* grouped = divides ? cols_ : b_.CreateMul(b_.CreateUDiv(cols_, b_.getInt64(group)), b_.getInt64(group));
    Value* last = !split ? grouped : divides ? end_ : b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end_, grouped);
    const bool at_least_one = divides || (!split && range.min >= group);
    guarded(at_least_one ? nullptr : b_.CreateICmpSLT(first, last), carried, [&] { groups(last); });
    if (divides) return;
    Value* rest = b_.CreateICmpSLT(grouped, cols_);
    if (split) rest = b_.CreateAnd(rest, b_.CreateICmpEQ(end_, cols_));
    guarded(rest, carried, [&] {
      rest_begins(grouped);
      loop(grouped, cols_, kLanes, carried, [&](Value* column) { body(column, lanes_left(column), 1); });
    });
    return;
  }
  const int64_t grouped = kernel_.cols / group * group;
  if (grouped == group && !split) {
    body(first, nullptr, copies);
  } else if (grouped > 0) {
    Value* last = b_.getInt64(static_cast<uint64_t>(grouped));
    if (split) last = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end_, last);
    guarded(split ? b_.CreateICmpSLT(first, last) : nullptr, carried, [&] { groups(last); });
  }
  if (grouped == kernel_.cols) return;
  guarded(split ? b_.CreateICmpEQ(end_, cols_) : nullptr, carried, [&] {
    rest_begins(b_.getInt64(static_cast<uint64_t>(grouped)));
    for (int64_t column = grouped; column < kernel_.cols; column += kLanes) {
      const int64_t left = kernel_.cols - column;
      body(b_.getInt64(static_cast<uint64_t>(column)), left < kLanes ? first_lanes(left) : nullptr, 1);
    }
  });
}

// ---- Memory

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

// Pointers to kLanes elements, col_stride apart.
Value* KernelEmitter::element_pointers(int32_t index, Value* base, Value* column) {
  const Operand& operand = kernel_.operands[index];
  Type* type = memory_type(operand.dtype);
  Value* stride = strides_[index].col_stride;
  Value* first = b_.CreateGEP(type, base, b_.CreateMul(column, stride, "", false, true));
  // 32-bit indices where they fit: one gather instead of two.
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

// `column` null: the element at the row's first column, as a scalar.
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

// True if the register is known to hold a value of that 16-bit type.
bool KernelEmitter::is_rounded_to(int32_t id, DType type) const {
  const LoopOp op = instr(id).op;
  return instr(id).type == type &&
         (op == LoopOp::kCast || op == LoopOp::kLoad || op == LoopOp::kConst || op == LoopOp::kScalar);
}

}  // namespace

llvm::Function* emit_llvm(const LoopKernel& kernel, llvm::Module& module) {
  if (kernel.inner > 1) return emit_llvm_rows(kernel, module);
  return goes_in_tiles(kernel) ? emit_llvm_tiles(kernel, module) : KernelEmitter(kernel, module).emit();
}

}  // namespace rondo::compile
