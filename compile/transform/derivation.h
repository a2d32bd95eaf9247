// From a recording to the graphs that are compiled: its forward, and a backward of it. derivation.cc is the table of
// the stages; RONDO_DISABLE, RONDO_DUMP, verification, planted failures and reproducers go by it, as by that of
// pipeline.cc.
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
  const Arriving* arriving = nullptr;  // what the backward is for; null: there is none
  Device device = kCPU;
  bool lays_out = false;  // layouts may be chosen: Note [Chosen layouts] in lay_out.h
  // What the forward keeps: the options that Partition reads, and an earlier one whose choice is taken over.
  CompileOptions options = {};
  const Partition* like = nullptr;
  // Values of the recording that backwards read. Null: those that this one reads, or one that runs the recording again.
  const std::vector<ValueId>* saved = nullptr;
  uint64_t disabled = disabled_stages();
  // Is shown the backward as it was derived.
  std::function<void(const BackwardGraph& derived)> look = nullptr;
};

struct DerivedGraphs {
  Graph recording = {};              // as it lies
  std::vector<ValueId> saved = {};   // Derivation::saved
  std::vector<ValueId> needed = {};  // what stands for them in `recording`
  std::optional<BackwardGraph> backward = {};
  std::optional<Partition> partition = {};  // none where nothing is differentiable

  const Graph& forward() const { return partition ? partition->forward() : recording; }
};
// Both graphs, one after the other.
std::string to_string(const DerivedGraphs& made, Locations locations = Locations::kOmit);

// `last`: what comes behind this stage is left out, for a reproducer.
DerivedGraphs derive(const Graph& recorded, const Derivation& how, CompilerStage last = CompilerStage::kPartition);

// True if a gradient arrives at one of its outputs.
bool is_differentiable(const Graph& recorded);

// The lists of Arriving, with their names in a reproducer.
struct ArrivingList {
  std::string_view name;
  std::vector<bool> Arriving::*list;
  bool of_outputs;  // of the recording; else of its inputs
};
inline constexpr ArrivingList kArrivingLists[] = {{"gradients", &Arriving::gradients, true},
                                                  {"totals", &Arriving::totals, false},
                                                  {"owned", &Arriving::owned, false},
                                                  {"in_other_layout", &Arriving::in_other_layout, true},
                                                  {"in_parts", &Arriving::in_parts, false}};

}  // namespace rondo::compile
