#include "rondo/compile/transform/pipeline.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "rondo/compile/stages/dump.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/compile/stages/reproducer.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {
namespace {

enum class When : uint8_t {
  kAlways,
  kDefaultMode  // not in exact mode
};

struct Pass {
  CompilerStage stage;
  When when;
  std::optional<Graph> (*run)(const Graph&, const PassOptions&);
  uint64_t only_after = 0;  // it runs only if one of these stages (bits) has changed the graph; 0: always
};

template <auto kPass> std::optional<Graph> plain(const Graph& graph, const PassOptions& /*options*/) {
  return kPass(graph);
}
// Splits only if parts can be written in place. Parts that are copied in any case are best computed as a whole.
std::optional<Graph> split(const Graph& graph, const PassOptions& options) {
  return enabled(CompilerStage::kAssemble) ? split_at_parts(graph, options.exact) : std::nullopt;
}
std::optional<Graph> widen(const Graph& graph, const PassOptions& options) {
  return options.gathers_sums ? widen_reductions(graph) : std::nullopt;
}

// The passes of the pipeline, in order.
constexpr Pass kPipeline[] = {
    // Ops without a lowering become their parts.
    {CompilerStage::kDecompose, When::kAlways, &plain<decompose>},
    // Sums by index become sums of sorted rows.
    {CompilerStage::kSegments, When::kAlways, &plain<sort_scattered_rows>},
    // Equal calls become one.
    {CompilerStage::kCse, When::kAlways, &plain<eliminate_common_subexpressions>},
    // Nodes that no output needs are removed.
    {CompilerStage::kDce, When::kAlways, &plain<eliminate_dead_code>},
    // Calls that continue each other become one.
    {CompilerStage::kJoin, When::kAlways, &plain<join_chains>},
    // If a node only copies values side by side, their producers write into its result directly.
    {CompilerStage::kAssemble, When::kAlways, &plain<assemble_in_place>},
    // Independent collectives are merged into one message.
    {CompilerStage::kCollectives, When::kDefaultMode, &plain<merge_collectives>},
    // Small products with an operand in common become one.
    {CompilerStage::kProducts, When::kDefaultMode, &plain<merge_products>},
    // Ops that read a value made of parts read the parts instead.
    {CompilerStage::kSplitAtParts, When::kAlways, &split},
    // Once more, for values that merge_products or the split has laid side by side.
    {CompilerStage::kAssemble, When::kAlways, &plain<assemble_in_place>,
     bit_of(CompilerStage::kProducts) | bit_of(CompilerStage::kSplitAtParts)},
    // Sums of 16-bit numbers are not rounded before they are widened.
    {CompilerStage::kWiden, When::kDefaultMode, &widen},
};
// CompilerStage lists the stages in the order of their first rows in this table.
static_assert([] {
  int next = static_cast<int>(CompilerStage::kDecompose);
  for (const Pass& pass : kPipeline) next += static_cast<int>(pass.stage) == next ? 1 : 0;
  return next == static_cast<int>(CompilerStage::kFuse);
}());

bool applies(const Pass& pass, const PassOptions& options) { return pass.when != When::kDefaultMode || !options.exact; }

std::optional<Graph> run_checked(const Pass& pass, const Graph& graph, const PassOptions& options) {
  std::optional<Graph> result = pass.run(graph, options);
  if (misrewrite_for_tests != nullptr) {
    if (!result) result = graph;
    misrewrite_for_tests(name_of(pass.stage), *result);
  }
#ifndef NDEBUG
  if (result) verify(*result);
#endif
  return result;
}

}  // namespace

Graph run_pipeline(Graph graph, const PassOptions& options) {
  const auto text = [&] { return absl::StrCat(to_string(options), to_string(graph)); };
  run_reproducible({.stage = CompilerStage::kVerify, .text = text}, [&] { verify(graph); });
  if (wants_dump(CompilerStage::kInput)) dump(CompilerStage::kInput, to_string(graph, Locations::kAsComments));
  uint64_t changed = 0;
  for (const Pass& pass : kPipeline) {
    if (pass.only_after != 0 && (changed & pass.only_after) == 0) continue;
    if (!enabled(pass.stage)) {
      if (wants_dump(pass.stage)) dump(pass.stage, "", "(disabled)");
      continue;
    }
    std::optional<Graph> result = reproducible({.stage = pass.stage, .text = text}, [&]() -> std::optional<Graph> {
      return applies(pass, options) ? run_checked(pass, graph, options) : std::nullopt;
    });
    if (wants_dump(pass.stage)) {
      const std::string after = to_string(result ? *result : graph, Locations::kAsComments);
      if (!result || after == to_string(graph, Locations::kAsComments)) dump(pass.stage, "", "(unchanged)");
      else dump(pass.stage, after);
    }
    if (!result) continue;
    graph = std::move(*result);
    changed |= bit_of(pass.stage);
  }
  return graph;
}

std::vector<bool> inputs_needed(const Graph& graph) {
  // Only these passes may leave inputs unread: the parts of a decomposed call may read less than the call did, and dead
  // code is removed. After the other passes the graph reads the same inputs, in other ways.
  constexpr uint64_t kLeaveUnread = bit_of(CompilerStage::kDecompose) | bit_of(CompilerStage::kDce);
  Graph left = graph;
  for (const Pass& pass : kPipeline)
    if ((bit_of(pass.stage) & kLeaveUnread) != 0 && enabled(pass.stage))
      if (std::optional<Graph> result = pass.run(left, {})) left = std::move(*result);
  return inputs_read(left);
}

std::string to_string(const PassOptions& options) {
  if (options.exact) return "";
  return absl::StrCat("options default", options.gathers_sums ? " gathers" : "", "\n");
}

std::vector<CompilerStage> passes_of(const PassOptions& options) {
  std::vector<CompilerStage> stages;
  for (const Pass& pass : kPipeline)
    if (enabled(pass.stage) && applies(pass, options)) stages.push_back(pass.stage);
  return stages;
}

Graph run_pass(std::string_view name, const Graph& graph, const PassOptions& options) {
  verify(graph);
  if (name == "verify") return graph;
  for (const Pass& pass : kPipeline) {
    if (name != name_of(pass.stage)) continue;
    Graph result = run_checked(pass, graph, options).value_or(graph);
    verify(result);
    return result;
  }
  throw Error(absl::StrCat("no stage \"", std::string(name), "\""));
}

}  // namespace rondo::compile
