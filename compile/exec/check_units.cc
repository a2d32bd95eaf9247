#include "rondo/compile/exec/check_units.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/exec/made_up.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/compile/options.h"
#include "rondo/compile/stages/dump.h"
#include "rondo/compile/stages/reproducer.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/compile/transform/pipeline.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {
namespace {

struct Chosen {
  std::atomic<bool> units, floats;
  explicit Chosen(Checks checks) : units(checks.units), floats(checks.floats) {}
};
Chosen& chosen() {
  static Chosen on(parse_checks(std::getenv("RONDO_CHECK")));
  return on;
}

// True if the op reads no data and only makes a view.
bool is_view(const GraphNode& node) { return node.op->kind == OpKind::kView; }

// Makes the check of a run with these inputs. The run may overwrite the inputs afterwards.
std::unique_ptr<UnitCheck> check_of(const Program& program, std::span<const Tensor> inputs, const Floats& floats) {
  std::vector<std::vector<int32_t>> units;
  for (const Launch& launch : program.plan().launches)
    if (!launch.nodes.empty()) units.push_back(launch.nodes);
  return std::make_unique<UnitCheck>(with_floats(program.plan(), floats), std::move(units), inputs,
                                     ProgramOptions{.plan = program.how(), .device = program.code().device()},
                                     floats.source.get());
}

}  // namespace

Checks parse_checks(const char* list) {
  Checks checks;
#ifndef NDEBUG
  checks.floats = true;
#endif
  for (const absl::string_view name : absl::StrSplit(list == nullptr ? "" : list, ',', absl::SkipEmpty()))
    if (name == "units") checks.units = true;
    else if (name == "floats") checks.floats = true;
    else throw Error(absl::StrCat("RONDO_CHECK: no check \"", name, "\". Checks: units, floats"));
  return checks;
}
bool checks_units() { return chosen().units.load(std::memory_order_relaxed); }
void set_check_units(bool on) { chosen().units.store(on, std::memory_order_relaxed); }
bool checks_floats() { return chosen().floats.load(std::memory_order_relaxed); }
void set_check_floats(bool on) { chosen().floats.store(on, std::memory_order_relaxed); }

std::vector<Tensor> run_checked(const Program& program, std::span<const Tensor> inputs,
                                const std::shared_ptr<const Floats>& floats, std::vector<Tensor>* finished,
                                std::span<const Tensor> homes, const TakeResults& take) {
  if (!checks_units()) [[likely]]
    return program.run(inputs, floats, finished, homes, take);
  return check_of(program, inputs, *floats)->run([&] { return program.run(inputs, floats, finished, homes); });
}
std::vector<Tensor> run_and_release_checked(const Program& program, std::vector<Tensor> inputs,
                                            const std::shared_ptr<const Floats>& floats, std::span<const Tensor> homes,
                                            const TakeResults& take) {
  if (!checks_units()) [[likely]]
    return program.run_and_release(std::move(inputs), floats, homes, take);
  const auto check = check_of(program, inputs, *floats);
  return check->run([&] { return program.run_and_release(std::move(inputs), floats, homes); });
}

UnitCheck::UnitCheck(Graph graph, std::vector<std::vector<int32_t>> units, std::span<const Tensor> inputs,
                     const ProgramOptions& options, const Graph* source)
    : units_(std::move(units)),
      options_{.plan = {.exact = options.plan.exact, .epilogues = options.plan.epilogues}, .device = options.device},
      eager_(std::move(graph), inputs, options.plan.exact),
      graph_(eager_.graph()) {
  sums_.operands = true;
  if (source != nullptr) source_.emplace(*source, inputs, options.plan.exact);
}

std::vector<Tensor> UnitCheck::run(absl::FunctionRef<std::vector<Tensor>()> compiled) {
  std::optional<CollectiveScope> note(std::in_place, CollectiveScope::kNote, sums_);
  std::vector<Tensor> outputs = compiled();
  note.reset();
  eager_.run(&sums_);
  if (source_) source_->run(&sums_);
  check(outputs);
  return outputs;
}

UnitCheck::Part UnitCheck::part(const std::vector<int32_t>& nodes) const {
  NodeMap<bool> inside(graph_, false);
  for (int32_t n : nodes) inside[n] = true;
  // Views between nodes of the part belong to no launch, so they are added.
  for (int32_t n : nodes) {
    for (ValueId id : graph_.node(n).inputs) {
      if (id == kNoValue) continue;
      const int32_t source = graph_.value(graph_.written(id)).producer;
      if (source < 0 || !inside[source]) continue;
      for (int32_t p = graph_.value(id).producer; p != source && p >= 0 && is_view(graph_.node(p));
           p = graph_.value(graph_.node(p).inputs[0]).producer)
        inside[p] = true;
    }
  }
  Part made;
  std::map<ValueId, ValueId> known;  // id in the whole graph -> id in the part
  const auto add = [&](ValueId id, const Dims& sizes, const Dims& strides) {
    const auto as = static_cast<ValueId>(made.graph.values.size());
    Value v;
    v.dtype = graph_.value(id).dtype;
    v.sizes = sizes;
    v.strides = strides;
    v.root = as;
    made.graph.values.push_back(v);
    return known[id] = as;
  };
  for (size_t n = 0; n < inside.size(); ++n) {
    if (!inside[n]) continue;
    GraphNode node = graph_.nodes[n];
    for (ValueId& id : node.inputs) {
      if (id == kNoValue) continue;
      if (const auto found = known.find(id); found != known.end()) {
        id = found->second;
        continue;
      }
      const Tensor& value = eager_.value(id);
      if (!value.defined()) return {};
      made.inputs.push_back(id);
      made.graph.inputs.push_back(add(id, value.sizes(), value.strides()));
      id = made.graph.inputs.back();
    }
    const std::vector<TensorMeta> results = infer_results(made.graph, node, Operands::kAsTheyAre);
    const auto position = static_cast<int32_t>(made.graph.nodes.size());
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId id = node.outputs[i];
      node.outputs[i] = add(id, results[i].sizes, results[i].strides);
      Value& value = made.graph.value(node.outputs[i]);
      value.producer = position;
      if (!is_view(node)) continue;
      const Value& base = made.graph.value(node.inputs[0]);
      value.root = base.root;
      value.offset = results[i].offset;
    }
    made.graph.nodes.push_back(std::move(node));
  }
  // The part's outputs: values that are read outside of it, and values that nothing reads.
  ValueMap<bool> read_inside(graph_, false), read_outside(graph_, false);
  for (size_t n = 0; n < inside.size(); ++n)
    for (ValueId id : graph_.nodes[n].inputs)
      if (id != kNoValue) (inside[n] ? read_inside : read_outside)[id] = true;
  for (ValueId id : graph_.outputs) read_outside[id] = true;
  for (size_t n = 0; n < inside.size(); ++n) {
    if (!inside[n] || is_view(graph_.nodes[n])) continue;
    for (ValueId id : graph_.nodes[n].outputs) {
      if (read_inside[id] && !read_outside[id]) continue;
      made.outputs.push_back(id);
      made.graph.outputs.push_back(known[id]);
    }
  }
  return made;
}

std::string UnitCheck::wrong_in(const std::vector<int32_t>& nodes) const {
  if (std::any_of(nodes.begin(), nodes.end(), [&](int32_t n) { return graph_.node(n).op->is<trait::Exchange>(); }))
    return "";  // running the part alone would send a second time
  const Part alone = part(nodes);
  if (alone.outputs.empty()) return "";
  std::vector<Tensor> operands;
  for (ValueId id : alone.inputs) operands.push_back(eager_.value(id));
  const std::shared_ptr<const Program> program = Program::compile(alone.graph, options_);
  const std::vector<Tensor> results = program->run(operands, program->floats());
  for (size_t i = 0; i < results.size(); ++i)
    if (const std::string what = eager_.difference(alone.outputs[i], results[i]); !what.empty()) return what;
  return "";
}

std::vector<int32_t> UnitCheck::smallest(std::vector<int32_t> nodes) const {
  const auto is_wrong = [&](const std::vector<int32_t>& some) {
    try {
      return !wrong_in(some).empty();
    } catch (const std::exception&) {
      return false;  // these nodes alone are not a valid graph
    }
  };
  // Tries each op alone first, because usually a single op is wrong.
  for (int32_t n : nodes)
    if (nodes.size() > 1 && is_wrong({n})) return {n};
  for (size_t i = 0; i < nodes.size() && nodes.size() > 2;) {
    std::vector<int32_t> fewer = nodes;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (is_wrong(fewer)) nodes = std::move(fewer), i = 0;
    else ++i;
  }
  return nodes;
}

std::string UnitCheck::names_of(const std::vector<int32_t>& nodes) const {
  std::vector<std::string> names;
  for (int32_t n : nodes) {
    const GraphNode& node = graph_.node(n);
    const std::string origin = to_string(node.origin);
    names.push_back(node.origin.op == node.op && !node.origin.gradient ? origin
                                                                       : absl::StrCat(node.op->name, " of ", origin));
  }
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return absl::StrJoin(names, ", ");
}

std::string UnitCheck::wrong_pass() {
  const bool wrong_operand = !source_->first_difference_in(sums_).empty();
  Graph graph = source_->graph();
  const PassOptions how{.exact = options_.plan.exact || !enabled(CompilerStage::kRelax),
                        .gathers_sums = target_of(options_.device).capabilities.gathers_sums};
  for (const CompilerStage stage : passes_of(how)) {
    const std::string pass(name_of(stage));
    graph = run_pass(pass, graph, how);
    OpByOp after(graph, source_->inputs(), options_.plan.exact);
    after.run(&sums_);
    std::vector<Tensor> outputs;
    for (ValueId id : graph.outputs) outputs.push_back(after.value(id));
    // The pass is at fault if it changes the results. It is also at fault if the compiled run sent a wrong operand to a
    // collective, and the graph after this pass computes the operand that was sent.
    if (!source_->first_difference(outputs).empty() || (wrong_operand && after.first_difference_in(sums_).empty()))
      return absl::StrCat("the pass \"", pass, "\" makes another function of it (RONDO_DISABLE=", pass, ")");
  }
  return "no pass by itself makes another function of it";
}

void UnitCheck::check_source(std::span<const Tensor> outputs) {
  std::string first = source_ ? source_->first_difference_in(sums_) : "";
  if (first.empty() && source_) first = source_->first_difference(outputs);
  if (first.empty()) return;
  const std::string message = absl::StrCat("compiled code computes other numbers than eager execution: ", wrong_pass(),
                                           "; ", first);
  throw InternalError(
      message + save_reproducer({.stage = CompilerStage::kNumbers, .text = [&] { return to_string(source_->graph()); }},
                                message));
}

void UnitCheck::check(std::span<const Tensor> outputs) {
  const DumpsOff quiet;
  NoGrad off;
  std::string first = eager_.first_difference_in(sums_);
  if (first.empty()) first = eager_.first_difference(outputs);
  if (first.empty()) return check_source(outputs);
  for (const std::vector<int32_t>& unit : units_) {
    std::string what = wrong_in(unit);
    if (what.empty()) continue;
    const std::vector<int32_t> part_of_it = smallest(unit);
    what = wrong_in(part_of_it);
    std::string message = absl::StrCat("compiled code computes other numbers than eager execution. The smallest part: ",
                                       names_of(part_of_it), "; ", what);
    if (part_of_it.size() < unit.size())
      absl::StrAppend(&message, "; it runs in one kernel with ", unit.size() - part_of_it.size(), " other ops");
    const Graph alone = part(part_of_it).graph;
    if (check_graph(alone).empty()) message += "; the file's made-up operands do not show it";
    throw InternalError(
        message +
        save_reproducer({.stage = CompilerStage::kNumbers, .text = [&] { return to_string(alone); }}, message));
  }
  throw InternalError(absl::StrCat(
      "compiled code computes other numbers than eager execution, but each of its ", units_.size(),
      " kernels and library calls is right on its own",
      sums_.messages.empty() ? "" : " (but for collectives, which do not run again)",
      ": memory is shared wrongly (RONDO_DISABLE=reuse,assemble). ", first,
      save_reproducer({.stage = CompilerStage::kNumbers, .text = [&] { return to_string(graph_); }}, first)));
}

std::vector<Tensor> made_up_inputs(const Graph& graph) {
  NoGrad off;
  std::vector<Tensor> inputs;
  uint32_t state = 1;
  Generator generator(1);
  for (ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    if (are_places(graph, id)) {
      inputs.push_back(made_up(graph, id, kCPU, generator));
      continue;
    }
    int64_t last = 0;
    for (int d = 0; d < value.sizes.rank(); ++d) last += (value.sizes[d] - 1) * value.strides[d];
    std::vector<float> numbers(static_cast<size_t>(value.sizes.numel() == 0 ? 0 : last + 1));
    for (float& number : numbers) {
      state = state * 1664525u + 1013904223u;
      number = is_floating(value.dtype) ? static_cast<float>(state >> 8) * 0x1p-22f - 2.0f
                                        : static_cast<float>(state >> 31);
    }
    const Tensor dense = Tensor::from(numbers, {static_cast<int64_t>(numbers.size())}).to(value.dtype);
    inputs.push_back(Tensor::over(dense.storage(), 0, value.sizes, value.strides, value.dtype));
  }
  return inputs;
}

std::string check_graph(const Graph& source) {
  NoGrad off;
  const std::shared_ptr<const Program> program = Program::compile(source, {.plan = {.exact = true}});
  const std::vector<Tensor> inputs = made_up_inputs(source);
  OpByOp eager(source, inputs, /*exact=*/true);
  eager.run();
  return eager.first_difference(program->run(inputs, program->floats()));
}

}  // namespace rondo::compile
