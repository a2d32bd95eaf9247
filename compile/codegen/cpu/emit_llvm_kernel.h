// The emitter of kernels that walk their rows column by column (emit_llvm.cc; memory accesses: emit_llvm_memory.cc).
#pragma once

#include <llvm/IR/Module.h>

#include <array>
#include <vector>

#include "rondo/compile/codegen/cpu/emit_llvm_random.h"
#include "rondo/compile/codegen/cpu/emit_llvm_values.h"
#include "rondo/compile/codegen/cpu/levels.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {

// The most steps that Note [Interleaving] interleaves.
inline constexpr int kMaxCopies = 2;
static_assert(kMaxStep == kMaxCopies * kLanes && kSplitGrain % kMaxStep == 0);

class KernelEmitter : ValueEmitter {
 public:
  KernelEmitter(const LoopKernel& kernel, llvm::Module& module)
      : ValueEmitter(module.getContext()), kernel_(kernel), module_(module), context_(module.getContext()) {}

  llvm::Function* emit();

 private:
  using BasicBlock = llvm::BasicBlock;

  // ---- Structure
  void read_extents();
  void emit_kernel_level();
  void zero_partials();
  void emit_row(Value* row);
  void emit_rows(Value* first, Value* last, BasicBlock* after);
  void emit_segments(BasicBlock* after);
  void fetch_ahead(Value* row);
  void emit_stage(const Stage& stage);
  // Emits the instructions of a stage that have one result for the whole row.
  void emit_row_values(const Stage& stage);
  // Returns the result of an instruction (not an effect) at the row's first column.
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
  bool has_blocks() const {  // split columns belong to a single row without reductions
    return !kernel_.split_columns && (llvm::isa<llvm::ConstantInt>(cols_) ? kernel_.cols : known(0).max) > kRowBlock;
  }
  void make_splats(const Stage& stage, Level level);
  // True for sums whose order is fixed. Integers may be added in any order.
  static bool adds_in_blocks(const Instr& i) { return i.op == LoopOp::kReduceSum && !is_integer(i.type); }

  // ---- Memory
  Value* row_offset(size_t index, Value* row);
  // Loads from `base`. If `base` is null, loads from the operand's part of the row.
  Value* load(const Instr& instr, Value* column, Value* mask, Value* base = nullptr);
  // For a kPick: returns the address of the operand's part of the row for an index, or for each of a vector of indices.
  Value* picked(const Instr& i, Value* index) {
    const AxisExtents& axis = strides_[i.index].axes[0];
    return picked_place(row_ptrs_[i.index], operand(i).dtype, index, axis.size, axis.stride);
  }
  Value* pick(int32_t id, Value* column, Value* mask, int copy);
  // Records that `index`, or an element of it if it is a vector, is out of range.
  void check_index(const Instr& i, Value* index, Value* mask);
  void store(int32_t index, Value* base, Value* raw, Value* column, Value* mask);
  Value* element_pointers(int32_t index, Value* base, Value* column);
  Value* load_vector(int32_t index, Value* base, Value* column, Value* mask);
  bool is_rounded_to(int32_t id, DType type) const;

  // Returns the range that code may assume of the extent at `position`.
  ExtentRange known(size_t position) const {
    if (position < kernel_.ranges.size()) return kernel_.ranges[position];
    return {};
  }
  const Instr& instr(int32_t id) const { return kernel_.instrs[id]; }
  const Operand& operand(const Instr& i) const { return kernel_.operands[i.index]; }
  // Returns the value of an instruction as a vector, for the code of a column step.
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
    bool small_col_stride;  // col_stride is at most kNarrowStride; set for strides read at run time
    std::vector<AxisExtents> axes;
  };
  Value *cols_ = nullptr, *chunk_rows_ = nullptr;
  std::vector<OperandExtents> strides_;
  std::vector<Level> levels_;    // by instruction
  std::vector<Value*> scalars_;  // by instruction: kernel and row level
  // By copy of the column step and by instruction: values of column level, and splats of other values where needed.
  std::array<std::vector<Value*>, kMaxCopies> vectors_;
  std::vector<Value*> bases_, row_ptrs_;  // by operand; for kIndex, the row's first number
  Value* end_of_rows_ = nullptr;          // end of the rows of the call's segments
  std::vector<Value**> scans_;            // by instruction: the running sum that is carried through the sweep
  std::vector<Value*> pick_ptrs_;         // by instruction: addresses of column-level kPicks with one index per row
  RandomEmitter random_{b_, kernel_};
};

}  // namespace rondo::compile
