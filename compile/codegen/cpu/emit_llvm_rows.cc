// Emits kernels along rows: those whose LoopKernel::inner is above 1.
#include <llvm/IR/Intrinsics.h>

#include <array>
#include <bit>
#include <map>
#include <tuple>

#include "rondo/compile/codegen/cpu/emit_llvm_blocks.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {
namespace {

using llvm::BasicBlock;
using llvm::Type;
using llvm::Value;

// A step takes up to kMostCopies vectors of rows. These rows are adjacent in memory, so each column is read in
// consecutive whole cache lines. A step takes half as many vectors if the code of a column is longer than kLongCode.
constexpr int kMostCopies = 4;
constexpr int kLongCode = 48;  // instructions

// Note [Kept values]. A column value that a later stage would compute again is kept in a buffer, if at least
// kWorthKeeping instructions make it and all columns of a block fit into kMostKept. So a softmax
// computes its exponentials once.
constexpr int kWorthKeeping = 8;
constexpr int64_t kMostKept = 1 << 16;  // bytes of a block

// The columns of the next block of rows are prefetched during the work on this block, unless they would evict this
// block from the second-level cache.
constexpr int64_t kMostFetched = 1 << 18;  // bytes of a block

// Emits code for blocks of adjacent rows. Either all rows of a block have the same outer index, or (if `inner` is less
// than a vector) the address of each lane is computed.
class RowsEmitter : BlockEmitter {
 public:
  using BlockEmitter::BlockEmitter;
  llvm::Function* emit();

 private:
  enum class Level : uint8_t { kKernel, kRow, kColumn };
  // How the address of an operand changes from one row of a block to the next: not at all, by one element, by
  // a stride, irregularly.
  enum class Along : uint8_t { kSame, kNext, kStride, kAnyhow };
  struct Memory {
    Along along = Along::kSame;
    Value* first = nullptr;                   // address for the block's first row; kAnyhow: the operand's base
    std::array<Value*, kMostCopies> lanes{};  // kStride, kAnyhow: offsets from `first`
  };
  struct Block {
    int copies;
    Value* mask;           // null: all lanes
    bool streams = false;  // stores are non-temporal
  };

  void find_levels();
  void find_kept();
  std::vector<int32_t> numbers() const;
  void find_fetches();
  // Prefetches the elements of the rows of a block, from the address `first` on.
  void fetch(const Instr& i, Value* first, const Block& block, FetchTo to);
  Value* number_of_vectors() { return number(kernel_.cols * copies()); }
  // Returns the address at which a value is kept.
  Value* kept_at(int32_t id, Value* column, int copy) {
    Type* type = register_type(instr(id).type, kLanes);
    Value* at = b_.CreateAdd(b_.CreateMul(column, number(copies())), number(copy));
    return b_.CreateGEP(type, kept_[static_cast<size_t>(kept_as_[static_cast<size_t>(id)])], at);
  }
  Along along(size_t operand) const;
  int copies() const;
  // Returns the number of rows from `row` to the end of its line() or of the call, whichever comes first.
  Value* rows_left(Value* row);
  Value* stores_lines(Value* row);
  void point_at(Value* row, const Block& block);
  void emit_block(Value* row, const Block& block);
  void emit_stage(const Stage& stage, const Block& block);
  void emit_instr(int32_t id, Value* column, const Block& block);
  void emit_columns(const Stage& stage, const Block& block, llvm::MutableArrayRef<Value*> sums);
  Value* load(const Instr& instr, Value* column, int copy, Value* mask);
  void store(const Instr& instr, Value* column, int copy, const Block& block);
  Value* place(const Instr& instr, Value* column, int copy);
  // Returns the address of the element in the block's first row. If `column` is null, it is the element of column 0.
  Value* address(const Instr& i, Value* column);

  Level& level(int32_t id) { return levels_[static_cast<size_t>(id)]; }
  Value*& value(int32_t id, int copy) { return values_[static_cast<size_t>(copy)][static_cast<size_t>(id)]; }
  Value* argument(int32_t id, int copy) { return id < 0 ? nullptr : value(id, copy); }
  bool is_sum(int32_t id) const { return instr(id).op == LoopOp::kReduceSum; }
  // A line is a range of rows whose addresses follow from that of its first row: the rows of one outer index, or, if
  // `inner` is less than a vector, all rows.
  bool lines_are_inner() const { return !llvm::isa<llvm::ConstantInt>(inner_) || kernel_.inner >= kLanes; }
  int64_t line() const { return lines_are_inner() ? kernel_.inner : kernel_.rows; }

  std::vector<Memory> memory_;    // by operand
  Value* first_row_ = nullptr;    // the block's first row
  std::vector<Value**> scans_;    // by instruction: the running sums carried through the columns, one for each copy
  std::vector<bool> live_;        // by instruction: true if it is computed
  std::vector<int32_t> kept_as_;  // by instruction: the index of its buffer in kept_; -1: not kept
  std::vector<bool> from_kept_;   // by instruction: true if it reads its value from kept_
  std::vector<Value*> kept_;      // the buffers of kept values
  std::vector<bool> fetches_;     // by instruction: true if it fetches its operand's next block
  bool fetches_stores_ = false;
  std::vector<Level> levels_;                            // by instruction
  std::array<std::vector<Value*>, kMostCopies> values_;  // by instruction: one vector for each copy
};

void RowsEmitter::find_levels() {
  levels_.assign(kernel_.instrs.size(), Level::kKernel);
  for (const Stage& stage : kernel_.stages) {
    for (const std::vector<int32_t>* list : {&stage.row, &stage.column})
      for (int32_t id : *list) {
        const Instr& i = instr(id);
        const bool reads = i.op == LoopOp::kLoad || i.op == LoopOp::kIndex;
        const bool moves = (reads && operand(i).col_stride != 0) || i.op == LoopOp::kStore || i.op == LoopOp::kScan;
        Level& own = level(id);
        if (!is_constant(i)) own = Level::kRow;
        if (moves && list == &stage.column) own = Level::kColumn;
        for (int32_t arg : {i.a, i.b, i.c})
          if (arg >= 0) own = std::max(own, level(arg));
      }
    for (int32_t id : stage.reductions) level(id) = Level::kRow;
  }
}

// Numbers instructions so that equal instructions of different stages have the same number.
std::vector<int32_t> RowsEmitter::numbers() const {
  using Key = std::tuple<LoopOp, DType, int32_t, int32_t, int32_t, int32_t, uint64_t>;
  std::map<Key, int32_t> first;
  std::vector<int32_t> number(kernel_.instrs.size());
  const auto of = [&](int32_t id) { return id < 0 ? id : number[static_cast<size_t>(id)]; };
  for (const Stage& stage : kernel_.stages)
    for (const std::vector<int32_t>* list : {&stage.row, &stage.column, &stage.reductions})
      for (int32_t id : *list) {
        const Instr& i = instr(id);
        const Key key{i.op, i.type, of(i.a), of(i.b), of(i.c), i.index, std::bit_cast<uint64_t>(i.value)};
        number[static_cast<size_t>(id)] = first.try_emplace(key, id).first->second;
      }
  return number;
}

// Note [Kept values]: finds the values to compute (live_) and the values to keep for a later stage.
void RowsEmitter::find_kept() {
  const std::vector<int32_t> number = numbers();
  std::vector<int> cost(kernel_.instrs.size(), 1);
  std::map<int32_t, int32_t> made;  // by number: the instruction that computes it first
  const int64_t bytes = kernel_.cols * copies() * kLanes * 4;
  int64_t left = llvm::isa<llvm::ConstantInt>(cols_) ? kMostKept : 0;
  // True if the value is read from a buffer instead of being computed again.
  const auto keeps = [&](int32_t id) {
    const auto before = made.find(number[static_cast<size_t>(id)]);
    const Instr& i = instr(id);
    if (before == made.end() || i.type == kBool || i.type == kF64 || is_integer(i.type) ||
        cost[static_cast<size_t>(id)] < kWorthKeeping)
      return false;
    int32_t& kept = kept_as_[static_cast<size_t>(before->second)];
    if (kept < 0) {
      if (bytes > left) return false;
      left -= bytes;
      kept = static_cast<int32_t>(kept_.size());
      auto* buffer = b_.CreateAlloca(register_type(i.type, kLanes), number_of_vectors());
      buffer->setAlignment(llvm::Align(64));
      kept_.push_back(buffer);
    }
    kept_as_[static_cast<size_t>(id)] = kept;
    from_kept_[static_cast<size_t>(id)] = true;
    return true;
  };
  for (const Stage& stage : kernel_.stages) {
    std::vector<int32_t> wanted;
    const auto want = [&](int32_t id) {
      if (id < 0 || live_[static_cast<size_t>(id)]) return;
      live_[static_cast<size_t>(id)] = true;
      wanted.push_back(id);
    };
    for (int32_t id : stage.column)
      for (int32_t arg : {instr(id).a, instr(id).b, instr(id).c})
        if (arg >= 0 && level(arg) == Level::kColumn)
          cost[static_cast<size_t>(id)] = std::min(kWorthKeeping,
                                                   cost[static_cast<size_t>(id)] + cost[static_cast<size_t>(arg)]);
    for (int32_t id : stage.reductions) want(instr(id).a);
    for (int32_t id : stage.column)
      if (instr(id).op == LoopOp::kStore) want(id);
    while (!wanted.empty()) {
      const int32_t id = wanted.back();
      wanted.pop_back();
      if (level(id) != Level::kColumn || keeps(id)) continue;
      for (int32_t arg : {instr(id).a, instr(id).b, instr(id).c}) want(arg);
    }
    for (int32_t id : stage.column)
      if (level(id) == Level::kColumn && live_[static_cast<size_t>(id)])
        made.try_emplace(number[static_cast<size_t>(id)], id);
  }
}

RowsEmitter::Along RowsEmitter::along(size_t index) const {
  const OperandAxis* within = nullptr;
  for (const OperandAxis& axis : kernel_.operands[index].axes) {
    if (axis.stride == 0 || axis.size == 1 || along_inner(axis, line()) == AlongInner::kNot) continue;
    if (within != nullptr || along_inner(axis, line()) == AlongInner::kInPart) return Along::kAnyhow;
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

llvm::Function* RowsEmitter::emit() {
  begin_function();
  BasicBlock *entry = b_.GetInsertBlock(), *header = block("rows"), *body = block("body"), *exit = block("exit");
  find_levels();
  live_.assign(kernel_.instrs.size(), false);
  from_kept_ = fetches_ = live_;
  kept_as_.assign(kernel_.instrs.size(), -1);
  scans_.assign(kernel_.instrs.size(), nullptr);
  find_kept();
  for (std::vector<Value*>& copy : values_) copy.assign(kernel_.instrs.size(), nullptr);
  for (size_t i = 0; i < kernel_.operands.size(); ++i) memory_.push_back({.along = along(i)});
  find_fetches();
  for (size_t id = 0; id < kernel_.instrs.size(); ++id) {
    if (!is_constant(kernel_.instrs[id])) continue;
    Value* all = constant(kernel_.instrs[id]);
    for (std::vector<Value*>& copy : values_) copy[id] = all;
  }
  b_.CreateBr(header);

  b_.SetInsertPoint(header);
  auto* row = b_.CreatePHI(b_.getInt64Ty(), 4, "r");
  row->addIncoming(begin_, entry);
  b_.CreateCondBr(b_.CreateICmpSLT(row, end_), body, exit);

  b_.SetInsertPoint(body);
  Value* left = rows_left(row);
  const int wide = copies();
  Value* taken = number(int64_t{wide} * kLanes);
  BasicBlock *whole = block("whole"), *part = block("part");
  b_.CreateCondBr(b_.CreateICmpSGE(left, taken), whole, part);
  b_.SetInsertPoint(whole);
  const auto emit_whole = [&](bool streams) {
    emit_block(row, {wide, nullptr, streams});
    row->addIncoming(b_.CreateAdd(row, taken, "", true, true), b_.GetInsertBlock());
    b_.CreateBr(header);
  };
  if (kernel_.streams) {
    BasicBlock *lines = block("lines"), *no_lines = block("no_lines");
    b_.CreateCondBr(stores_lines(row), lines, no_lines);
    b_.SetInsertPoint(lines);
    emit_whole(true);
    b_.SetInsertPoint(no_lines);
  }
  emit_whole(false);
  b_.SetInsertPoint(part);
  Value* few = least(left, number(kLanes));
  emit_block(row, {1, lanes_below(few)});
  row->addIncoming(b_.CreateAdd(row, few, "", true, true), b_.GetInsertBlock());
  b_.CreateBr(header);
  b_.SetInsertPoint(exit);
  end_streams();
  b_.CreateRetVoid();
  return function_;
}

// True if the vectors of the block at `row` are whole cache lines in all operands that may be streamed.
Value* RowsEmitter::stores_lines(Value* row) {
  llvm::SmallVector<Value*, 8> bytes;
  for (size_t i = 0; i < memory_.size(); ++i) {
    if (!may_stream(i) || memory_[i].along != Along::kNext) continue;
    const auto size = static_cast<int64_t>(size_of(kernel_.operands[i].dtype));
    bytes.push_back(b_.CreatePtrToInt(operands_[i].base, b_.getInt64Ty()));
    bytes.push_back(b_.CreateMul(row_offset(i, row), number(size)));
    bytes.push_back(b_.CreateMul(operands_[i].col_stride, number(size)));
  }
  return is_line(bytes);
}

Value* RowsEmitter::rows_left(Value* row) {
  Value* left = b_.CreateSub(end_, row);
  if (!lines_are_inner()) return left;
  return least(left, b_.CreateSub(inner_, b_.CreateURem(row, inner_)));
}

// Computes the addresses of the block's rows.
void RowsEmitter::point_at(Value* row, const Block& block) {
  first_row_ = row;
  for (size_t i = 0; i < memory_.size(); ++i) {
    Memory& at = memory_[i];
    at.first = operands_[i].base;
    if (at.along != Along::kAnyhow)
      at.first = b_.CreateGEP(memory_type(kernel_.operands[i].dtype), at.first, row_offset(i, row));
    for (int copy = 0; copy < block.copies; ++copy) {
      Value*& offsets = at.lanes[static_cast<size_t>(copy)];
      Value* lanes = b_.CreateAdd(lane_numbers(), splat(number(int64_t{copy} * kLanes)));
      if (at.along == Along::kAnyhow) offsets = row_offset(i, b_.CreateAdd(splat(row), lanes));
      if (at.along != Along::kStride) continue;
      for (size_t a = 0; a < operands_[i].axes.size(); ++a)
        if (along_inner(kernel_.operands[i].axes[a], line()) == AlongInner::kAll)
          offsets = b_.CreateMul(lanes, splat(operands_[i].axes[a].stride));
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

  // The values that the column loop carries. First, two vectors for each reduction and copy. For a sum, they are the
  // sum of the current chunk and the total of the chunks before it (Note [Column order]). For other reductions, they
  // are the result of begin_lanes(); if that is one vector, the second is a copy. Then the running sums, for each scan
  // and copy.
  llvm::SmallVector<Value*, 16> sums;
  const auto fill_up = [&](size_t n) {
    while (sums.size() % n != 0) sums.push_back(sums.back());
  };
  for (int32_t id : stage.reductions)
    for (int copy = 0; copy < block.copies; ++copy) {
      begin_lanes(instr(id), sums);
      fill_up(2);
    }
  std::vector<int32_t> scans;
  for (int32_t id : stage.column)
    if (instr(id).op == LoopOp::kScan && live_[static_cast<size_t>(id)]) scans.push_back(id);
  const size_t first_scan = sums.size();
  for (int32_t id : scans) sums.append(static_cast<size_t>(block.copies), splat(constant(0, instr(id).type)));
  for (size_t i = 0; i < scans.size(); ++i)
    scans_[static_cast<size_t>(scans[i])] = sums.begin() + first_scan + i * static_cast<size_t>(block.copies);
  emit_columns(stage, block, sums);
  Value** sum = sums.begin();
  for (int32_t id : stage.reductions)
    for (int copy = 0; copy < block.copies; ++copy, sum += 2)
      value(id, copy) = is_sum(id) ? sum[1] : end_lanes(instr(id), sum);
}

void RowsEmitter::emit_columns(const Stage& stage, const Block& block, llvm::MutableArrayRef<Value*> sums) {
  const auto each_column = [&](Value* column) {
    for (int32_t id : stage.column)
      if (level(id) == Level::kColumn && live_[static_cast<size_t>(id)]) emit_instr(id, column, block);
    // Prefetches the memory to which the next stage stores.
    if (&stage != &kernel_.stages.back() && block.mask == nullptr && !block.streams && fetches_stores_)
      for (int32_t id : (&stage + 1)->column)
        if (instr(id).op == LoopOp::kStore && memory_[static_cast<size_t>(instr(id).index)].along == Along::kNext)
          fetch(instr(id), address(instr(id), column), block, FetchTo::kWrite);
    Value** sum = sums.begin();
    for (int32_t id : stage.reductions)
      for (int copy = 0; copy < block.copies; ++copy, sum += 2) {
        step_lanes(instr(id), value(instr(id).a, copy), /*mask=*/nullptr, sum);
      }
  };
  const bool has_sums = std::any_of(stage.reductions.begin(), stage.reductions.end(),
                                    [&](int32_t id) { return is_sum(id); });
  if (!has_sums) return loop(number(0), cols_, number(1), sums, each_column);
  // Emits the computation of column_chunk_rows(cols).
  Value* chunk = b_.CreateUDiv(b_.CreateAdd(cols_, number(63)), number(64));
  chunk = least(b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, chunk, number(kLeastChunk)), number(kMostChunk));
  loop(number(0), cols_, chunk, sums, [&](Value* first) {
    loop(first, least(cols_, b_.CreateAdd(first, chunk, "", true, true)), number(1), sums, each_column);
    Value** sum = sums.begin();
    for (int32_t id : stage.reductions)
      for (int copy = 0; copy < block.copies; ++copy, sum += 2) {
        if (!is_sum(id)) continue;
        sum[1] = add(sum[1], sum[0]);
        sum[0] = identity(LoopOp::kReduceSum, instr(id).type);
      }
  });
}

void RowsEmitter::emit_instr(int32_t id, Value* column, const Block& block) {
  const Instr& i = instr(id);
  const auto at = static_cast<size_t>(id);
  if (fetches_[at] && block.mask == nullptr) {
    Value* next = b_.CreateGEP(memory_type(operand(i).dtype), address(i, column),
                               number(int64_t{block.copies} * kLanes));
    fetch(i, next, block, FetchTo::kRead);
  }
  for (int copy = 0; copy < block.copies; ++copy) {
    if (from_kept_[at]) {
      value(id, copy) = b_.CreateAlignedLoad(register_type(i.type, kLanes), kept_at(id, column, copy), llvm::Align(64));
      continue;
    }
    switch (i.op) {
      case LoopOp::kLoad: value(id, copy) = load(i, column, copy, block.mask); break;
      case LoopOp::kStore: store(i, column, copy, block); break;
      case LoopOp::kIndex: value(id, copy) = place(i, column, copy); break;
      case LoopOp::kScan: {
        Value*& total = scans_[at][copy];
        value(id, copy) = total = add(total, argument(i.a, copy));
        break;
      }
      default:
        value(id, copy) = arithmetic(i, scalar_array_, argument(i.a, copy), argument(i.b, copy), argument(i.c, copy));
    }
    if (column != nullptr && kept_as_[at] >= 0)
      b_.CreateAlignedStore(value(id, copy), kept_at(id, column, copy), llvm::Align(64));
  }
}

// Chooses the stage that prefetches an operand's next block: the second stage that reads the operand, or the only one.
// A kernel whose blocks are larger than kMostFetched prefetches nothing.
void RowsEmitter::find_fetches() {
  int64_t bytes = 0;
  for (size_t i = 0; i < memory_.size(); ++i)
    if (memory_[i].along == Along::kNext && kernel_.operands[i].col_stride != 0)
      bytes += kernel_.cols * copies() * kLanes * static_cast<int64_t>(size_of(kernel_.operands[i].dtype));
  if (bytes > kMostFetched) return;
  fetches_stores_ = true;
  std::vector<int32_t> last(memory_.size(), -1);
  std::vector<int> reads(memory_.size());
  for (const Stage& stage : kernel_.stages)
    for (int32_t id : stage.column) {
      const Instr& i = instr(id);
      const auto at = static_cast<size_t>(i.index);
      if (i.op != LoopOp::kLoad || level(id) != Level::kColumn || !live_[static_cast<size_t>(id)] ||
          memory_[at].along != Along::kNext || ++reads[at] > 2)
        continue;
      if (last[at] >= 0) fetches_[static_cast<size_t>(last[at])] = false;
      fetches_[static_cast<size_t>(last[at] = id)] = true;
    }
}

// Columns are a page or more apart, so the hardware prefetcher does not load the next columns.
void RowsEmitter::fetch(const Instr& i, Value* first, const Block& block, FetchTo to) {
  Type* scalar = memory_type(operand(i).dtype);
  const int64_t in_line = kCacheLine / static_cast<int64_t>(size_of(operand(i).dtype));
  for (int64_t at = 0; at < int64_t{block.copies} * kLanes; at += in_line)
    fetch_line(b_.CreateGEP(scalar, first, number(at)), to);
}

// ---- Memory

Value* RowsEmitter::address(const Instr& i, Value* column) {
  const auto at = static_cast<size_t>(i.index);
  Value* first = memory_[at].first;
  if (column == nullptr) return first;
  return b_.CreateGEP(memory_type(operand(i).dtype), first,
                      b_.CreateMul(column, operands_[at].col_stride, "", false, true));
}

Value* RowsEmitter::load(const Instr& i, Value* column, int copy, Value* mask) {
  const Memory& at = memory_[static_cast<size_t>(i.index)];
  const DType dtype = operand(i).dtype;
  Type *scalar = memory_type(dtype), *type = widen(scalar, kLanes);
  const llvm::Align align(size_of(dtype));
  Value *ptr = address(i, column), *raw = nullptr;
  switch (at.along) {
    case Along::kSame: return splat(from_memory(b_.CreateAlignedLoad(scalar, ptr, align), dtype, i.type));
    case Along::kNext:
      raw = load_vector(dtype, b_.CreateConstInBoundsGEP1_64(scalar, ptr, static_cast<uint64_t>(copy) * kLanes), mask);
      break;
    default:
      raw = b_.CreateMaskedGather(type, b_.CreateGEP(scalar, ptr, at.lanes[static_cast<size_t>(copy)]), align,
                                  mask ? mask : all_lanes(), llvm::Constant::getNullValue(type));
  }
  return from_memory(raw, dtype, i.type);
}

Value* RowsEmitter::place(const Instr& i, Value* column, int copy) {
  const auto at = static_cast<size_t>(i.index);
  Value* first = row_offset(
      at, b_.CreateAdd(splat(first_row_), b_.CreateAdd(lane_numbers(), splat(number(int64_t{copy} * kLanes)))));
  return column == nullptr ? first : b_.CreateAdd(first, splat(b_.CreateMul(column, operands_[at].col_stride)));
}

void RowsEmitter::store(const Instr& i, Value* column, int copy, const Block& block) {
  Value* const mask = block.mask;
  const Memory& at = memory_[static_cast<size_t>(i.index)];
  const DType dtype = operand(i).dtype;
  Type* scalar = memory_type(dtype);
  Value *raw = to_memory(value(i.a, copy), dtype, /*already_rounded=*/false), *ptr = address(i, column);
  if (at.along == Along::kNext) {
    ptr = b_.CreateConstInBoundsGEP1_64(scalar, ptr, static_cast<uint64_t>(copy) * kLanes);
    if (block.streams && column != nullptr && may_stream(static_cast<size_t>(i.index))) return stream_vector(raw, ptr);
    return store_vector(dtype, raw, ptr, mask);
  }
  b_.CreateMaskedScatter(raw, b_.CreateGEP(scalar, ptr, at.lanes[static_cast<size_t>(copy)]),
                         llvm::Align(size_of(dtype)), mask ? mask : all_lanes());
}

}  // namespace

llvm::Function* emit_llvm_rows(const LoopKernel& kernel, llvm::Module& module) {
  return RowsEmitter(kernel, module).emit();
}

}  // namespace rondo::compile
