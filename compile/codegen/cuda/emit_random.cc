// Random numbers: the words for a thread's columns are drawn together, before the loop over the columns.
#include "rondo/compile/codegen/cuda/kernel_emitter.h"

namespace rondo::compile::cuda {

// Emits the seed and the offset of each stream: seed0 and offset0 for operand 0.
void KernelEmitter::emit_streams() {
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    if (!k_.operands[i].is_random) continue;
    line("const unsigned long long seed", i, " = static_cast<unsigned long long>(read(p", i, ")), offset", i,
         " = static_cast<unsigned long long>(read(p", i, " + 1)) + ", static_cast<uint64_t>(k_.operands[i].increment),
         "ull;");
  }
}

// Returns "seed0, offset0, ", followed by the number in the stream of the element at the thread's first column or, if
// `row`, at column 0.
std::string KernelEmitter::stream_at(const Instr& i, bool row) const {
  const auto at = static_cast<size_t>(i.index);
  std::string element = row_offset(at);
  if (!row)
    absl::StrAppend(&element, element.empty() ? "" : " + ", "c",
                    operand(i).col_stride == 1 ? "" : absl::StrCat(" * ", col_stride(at)));
  return absl::StrCat("seed", at, ", offset", at, ", static_cast<unsigned long long>(", element.empty() ? "0" : element,
                      ")");
}

// Emits one random number: for a row that needs only one, or for a thread that has one column.
void KernelEmitter::emit_one_random(int32_t id, bool row) {
  const Instr& i = instr(id);
  const std::string stream = stream_at(i, row);
  if (i.op == LoopOp::kRandomKeep)
    line("const bool v", id, " = keeps(draw_neighbours<1>(", stream, ").at[0], v", i.a, ");");
  else
    line("const float v", id, " = uniform_of(draw_own<1>(", stream, ", 1).at[", i.op == LoopOp::kRandomFirst ? 0 : 1,
         "][0]);");
}

void KernelEmitter::emit_draws(const Stage& stage) {
  std::vector<bool> drawn(2 * k_.operands.size(), false);
  for (int32_t id : stage.column) {
    const Instr& i = instr(id);
    if (!is_random(i.op) || operand(i).col_stride == 0) continue;
    const auto at = static_cast<size_t>(i.index);
    const size_t kind = 2 * at + (i.op == LoopOp::kRandomKeep ? 1 : 0);
    if (drawn[kind]) continue;
    drawn[kind] = true;
    const std::string elements = absl::StrCat("<", s_.elements, ">"), stream = stream_at(i, false);
    const std::string step = absl::StrCat(", static_cast<unsigned long long>(", col_stride(at), ")");
    if (i.op != LoopOp::kRandomKeep)
      line("const RondoOwnDraw", elements, " m", at, " = draw_own", elements, "(", stream, step, ");");
    else if (operand(i).col_stride == 1)
      line("const RondoDraw", elements, " n", at, " = draw_neighbours", elements, "(", stream, ");");
    else line("const RondoDraw", elements, " n", at, " = draw_apart", elements, "(", stream, step, ");");
  }
}

void KernelEmitter::emit_drawn(int32_t id) {
  const Instr& i = instr(id);
  if (i.op == LoopOp::kRandomKeep) line("const bool v", id, " = keeps(n", i.index, ".at[e], v", i.a, ");");
  else line("const float v", id, " = uniform_of(m", i.index, ".at[", i.op == LoopOp::kRandomFirst ? 0 : 1, "][e]);");
}

}  // namespace rondo::compile::cuda
