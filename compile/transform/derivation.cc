#include "rondo/compile/transform/derivation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/compile/stages/dump.h"
#include "rondo/compile/stages/reproducer.h"
#include "rondo/compile/transform/lay_out.h"
#include "rondo/compile/transform/passed_ops.h"
#include "rondo/compile/transform/pipeline.h"

namespace rondo::compile {
namespace {

// Returns the values of the recording that a plan of the backward reads, and those that are needed to run the recording
// again.
std::vector<ValueId> values_read(const Graph& recorded, const BackwardGraph& derived) {
  const std::vector<bool> read = inputs_needed(derived.graph);
  std::vector<ValueId> values;
  for (size_t i = 0; i < derived.inputs.size(); ++i)
    if (derived.inputs[i].kind == BackwardInput::kSaved && read[i] && !derived.inputs[i].is_stale())
      values.push_back(derived.inputs[i].index);
  for (ValueId id : collectives_read(recorded))
    if (std::find(values.begin(), values.end(), id) == values.end()) values.push_back(id);
  return values;
}

struct Row {
  CompilerStage stage;
  bool (*applies)(const Graph& recorded, const Derivation& how);
  bool (*run)(DerivedGraphs& made, const Derivation& how);  // false: it changed nothing
};

bool always(const Graph& /*recorded*/, const Derivation& /*how*/) { return true; }
bool wants_backward(const Graph& /*recorded*/, const Derivation& how) { return how.arriving != nullptr; }
bool keeps_values(const Graph& recorded, const Derivation& /*how*/) { return is_differentiable(recorded); }

bool differentiate(DerivedGraphs& made, const Derivation& how) {
  made.backward = derive_backward(made.recording, *how.arriving, how.device);
  if (how.look != nullptr) how.look(*made.backward);
  if (how.saved == nullptr) made.needed = made.saved = values_read(made.recording, *made.backward);
  return true;
}
bool choose_layouts(DerivedGraphs& made, const Derivation& how) {
  return how.lays_out && lay_out(made.recording, made.needed, made.backward ? &*made.backward : nullptr);
}
bool divide(DerivedGraphs& made, const Derivation& how) {
  made.partition.emplace(made.recording, made.needed, how.options, how.like);
  if (made.backward) made.partition->apply(*made.backward);
  return true;
}

// The stages of a derivation, in order.
constexpr Row kDerivation[] = {
    // Runs the gradient rules of the ops, in reverse order.
    {CompilerStage::kDifferentiate, &wants_backward, &differentiate},
    // Chooses layouts: images may lie channels last inside of both graphs.
    {CompilerStage::kLayouts, &always, &choose_layouts},
    // Chooses the values that the forward keeps and those that the backward recomputes.
    {CompilerStage::kPartition, &keeps_values, &divide},
};

bool run_checked(const Row& row, DerivedGraphs& made, const Derivation& how) {
  const bool changed = row.run(made, how);
#ifndef NDEBUG
  if (changed) {
    if (row.stage != CompilerStage::kDifferentiate) verify(made.forward());  // kDifferentiate leaves it as recorded
    if (made.backward) verify(made.backward->graph);
  }
#endif
  return changed;
}

// Returns the input of a stage in the form of a reproducer (exec/reproduce.h): the recording, on which the earlier
// stages are run again. `like` is left out.
std::string input_text(const Graph& recorded, const Derivation& how) {
  std::string text = to_string(PassOptions{.exact = !how.lays_out});
  absl::StrAppend(&text, to_string(recorded), "recompute ", static_cast<int>(how.options.recompute), " ",
                  how.options.recompute_budget, "\n");
  const auto add = [&](std::string_view name, size_t count, auto number_at) {
    absl::StrAppend(&text, std::string(name));
    for (size_t i = 0; i < count; ++i)
      if (const int64_t number = number_at(i); number >= 0) absl::StrAppend(&text, " ", number);
    text += "\n";
  };
  for (const ArrivingList& each : kArrivingLists) {
    if (how.arriving == nullptr || (how.arriving->*each.list).empty()) continue;
    const std::vector<bool>& list = how.arriving->*each.list;
    add(each.name, list.size(), [&](size_t i) { return list[i] ? static_cast<int64_t>(i) : -1; });
  }
  if (how.saved != nullptr) add("saved", how.saved->size(), [&](size_t i) { return (*how.saved)[i]; });
  return text;
}

}  // namespace

DerivedGraphs derive(const Graph& recorded, const Derivation& how, CompilerStage last) {
  DerivedGraphs made{.recording = recorded};
  if (how.saved != nullptr) made.needed = made.saved = *how.saved;
  for (const Row& row : kDerivation) {
    if (row.stage > last || !row.applies(recorded, how)) continue;
    if ((how.disabled & bit_of(row.stage)) != 0) {
      if (wants_dump(row.stage)) dump(row.stage, "", "(disabled)");
      continue;
    }
    const bool changed = reproducible({.stage = row.stage,
                                       .text = [&] { return input_text(recorded, how); },
                                       .may_refuse = row.stage == CompilerStage::kDifferentiate},
                                      [&] { return run_checked(row, made, how); });
    if (!wants_dump(row.stage)) continue;
    if (changed) dump(row.stage, to_string(made, Locations::kAsComments));
    else dump(row.stage, "", "(unchanged)");
  }
  return made;
}

std::string to_string(const DerivedGraphs& made, Locations locations) {
  std::string text = to_string(made.forward(), locations);
  if (made.backward) absl::StrAppend(&text, "backward\n", to_string(made.backward->graph, locations));
  return text;
}

bool is_differentiable(const Graph& recorded) {
  return std::any_of(recorded.outputs.begin(), recorded.outputs.end(),
                     [&](ValueId id) { return recorded.value(id).requires_grad; });
}

}  // namespace rondo::compile
