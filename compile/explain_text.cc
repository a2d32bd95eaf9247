// Reports as text, for terminals.
#include "absl/strings/str_cat.h"
#include "rondo/compile/explain.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::compile {
namespace {

// Appends every line of `text` with `indent` in front.
void append_indented(std::string& out, std::string_view text, std::string_view indent) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    absl::StrAppend(&out, std::string(indent), std::string(text.substr(0, end)), "\n");
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Maps a kernel's code to the place where it was printed first, so that repeated code is printed once: the loops over
// time of an LSTM run few kernels many times.
using PrintedCode = HashMap<std::string_view, std::string>;

void append_code(std::string& out, const LaunchExplanation& launch, const std::string& place, PrintedCode& printed) {
  if (launch.code.empty()) return;
  const auto [first, is_new] = printed.try_emplace(launch.code, absl::StrCat(launch.name, " of ", place));
  if (is_new) append_indented(out, launch.code, "        | ");
  else absl::StrAppend(&out, "        | the code of ", first->second, "\n");
}

// Appends the text of a program. `recording`: the recording's name, such as "recording 2".
void append_program(std::string& out, const ProgramExplanation& program, const std::string& recording,
                    PrintedCode& printed) {
  append_formatted(&out, "    %s: %s (%d compiled), %s, arena %s, %.1f ms to compile\n", program.name,
                   counted(program.kernels, "kernel"), program.compiled, counted(program.library_calls, "library call"),
                   format_bytes(program.arena_bytes), program.compile_ms);
  if (const int conversions = program.layout_copies + program.layouts_in_convolutions; conversions > 0)
    append_formatted(&out, "      %s change%s layout, %d inside of convolutions\n", counted(conversions, "image"),
                     conversions == 1 ? "s its" : " their", program.layouts_in_convolutions);
  size_t seam = 0;
  for (size_t i = 0; i <= program.launches.size(); ++i) {
    for (; seam < program.seams.size() && program.seams[seam].launch <= static_cast<int>(i); ++seam)
      absl::StrAppend(&out, "      ", to_string(program.seams[seam]), "\n");
    if (i == program.launches.size()) break;
    const LaunchExplanation& launch = program.launches[i];
    append_formatted(&out, "      %s: reads %s, writes %s", launch.name, format_bytes(launch.bytes_read),
                     format_bytes(launch.bytes_written));
    if (launch.bytes_saved > 0) absl::StrAppend(&out, ", saves ", format_bytes(launch.bytes_saved));
    if (launch.algorithm > 0) absl::StrAppend(&out, ", tuned to algorithm ", launch.algorithm);
    out += "\n";
    for (const std::string& source : launch.sources) absl::StrAppend(&out, "        from ", source, "\n");
    append_code(out, launch, absl::StrCat(recording, ", ", program.name), printed);
  }
  out += "      graph\n";
  for (const std::string& input : program.inputs) absl::StrAppend(&out, "        input ", input, "\n");
  for (const NodeExplanation& node : program.nodes) {
    const std::string runs = node.launch < 0 ? "no launch" : program.launches[static_cast<size_t>(node.launch)].name;
    absl::StrAppend(&out, "        ", node.text, "  # ", runs, "; ", node.origin, "\n");
  }
  for (const std::string& output : program.outputs) absl::StrAppend(&out, "        output ", output, "\n");
}

void append_memory(std::string& out, const EntryExplanation& entry) {
  if (entry.memory.empty()) return;
  const MemoryPoint* peak = &entry.memory[0];
  for (const MemoryPoint& point : entry.memory)
    if (point.total() > peak->total()) peak = &point;
  absl::StrAppend(&out, "    memory: at most ", format_bytes(peak->total()), ", in ", peak->launch, " (inputs ",
                  format_bytes(peak->inputs), ", outputs ", format_bytes(peak->outputs), ", kept for backward ",
                  format_bytes(peak->kept), ", transients ", format_bytes(peak->transients), ")\n");
}

}  // namespace

std::string Regions::summary() const try {
  std::string text;
  for (const RegionReport& r : report()) {
    if (!text.empty()) text += "\n";
    if (r.entries == 0) {
      text += formatted("region %s: not called yet, shared by %s", r.name, counted(r.layers, "layer"));
      if (!r.used_without_call.empty()) text += "; runs eagerly, as " + r.used_without_call;
      continue;
    }
    const std::string how = r.compilations == 0   ? "found compiled"
                            : r.compilations == 1 ? "compiled once"
                                                  : formatted("compiled %d times", r.compilations);
    text += formatted("region %s: %s in %.0f ms, reused by %s (%s, %s)", r.name, how, r.compile_ms,
                      counted(r.layers, "layer"), counted(r.kernels, "kernel"),
                      counted(r.library_calls, "library call"));
    if (r.entries > std::max(r.compilations, 1)) text += formatted("; %s", counted(r.entries, "recording"));
    if (r.forgotten > 0)
      text += formatted("; %s dropped earlier (more than CompileOptions::max_entries)",
                        counted(r.forgotten, "recording"));
    if (r.graph_breaks > 0)
      text += formatted("; %s, the last: %s", counted(r.graph_breaks, "graph break"), r.last_break);
    if (!r.last_recompile.empty()) text += "; recorded anew, the last time because " + r.last_recompile;
  }
  return text;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Regions::summary");
}

std::string to_text(const Explanation& explanation) try {
  std::string out;
  for (size_t i = 0; i < explanation.products.size(); ++i)
    absl::StrAppend(&out, i > 0 ? "  " : "", explanation.products[i], "\n");
  for (const RegionExplanation& region : explanation.regions) {
    const RegionReport& r = region.report;
    append_formatted(&out, "region %s: %s, %s, %s, %s in %.1f ms, %s\n", r.name, counted(r.layers, "layer"),
                     counted(r.calls, "call"), counted(r.entries, "recording"), counted(r.compilations, "compilation"),
                     r.compile_ms, counted(r.graph_breaks, "graph break"));
    if (!r.last_recompile.empty()) absl::StrAppend(&out, "  last recorded anew because: ", r.last_recompile, "\n");
    for (const std::string& why : region.breaks) absl::StrAppend(&out, "  graph break: ", why, "\n");
    for (const std::string& hint : region.hints) absl::StrAppend(&out, "  hint: ", hint, "\n");
    PrintedCode printed;
    for (size_t i = 0; i < region.entries.size(); ++i) {
      const std::string recording = absl::StrCat("recording ", i);
      absl::StrAppend(&out, "  ", recording, ": keeps ", format_bytes(region.entries[i].kept_bytes), " for backward");
      if (region.entries[i].recomputed_flops > 0)
        append_formatted(&out, ", which computes %.1f MFLOP of products again",
                         static_cast<double>(region.entries[i].recomputed_flops) / 1e6);
      out += "\n";
      append_memory(out, region.entries[i]);
      for (const ProgramExplanation& program : region.entries[i].programs)
        append_program(out, program, recording, printed);
    }
  }
  return out;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("explain: to_text");
}

}  // namespace rondo::compile
