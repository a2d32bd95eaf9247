// Random numbers of a loop kernel in LLVM IR: Philox of runtime/random/random.h on a scalar counter or a vector of
// them, word for word.
//
// Counters and words live in the low halves of 64-bit lanes, whose upper halves hold anything (Note [Wide lanes] in
// runtime/cpu/philox.h).
#pragma once

#include <llvm/IR/IRBuilder.h>

#include <array>
#include <map>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

class RandomEmitter {
 public:
  using Value = llvm::Value;

  RandomEmitter(llvm::IRBuilder<>& builder, const LoopKernel& kernel) : b_(builder), kernel_(kernel) {}

  // Where the kernel begins. `states`: by operand. is_known(id): an instruction's value is there when a row begins.
  void begin_call(llvm::ArrayRef<Value*> states, llvm::function_ref<bool(int32_t)> is_known);
  // Where a row begins whose first element of this operand is `element`. Before that, and without it: 0.
  void begin_row(size_t operand, Value* element) { row_elements_[operand] = element; }
  // Draws the masks of a row of `cols` columns; after all begin_row(). value_of(id): the value of a known instruction.
  void draw_masks(Value* cols, llvm::function_ref<Value*(int32_t)> value_of);
  // Operations in registers for a step of instruction `id`; two steps fill the vectors of Philox.
  int work_of(int32_t id) const { return bits_.contains(id) ? 1 : 24; }
  // The number at the row's first column. `p`: of kRandomKeep.
  Value* scalar(const Instr& instr, Value* p);
  // Those of instruction `id` for one or two steps of kLanes columns from `column` on, a multiple of kLanes times the
  // number of steps.
  void steps(int32_t id, Value* p, Value* column, Value* col_stride, llvm::MutableArrayRef<Value*> lanes);

 private:
  static constexpr size_t kRounds = 10;
  // What is the same for all numbers of a stream.
  struct Stream {
    // The keys of the rounds, for scalars and for vectors of 4, 8 and 16 lanes.
    std::array<std::array<std::array<Value*, 2>, kRounds>, 4> keys;
    Value *offset_low, *offset_high;  // i64
    Value* first_product;             // of the first round
  };
  using Words = std::array<Value*, 4>;

  Stream stream(Value* state, int64_t increment);
  int64_t divisor_of_rows(size_t operand) const;
  void find_masks(llvm::function_ref<bool(int32_t)> is_known);

  // The i32 of dropout's words, or of the first or second word, for steps of kLanes columns from `column` on.
  void words_of(const Instr& instr, Value* column, Value* col_stride, llvm::MutableArrayRef<Value*> lanes);
  Words philox(const Stream& stream, Value* low, Value* high);
  // lanes[i]: kLanes i32, of the elements from first + i * kLanes on, where four neighbours share a counter. `first` is
  // a multiple of 4; `whole`: of kLanes times the number of vectors, too.
  void neighbours(const Stream& stream, Value* first, bool whole, llvm::MutableArrayRef<Value*> lanes);
  // The i32 of any elements, an i64 or a vector of them: one of four neighbours, or of the element's own counter.
  Value* word(const Stream& stream, LoopOp op, Value* elements);
  Value* uniform(Value* words);          // uniform_from_bits()
  Value* keeps(Value* words, Value* p);  // DropoutRule

  Value* lift(Value* v, int width);
  Value* product(Value* a, uint64_t b);
  Value* upper(Value* v) { return b_.CreateLShr(v, 32); }
  Value* low_words(Value* v);
  Value* xor_of(Value* a, Value* b, Value* c);
  Value* kept_bits(Value* bits, Value* column, size_t step);

  llvm::IRBuilder<>& b_;
  const LoopKernel& kernel_;
  std::map<size_t, Stream> streams_;       // by operand
  std::map<size_t, Value*> row_elements_;  // likewise
  // Note [Drawn masks]. Each word of Philox waits for ten rounds, and a row may be swept several times, each of which
  // would draw its mask again. So a row's masks are drawn when it begins, up to 64 elements at a time, which keeps
  // enough rounds under way and all registers free for them; they lie as bits on the stack. Rows that are too long for
  // that are drawn where they are used.
  static constexpr int64_t kMostKept = 1 << 16;  // columns: 8 KiB
  static constexpr size_t kMostDrawn = 4;        // steps of kLanes columns at a time
  size_t drawn_ = kMostDrawn;                    // in this kernel
  struct Mask {
    int32_t id;  // of one of its instructions
    Value* bits;
  };
  std::vector<Mask> masks_;
  std::map<int32_t, Value*> bits_;  // by instruction
};

}  // namespace rondo::compile
