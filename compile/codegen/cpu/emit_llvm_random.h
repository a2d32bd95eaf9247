// Random numbers of a loop kernel in LLVM IR: Philox of runtime/random.h on a scalar counter or a vector of them, word
// for word.
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

  // Where the kernel begins. `states`: by operand.
  void begin_call(llvm::ArrayRef<Value*> states);
  // Where a row begins whose first element of this operand is `element`. Before that, and without it: 0.
  void begin_row(size_t operand, Value* element) { row_elements_[operand] = element; }
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
  void find_repeated();

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
  // Note [Kept masks]. A row may be swept several times, and each sweep computes its values again. A mask of dropout
  // takes some 60 instructions for 32 elements, so the first sweep leaves it as bits on the stack, where a row is not
  // too long for that.
  static constexpr int64_t kMostKept = 1 << 16;  // columns: 8 KiB
  std::map<int32_t, Value*> bits_;               // by instruction: those of one mask have one place
  std::map<int32_t, bool> draws_;                // likewise: this one is the first of them
};

}  // namespace rondo::compile
