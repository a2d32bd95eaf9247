#include "rondo/compile/region/explain_entry.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/log.h"
#include "rondo/compile/region/entry.h"
#include "rondo/compile/transform/choose_kept.h"
#include "rondo/compile/transform/lay_out.h"
#include "rondo/runtime/base/format.h"

namespace rondo::compile {
namespace {

// Returns the bytes of the distinct elements of a value: elements that broadcasting repeats count once.
int64_t bytes_of(const Value& v) {
  int64_t elements = 1;
  for (int d = 0; d < v.sizes.rank(); ++d)
    if (v.strides[d] != 0 || v.sizes[d] == 0) elements *= v.sizes[d];
  return elements * static_cast<int64_t>(size_of(v.dtype));
}

int64_t total_bytes(const Graph& graph, const std::set<ValueId>& values) {
  int64_t bytes = 0;
  for (ValueId id : values) bytes += bytes_of(graph.value(id));
  return bytes;
}

// Finds the values that a set of nodes reads from outside, and those of its results that other nodes read.
class Traffic {
 public:
  explicit Traffic(const Plan& plan)
      : graph_(plan.graph), outputs_(graph_, false), readers_(graph_), sets_(graph_), counted_(graph_, false) {
    const Graph& graph = graph_;
    for (const Launch& launch : plan.launches)
      for (int32_t n : launch.nodes) sets_[n].push_back(&launch.nodes);
    for (ValueId id : graph.outputs) outputs_[graph.written(id)] = true;
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (graph.nodes[n].op->kind != OpKind::kView)
        for (ValueId id : graph.nodes[n].inputs)
          if (id != kNoValue) readers_[graph.written(id)].push_back(static_cast<int32_t>(n));
  }

  // True if this is the first call for the node. A node may be in several launches, but is counted once.
  bool count(int32_t node) {
    const bool first = !counted_[node];
    counted_[node] = true;
    return first;
  }

  void of(const std::vector<int32_t>& nodes, int64_t& read, int64_t& written) const {
    const std::set<int32_t> inside(nodes.begin(), nodes.end());
    std::set<ValueId> reads, writes;
    for (int32_t n : nodes) {
      const GraphNode& node = graph_.node(n);
      for (ValueId id : node.inputs)
        if (id != kNoValue && !inside.contains(graph_.value(graph_.written(id)).producer))
          reads.insert(same_elements(graph_, id));
      for (ValueId id : node.outputs) {
        bool leaves = outputs_[id];
        for (int32_t reader : readers_[id]) leaves = leaves || (!inside.contains(reader) && !computes_it(reader, n));
        if (leaves) writes.insert(id);
      }
    }
    read = total_bytes(graph_, reads);
    written = total_bytes(graph_, writes);
  }

 private:
  // True if each launch that contains `reader` also computes `node` itself.
  bool computes_it(int32_t reader, int32_t node) const {
    if (sets_[node].size() < 2) return false;
    return std::all_of(sets_[reader].begin(), sets_[reader].end(), [&](const std::vector<int32_t>* nodes) {
      return std::find(nodes->begin(), nodes->end(), node) != nodes->end();
    });
  }

  const Graph& graph_;
  ValueMap<bool> outputs_;
  ValueMap<std::vector<int32_t>> readers_;                  // of each written value
  NodeMap<std::vector<const std::vector<int32_t>*>> sets_;  // by node: the nodes of each launch that contains it
  NodeMap<bool> counted_;
};

void explain_launch(const Plan& plan, Traffic& traffic, const Launch& launch, LaunchExplanation& e) {
  const Graph& graph = plan.graph;
  e.generated = launch.kind == Launch::Kind::kKernel;
  e.name = e.generated ? absl::StrCat("kernel ", launch.kernel) : graph.node(launch.op()).op->name;
  if (!e.generated) {
    const GraphNode& node = graph.node(launch.op());
    e.algorithm = launch.variant;
    e.widens = node.op->kind == OpKind::kContraction && graph.value(node.inputs[0]).dtype == kF16;
  }
  if (e.generated) e.code = to_string(plan.kernel_of(launch).kernel);
  std::map<int32_t, std::vector<int32_t>> calls;  // by number of the eager call: its nodes in this launch
  for (int32_t n : launch.nodes) {
    const Origin& origin = graph.node(n).origin;
    e.nodes.push_back(n);
    const std::string source = to_string(origin);
    if (std::find(e.sources.begin(), e.sources.end(), source) == e.sources.end()) e.sources.push_back(source);
    if (!origin.again && traffic.count(n)) calls[origin.call].push_back(n);  // eager execution recomputes nothing
  }
  traffic.of(launch.nodes, e.bytes_read, e.bytes_written);
  int64_t apart = 0;
  for (const auto& [call, nodes] : calls) {
    int64_t read = 0, written = 0;
    traffic.of(nodes, read, written);
    apart += read + written;
  }
  e.bytes_saved = std::max<int64_t>(apart - e.bytes_read - e.bytes_written, 0);
}

// Returns a value's id and type, such as "%0: f32[8, 64]".
std::string typed(const Graph& graph, ValueId id) {
  const Value& v = graph.value(id);
  return absl::StrCat("%", id, ": ", std::string(rondo::name_of(v.dtype)), rondo::to_string(v.sizes));
}

ProgramExplanation explain_program(const Program& program, std::string name, std::span<const Part> parts) {
  const Graph& graph = program.graph();
  ProgramExplanation e;
  e.name = std::move(name);
  for (ValueId id : graph.inputs) e.inputs.push_back(typed(graph, id));
  for (ValueId id : graph.outputs) e.outputs.push_back(typed(graph, id));
  for (const GraphNode& node : graph.nodes) {
    const Origin& origin = node.origin;
    e.nodes.push_back({node.op->name, to_string(graph, node), to_string(origin), origin.user.file_name(),
                       static_cast<int>(origin.user.line()), -1});
  }
  const Plan& plan = program.plan();
  Traffic traffic(plan);
  auto add_seams = [&, s = size_t{0}](size_t launch) mutable {
    for (; s < plan.seams.size() && static_cast<size_t>(plan.seams[s].launch) <= launch; ++s)
      e.seams.push_back({parts[static_cast<size_t>(plan.seams[s].part)].path,
                         static_cast<int>(plan.seams[s].outputs.size()), static_cast<int>(e.launches.size())});
  };
  for (size_t i = 0; i < plan.launches.size(); ++i) {
    const Launch& launch = plan.launches[i];
    if (launch.kind == Launch::Kind::kCombine) continue;  // the launch is counted with its kernel
    add_seams(i);
    for (int32_t n : launch.nodes)
      if (int& at = e.nodes[static_cast<size_t>(n)].launch; at < 0) at = static_cast<int>(e.launches.size());
    explain_launch(plan, traffic, launch, e.launches.emplace_back());
  }
  add_seams(plan.launches.size());
  e.kernels = program.stats().kernels;
  e.compiled = program.stats().compiled;
  e.library_calls = program.stats().library_calls;
  const Conversions conversions = count_conversions(graph);
  e.layout_copies = conversions.copies;
  e.layouts_in_convolutions = conversions.in_products;
  e.arena_bytes = program.stats().arena_bytes;
  e.compile_ms = program.stats().compile_ms;
  return e;
}

// Adds a point for each launch. Outputs from `first_kept` on are kept for the backward.
void add_memory(const Plan& plan, const ProgramExplanation& names, size_t first_kept,
                std::vector<MemoryPoint>& memory) {
  const Graph& graph = plan.graph;
  const auto n = static_cast<int>(plan.launches.size());
  // A value is in use from the first launch that touches it to the last.
  ValueMap<int> first(graph, n), last(graph, -1);
  for (int i = 0; i < n; ++i) {
    for (ValueId id : touched(plan, plan.launches[static_cast<size_t>(i)])) {
      if (id == kNoValue) continue;
      const ValueId root = graph.value(id).root;
      first[root] = std::min(first[root], i);
      last[root] = std::max(last[root], i);
    }
  }
  std::set<ValueId> inputs, outputs, kept;
  for (ValueId id : graph.inputs)
    if (last[id] >= 0) inputs.insert(id);
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const ValueId root = graph.value(graph.outputs[i]).root;
    if (plan.placements[root].kind != Plan::Placement::kOutput) continue;
    if (i < first_kept) outputs.insert(root);
    else if (!outputs.contains(root)) kept.insert(root);
  }
  MemoryPoint point;
  point.inputs = total_bytes(graph, inputs);
  point.outputs = total_bytes(graph, outputs);
  point.kept = total_bytes(graph, kept);
  size_t named = 0;
  for (int i = 0; i < n; ++i) {
    const Launch& launch = plan.launches[static_cast<size_t>(i)];
    if (launch.kind == Launch::Kind::kCombine) continue;
    point.launch = absl::StrCat(names.name, ": ", names.launches[named++].name);
    const bool is_kernel = launch.kind == Launch::Kind::kKernel;
    point.transients = is_kernel ? partial_bytes(plan.kernel_of(launch), 1) : 0;
    for (size_t v = 0; v < graph.values.size(); ++v)
      if (plan.placements[v].kind == Plan::Placement::kArena && first[v] <= i && i <= last[v])
        point.transients += bytes_of(graph.values[v]);
    memory.push_back(point);
  }
}

}  // namespace

EntryExplanation explain(const Entry& entry) {
  EntryExplanation e;
  e.programs.push_back(explain_program(entry.forward(), "forward", {}));
  const size_t results = entry.recording().outputs.size();
  add_memory(entry.forward().plan(), e.programs[0], results, e.memory);
  e.kept_bytes = e.memory.empty() ? 0 : e.memory[0].kept;
  const Program* whole = entry.backward().program.get();
  for (const std::shared_ptr<const Program>& program : entry.backwards()) {
    e.programs.push_back(
        explain_program(*program, program.get() == whole ? "backward" : "backward of other gradients", entry.parts()));
    if (program.get() != whole) continue;
    e.recomputed_flops = recomputed_flops(program->graph());
    const size_t at = e.memory.size();
    add_memory(program->plan(), e.programs.back(), program->graph().outputs.size(), e.memory);
    // The values that the forward kept are among the inputs of the backward.
    for (size_t i = at; i < e.memory.size(); ++i) {
      e.memory[i].kept = std::min(e.kept_bytes, e.memory[i].inputs);
      e.memory[i].inputs -= e.memory[i].kept;
    }
  }
  return e;
}

std::vector<std::string> perf_hints(const EntryExplanation& entry) {
  std::vector<std::string> hints;
  int64_t widened = 0;
  for (const ProgramExplanation& program : entry.programs)
    widened += std::count_if(program.launches.begin(), program.launches.end(),
                             [](const auto& launch) { return launch.widens; });
  if (widened > 0)
    hints.push_back(absl::StrCat(
        widened, " products of f16 run in f32, since this CPU's library has none: bf16 (amp::Autocast) is faster"));
  for (const ProgramExplanation& program : entry.programs) {
    std::map<std::string, std::pair<int, std::string>> unfused;  // by op: how many, and where the first one is from
    for (const LaunchExplanation& launch : program.launches) {
      const std::string& name = program.nodes[static_cast<size_t>(launch.nodes[0])].op;
      const OpDef* op = find_op(name);
      // Fusion would not speed up a launch as small as a step counter's.
      if (launch.generated || op == nullptr || op->lower == nullptr || launch.bytes_read + launch.bytes_written <= 64)
        continue;
      auto& [count, source] = unfused[name];
      if (count++ == 0) source = launch.sources[0];
    }
    for (const auto& [name, found] : unfused)
      hints.push_back(
          absl::StrCat(program.name, ": ", name,
                       found.first == 1 ? " is not fused" : absl::StrCat(" is not fused ", found.first, " times"),
                       ", because it makes one number, adds up from the end, or reads an operand whose dimensions are "
                       "no single loop "
                       "in memory: ",
                       found.first == 1 ? "" : "first ", found.second));
  }
  if (entry.recomputed_flops > 0)
    hints.push_back(absl::StrCat("the backward computes products of ", entry.recomputed_flops,
                                 " operations again, to keep no more than ", format_bytes(entry.kept_bytes),
                                 " (CompileOptions::recompute)"));
  return hints;
}

std::string to_string(const SeamExplanation& seam) {
  return absl::StrCat("seam of ", seam.part.empty() ? "what is outside the blocks" : seam.part, ": ", seam.gradients,
                      seam.gradients == 1 ? " gradient leaves" : " gradients leave");
}

std::string format_bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  if (bytes < 1000 * 1000) return formatted("%.1f KB", value / 1e3);
  if (bytes < 1000 * 1000 * 1000) return formatted("%.1f MB", value / 1e6);
  return formatted("%.2f GB", value / 1e9);
}

void log_entry(std::string_view region, const Entry& entry, std::string_view why) {
  using log::Topic;
  const std::string name(region);
  if (!why.empty() && log::enabled(Topic::kRecompiles)) {
    int compiled = entry.forward().stats().compiled;
    if (entry.backward().program != nullptr) compiled += entry.backward().program->stats().compiled;
    log::write(Topic::kRecompiles, absl::StrCat(name, ": ", std::string(why),
                                                compiled > 0 ? absl::StrCat("; ", compiled, " kernels compiled")
                                                             : "; planned anew, no kernel compiled"));
  }
  const bool hints = log::enabled(Topic::kPerfHints), fusion = log::enabled(Topic::kFusion),
             code = log::enabled(Topic::kOutputCode);
  if (!hints && !fusion && !code) return;
  const EntryExplanation e = explain(entry);
  if (hints)
    for (const std::string& hint : perf_hints(e)) log::write(Topic::kPerfHints, absl::StrCat(name, ": ", hint));
  for (const ProgramExplanation& program : e.programs) {
    for (const LaunchExplanation& launch : program.launches) {
      if (!launch.generated) continue;
      std::string text = absl::StrCat(name, " ", program.name, ", ", launch.name);
      if (code) log::write(Topic::kOutputCode, absl::StrCat(text, "\n", launch.code));
      if (!fusion) continue;
      absl::StrAppend(&text, ": ", launch.nodes.size(), " ops, saves ", format_bytes(launch.bytes_saved), " of ",
                      format_bytes(launch.bytes_saved + launch.bytes_read + launch.bytes_written));
      if (log::enabled(Topic::kFusion, log::Detail::kVerbose))
        for (int n : launch.nodes)
          absl::StrAppend(&text, "\n  ", program.nodes[static_cast<size_t>(n)].text, "  # ",
                          program.nodes[static_cast<size_t>(n)].origin);
      log::write(Topic::kFusion, text);
    }
  }
}

}  // namespace rondo::compile
