// Emits the random numbers of a loop kernel as LLVM IR. The generator is Philox on a scalar counter or a vector of
// counters. Each word equals that of runtime/random/random.h.
//
// Counters and words are in the low halves of 64-bit lanes. The upper halves are arbitrary (Note [Wide
// lanes] in runtime/cpu/philox.h).
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

  // Call this where the kernel begins. `states`: by operand. is_known(id): the value is available when a row begins.
  void begin_call(llvm::ArrayRef<Value*> states, llvm::function_ref<bool(int32_t)> is_known);
  // Call this where a row begins. `element`: the number of the row's first element in the operand's stream. Before the
  // first call, that number is 0.
  void begin_row(size_t operand, Value* element) { row_elements_[operand] = element; }
  // Draws the masks of a row of `cols` columns. Call it after all begin_row(). value_of(id): the value of
  // a known instruction.
  void draw_masks(Value* cols, llvm::function_ref<Value*(int32_t)> value_of);
  // Estimates the number of operations for one step of instruction `id`. Two steps fill the vectors of Philox.
  int work_of(int32_t id) const { return bits_.contains(id) ? 1 : 24; }
  // Returns the random number at the row's first column. `p`: the argument of kRandomKeep.
  Value* scalar(const Instr& instr, Value* p);
  // Returns in `lanes` the random numbers of instruction `id` for one or two steps of kLanes columns, from `column` on.
  // `column` is a multiple of kLanes times the number of steps.
  void steps(int32_t id, Value* p, Value* column, Value* col_stride, llvm::MutableArrayRef<Value*> lanes);

 private:
  static constexpr size_t kRounds = 10;
  // The values that are the same for all numbers of a stream.
  struct Stream {
    // The keys of the rounds, for scalars and for vectors of 4, 8 and 16 lanes.
    std::array<std::array<std::array<Value*, 2>, kRounds>, 4> keys;
    Value *offset_low, *offset_high;  // i64
    Value* first_product;             // i64; product of the first round
  };
  using Words = std::array<Value*, 4>;

  Stream stream(Value* state, int64_t increment);
  int64_t divisor_of_rows(size_t operand) const;
  void find_masks(llvm::function_ref<bool(int32_t)> is_known);

  // Returns in `lanes`, for steps of kLanes columns from `column` on, the i32 words from which the numbers of `instr`
  // are made.
  void words_of(const Instr& instr, Value* column, Value* col_stride, llvm::MutableArrayRef<Value*> lanes);
  Words philox(const Stream& stream, Value* low, Value* high);
  // lanes[i] receives kLanes i32 words, for the elements from first + i * kLanes on, where four neighbours share a
  // counter. `first` is a multiple of 4, and, if `whole`, a multiple of kLanes times the number of vectors.
  void neighbours(const Stream& stream, Value* first, bool whole, llvm::MutableArrayRef<Value*> lanes);
  // Returns the i32 words of any elements (an i64 or a vector of i64). A counter gives four words; `op` decides which
  // one belongs to an element.
  Value* word(const Stream& stream, LoopOp op, Value* elements);
  Value* uniform(Value* words);          // as uniform_from_bits()
  Value* keeps(Value* words, Value* p);  // as DropoutRule

  Value* lift(Value* v, int width);
  Value* product(Value* a, uint64_t b);
  Value* upper(Value* v) { return b_.CreateLShr(v, 32); }
  Value* low_words(Value* v);
  Value* xor_of(Value* a, Value* b, Value* c);
  Value* kept_bits(Value* bits, Value* column, size_t step);

  llvm::IRBuilder<>& b_;
  const LoopKernel& kernel_;
  std::map<size_t, Stream> streams_;       // by operand
  std::map<size_t, Value*> row_elements_;  // by operand: the number of the row's first element
  // Note [Drawn masks]. Each word of Philox has a latency of ten rounds, and a row may be swept several times, where
  // each sweep would draw its mask again. So a row's masks are drawn once, when the row begins, up to 64 elements at a
  // time. That keeps enough rounds in flight and leaves all registers to them. The masks are stored as bits on the
  // stack. For longer rows, the mask is drawn where it is used.
  static constexpr int64_t kMostKept = 1 << 16;  // columns of a row; their mask takes 8 KiB
  static constexpr size_t kMostDrawn = 4;        // steps of kLanes columns at a time
  size_t drawn_ = kMostDrawn;                    // the number for this kernel: fewer if its rows are short
  struct Mask {
    int32_t id;  // one of the instructions that use the mask
    Value* bits;
  };
  std::vector<Mask> masks_;
  std::map<int32_t, Value*> bits_;  // by instruction: the bits of its mask
};

}  // namespace rondo::compile
