// Derives the graphs that are compiled from a recording: its forward, and a backward of it. derivation.cc has the table
// of these stages. Like the table of pipeline.cc, it determines what RONDO_DISABLE, RONDO_DUMP, verification, planted
// failures and reproducers do.
//
//   DerivedGraphs made = derive(recorded, {.arriving = &arriving});
//   Program::compile(made.forward());
//   Program::compile(made.backward->graph);  // its inputs: made.backward->inputs
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/options.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/compile/transform/partition.h"

namespace rondo::compile {

struct Derivation {
  const Arriving* arriving = nullptr;  // the gradients that the backward gets; null: no backward
  Device device = kCPU;
  bool lays_out = false;  // layouts may be chosen: Note [Chosen layouts] in lay_out.h
  // For Partition: its options, and an earlier partition whose choice of kept values is taken over (null: none).
  CompileOptions options = {};
  const Partition* like = nullptr;
  // Values of the recording that backwards read. Null: the values that this backward reads, and the values that are
  // needed to run the recording again.
  const std::vector<ValueId>* saved = nullptr;
  uint64_t disabled = disabled_stages();
  // If set, called with the backward right after it is derived, before layouts and partition.
  std::function<void(const BackwardGraph& derived)> look = nullptr;
};

struct DerivedGraphs {
  Graph recording = {};              // with the chosen layouts
  std::vector<ValueId> saved = {};   // the values of Derivation::saved, as ids of derive()'s `recorded`
  std::vector<ValueId> needed = {};  // the same values, as ids of the field `recording`
  std::optional<BackwardGraph> backward = {};
  std::optional<Partition> partition = {};  // none if nothing is differentiable

  const Graph& forward() const { return partition ? partition->forward() : recording; }
};
// Returns the text of both graphs, the forward first.
std::string to_string(const DerivedGraphs& made, Locations locations = Locations::kOmit);

// Derives the graphs of `recorded`. `last`: the last stage that runs, for a reproducer.
DerivedGraphs derive(const Graph& recorded, const Derivation& how, CompilerStage last = CompilerStage::kPartition);

// True if an output of the recording requires a gradient.
bool is_differentiable(const Graph& recorded);

// The lists of Arriving, with the names that they have in a reproducer.
struct ArrivingList {
  std::string_view name;
  std::vector<bool> Arriving::*list;
  bool of_outputs;  // indexed by the recording's outputs; else by its inputs
};
inline constexpr ArrivingList kArrivingLists[] = {{"gradients", &Arriving::gradients, true},
                                                  {"totals", &Arriving::totals, false},
                                                  {"owned", &Arriving::owned, false},
                                                  {"in_other_layout", &Arriving::in_other_layout, true},
                                                  {"in_parts", &Arriving::in_parts, false}};

}  // namespace rondo::compile
