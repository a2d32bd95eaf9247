// Pointwise kernels with a transposed operand (codegen/tiles.h). A tile is kLanes rows of kLanes columns. A transposed
// operand is read column by column, transposed in registers, and stored in a buffer with one vector for each row. The
// rows of a transposed result are collected in such a buffer, transposed, and written column by column. The code that
// computes a row is the same as in any kernel.
#include <llvm/IR/Intrinsics.h>

#include <array>

#include "rondo/compile/codegen/cpu/emit_llvm_blocks.h"
#include "rondo/compile/codegen/tiles.h"

namespace rondo::compile {
namespace {

using llvm::BasicBlock;
using llvm::Type;
using llvm::Value;

// Each load and store of a tile accesses a different page, so the hardware prefetcher does not help. Instead, the code
// prefetches lines for later rows and columns: this many elements ahead.
constexpr int64_t kLoadsAhead = 2 * kLanes, kStoresAhead = kColumnsTogether;

class TilesEmitter : BlockEmitter {
 public:
  using BlockEmitter::BlockEmitter;
  llvm::Function* emit();

 private:
  using Vectors = std::array<Value*, kLanes>;
  struct Memory {
    bool transposed = false;
    Value* first = nullptr;    // transposed: the address of the tile's first row
    Value* offsets = nullptr;  // not transposed: a buffer with the offset of each row
    Value* tile = nullptr;     // transposed: a buffer of kLanes vectors
  };
  struct Tile {
    Value *rows, *columns;          // the numbers of rows and columns
    Value *row_mask, *column_mask;  // null: all kLanes rows or columns exist
    bool streams = false;           // stores are non-temporal
  };

  Value* rows_left(Value* row, Value* end);
  bool streams(size_t operand) const {
    return may_stream(operand) && !memory_[operand].transposed && kernel_.operands[operand].col_stride == 1;
  }
  Value* stores_lines();
  void emit_rows(Value* row, Value* count, Value* first_column, Value* end_column);
  void emit_tile(Value* column, const Tile& tile);
  void emit_row(Value* i, Value* column, const Tile& tile);
  Value* load(const Instr& i, Value* row, Value* column, const Tile& tile);
  void store(const Instr& i, Value* row, Value* column, const Tile& tile);
  void read_transposed(size_t operand, Value* column, const Tile& tile);
  void write_transposed(size_t operand, Value* column, const Tile& tile);
  Vectors transposed(Vectors rows);

  Memory& memory(const Instr& i) { return memory_[static_cast<size_t>(i.index)]; }
  Type* vector_of(DType dtype) { return widen(memory_type(dtype), kLanes); }
  // Returns the address of row `i` in a buffer of vectors.
  Value* slot(Value* buffer, Type* type, Value* i) { return b_.CreateGEP(type, buffer, i); }
  // Returns the mask of column j of a transposed operand.
  Value* mask_of(const Tile& tile, int64_t j) {
    if (tile.row_mask == nullptr) return nullptr;
    return b_.CreateAnd(tile.row_mask, splat(b_.CreateICmpSLT(number(j), tile.columns)));
  }
  Value* value(int32_t id) { return id < 0 ? nullptr : values_[static_cast<size_t>(id)]; }

  std::vector<Memory> memory_;  // by operand
  std::vector<Value*> values_;  // by instruction
  Value* stores_lines_ = nullptr;
};

llvm::Function* TilesEmitter::emit() {
  begin_function();
  values_.assign(kernel_.instrs.size(), nullptr);
  for (size_t id = 0; id < kernel_.instrs.size(); ++id)
    if (is_constant(kernel_.instrs[id])) values_[id] = constant(kernel_.instrs[id]);
  for (const Operand& operand : kernel_.operands) {
    Memory& at = memory_.emplace_back();
    at.transposed = is_transposed(operand);
    if (at.transposed) {
      auto* buffer = b_.CreateAlloca(vector_of(operand.dtype), number(kLanes));
      buffer->setAlignment(llvm::Align(64));
      at.tile = buffer;
    } else {
      at.offsets = b_.CreateAlloca(b_.getInt64Ty(), number(kLanes));
    }
  }
  if (kernel_.streams) stores_lines_ = stores_lines();
  BasicBlock *body = block("body"), *exit = block("exit");
  b_.CreateCondBr(b_.CreateICmpSLT(begin_, end_), body, exit);
  b_.SetInsertPoint(body);
  loop(begin_, end_, number(kRowsTogether), {}, [&](Value* first_row) {
    Value* end_row = least(end_, b_.CreateAdd(first_row, number(kRowsTogether), "", true, true));
    loop(number(0), cols_, number(kColumnsTogether), {}, [&](Value* first_column) {
      Value* end_column = least(cols_, b_.CreateAdd(first_column, number(kColumnsTogether), "", true, true));
      // The steps of this loop differ in size: a tile also ends where the index of a transposed operand's rows wraps
      // around.
      BasicBlock *before = b_.GetInsertBlock(), *rows = block("rows"), *after = block("after_rows");
      b_.CreateBr(rows);
      b_.SetInsertPoint(rows);
      auto* row = b_.CreatePHI(b_.getInt64Ty(), 2, "r");
      row->addIncoming(first_row, before);
      Value* count = rows_left(row, end_row);
      emit_rows(row, count, first_column, end_column);
      Value* next = b_.CreateAdd(row, count, "", true, true);
      row->addIncoming(next, b_.GetInsertBlock());
      b_.CreateCondBr(b_.CreateICmpSLT(next, end_row), rows, after);
      b_.SetInsertPoint(after);
    });
  });
  b_.CreateBr(exit);
  b_.SetInsertPoint(exit);
  end_streams();
  b_.CreateRetVoid();
  return function_;
}

// True if the vectors of whole tiles are whole cache lines in all operands that may be streamed. (Tiles begin at
// columns that are multiples of kLanes.)
Value* TilesEmitter::stores_lines() {
  llvm::SmallVector<Value*, 8> bytes;
  for (size_t i = 0; i < memory_.size(); ++i) {
    if (!streams(i)) continue;
    const auto size = static_cast<int64_t>(size_of(kernel_.operands[i].dtype));
    bytes.push_back(b_.CreatePtrToInt(operands_[i].base, b_.getInt64Ty()));
    for (const AxisExtents& axis : operands_[i].axes) bytes.push_back(b_.CreateMul(axis.stride, number(size)));
  }
  return is_line(bytes);
}

Value* TilesEmitter::rows_left(Value* row, Value* end) {
  Value* left = least(number(kLanes), b_.CreateSub(end, row));
  for (size_t i = 0; i < memory_.size(); ++i) {
    const Operand& operand = kernel_.operands[i];
    if (!memory_[i].transposed) continue;
    for (size_t a = 0; a < operand.axes.size(); ++a) {
      if (operand.axes[a].divisor != 1 || !wraps(kernel_, operand.axes[a])) continue;
      Value* size = operands_[i].axes[a].size;
      left = least(left, b_.CreateSub(size, b_.CreateURem(row, size)));
    }
  }
  return left;
}

// Emits `count` rows (at most kLanes) for all columns in [first_column, end_column).
void TilesEmitter::emit_rows(Value* row, Value* count, Value* first_column, Value* end_column) {
  for (size_t i = 0; i < memory_.size(); ++i) {
    Memory& at = memory_[i];
    if (at.transposed)
      at.first = b_.CreateGEP(memory_type(kernel_.operands[i].dtype), operands_[i].base, row_offset(i, row));
    else b_.CreateAlignedStore(row_offset(i, b_.CreateAdd(splat(row), lane_numbers())), at.offsets, llvm::Align(8));
  }
  Value* row_mask = lanes_below(count);
  loop(first_column, end_column, number(kLanes), {}, [&](Value* column) {
    Value* columns = least(number(kLanes), b_.CreateSub(end_column, column));
    Value* is_whole = b_.CreateAnd(b_.CreateICmpEQ(columns, number(kLanes)), b_.CreateICmpEQ(count, number(kLanes)));
    BasicBlock *whole = block("whole"), *part = block("part"), *done = block("done");
    b_.CreateCondBr(is_whole, whole, part);
    b_.SetInsertPoint(whole);
    if (kernel_.streams) {
      BasicBlock *lines = block("lines"), *no_lines = block("no_lines");
      b_.CreateCondBr(stores_lines_, lines, no_lines);
      b_.SetInsertPoint(lines);
      emit_tile(column, {number(kLanes), number(kLanes), nullptr, nullptr, true});
      b_.CreateBr(done);
      b_.SetInsertPoint(no_lines);
    }
    emit_tile(column, {number(kLanes), number(kLanes), nullptr, nullptr});
    b_.CreateBr(done);
    b_.SetInsertPoint(part);
    emit_tile(column, {count, columns, row_mask, lanes_below(columns)});
    b_.CreateBr(done);
    b_.SetInsertPoint(done);
  });
}

void TilesEmitter::emit_tile(Value* column, const Tile& tile) {
  std::vector<bool> reads(memory_.size()), writes(memory_.size());
  for (int32_t id : kernel_.stages[0].column) {
    const Instr& i = instr(id);
    if (i.op == LoopOp::kLoad) reads[static_cast<size_t>(i.index)] = memory(i).transposed;
    if (i.op == LoopOp::kStore) writes[static_cast<size_t>(i.index)] = memory(i).transposed;
  }
  for (size_t i = 0; i < reads.size(); ++i)
    if (reads[i]) read_transposed(i, column, tile);
  loop(number(0), tile.rows, number(1), {}, [&](Value* row) { emit_row(row, column, tile); });
  for (size_t i = 0; i < writes.size(); ++i)
    if (writes[i]) write_transposed(i, column, tile);
}

void TilesEmitter::emit_row(Value* row, Value* column, const Tile& tile) {
  const Stage& stage = kernel_.stages[0];
  for (const std::vector<int32_t>* list : {&stage.row, &stage.column})
    for (int32_t id : *list) {
      const Instr& i = instr(id);
      if (is_constant(i)) continue;
      Value*& result = values_[static_cast<size_t>(id)];
      if (i.op == LoopOp::kLoad) result = load(i, row, list == &stage.row ? nullptr : column, tile);
      else if (i.op == LoopOp::kStore) store(i, row, column, tile);
      else result = arithmetic(i, scalar_array_, value(i.a), value(i.b), value(i.c));
    }
}

// ---- Memory

// If `column` is null, loads the elements of column 0.
Value* TilesEmitter::load(const Instr& i, Value* row, Value* column, const Tile& tile) {
  const Operand& from = operand(i);
  const Memory& at = memory(i);
  Type *scalar = memory_type(from.dtype), *type = vector_of(from.dtype);
  const llvm::Align align(size_of(from.dtype));
  if (at.transposed && column != nullptr)
    return from_memory(b_.CreateAlignedLoad(type, slot(at.tile, type, row), align), from.dtype, i.type);
  Value* offset = at.transposed ? nullptr
                                : b_.CreateAlignedLoad(b_.getInt64Ty(), b_.CreateGEP(b_.getInt64Ty(), at.offsets, row),
                                                       llvm::Align(8));
  Value* ptr = at.transposed ? b_.CreateGEP(scalar, at.first, row)
                             : b_.CreateGEP(scalar, operands_[static_cast<size_t>(i.index)].base, offset);
  if (column == nullptr || from.col_stride == 0)
    return splat(from_memory(b_.CreateAlignedLoad(scalar, ptr, align), from.dtype, i.type));
  if (from.col_stride == 1)
    return from_memory(load_vector(from.dtype, b_.CreateGEP(scalar, ptr, column), tile.column_mask), from.dtype,
                       i.type);
  Value* steps = b_.CreateMul(b_.CreateAdd(splat(column), lane_numbers()),
                              splat(operands_[static_cast<size_t>(i.index)].col_stride));
  return from_memory(
      b_.CreateMaskedGather(type, b_.CreateGEP(scalar, ptr, steps), align,
                            tile.column_mask ? tile.column_mask : all_lanes(), llvm::Constant::getNullValue(type)),
      from.dtype, i.type);
}

void TilesEmitter::store(const Instr& i, Value* row, Value* column, const Tile& tile) {
  const Operand& to = operand(i);
  const Memory& at = memory(i);
  Type* scalar = memory_type(to.dtype);
  const llvm::Align align(size_of(to.dtype));
  Value* raw = to_memory(value(i.a), to.dtype, /*already_rounded=*/false);
  if (at.transposed) {
    b_.CreateAlignedStore(raw, slot(at.tile, raw->getType(), row), align);
    return;
  }
  const OperandExtents& extents = operands_[static_cast<size_t>(i.index)];
  Value* offset = b_.CreateAlignedLoad(b_.getInt64Ty(), b_.CreateGEP(b_.getInt64Ty(), at.offsets, row), llvm::Align(8));
  Value* ptr = b_.CreateGEP(scalar, extents.base, offset);
  if (to.col_stride == 1) {
    Value* at = b_.CreateGEP(scalar, ptr, column);
    if (tile.streams && streams(static_cast<size_t>(i.index))) return stream_vector(raw, at);
    if (tile.column_mask == nullptr) fetch_line(b_.CreateGEP(scalar, at, number(kStoresAhead)), FetchTo::kWrite);
    return store_vector(to.dtype, raw, at, tile.column_mask);
  }
  Value* steps = b_.CreateMul(b_.CreateAdd(splat(column), lane_numbers()), splat(extents.col_stride));
  b_.CreateMaskedScatter(raw, b_.CreateGEP(scalar, ptr, steps), align,
                         tile.column_mask ? tile.column_mask : all_lanes());
}

void TilesEmitter::read_transposed(size_t index, Value* column, const Tile& tile) {
  const DType dtype = kernel_.operands[index].dtype;
  Type *scalar = memory_type(dtype), *type = vector_of(dtype);
  Value *stride = operands_[index].col_stride,
        *ptr = b_.CreateGEP(scalar, memory_[index].first, b_.CreateMul(column, stride));
  Vectors columns;
  for (int64_t j = 0; j < kLanes; ++j) {
    Value* at = b_.CreateGEP(scalar, ptr, b_.CreateMul(number(j), stride));
    columns[static_cast<size_t>(j)] = load_vector(dtype, at, mask_of(tile, j));
    if (tile.row_mask == nullptr) fetch_line(b_.CreateGEP(scalar, at, number(kLoadsAhead)), FetchTo::kRead);
  }
  const Vectors rows = transposed(columns);
  for (int64_t i = 0; i < kLanes; ++i)
    b_.CreateAlignedStore(rows[static_cast<size_t>(i)], slot(memory_[index].tile, type, number(i)),
                          llvm::Align(size_of(dtype)));
}

void TilesEmitter::write_transposed(size_t index, Value* column, const Tile& tile) {
  const DType dtype = kernel_.operands[index].dtype;
  Type *scalar = memory_type(dtype), *type = vector_of(dtype);
  Vectors rows;
  for (int64_t i = 0; i < kLanes; ++i)
    rows[static_cast<size_t>(i)] = b_.CreateAlignedLoad(type, slot(memory_[index].tile, type, number(i)),
                                                        llvm::Align(size_of(dtype)));
  const Vectors columns = transposed(rows);
  Value *stride = operands_[index].col_stride,
        *ptr = b_.CreateGEP(scalar, memory_[index].first, b_.CreateMul(column, stride));
  for (int64_t j = 0; j < kLanes; ++j)
    store_vector(dtype, columns[static_cast<size_t>(j)], b_.CreateGEP(scalar, ptr, b_.CreateMul(number(j), stride)),
                 mask_of(tile, j));
}

// Transposes in four rounds, which swap bits 0 to 3 of an element's row with the same bit of its lane. Two vectors are
// shuffled with lanes that stay in their place or move by a power of two, for which AVX2, too, has single instructions.
TilesEmitter::Vectors TilesEmitter::transposed(Vectors rows) {
  for (size_t bit = 1; bit < kLanes; bit *= 2) {
    const int distance = static_cast<int>(bit);
    llvm::SmallVector<int, kLanes> lower, upper;  // lanes of both rows of a pair, the second row's behind the first's
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool is_set = (lane & distance) != 0;
      lower.push_back(is_set ? kLanes + lane - distance : lane);
      upper.push_back(is_set ? kLanes + lane : lane + distance);
    }
    for (size_t i = 0; i < kLanes; ++i) {
      if ((i & bit) != 0) continue;
      Value *const first = rows[i], *const second = rows[i + bit];
      rows[i] = b_.CreateShuffleVector(first, second, lower);
      rows[i + bit] = b_.CreateShuffleVector(first, second, upper);
    }
  }
  return rows;
}

}  // namespace

llvm::Function* emit_llvm_tiles(const LoopKernel& kernel, llvm::Module& module) {
  return TilesEmitter(kernel, module).emit();
}

}  // namespace rondo::compile
