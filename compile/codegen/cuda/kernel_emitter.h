// Writes one kernel. emit.cc: which thread runs what (Schedule::Shape). emit_body.cc: what a thread computes.
// emit_tiles.cc: the shape kTiles. emit_table.cc: kernels that run on a table.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/emit_values.h"
#include "rondo/compile/codegen/cuda/schedule.h"
#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cuda {

class KernelEmitter {
 public:
  // `table`: the kernel runs on the items of a table.
  KernelEmitter(const LoopKernel& kernel, const Schedule& schedule, bool table);
  std::string run() &&;

 private:
  using Shape = Schedule::Shape;

  // ---- Text
  template <class... Parts> void line(const Parts&... parts) {
    out_.append(static_cast<size_t>(depth_) * 2, ' ');
    absl::StrAppend(&out_, parts..., "\n");
  }
  // Indents lines until the end of the scope, then closes the block.
  struct Block {
    KernelEmitter& emitter;
    explicit Block(KernelEmitter& e) : emitter(e) { ++emitter.depth_; }
    ~Block() {
      --emitter.depth_;
      emitter.line("}");
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
  };
  template <class... Parts> Block block(const Parts&... parts) {
    line(parts..., " {");
    return Block(*this);
  }

  // ---- Parameters, and what replaces them in a table
  void emit_parameters();
  void emit_item();
  void emit_scalars();

  // ---- The shapes of a kernel
  void elements();
  void rows();
  void row();
  void columns();
  void begin_segment();
  // Returns the sum of two expressions. Sum::combine() wraps around for integers.
  static std::string arithmetic_sum(const std::string& a, const std::string& b) {
    return absl::StrCat("Sum::combine(", a, ", ", b, ")");
  }
  void begin_chunk();
  void tiles();

  // ---- Parts of the code of a row
  // Emits the width of a row: in a table, the last row may be shorter.
  void emit_cols_of_row();
  // Emits pointers to a row's part of each operand for which `use` holds.
  template <class Use> void emit_row_pointers(Use use);
  void emit_row_pointers();
  // Emits `exist`: how many columns from c on this thread has; 0 if the condition `unless` holds.
  void emit_exist(const std::string& unless);
  // Emits the values that are computed once for a row, by each of its threads. `live`: the condition under which the
  // row exists; `owns`: the condition under which a thread stores for the row. This includes loads of a column list
  // that do not depend on the column.
  void emit_row_code(const Stage& stage, const std::string& live, const std::string& owns);
  void emit_row_barrier();
  // Emits the body of one step: the columns c .. c + exist - 1.
  void emit_step(const Stage& stage);
  void emit_column_instr(int32_t id);
  // Emits the code that reports an index out of range. If an index belongs to a whole row, only the thread for which
  // `owns` holds reports it. `c`: as in place().
  void emit_check(const Instr& i, const std::string& owns, const std::string& c);
  // ---- Random numbers
  void emit_streams();
  std::string stream_at(const Instr& i, bool row) const;
  void emit_one_random(int32_t id, bool row);
  void emit_draws(const Stage& stage);  // draws the numbers for all columns of a step
  void emit_drawn(int32_t id);          // emits the drawn number for column e of the step
  void emit_sweep(const Stage& stage);
  void emit_sweep_in_chunks(const Stage& stage);
  void emit_reductions(const Stage& stage);

  const Instr& instr(int32_t id) const { return k_.instrs[static_cast<size_t>(id)]; }
  const Operand& operand(const Instr& i) const { return k_.operands[static_cast<size_t>(i.index)]; }
  bool varies(size_t position) const { return position < k_.varying.size() && k_.varying[position]; }
  // Returns a size or stride as an expression: a number, or the variable that holds it.
  std::string extent(size_t position, int64_t value) const {
    return varies(position) ? absl::StrCat("static_cast<Index>(x", position, ")") : absl::StrCat(value);
  }
  std::string row_offset(size_t index) const;
  // Returns "r3 + c", followed by ", stride" if the operand's columns are not adjacent.
  std::string address(const Instr& i) const;
  // Returns the address that a kPick reads, as "r3 + pick_at(v5, 100) * 64".
  std::string picked(const Instr& i) const;
  // True if all threads of a row know the value before its first column.
  bool is_row_value(int32_t id) const;
  // True if a step loads the values for all of its columns at once.
  bool is_loaded_in_steps(const Instr& i) const {
    if (i.op != LoopOp::kLoad && i.op != LoopOp::kPick) return false;
    return operand(i).col_stride != 0 && (i.op == LoopOp::kLoad || is_row_value(i.a));
  }
  // Returns the value of a kIndex at the column `c` (an expression; empty: the first column).
  std::string place(const Instr& i, const std::string& c) const;
  std::string start_of(size_t partial) const;
  std::string starts_of(size_t partial) const;
  std::string col_stride(size_t index) const { return extent(extent_of_[index], k_.operands[index].col_stride); }
  std::string pack(const Instr& i) const {
    return absl::StrCat("Pack<", memory_type(operand(i).dtype), ", ", s_.elements, ">");
  }
  bool sums_columns() const { return s_.chunk_rows > 0; }
  int warps() const { return s_.threads_per_row / kWarp; }
  bool may_store_over_a_row_input() const;

  const LoopKernel& k_;
  const Schedule& s_;
  const bool table_;
  std::vector<size_t> extent_of_;  // by operand: the position of its first extent
  std::vector<bool> kept_;         // by operand: its part of the row stays in registers
  std::vector<bool> kept_now_;     // by operand: the registers hold that part already
  std::string out_;
  int depth_ = 0;
};

template <class Use> void KernelEmitter::emit_row_pointers(Use use) {
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    const Operand& o = k_.operands[i];
    if (o.is_partial || !has_elements(o) || static_cast<int32_t>(i) == k_.starts || is_onto(k_.operands, i) || !use(i))
      continue;
    const std::string offset = row_offset(i);
    line(o.is_output ? "" : "const ", memory_type(o.dtype), "* const r", i, " = p", i, offset.empty() ? "" : " + ",
         offset, ";");
  }
}

}  // namespace rondo::compile::cuda
