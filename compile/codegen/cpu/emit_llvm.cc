#include "rondo/compile/codegen/cpu/emit_llvm.h"

#include <llvm/IR/Intrinsics.h>

#include "rondo/compile/codegen/cpu/emit_llvm_blocks.h"
#include "rondo/compile/codegen/cpu/emit_llvm_kernel.h"
#include "rondo/compile/codegen/tiles.h"

namespace rondo::compile {

using llvm::BasicBlock;
using llvm::Type;
using llvm::Value;

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

  // The invariant loads below run before the loop. This branch skips them for an empty range, which must touch no
  // memory.
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
    if (!operand.is_partial || kernel_.starts >= 0) continue;
    Value* chunk = b_.CreateUDiv(begin_, chunk_rows_);
    bases_[i] = b_.CreateGEP(memory_type(operand.dtype), bases_[i], b_.CreateMul(chunk, cols_));
  }
  row_ptrs_ = bases_;
  for (size_t i = 0; i < kernel_.operands.size(); ++i)
    if (kernel_.operands[i].is_index) row_ptrs_[i] = b_.getInt64(0);
  random_.begin_call(bases_, [&](int32_t id) { return levels_[id] == Level::kKernel; });
  emit_kernel_level();
  if (kernel_.starts >= 0) {
    emit_segments(exit);
  } else {
    zero_partials();
    if (kernel_.split_columns) {
      emit_row(b_.getInt64(0));
      b_.CreateBr(exit);
    } else {
      emit_rows(begin_, end_, exit);
    }
  }
  exit->insertInto(function_);
  b_.SetInsertPoint(exit);
  b_.CreateRetVoid();
  return function_;
}

// Emits all rows from `first` to `last` (at least one), then branches to `after`.
void KernelEmitter::emit_rows(Value* first, Value* last, BasicBlock* after) {
  BasicBlock* before = b_.GetInsertBlock();
  BasicBlock* body = BasicBlock::Create(context_, "row", function_);
  b_.CreateBr(body);
  b_.SetInsertPoint(body);
  auto* row = b_.CreatePHI(b_.getInt64Ty(), 2, "r");
  row->addIncoming(first, before);
  emit_row(row);
  Value* next = b_.CreateAdd(row, b_.getInt64(1), "", true, true);
  row->addIncoming(next, b_.GetInsertBlock());
  b_.CreateCondBr(b_.CreateICmpSLT(next, last), body, after);
}

// Note [Segments of rows]: emits the segments of the call, then branches to `after`.
void KernelEmitter::emit_segments(BasicBlock* after) {
  const std::vector<Value*> bases = bases_;
  const auto start_of = [&](Value* k) {
    return b_.CreateLoad(b_.getInt64Ty(), b_.CreateGEP(b_.getInt64Ty(), bases[static_cast<size_t>(kernel_.starts)], k));
  };
  end_of_rows_ = start_of(end_);
  BasicBlock *before = b_.GetInsertBlock(), *body = BasicBlock::Create(context_, "segment", function_),
             *rows = BasicBlock::Create(context_, "rows", function_),
             *end = BasicBlock::Create(context_, "end", function_);
  b_.CreateBr(body);
  b_.SetInsertPoint(body);
  auto* segment = b_.CreatePHI(b_.getInt64Ty(), 2, "s");
  segment->addIncoming(begin_, before);
  for (size_t i = 0; i < kernel_.operands.size(); ++i)
    if (const Operand& operand = kernel_.operands[i]; operand.is_partial)
      bases_[i] = b_.CreateGEP(memory_type(operand.dtype), bases[i], b_.CreateMul(segment, cols_));
  zero_partials();
  Value *following = b_.CreateAdd(segment, b_.getInt64(1), "", true, true), *first = start_of(segment),
        *last = start_of(following);
  b_.CreateCondBr(b_.CreateICmpSLT(first, last), rows, end);
  b_.SetInsertPoint(rows);
  emit_rows(first, last, end);
  b_.SetInsertPoint(end);
  for (const Operand& operand : kernel_.operands) {
    if (operand.onto < 0) continue;
    const auto index = static_cast<int32_t>(&operand - kernel_.operands.data());
    Value* onto = b_.CreateGEP(memory_type(operand.dtype), bases[static_cast<size_t>(operand.onto)],
                               b_.CreateMul(segment, cols_));
    sweep(1, {}, nullptr, [&](Value* column, Value* mask, int) {
      Value* sum = load_vector(index, bases_[static_cast<size_t>(index)], column, mask);
      store(index, bases_[static_cast<size_t>(index)], add(load_vector(operand.onto, onto, column, mask), sum), column,
            mask);
    });
  }
  segment->addIncoming(following, b_.GetInsertBlock());
  b_.CreateCondBr(b_.CreateICmpSLT(following, end_), body, after);
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

// Note [Rows ahead]. Rows in segments (Note [Segments of rows]) are picked from anywhere in a table, so each one misses
// several cache lines. While a row is processed, the lines that a later row picks are prefetched. The index of a row
// may itself be picked from a table, so for a row twice as far ahead, the line that holds its index is prefetched. An
// index that needs a random number or a reduction of its row is not known ahead.
void KernelEmitter::fetch_ahead(Value* row) {
  constexpr int64_t kBytesAhead = 12 << 10, kMostRows = 64, kMostLines = 8;
  const auto fetch_picked = [&](int64_t rows, bool whole_rows, int64_t lines) {
    const std::vector<Value*> ptrs = row_ptrs_, scalars = scalars_;
    Value* ahead = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(row, b_.getInt64(rows)),
                                            b_.CreateSub(end_of_rows_, b_.getInt64(1)));
    for (size_t i = 0; i < kernel_.operands.size(); ++i)
      if (const Operand& o = kernel_.operands[i]; !o.is_partial && has_elements(o) && moves_with_row(o))
        row_ptrs_[i] = b_.CreateGEP(memory_type(o.dtype), bases_[i], row_offset(i, ahead));
    std::vector<bool> known(kernel_.instrs.size());
    for (size_t id = 0; id < known.size(); ++id) known[id] = levels_[id] == Level::kKernel;
    const auto is_known = [&](int32_t id) { return id < 0 || known[static_cast<size_t>(id)]; };
    for (const Stage& stage : kernel_.stages)
      for (const std::vector<int32_t>* list : {&stage.row, &stage.column})
        for (int32_t id : *list) {
          const Instr& i = instr(id);
          const bool of_row = levels_[id] == Level::kRow;
          if (i.op == LoopOp::kPick && of_row != whole_rows && levels_[i.a] == Level::kRow && is_known(i.a)) {
            Value* from = picked(i, scalar(i.a));
            for (int64_t line = 0; line < (of_row ? 1 : lines); ++line)
              fetch_line(b_.CreateConstGEP1_64(b_.getInt8Ty(), from, static_cast<uint64_t>(line * kCacheLine)),
                         FetchTo::kRead);
          }
          // Twice as far ahead, picked values have not been fetched yet, so they are not read.
          if (!of_row || is_effect(i.op) || is_random(i.op) || i.op == LoopOp::kIndex) continue;
          if (!is_known(i.a) || !is_known(i.b) || !is_known(i.c)) continue;
          scalars_[id] = !whole_rows && i.op == LoopOp::kPick ? llvm::Constant::getNullValue(register_type(i.type, 1))
                                                              : row_value(i);
          known[static_cast<size_t>(id)] = true;
        }
    row_ptrs_ = ptrs;
    scalars_ = scalars;
  };
  int64_t bytes = kMostLines * kCacheLine;  // bytes of a row to prefetch; if cols varies, this upper limit
  if (llvm::isa<llvm::ConstantInt>(cols_)) bytes = kernel_.cols * 4;
  const int64_t rows = std::clamp<int64_t>(kBytesAhead / bytes, 1, kMostRows);
  fetch_picked(rows, true, std::clamp<int64_t>((bytes + kCacheLine - 1) / kCacheLine, 1, kMostLines));
  fetch_picked(2 * rows, false, 1);
}

void KernelEmitter::emit_row(Value* row) {
  if (kernel_.starts >= 0) fetch_ahead(row);
  for (size_t i = 0; i < kernel_.operands.size(); ++i) {
    const Operand& operand = kernel_.operands[i];
    if (operand.is_partial || operand.is_check || !moves_with_row(operand)) continue;
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
      } else if (i.op == LoopOp::kCheckIndex) {
        check_index(i, scalar(i.a), nullptr);
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

  // The values that the column loop carries, in this order: lanes of reductions, totals of Note [Row order] (sums of
  // the blocks before this one), running sums.
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
// before the next step's independent ones are seen. Emitting two steps alternately, instruction by instruction, keeps
// two chains in flight. Measured on Zen 5: 15% faster for one exp, 25-40% faster for longer chains, no gain below about
// 20 instructions; 20-50% more time to compile. Three and four steps gain more for the longest chains but double the
// time to compile.
int KernelEmitter::copies_of(const Stage& stage) const {
  int work = 0;  // an estimate of the operations of one step
  for (int32_t id : stage.column)
    if (levels_[id] == Level::kColumn)
      work += is_random(instr(id).op) ? random_.work_of(id) : instr(id).type == kF64 ? 2 : 1;
  return work >= 24 && work <= 256 ? kMaxCopies : 1;
}

// Emits `copies` steps of kLanes columns each, from `column` on. With a mask, `copies` is 1.
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
        case LoopOp::kCheckIndex: check_index(i, a, mask); break;
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

// Emits a loop over `column` from `first` to `last` in steps of `step`, executed at least once. `carried`: the
// loop-carried values, which `body` reads and replaces.
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

// Emits code that executes what `body` emits if `condition` holds. A null condition always holds. `carried` as in
// loop().
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

void KernelEmitter::check_index(const Instr& i, Value* index, Value* mask) {
  Value* size = strides_[static_cast<size_t>(i.index)].axes[0].size;
  const bool is_vector = index->getType()->isVectorTy();
  Value* bad = b_.CreateICmpUGE(index, is_vector ? b_.CreateVectorSplat(kLanes, size) : size);  // as unsigned numbers
  if (mask != nullptr) bad = b_.CreateAnd(bad, mask);
  if (is_vector) bad = b_.CreateOrReduce(bad);
  guarded(bad, {}, [&] {
    b_.CreateAlignedStore(b_.getInt64(1), bases_[static_cast<size_t>(i.index)], llvm::Align(sizeof(int64_t)));
  });
}

// Runs `body(column, mask, copies)` over the columns of this call: groups of `copies` whole steps in a loop, then
// the rest, step by step. In a split kernel, only the call that reaches the last column has a rest. If a row may
// have several blocks of Note [Row order], end_block(condition; null: always) is called between them; otherwise
// end_block is null.
template <class Body>
void KernelEmitter::sweep(int copies, llvm::MutableArrayRef<Value*> carried, llvm::function_ref<void(Value*)> end_block,
                          Body body) {
  const int64_t group = int64_t{kLanes} * copies;
  const bool split = kernel_.split_columns;
  Value* first = split ? begin_ : b_.getInt64(0);
  const auto groups = [&](Value* last) {
    if (!end_block) return loop(first, last, group, carried, [&](Value* c) { body(c, nullptr, copies); });
    loop(first, last, kRowBlock, carried, [&](Value* block) {
      end_block(nullptr);  // ends the previous block; the first call adds zeros
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

llvm::Function* emit_llvm(const LoopKernel& kernel, llvm::Module& module) {
  if (kernel.inner > 1) return emit_llvm_rows(kernel, module);
  return goes_in_tiles(kernel) ? emit_llvm_tiles(kernel, module) : KernelEmitter(kernel, module).emit();
}

}  // namespace rondo::compile
