#include "rondo/compile/exec/reproduce.h"

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/codegen/lower.h"
#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/ir/parse.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/compile/transform/derivation.h"

namespace rondo::compile {
namespace {

int32_t parse_index(Scanner& in, size_t below) {
  const int64_t i = in.integer();
  if (i < 0 || static_cast<size_t>(i) >= below) in.fail(absl::StrCat(i, " is out of range"));
  return static_cast<int32_t>(i);
}

std::vector<int32_t> parse_list(Scanner& in, size_t below) {
  std::vector<int32_t> list;
  while (!in.at_end_of_line()) list.push_back(parse_index(in, below));
  in.end_line();
  return list;
}

// The stages up to assemble copy values in order, so a value cannot be part of a later one.
const Graph& without_parts(const Graph& graph) {
  for (size_t id = 0; id < graph.values.size(); ++id)
    if (const ValueId root = graph.values[id].root; root > static_cast<ValueId>(id))
      throw Error(absl::StrCat("%", id, " is part of %", root, ", a later value: the stage \"assemble\" made this ",
                               "graph, and only later stages can replay it"));
  return graph;
}

// Parses what derivation.cc writes after the recording.
void parse_derivation(Scanner& in, Reproducer& r) {
  if (in.accept("recompute")) {
    const int64_t recompute = in.integer();
    if (recompute < 0 || recompute > static_cast<int64_t>(Recompute::kBudget)) in.fail("no such way to recompute");
    r.recompute.recompute = static_cast<Recompute>(recompute);
    r.recompute.recompute_budget = in.integer();
    in.end_line();
  }
  for (const ArrivingList& each : kArrivingLists) {
    if (!in.accept(each.name)) continue;
    std::vector<bool>& list = r.arriving.*each.list;
    list.resize(each.of_outputs ? r.graph->outputs.size() : r.graph->inputs.size());
    for (int32_t i : parse_list(in, list.size())) list[static_cast<size_t>(i)] = true;
  }
  if (in.accept("saved")) r.saved = parse_list(in, r.graph->values.size());
}

}  // namespace

Reproducer parse_reproducer(std::string_view text, std::span<const OpDef* const> own) {
  Scanner in(text);
  Reproducer r;
  if (in.at_end()) in.fail("nothing to replay");
  if (in.accept("stage")) {
    r.stage = std::string(in.word());
    in.end_line();
  } else {
    r.stage = in.next_is("kernel") ? "emit" : "compile";
  }
  if (in.accept("options")) {
    r.options.exact = !in.accept("default");
    r.options.gathers_sums = in.accept("gathers");
    in.end_line();
  }
  if (in.next_is("kernel")) {
    r.kernel = parse_loop_kernel(in);
  } else {
    r.graph = parse_graph(in, own);
    while (in.accept("epilogues")) {
      r.epilogues.resize(r.graph->nodes.size());
      std::vector<int32_t> chain = parse_list(in, r.graph->nodes.size());
      if (chain.empty()) in.fail("a product and what it does were expected");
      std::vector<int32_t>& of_product = r.epilogues[static_cast<size_t>(chain.front())];
      of_product.assign(chain.begin() + 1, chain.end());
    }
    if (in.accept("unit")) {
      Unit& unit = r.unit.emplace();
      unit.fused = in.accept("fused");
      in.expect("rows=");
      unit.rows = in.integer();
      in.expect("cols=");
      unit.cols = in.integer();
      in.expect("inner=");
      unit.inner = in.integer();
      if (in.accept("starts=")) unit.starts = parse_index(in, r.graph->values.size());
      in.expect("nodes");
      unit.nodes = parse_list(in, r.graph->nodes.size());
    }
    r.needed.resize(r.graph->values.size());
    if (in.accept("needed"))
      for (int32_t id : parse_list(in, r.needed.size())) r.needed[static_cast<size_t>(id)] = true;
    parse_derivation(in, r);
  }
  if (!in.at_end()) in.fail("nothing more was expected");
  return r;
}

std::string replay(const Reproducer& r) {
  auto graph = [&]() -> const Graph& {
    if (!r.graph) throw Error(absl::StrCat("the stage \"", r.stage, "\" needs a graph"));
    return *r.graph;
  };
  if (r.stage == "emit") {
    if (!r.kernel) throw Error("the stage \"emit\" needs a loop kernel");
    compile_kernels({&*r.kernel, 1});
    return to_string(*r.kernel);
  }
  if (r.stage == "lower") {
    verify(graph());
    if (!r.unit) throw Error("the stage \"lower\" needs a unit");
    return to_string(lower(graph(), *r.unit, r.needed).kernel);
  }
  if (r.stage == "fuse") {
    verify(graph());
    return to_string(graph(), fuse(graph(), r.epilogues, target_of(kCPU).capabilities));
  }
  if (r.stage == "numbers") {
    verify(graph());
    if (const std::string what = check_graph(graph()); !what.empty())
      throw InternalError("compiled code computes other numbers than eager execution: " + what);
    return to_string(graph());
  }
  if (r.stage == "compile") {
    std::string text;
    const std::shared_ptr<const Program> program = Program::compile(without_parts(graph()));
    for (const LoweredUnit& kernel : program->plan().kernels) text += to_string(kernel.kernel);
    return text;
  }
  const std::optional<CompilerStage> stage = find_stage(r.stage, StageUse::kPlant);
  if (stage && *stage >= CompilerStage::kDifferentiate && *stage <= CompilerStage::kPartition) {
    verify(without_parts(graph()));
    return to_string(derive(graph(),
                            {.arriving = &r.arriving,
                             .lays_out = !r.options.exact,
                             .options = r.recompute,
                             .saved = r.saved ? &*r.saved : nullptr},
                            *stage));
  }
  const bool copies_in_order = stage && *stage >= CompilerStage::kDecompose && *stage <= CompilerStage::kAssemble;
  return to_string(run_pass(r.stage, copies_in_order ? without_parts(graph()) : graph(), r.options));
}

}  // namespace rondo::compile
