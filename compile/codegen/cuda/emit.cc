#include "rondo/compile/codegen/cuda/emit.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/codegen/cuda/emit_values.h"
#include "rondo/compile/codegen/loop_verify.h"
#include "rondo/runtime/error.h"

namespace rondo::compile::cuda {
namespace {

using Shape = Schedule::Shape;

class KernelEmitter {
 public:
  KernelEmitter(const LoopKernel& kernel, const Schedule& schedule) : k_(kernel), s_(schedule) {
    size_t at = 2;
    for (const Operand& operand : k_.operands) {
      extent_of_.push_back(at);
      at += 1 + 3 * operand.axes.size();
    }
  }
  std::string run();

 private:
  // ---- Text
  template <class... Parts> void line(const Parts&... parts) {
    out_.append(static_cast<size_t>(depth_) * 2, ' ');
    absl::StrAppend(&out_, parts..., "\n");
  }
  // Opens a block, and closes it at the end of the scope.
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

  // ---- The three shapes of a kernel
  void flat();
  void rows();
  void row();
  void columns();

  // ---- Parts
  void emit_parameters();
  void emit_row_pointers();
  void emit_row_code(const Stage& stage, const std::string& live, const std::string& owns);
  void emit_row_barrier();
  // The body of one step: the columns c .. c + exist - 1.
  void emit_step(const Stage& stage);
  void emit_sweep(const Stage& stage);
  void emit_reductions(const Stage& stage);

  const Instr& instr(int32_t id) const { return k_.instrs[static_cast<size_t>(id)]; }
  const Operand& operand(const Instr& i) const { return k_.operands[static_cast<size_t>(i.index)]; }
  bool varies(size_t position) const { return position < k_.varying.size() && k_.varying[position]; }
  // A size or stride: a number, or the parameter that holds it.
  std::string extent(size_t position, int64_t value) const {
    return varies(position) ? absl::StrCat("x", position) : absl::StrCat(value);
  }
  std::string row_offset(size_t index) const;
  // ", stride" of an operand whose columns are not neighbours.
  std::string stride_argument(const Instr& i) const {
    const Operand& o = operand(i);
    return o.col_stride == 1
               ? ""
               : absl::StrCat(", (long long)", extent(extent_of_[static_cast<size_t>(i.index)], o.col_stride));
  }
  bool sums_columns() const { return s_.chunk_rows > 0; }
  int warps() const { return s_.threads_per_row / kWarp; }
  bool may_store_over_a_row_input() const;

  const LoopKernel& k_;
  const Schedule& s_;
  std::vector<size_t> extent_of_;  // by operand: where its extents begin
  std::string out_;
  int depth_ = 0;
};

std::string KernelEmitter::run() {
  emit_parameters();
  {
    ++depth_;
    line("typedef ", s_.wide ? "long long" : "int", " Index;");
    line("const Index cols = ", varies(0) ? "static_cast<Index>(x0)" : absl::StrCat(k_.cols), ";");
    switch (s_.shape) {
      case Shape::kFlat: flat(); break;
      case Shape::kRows: rows(); break;
      case Shape::kColumns: columns(); break;
    }
    --depth_;
  }
  line("}");
  return std::move(out_);
}

void KernelEmitter::emit_parameters() {
  std::vector<std::string> list;
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    const Operand& o = k_.operands[i];
    list.push_back(absl::StrCat(o.is_output || o.is_partial ? "" : "const ", memory_type(o.dtype), "* p", i));
  }
  for (int32_t i = 0; i < k_.n_scalars; ++i) list.push_back(absl::StrCat("double s", i));
  list.push_back("long long n_rows");
  if (sums_columns()) list.push_back("long long chunk_rows");
  for (size_t i = 0; i < k_.varying.size(); ++i)
    if (k_.varying[i]) list.push_back(absl::StrCat("long long x", i));
  line("extern \"C\" __global__ void __launch_bounds__(", s_.threads, ") ", k_.name, "(", absl::StrJoin(list, ", "),
       ") {");
}

std::string KernelEmitter::row_offset(size_t index) const {
  const Operand& o = k_.operands[index];
  std::vector<std::string> terms;
  for (size_t a = 0; a < o.axes.size(); ++a) {
    const OperandAxis& axis = o.axes[a];
    const size_t at = extent_of_[index] + 1 + 3 * a;
    if (axis.stride == 0 || axis.size == 1) continue;
    std::string i = "row";
    const auto index_of = [&](size_t position, int64_t value) {
      return varies(position) ? absl::StrCat("static_cast<Index>(x", position, ")") : absl::StrCat(value);
    };
    if (axis.divisor != 1) i = absl::StrCat(i, " / ", index_of(at, axis.divisor));
    if (wraps(k_, axis)) i = absl::StrCat(i, " % ", index_of(at + 1, axis.size));
    if (axis.stride != 1) i = absl::StrCat(i, " * ", index_of(at + 2, axis.stride));
    terms.push_back(i);
  }
  return absl::StrJoin(terms, " + ");
}

void KernelEmitter::emit_row_pointers() {
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    const Operand& o = k_.operands[i];
    if (o.is_partial) continue;
    const std::string offset = row_offset(i);
    line(o.is_output ? "" : "const ", memory_type(o.dtype), "* const r", i, " = p", i, offset.empty() ? "" : " + ",
         offset, ";");
  }
}

// ---- Shape::kFlat

void KernelEmitter::flat() {
  line("const Index row = 0;");
  emit_row_pointers();
  const Stage& stage = k_.stages[0];
  emit_row_code(stage, "", "blockIdx.x == 0 && threadIdx.x == 0");
  line("const Index c = (static_cast<Index>(blockIdx.x) * ", s_.threads, " + threadIdx.x) * ", s_.elements, ";");
  line("if (c >= cols) return;");
  line("const int exist = cols - c < ", s_.elements, " ? static_cast<int>(cols - c) : ", s_.elements, ";");
  emit_step(stage);
}

// ---- Shape::kColumns

void KernelEmitter::columns() {
  line("const Index c = (static_cast<Index>(blockIdx.x) * ", s_.threads, " + threadIdx.x) * ", s_.elements, ";");
  line("if (c >= cols) return;");
  line("const int exist = cols - c < ", s_.elements, " ? static_cast<int>(cols - c) : ", s_.elements, ";");
  line("const Index begin = static_cast<Index>(blockIdx.y * chunk_rows);");
  line(
      "const Index end = n_rows < begin + chunk_rows ? static_cast<Index>(n_rows) : static_cast<Index>(begin + "
      "chunk_rows);");
  for (size_t i = 0; i < k_.operands.size(); ++i)
    if (k_.operands[i].is_partial) line(register_type(k_.operands[i].dtype), " sum", i, "[", s_.elements, "] = {};");
  const Stage& stage = k_.stages[0];
  {
    const Block loop = block("for (Index row = begin; row < end; ++row)");
    emit_row_pointers();
    emit_row_code(stage, "", "");
    emit_step(stage);
  }
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    if (!k_.operands[i].is_partial) continue;
    const Block each = block("for (int e = 0; e < exist; ++e)");
    line("p", i, "[static_cast<Index>(blockIdx.y) * cols + c + e] = sum", i, "[e];");
  }
}

// ---- Shape::kRows

void KernelEmitter::rows() {
  const int together = s_.threads / s_.threads_per_row;  // rows, or chunks of them
  line("// ", s_.threads_per_row, " threads a row, ", together, sums_columns() ? " chunks" : " rows", " a block");
  const bool whole_block = together == 1;
  line("const int t = threadIdx.x", whole_block ? "" : absl::StrCat(" % ", s_.threads_per_row), ";");
  const std::string group = whole_block ? "static_cast<Index>(blockIdx.x)"
                                        : absl::StrCat("static_cast<Index>(blockIdx.x) * ", together,
                                                       " + threadIdx.x / ", s_.threads_per_row);
  for (const Stage& stage : k_.stages)
    for (int32_t id : stage.reductions)
      if (warps() > 1)
        line("__shared__ ", register_type(instr(id).type), " w", id, sums_columns() ? "[2]" : "", "[", warps(), "];");
  if (!sums_columns()) {
    line("const Index group = ", group, ";");
    line("const bool live = group < n_rows;");
    line("const Index row = live ? group : 0;");
    return row();
  }
  line("const Index chunk = ", group, ";");
  line("const Index begin = static_cast<Index>(chunk * chunk_rows);");
  // The thread that adds to a column is the one that set it to zero.
  const std::string step = absl::StrCat(s_.threads_per_row * s_.elements), first = absl::StrCat("t * ", s_.elements);
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    if (!k_.operands[i].is_partial) continue;
    if (s_.kept_steps > 0) {
      line(register_type(k_.operands[i].dtype), " sum", i, "[", s_.kept_steps, "][", s_.elements, "] = {};");
      continue;
    }
    line(memory_type(k_.operands[i].dtype), "* const sum", i, " = p", i, " + chunk * cols;");
    const Block each = block("for (Index c = ", first, "; begin < n_rows && c < cols; c += ", step, ")");
    line("for (int e = 0; e < ", s_.elements, " && c + e < cols; ++e) sum", i, "[c + e] = 0;");
  }
  {
    // Every thread takes as many turns: the shuffles and barriers of a row want all of them.
    const Block loop = block("for (Index turn = 0; turn < chunk_rows; ++turn)");
    line("const bool live = begin + turn < n_rows;");
    line("const Index row = live ? begin + turn : 0;");
    row();
  }
  if (s_.kept_steps == 0) return;
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    if (!k_.operands[i].is_partial) continue;
    line("#pragma unroll");
    const Block steps = block("for (int k = 0; k < ", s_.kept_steps, "; ++k)");
    line("const Index c = (k * ", s_.threads_per_row, " + t) * ", s_.elements, ";");
    line("#pragma unroll");
    const Block each = block("for (int e = 0; e < ", s_.elements, "; ++e)");
    line("if (begin < n_rows && c + e < cols) p", i, "[chunk * cols + c + e] = sum", i, "[k][e];");
  }
}

void KernelEmitter::row() {
  emit_row_pointers();
  for (const Stage& stage : k_.stages) {
    emit_row_code(stage, "live", s_.threads_per_row == 1 ? "live" : "live && t == 0");
    emit_sweep(stage);
    if (!stage.reductions.empty()) emit_reductions(stage);
  }
}

void KernelEmitter::emit_sweep(const Stage& stage) {
  for (int32_t id : stage.reductions) {
    const Instr& i = instr(id);
    const std::string identity = i.op == LoopOp::kReduceSum
                                     ? "0"
                                     : literal(-std::numeric_limits<double>::infinity(), i.type == kF64 ? kF64 : kF32);
    std::vector<std::string> values(static_cast<size_t>(s_.elements), identity);
    line(register_type(i.type), " a", id, "[", s_.elements, "] = {", absl::StrJoin(values, ", "), "};");
  }
  if (stage.column.empty() && stage.reductions.empty()) return;
  bool sums = false;
  for (int32_t id : stage.column) sums = sums || instr(id).op == LoopOp::kColumnSum;
  if (sums && s_.kept_steps > 0) {
    line("#pragma unroll");
    const Block steps = block("for (int k = 0; k < ", s_.kept_steps, "; ++k)");
    line("const Index c = (k * ", s_.threads_per_row, " + t) * ", s_.elements, ";");
    line("const int exist = !live || c >= cols ? 0 : cols - c < ", s_.elements,
         " ? static_cast<int>(cols - c) : ", s_.elements, ";");
    emit_step(stage);
  } else {
    const Block steps = block("for (Index c = t * ", s_.elements,
                              "; live && c < cols; c += ", s_.threads_per_row * s_.elements, ")");
    line("const int exist = cols - c < ", s_.elements, " ? static_cast<int>(cols - c) : ", s_.elements, ";");
    emit_step(stage);
  }
}

void KernelEmitter::emit_reductions(const Stage& stage) {
  // Two halves in turn: so no thread needs to wait until all others have read the last row's.
  const std::string half = sums_columns() ? "[turn & 1]" : "";
  for (int32_t id : stage.reductions) {
    const Instr& i = instr(id);
    const std::string op = i.op == LoopOp::kReduceSum ? "Sum" : "Max", type = register_type(i.type);
    const std::string own = absl::StrCat("thread_reduce<", op, ">(a", id, ")");
    if (s_.threads_per_row == 1) {
      line("const ", type, " v", id, " = ", own, ";");
    } else if (warps() <= 1) {
      line("const ", type, " v", id, " = warp_reduce<", op, ", ", s_.threads_per_row, ">(", own, ");");
    } else {
      line("const ", type, " u", id, " = warp_reduce<", op, ", ", kWarp, ">(", own, ");");
      line("if (t % ", kWarp, " == 0) w", id, half, "[t / ", kWarp, "] = u", id, ";");
    }
  }
  if (warps() <= 1) return;
  line("__syncthreads();");
  for (int32_t id : stage.reductions) {
    const std::string op = instr(id).op == LoopOp::kReduceSum ? "Sum" : "Max";
    line("const ", register_type(instr(id).type), " v", id, " = thread_reduce<", op, ">(w", id, half, ");");
  }
}

// An output may be an input's memory. If all threads of a row read an element and one of them overwrites it, all must
// read it before that one writes.
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

// What is computed once for a row, by each of its threads. `live`: the condition under which the row exists; `owns`:
// under which a thread stores for the row. Loads of a column list that do not move with the column belong here, too.
void KernelEmitter::emit_row_code(const Stage& stage, const std::string& live, const std::string& owns) {
  const auto emit_load = [&](int32_t id) {
    const Instr& i = instr(id);
    const std::string value = from_memory(absl::StrCat("r", i.index, "[0]"), operand(i).dtype, i.type);
    line("const ", register_type(i.type), " v", id, " = ", live.empty() ? "" : absl::StrCat(live, " ? "), value,
         live.empty() ? "" : " : 0", ";");
  };
  for (int32_t id : stage.column)
    if (instr(id).op == LoopOp::kLoad && operand(instr(id)).col_stride == 0) emit_load(id);
  bool waited = !may_store_over_a_row_input();
  for (int32_t id : stage.row) {
    const Instr& i = instr(id);
    if (i.op == LoopOp::kLoad) {
      emit_load(id);
    } else if (i.op == LoopOp::kStore) {
      if (!waited) emit_row_barrier();
      waited = true;
      line(owns.empty() ? "" : absl::StrCat("if (", owns, ") "), "r", i.index,
           "[0] = ", to_memory(absl::StrCat("v", i.a), instr(i.a).type, operand(i).dtype), ";");
    } else {
      line("const ", register_type(result_type(i)), " v", id, " = ", arithmetic(k_, i), ";");
    }
  }
}

void KernelEmitter::emit_step(const Stage& stage) {
  const auto pack = [&](const Instr& i) {
    return absl::StrCat("Pack<", memory_type(operand(i).dtype), ", ", s_.elements, ">");
  };
  for (int32_t id : stage.column) {
    const Instr& i = instr(id);
    if (i.op == LoopOp::kLoad && operand(i).col_stride != 0) {
      const bool dense = operand(i).col_stride == 1;
      const std::string at = dense ? absl::StrCat("r", i.index, " + c")
                                   : absl::StrCat(
                                         "r", i.index, " + c * static_cast<Index>(",
                                         extent(extent_of_[static_cast<size_t>(i.index)], operand(i).col_stride), ")");
      line("const ", pack(i), " l", id, " = load<", s_.elements, ">(", at, stride_argument(i), ", exist);");
    } else if (i.op == LoopOp::kStore) {
      line(pack(i), " o", id, ";");
    }
  }
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
        case LoopOp::kStore:
          line("o", id, ".at[e] = ", to_memory(absl::StrCat("v", i.a), instr(i.a).type, operand(i).dtype), ";");
          break;
        case LoopOp::kColumnSum: {
          const std::string sum = s_.shape == Shape::kColumns ? absl::StrCat("sum", i.index, "[e]")
                                  : s_.kept_steps > 0         ? absl::StrCat("sum", i.index, "[k][e]")
                                                              : absl::StrCat("sum", i.index, "[c + e]");
          line(sum, " = ", sum, " + v", i.a, ";");
          break;
        }
        default: line("const ", register_type(result_type(i)), " v", id, " = ", arithmetic(k_, i), ";");
      }
    }
    for (int32_t id : stage.reductions) {
      const Instr& i = instr(id);
      line("a", id, "[e] = ", i.op == LoopOp::kReduceSum ? "Sum" : "Max", "::combine(a", id, "[e], v", i.a, ");");
    }
  }
  for (int32_t id : stage.column) {
    const Instr& i = instr(id);
    if (i.op != LoopOp::kStore) continue;
    const bool dense = operand(i).col_stride == 1;
    const std::string at = dense ? absl::StrCat("r", i.index, " + c")
                                 : absl::StrCat("r", i.index, " + c * static_cast<Index>(",
                                                extent(extent_of_[static_cast<size_t>(i.index)], operand(i).col_stride),
                                                ")");
    line("store(", at, stride_argument(i), ", o", id, ", exist);");
  }
}

}  // namespace

std::string emit(const LoopKernel& kernel, const Schedule& schedule) {
  if (const std::string problem = verify(kernel); !problem.empty()) throw_internal(kernel.name + ": " + problem);
  return KernelEmitter(kernel, schedule).run();
}

std::vector<int64_t> integer_arguments(const LoopKernel& kernel, const Schedule& schedule) {
  std::vector<int64_t> list{kernel.rows};
  if (schedule.chunk_rows > 0) list.push_back(schedule.chunk_rows);
  const std::vector<int64_t> sizes = extents(kernel);
  for (size_t i = 0; i < kernel.varying.size(); ++i)
    if (kernel.varying[i]) list.push_back(sizes[i]);
  return list;
}

std::string emit_combine(const std::string& name, std::span<const CombinedSum> sums) {
  std::string out;
  std::vector<std::string> list;
  for (size_t n = 0; n < sums.size(); ++n) {
    list.push_back(absl::StrCat("const ", memory_type(sums[n].compute), "* p", n));
    list.push_back(absl::StrCat(memory_type(sums[n].stored), "* o", n));
  }
  absl::StrAppend(&out, "extern \"C\" __global__ void __launch_bounds__(", kWarp * kCombineGroups, ") ", name, "(",
                  absl::StrJoin(list, ", "), ", long long chunks, long long cols) {\n");
  absl::StrAppend(&out, "  const int t = threadIdx.x % ", kWarp, ", group = threadIdx.x / ", kWarp, ";\n");
  absl::StrAppend(&out, "  const long long c = static_cast<long long>(blockIdx.x) * ", kWarp, " + t;\n");
  for (size_t n = 0; n < sums.size(); ++n) {
    const std::string type = register_type(sums[n].compute);
    absl::StrAppend(&out, "  if (blockIdx.y == ", n, ") {\n", "    __shared__ ", type, " w", n, "[", kCombineGroups,
                    "][", kWarp, "];\n", "    ", type, " sum = 0;\n", "    if (c < cols)\n",
                    "      for (long long k = group; k < chunks; k += ", kCombineGroups, ") sum = sum + p", n,
                    "[k * cols + c];\n", "    w", n, "[group][t] = sum;\n", "    __syncthreads();\n",
                    "    if (group == 0 && c < cols) {\n", "      ", type, " total = w", n, "[0][t];\n",
                    "#pragma unroll\n", "      for (int g = 1; g < ", kCombineGroups, "; ++g) total = total + w", n,
                    "[g][t];\n", "      o", n, "[c] = ", to_memory("total", sums[n].compute, sums[n].stored),
                    ";\n    }\n  }\n");
  }
  return out + "}\n";
}

}  // namespace rondo::compile::cuda
