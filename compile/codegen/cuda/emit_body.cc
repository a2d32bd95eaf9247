// The work of a thread: rows, steps of columns, and the reductions of a row.
#include <algorithm>

#include "absl/strings/str_join.h"
#include "rondo/compile/codegen/cuda/kernel_emitter.h"

namespace rondo::compile::cuda {
namespace {

// Returns the name of the struct of device_math.cc that combines two values.
const char* combine_name(LoopOp reduction) {
  return reduction == LoopOp::kReduceSum ? "Sum" : reduction == LoopOp::kReduceMax ? "Max" : "Min";
}
std::string combine_text(LoopOp reduction, const std::string& a, const std::string& b) {
  return absl::StrCat(combine_name(reduction), "::combine(", a, ", ", b, ")");
}

}  // namespace

std::string KernelEmitter::row_offset(size_t index) const {
  const Operand& o = k_.operands[index];
  std::vector<std::string> terms;
  if (k_.split_columns) return "";  // the only row is row 0
  for (size_t a = 0; a < o.axes.size(); ++a) {
    const OperandAxis& axis = o.axes[a];
    const size_t at = extent_of_[index] + 1 + 3 * a;
    if (is_picked(axis) || axis.stride == 0 || axis.size == 1) continue;
    std::string i = "row";
    if (axis.divisor != 1) i = absl::StrCat(i, " / ", extent(at, axis.divisor));
    if (wraps(k_, axis)) i = absl::StrCat(i, " % ", extent(at + 1, axis.size));
    if (axis.stride != 1) i = absl::StrCat(i, " * ", extent(at + 2, axis.stride));
    terms.push_back(i);
  }
  return absl::StrJoin(terms, " + ");
}

std::string KernelEmitter::address(const Instr& i) const {
  const std::string base = i.op == LoopOp::kPick ? picked(i) : absl::StrCat("r", i.index);
  if (operand(i).col_stride == 1) return absl::StrCat(base, " + c");
  const std::string stride = col_stride(static_cast<size_t>(i.index));
  return absl::StrCat(base, " + c * ", stride, ", static_cast<long long>(", stride, ")");
}

std::string KernelEmitter::picked(const Instr& i) const {
  const OperandAxis& axis = operand(i).axes[0];
  const size_t at = extent_of_[static_cast<size_t>(i.index)] + 1;
  return absl::StrCat("r", i.index, " + pick_at(v", i.a, ", ", extent(at + 1, axis.size), ") * ",
                      extent(at + 2, axis.stride));
}

std::string KernelEmitter::place(const Instr& i, const std::string& c) const {
  std::string sum = row_offset(static_cast<size_t>(i.index));
  if (!c.empty() && operand(i).col_stride != 0)
    absl::StrAppend(&sum, sum.empty() ? "" : " + ", c, " * ", col_stride(static_cast<size_t>(i.index)));
  return absl::StrCat("static_cast<long long>(", sum.empty() ? "0" : sum, ")");
}

bool KernelEmitter::is_row_value(int32_t id) const {
  for (const Stage& stage : k_.stages)
    for (const std::vector<int32_t>* list : {&stage.row, &stage.reductions})
      if (std::find(list->begin(), list->end(), id) != list->end()) return true;
  return instr(id).op == LoopOp::kLoad && operand(instr(id)).col_stride == 0;
}

void KernelEmitter::emit_row_pointers() {
  emit_row_pointers([](size_t) { return true; });
}

void KernelEmitter::emit_exist(const std::string& unless) {
  line("const int exist = ", unless.empty() ? "" : unless + " ? 0 : ", "cols - c < ", s_.elements,
       " ? static_cast<int>(cols - c) : ", s_.elements, ";");
}

// True if a row may need a barrier. An output may alias an input. If all threads of a row read an element and one of
// them overwrites it, all must have read the element before that thread writes it.
bool KernelEmitter::may_store_over_a_row_input() const {
  if (s_.shape != Shape::kRows || s_.threads_per_row == 1) return false;
  const auto same_place = [](const Operand& a, const Operand& b) {
    if (a.dtype != b.dtype || a.axes.size() != b.axes.size()) return false;
    for (size_t i = 0; i < a.axes.size(); ++i)
      if (a.axes[i].divisor != b.axes[i].divisor || a.axes[i].size != b.axes[i].size ||
          a.axes[i].stride != b.axes[i].stride)
        return false;
    return true;
  };
  for (const Operand& out : k_.operands)
    for (const Operand& in : k_.operands)
      if (out.is_output && !in.is_output && !in.is_partial && out.col_stride == 0 && in.col_stride == 0 &&
          same_place(in, out))
        return true;
  return false;
}
void KernelEmitter::emit_row_barrier() { line(s_.threads_per_row > kWarp ? "__syncthreads();" : "__syncwarp();"); }

void KernelEmitter::emit_row_code(const Stage& stage, const std::string& live, const std::string& owns) {
  const auto emit_load = [&](int32_t id) {
    const Instr& i = instr(id);
    const std::string from = i.op == LoopOp::kPick ? picked(i) : absl::StrCat("r", i.index);
    const std::string value = from_memory(absl::StrCat("read(", from, ")"), operand(i).dtype, i.type);
    line("const ", register_type(i.type), " v", id, " = ", live.empty() ? "" : absl::StrCat(live, " ? "), value,
         live.empty() ? "" : " : 0", ";");
  };
  for (int32_t id : stage.column)
    if (instr(id).op == LoopOp::kLoad && operand(instr(id)).col_stride == 0) emit_load(id);
  bool waited = !may_store_over_a_row_input();
  for (int32_t id : stage.row) {
    const Instr& i = instr(id);
    if (i.op == LoopOp::kLoad || i.op == LoopOp::kPick) {
      emit_load(id);
    } else if (is_random(i.op)) {
      emit_one_random(id, /*row=*/true);
    } else if (i.op == LoopOp::kIndex) {
      line("const long long v", id, " = ", place(i, ""), ";");
    } else if (i.op == LoopOp::kCheckIndex) {
      emit_check(i, owns, "");
    } else if (i.op == LoopOp::kStore) {
      if (!waited) emit_row_barrier();
      waited = true;
      line(owns.empty() ? "" : absl::StrCat("if (", owns, ") "), "write(r", i.index, ", ",
           to_memory(absl::StrCat("v", i.a), instr(i.a).type, operand(i).dtype), ");");
    } else {
      line("const ", register_type(result_type(i)), " v", id, " = ", arithmetic(k_, i), ";");
    }
  }
  // Draws the random numbers of the row after its row instructions, because these compute the probabilities of masks.
  for (int32_t id : stage.column)
    if (is_random(instr(id).op) && operand(instr(id)).col_stride == 0) emit_one_random(id, /*row=*/true);
}

void KernelEmitter::emit_check(const Instr& i, const std::string& owns, const std::string& c) {
  const std::string size = extent(extent_of_[static_cast<size_t>(i.index)] + 2, operand(i).axes[0].size);
  line("if (", owns.empty() ? "" : absl::StrCat(owns, " && "), "static_cast<unsigned long long>(v", i.a,
       ") >= static_cast<unsigned long long>(", size, ")) rondo_report(p", i.index, ", call", i.index, ", v", i.a, ", ",
       place(i, c), ");");
}

void KernelEmitter::emit_column_instr(int32_t id) {
  const Instr& i = instr(id);
  line("const ", register_type(result_type(i)), " v", id, " = ", arithmetic(k_, i), ";");
}

void KernelEmitter::emit_step(const Stage& stage) {
  for (int32_t id : stage.column) {
    const Instr& i = instr(id);
    const auto at = static_cast<size_t>(i.index);
    if (i.op == LoopOp::kStore) line(pack(i), " o", id, ";");
    if (!is_loaded_in_steps(i)) continue;
    const std::string value = absl::StrCat("load<", s_.elements, ">(", address(i), ", exist)");
    if (!kept_[at] || i.op == LoopOp::kPick) {
      line("const ", pack(i), " l", id, " = ", value, ";");
      continue;
    }
    if (!kept_now_[at]) line("kept", at, "[k] = ", value, ";");
    line("const ", pack(i), " l", id, " = kept", at, "[k];");
    kept_now_[at] = true;
  }
  emit_draws(stage);
  {
    line("#pragma unroll");
    const Block each = block("for (int e = 0; e < ", s_.elements, "; ++e)");
    line("if (e >= exist) break;");
    for (int32_t id : stage.column) {
      const Instr& i = instr(id);
      switch (i.op) {
        case LoopOp::kLoad:
          if (operand(i).col_stride == 0) break;
          line("const ", register_type(i.type), " v", id, " = ",
               from_memory(absl::StrCat("l", id, ".at[e]"), operand(i).dtype, i.type), ";");
          break;
        case LoopOp::kPick: {
          const std::string place = absl::StrCat(picked(i), " + (c + e) * ", col_stride(static_cast<size_t>(i.index)));
          const std::string element = is_loaded_in_steps(i) ? absl::StrCat("l", id, ".at[e]")
                                                            : absl::StrCat("read(", place, ")");
          line("const ", register_type(i.type), " v", id, " = ", from_memory(element, operand(i).dtype, i.type), ";");
          break;
        }
        case LoopOp::kStore:
          line("o", id, ".at[e] = ", to_memory(absl::StrCat("v", i.a), instr(i.a).type, operand(i).dtype), ";");
          break;
        case LoopOp::kCheckIndex: emit_check(i, "", "(c + e)"); break;
        case LoopOp::kIndex: line("const long long v", id, " = ", place(i, "(c + e)"), ";"); break;
        case LoopOp::kScan:
          line("scan", id, " = ", combine_text(LoopOp::kReduceSum, absl::StrCat("scan", id), absl::StrCat("v", i.a)),
               ";");
          line("const ", register_type(i.type), " v", id, " = scan", id, ";");
          break;
        case LoopOp::kColumnSum:
        case LoopOp::kColumnMax:
        case LoopOp::kColumnMin: {
          const std::string sum = s_.shape == Shape::kColumns ? absl::StrCat("sum", i.index, "[e]")
                                  : s_.keeps_sums             ? absl::StrCat("sum", i.index, "[k][e]")
                                                              : absl::StrCat("sum", i.index, "[c + e]");
          line(sum, " = ", combine_text(along_row(i.op), sum, absl::StrCat("v", i.a)), ";");
          break;
        }
        case LoopOp::kRandomKeep:
        case LoopOp::kRandomFirst:
        case LoopOp::kRandomSecond:
          if (operand(i).col_stride != 0) emit_drawn(id);
          break;
        default: emit_column_instr(id);
      }
    }
    for (int32_t id : stage.reductions) {
      const Instr& i = instr(id);
      line("a", id, "[e] = ", combine_text(i.op, absl::StrCat("a", id, "[e]"), absl::StrCat("v", i.a)), ";");
    }
  }
  for (int32_t id : stage.column)
    if (instr(id).op == LoopOp::kStore) line("store(", address(instr(id)), ", o", id, ", exist);");
}

void KernelEmitter::emit_sweep(const Stage& stage) {
  for (int32_t id : stage.reductions) {
    const Instr& i = instr(id);
    const std::string identity = i.op == LoopOp::kReduceSum ? "0" : literal(identity_of(i.op, i.type), i.type);
    std::vector<std::string> values(static_cast<size_t>(s_.elements), identity);
    line(register_type(i.type), " a", id, "[", s_.elements, "] = {", absl::StrJoin(values, ", "), "};");
  }
  for (int32_t id : stage.column)
    if (instr(id).op == LoopOp::kScan) line(register_type(instr(id).type), " scan", id, " = 0;");
  if (stage.column.empty() && stage.reductions.empty()) return;
  if (k_.inner > 1 && !stage.reductions.empty()) return emit_sweep_in_chunks(stage);
  if (s_.steps > 0) {
    line("#pragma unroll");
    const Block steps = block("for (int k = 0; k < ", s_.steps, "; ++k)");
    line("const Index c = (k * ", s_.threads_per_row, " + t) * ", s_.elements, ";");
    emit_exist("!live || c >= cols");
    emit_step(stage);
  } else {
    const Block steps = block("for (Index c = t * ", s_.elements,
                              "; live && c < cols; c += ", s_.threads_per_row * s_.elements, ")");
    emit_exist("");
    emit_step(stage);
  }
}

// Emits a sweep that adds in the order of Note [Column order] of ops/reduction_order.h, for a row that belongs to one
// thread.
void KernelEmitter::emit_sweep_in_chunks(const Stage& stage) {
  const std::string varying_chunk = absl::StrCat("cols > ", 64 * kMostChunk, " ? ", kMostChunk, " : cols > ",
                                                 64 * kLeastChunk, " ? (cols + 63) / 64 : ", kLeastChunk);
  const auto end_chunk = [&] {
    for (int32_t id : stage.reductions) {
      if (instr(id).op != LoopOp::kReduceSum) continue;
      line("total", id, " = total", id, " + a", id, "[0];");
      line("a", id, "[0] = 0;");
    }
  };
  for (int32_t id : stage.reductions)
    if (instr(id).op == LoopOp::kReduceSum) line(register_type(instr(id).type), " total", id, " = 0;");
  if (s_.steps > 0) {
    line("#pragma unroll");
    const Block steps = block("for (int k = 0; k < ", s_.steps, "; ++k)");
    line("const Index c = k;");
    emit_exist("!live || c >= cols");
    emit_step(stage);
    const Block ends = block("if ((k + 1) % ", column_chunk_rows(k_.cols), " == 0 || k + 1 == ", s_.steps, ")");
    end_chunk();
  } else {
    const Block scope = block("");
    line("const Index chunk = ", varies(0) ? varying_chunk : absl::StrCat(column_chunk_rows(k_.cols)), ";");
    const Block chunks = block("for (Index first = 0; live && first < cols; first += chunk)");
    line("const Index last = cols - first < chunk ? cols : first + chunk;");
    {
      const Block steps = block("for (Index c = first; c < last; ++c)");
      emit_exist("");
      emit_step(stage);
    }
    end_chunk();
  }
  for (int32_t id : stage.reductions)
    if (instr(id).op == LoopOp::kReduceSum) line("a", id, "[0] = total", id, ";");
}

void KernelEmitter::emit_reductions(const Stage& stage) {
  // Uses two buffers alternately, so that no thread has to wait until all others have read the previous row's values.
  const std::string half = sums_columns() ? "[turn & 1]" : "";
  for (int32_t id : stage.reductions) {
    const Instr& i = instr(id);
    const std::string op = combine_name(i.op), type = register_type(i.type);
    const std::string own = absl::StrCat("thread_reduce<", op, ">(a", id, ")");
    if (s_.threads_per_row == 1) {
      line("const ", type, " v", id, " = ", own, ";");
    } else if (warps() <= 1) {
      line("const ", type, " v", id, " = warp_reduce<", op, ", ", s_.threads_per_row, ">(", own, ");");
    } else {
      line("const ", type, " u", id, " = warp_reduce<", op, ", ", kWarp, ">(", own, ");");
      line("if (t % ", kWarp, " == 0) put(w", id, half, "[t / ", kWarp, "], u", id, ");");
    }
  }
  if (warps() <= 1) return;
  line("__syncthreads();");
  for (int32_t id : stage.reductions) {
    const std::string op = combine_name(instr(id).op);
    line("const ", register_type(instr(id).type), " v", id, " = thread_reduce<", op, ">(w", id, half, ");");
  }
}

}  // namespace rondo::compile::cuda
