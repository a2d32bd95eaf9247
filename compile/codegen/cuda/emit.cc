#include "rondo/compile/codegen/cuda/emit.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/codegen/cuda/kernel_emitter.h"
#include "rondo/compile/codegen/loop_verify.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile::cuda {

KernelEmitter::KernelEmitter(const LoopKernel& kernel, const Schedule& schedule, bool table)
    : k_(kernel), s_(schedule), table_(table), kept_(kernel.operands.size()), kept_now_(kernel.operands.size()) {
  size_t at = 2;
  for (const Operand& operand : k_.operands) {
    extent_of_.push_back(at);
    at += 1 + 3 * operand.axes.size();
  }
  if (s_.keeps_row) kept_ = read_by_several_stages(k_);
}

std::string KernelEmitter::run() && {
  emit_parameters();
  {
    ++depth_;
    line("typedef ", s_.wide ? "long long" : "int", " Index;");
    if (table_) emit_item();
    else line("const Index block = static_cast<Index>(blockIdx.x);");
    if (!table_) line("const Index cols = ", extent(0, k_.cols), ";");
    emit_scalars();
    emit_streams();
    switch (s_.shape) {
      case Shape::kElements: elements(); break;
      case Shape::kRows: rows(); break;
      case Shape::kColumns: columns(); break;
      case Shape::kTiles: tiles(); break;
    }
    --depth_;
  }
  line("}");
  return std::move(out_);
}

void KernelEmitter::emit_parameters() {
  std::vector<std::string> list;
  if (table_) {
    list = {"const RondoTableRow* table", "long long n_items", "const double* when", "double equals",
            "const unsigned* failed"};
  } else {
    for (size_t i = 0; i < k_.operands.size(); ++i) {
      const Operand& o = k_.operands[i];
      if (o.is_check) {
        list.push_back(absl::StrCat("DeviceStatus* p", i, ", unsigned call", i));
        continue;
      }
      list.push_back(absl::StrCat(o.is_output || o.is_partial ? "" : "const ", memory_type(o.dtype), "* p", i));
    }
    for (size_t i = 0; i < static_cast<size_t>(k_.n_scalars); ++i) {
      const ScalarFrom from = i < s_.scalars.size() ? s_.scalars[i] : ScalarFrom::kArgument;
      list.push_back(from == ScalarFrom::kArgument    ? absl::StrCat("double s", i)
                     : from == ScalarFrom::kDeviceF64 ? absl::StrCat("const double* at_s", i)
                                                      : absl::StrCat("const float* at_s", i));
    }
    list.push_back("long long n_rows");
    if (sums_columns()) list.push_back("long long chunk_rows");
    for (size_t i = 0; i < k_.varying.size(); ++i)
      if (k_.varying[i]) list.push_back(absl::StrCat("long long x", i));
  }
  // Without the second launch bound, ptxas spills 64-bit values of a row so that more blocks fit.
  const bool wide = s_.shape == Schedule::Shape::kRows &&
                    std::any_of(k_.operands.begin(), k_.operands.end(),
                                [](const Operand& operand) { return operand.dtype == kF64; });
  line("extern \"C\" __global__ void __launch_bounds__(", s_.threads, wide ? ", 1" : "", ") ", k_.name, "(",
       absl::StrJoin(list, ", "), ") {");
}

void KernelEmitter::emit_scalars() {
  for (size_t i = 0; i < static_cast<size_t>(k_.n_scalars); ++i) {
    if (table_) line("const double s", i, " = read(scalars + ", i, ");");
    else if (i < s_.scalars.size() && s_.scalars[i] != ScalarFrom::kArgument)
      line("const double s", i, " = static_cast<double>(read(at_s", i, "));");
  }
}

// ---- Shape::kElements

void KernelEmitter::elements() {
  line("const Index at = block * ", s_.threads, " + static_cast<Index>(threadIdx.x);");
  if (k_.split_columns) {
    line("const Index c = at * ", s_.elements, ";");
    line("if (c >= cols) return;");
  } else {
    line("const Index steps = (", table_ ? "width" : "cols", " + ", s_.elements - 1, ") / ", s_.elements, ";");
    line("const Index row = at / steps, c = at % steps * ", s_.elements, ";");
    line("if (row >= n_rows) return;");
    emit_cols_of_row();
    if (table_) line("if (c >= cols) return;");
  }
  emit_row_pointers();
  const Stage& stage = k_.stages[0];
  emit_row_code(stage, "", "c == 0");
  emit_exist("");
  emit_step(stage);
}

// start_of() returns the initial value of a reduction over rows. starts_of() returns a list with this value for each
// element of a thread.
std::string KernelEmitter::start_of(size_t partial) const {
  for (const Instr& i : k_.instrs)
    if (is_column_reduction(i.op) && static_cast<size_t>(i.index) == partial)
      return i.op == LoopOp::kColumnSum ? "0" : literal(identity_of(along_row(i.op), i.type), i.type);
  return "0";
}
std::string KernelEmitter::starts_of(size_t partial) const {
  const std::vector<std::string> all(static_cast<size_t>(s_.elements), start_of(partial));
  return absl::StrCat("{", absl::StrJoin(all, ", "), "}");
}

// ---- Shape::kColumns

// Neighbouring threads take neighbouring columns of a segment.
void KernelEmitter::begin_segment() {
  line("const Index at = block * ", s_.threads, " + static_cast<Index>(threadIdx.x);");
  line("const Index steps = (cols + ", s_.elements - 1, ") / ", s_.elements, ";");
  line("const Index chunk = at / steps, c = at % steps * ", s_.elements, ";");
  line("if (chunk >= n_rows) return;");
  emit_exist("");
  for (const char* bound : {"begin", "end"})
    line("const Index ", bound, " = static_cast<Index>(read(p", k_.starts, " + chunk", *bound == 'e' ? " + 1" : "",
         "));");
}
void KernelEmitter::begin_chunk() {
  line("const Index c = (block * ", s_.threads, " + static_cast<Index>(threadIdx.x)) * ", s_.elements, ";");
  line("if (c >= cols) return;");
  emit_exist("");
  line("const Index begin = static_cast<Index>(blockIdx.y * chunk_rows);");
  line(
      "const Index end = n_rows < begin + chunk_rows ? static_cast<Index>(n_rows) : static_cast<Index>(begin + "
      "chunk_rows);");
  line("const Index chunk = static_cast<Index>(blockIdx.y);");
}

void KernelEmitter::columns() {
  if (k_.starts >= 0) begin_segment();
  else begin_chunk();
  for (size_t i = 0; i < k_.operands.size(); ++i)
    if (k_.operands[i].is_partial)
      line(register_type(k_.operands[i].dtype), " sum", i, "[", s_.elements, "] = ", starts_of(i), ";");
  const Stage& stage = k_.stages[0];
  {
    const Block loop = block("for (Index row = begin; row < end; ++row)");
    emit_row_pointers();
    emit_row_code(stage, "", k_.starts >= 0 ? "c == 0" : "");
    emit_step(stage);
  }
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    if (!k_.operands[i].is_partial) continue;
    if (const int32_t onto = k_.operands[i].onto; onto >= 0)
      line("for (int e = 0; e < exist; ++e) sum", i, "[e] = ",
           arithmetic_sum(absl::StrCat("read(p", onto, " + chunk * cols + c + e)"), absl::StrCat("sum", i, "[e]")),
           ";");
    line("store(p", i, " + chunk * cols + c, pack_of(sum", i, "), exist);");
  }
}

// ---- Shape::kRows

void KernelEmitter::rows() {
  const int together = s_.threads / s_.threads_per_row;  // rows, or chunks of rows, in a block
  line("// ", s_.threads_per_row, " threads a row, ", together, sums_columns() ? " chunks" : " rows", " a block");
  const bool whole_block = together == 1;
  line("const int t = static_cast<int>(threadIdx.x)", whole_block ? "" : absl::StrCat(" % ", s_.threads_per_row), ";");
  const std::string group = whole_block ? "block"
                                        : absl::StrCat("block * ", together, " + static_cast<Index>(threadIdx.x) / ",
                                                       s_.threads_per_row);
  for (const Stage& stage : k_.stages)
    for (int32_t id : stage.reductions)
      if (warps() > 1)
        line("__shared__ ", register_type(instr(id).type), " w", id, sums_columns() ? "[2]" : "", "[", warps(), "];");
  if (!sums_columns()) {
    line("const Index group = ", group, ";");
    line("const bool live = group < n_rows;");
    line("const Index row = live ? group : 0;");
    emit_cols_of_row();
    return row();
  }
  line("const Index chunk = ", group, ";");
  line("const Index begin = static_cast<Index>(chunk * chunk_rows);");
  // The same thread initialises a column's sum and adds to it.
  const std::string step = absl::StrCat(s_.threads_per_row * s_.elements), first = absl::StrCat("t * ", s_.elements);
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    if (!k_.operands[i].is_partial) continue;
    if (s_.keeps_sums) {
      const std::vector<std::string> steps(static_cast<size_t>(s_.steps), starts_of(i));
      line(register_type(k_.operands[i].dtype), " sum", i, "[", s_.steps, "][", s_.elements, "] = {",
           absl::StrJoin(steps, ", "), "};");
      continue;
    }
    line(memory_type(k_.operands[i].dtype), "* const sum", i, " = p", i, " + chunk * cols;");
    const Block each = block("for (Index c = ", first, "; begin < n_rows && c < cols; c += ", step, ")");
    line("for (int e = 0; e < ", s_.elements, " && c + e < cols; ++e) sum", i, "[c + e] = ", start_of(i), ";");
  }
  {
    // Every thread runs the same number of iterations, because all must take part in the shuffles and barriers of a
    // row.
    const Block loop = block("for (Index turn = 0; turn < chunk_rows; ++turn)");
    line("const bool live = begin + turn < n_rows;");
    line("const Index row = live ? begin + turn : 0;");
    row();
  }
  if (!s_.keeps_sums) return;
  for (size_t i = 0; i < k_.operands.size(); ++i) {
    if (!k_.operands[i].is_partial) continue;
    line("#pragma unroll");
    const Block steps = block("for (int k = 0; k < ", s_.steps, "; ++k)");
    line("const Index c = (k * ", s_.threads_per_row, " + t) * ", s_.elements, ";");
    emit_exist("begin >= n_rows || c >= cols");
    line("store(p", i, " + chunk * cols + c, pack_of(sum", i, "[k]), exist);");
  }
}

void KernelEmitter::row() {
  emit_row_pointers();
  for (size_t i = 0; i < k_.operands.size(); ++i)
    if (kept_[i]) line("Pack<", memory_type(k_.operands[i].dtype), ", ", s_.elements, "> kept", i, "[", s_.steps, "];");
  for (const Stage& stage : k_.stages) {
    emit_row_code(stage, "live", s_.threads_per_row == 1 ? "live" : "live && t == 0");
    emit_sweep(stage);
    if (!stage.reductions.empty()) emit_reductions(stage);
  }
}

// ---- Entry points

std::string emit(const LoopKernel& kernel, const Schedule& schedule) {
  if (const std::string problem = verify(kernel); !problem.empty()) throw_internal(kernel.name + ": " + problem);
  return KernelEmitter(kernel, schedule, /*table=*/false).run();
}

std::vector<int64_t> integer_arguments(const LoopKernel& kernel, const Schedule& schedule) {
  std::vector<int64_t> list{kernel.starts >= 0 ? kernel.segments : kernel.rows};
  if (schedule.chunk_rows > 0) list.push_back(schedule.chunk_rows);
  const std::vector<int64_t> sizes = extents(kernel);
  for (size_t i = 0; i < kernel.varying.size(); ++i)
    if (kernel.varying[i]) list.push_back(sizes[i]);
  return list;
}

std::string emit_combine(const std::string& name) {
  std::string out = absl::StrCat("extern \"C\" __global__ void __launch_bounds__(", kWarp * kCombineGroups, ") ", name,
                                 "(RondoSums sums) {\n");
  absl::StrAppend(&out, "  const RondoSum& s = sums.at[blockIdx.y];\n",
                  "  const int t = static_cast<int>(threadIdx.x) % ", kWarp,
                  ", group = static_cast<int>(threadIdx.x) / ", kWarp, ", op = static_cast<int>(s.op);\n",
                  "  const long long c = static_cast<long long>(blockIdx.x) * ", kWarp, " + t;\n",
                  "  if (c - t >= s.cols) return;\n");  // no thread of the block has a column
  for (const DType compute : {kF32, kF64, kI64}) {
    const std::string type = register_type(compute), w = absl::StrCat("w_", compute == kI64 ? "long" : type);
    const auto start = [&](LoopOp reduction) { return literal(identity_of(reduction, compute), compute); };
    absl::StrAppend(&out, "  if (s.compute == ", static_cast<int>(compute), ") {\n", "    __shared__ ", type, " ", w,
                    "[", kCombineGroups, "][", kWarp, "];\n", "    const ", type, "* const p = static_cast<const ",
                    type, "*>(s.partial);\n", "    ", type, " sum = op == 0 ? ", start(LoopOp::kReduceSum),
                    " : op == 1 ? ", start(LoopOp::kReduceMax), " : ", start(LoopOp::kReduceMin), ";\n",
                    "    if (c < s.cols)\n", "      for (long long k = group; k < s.chunks; k += ", kCombineGroups,
                    ") sum = combine_by(op, sum, read(p + k * s.cols + c));\n", "    put(", w, "[group][t], sum);\n",
                    "    __syncthreads();\n", "    if (group == 0 && c < s.cols) {\n", "      ", type, " total = get(",
                    w, "[0][t]);\n", "#pragma unroll\n", "      for (int g = 1; g < ", kCombineGroups,
                    "; ++g) total = combine_by(op, total, get(", w, "[g][t]));\n", "      switch (s.stored) {\n");
    const std::array<DType, 4> floats{kF32, kBF16, kF16, kF64}, others{kI64, kI32, kU8, kBool};
    for (const DType stored : compute == kI64 ? others : floats)
      absl::StrAppend(&out, "        case ", static_cast<int>(stored), ": write(static_cast<", memory_type(stored),
                      "*>(s.out) + c, ", to_memory("total", compute, stored), "); break;\n");
    absl::StrAppend(&out, "      }\n    }\n  }\n");
  }
  return out + "}\n";
}

}  // namespace rondo::compile::cuda
