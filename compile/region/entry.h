// Entry: one compiled recording, with its backwards; Binding: an entry with the floats of one call.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "rondo/compile/capture/recording_key.h"
#include "rondo/compile/capture/trace.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/options.h"
#include "rondo/compile/region/ledger.h"
#include "rondo/compile/region/marks.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/compile/transform/lay_out.h"
#include "rondo/compile/transform/partition.h"

namespace rondo::compile {

// The backward of an entry, for one set of gradients that arrive.
struct CompiledBackward {
  std::shared_ptr<const Program> program;
  std::vector<BackwardInput> inputs;  // kSaved: `index` is a position in partition.kept(), -1 where it is not read
  std::vector<Contribution> contributions;  // by forward input
  std::vector<int> grad_inputs;             // the program's results are the gradients of these forward inputs,
  std::vector<BackwardGraph::Rows> rows;    // and these behind them
  int32_t stale_for = -1;  // the call of the recording whose gradient needs what the recording overwrote; -1: none
  // If this backward is not its entry's usual one: the floats that it holds for, and those that it was compiled for.
  FloatGuards guards;
  RecordedFloats floats;
};

// A part of the model (modules/seam_plan.h).
struct Part {
  std::string path;             // "" outside the blocks
  std::vector<int32_t> inputs;  // of the recording: its parameters
};

// One compiled recording. Thread safe.
struct Entry {
  Graph forward_graph;    // as recorded: for double backward
  RecordedFloats floats;  // of forward_graph
  FloatGuards guards;     // the floats that `forward` and `backward` are for
  std::shared_ptr<const Program> forward;
  int n_outputs = 0;  // the caller's; what the backward needs follows
  // For gradients of all outputs that require one; its program is null where none does.
  CompiledBackward backward;
  bool at_seams = false;               // its plan has the seams of `parts`
  std::vector<Part> parts;             // whose gradients leave at seams; empty: there are no seams
  std::vector<int32_t> may_split;      // inputs_in_parts(), where there are seams
  std::vector<bool> in_parts;          // `backward` is for gradients in parts: Arriving::in_parts
  std::optional<Partition> partition;  // what the forward keeps; none without a backward
  ProgramOptions program_options;      // exact where asked for, or needed: codegen/relax.h
  Device device;                       // of everything in it
  double compile_ms = 0;               // all of compile_entry
  CompileOptions options;
  std::shared_ptr<Ledger> ledger;                 // of the region; null: there is none
  std::shared_ptr<const OtherRecordings> others;  // with marked dimensions, else null
  // Values of the recording that the usual backward reads, or one that runs the recording again.
  std::vector<ValueId> saved;
  bool communicates = false;                    // the recording has collectives
  bool lays_out = false;                        // Note [Chosen layouts] in transform/lay_out.h
  mutable std::atomic<int64_t> last_use = 0;    // counted by the region
  mutable std::atomic<bool> forgotten = false;  // by the region
  mutable std::atomic<int> uses = 0;            // at most kMostUses, halved now and then: Note [Kept recordings]
  uint64_t number = 0;                          // no other entry of the process has it
  uint64_t stages_disabled = 0;                 // when it was compiled

  // The dimensions of the outputs that are these dimensions of the inputs.
  const std::vector<OtherRecordings::Follower>& followers(std::span<const MarkedDim> dims) const;
  // How `recorded`, the recording or the same with other floats, is compiled.
  Layouts layouts_of(const Graph& recorded) const { return {recorded, saved, lays_out}; }
  // Its recording, for later ones to be compared with; without a graph if that must not be.
  static KnownRecording known(const std::shared_ptr<const Entry>& entry);
  // Those whose gradients leave at seams when this arrives.
  std::span<const Part> parts_of(const Arriving& arriving) const {
    return arriving.at_seams ? std::span<const Part>(parts) : std::span<const Part>();
  }
  // True if `backward` is for this.
  bool is_usual(const Arriving& arriving) const;
  // The backward for what arrives. An output that nobody used sends no gradient at all, rather than zeros: that is less
  // work, and infinity times zero is NaN. Compiled when it is first needed; CompileOptions::max_entries of them are
  // kept. Null: it may not be compiled (stance, limit), so go backward op by op. Throws Error with
  // Stance::kFailOnRecompile.
  // `recorded`: the floats of the call. Where guards do not hold for them, there is one more backward.
  std::shared_ptr<const CompiledBackward> backward_for(const Arriving& arriving,
                                                       std::span<const double> recorded) const;
  // `backward` and what backward_for() added.
  std::vector<std::shared_ptr<const Program>> backwards() const;

 private:
  std::shared_ptr<const CompiledBackward> compile_other(const Arriving& arriving,
                                                        std::span<const double> recorded) const;
  mutable std::mutex mutex_;
  struct OtherBackward {
    std::shared_ptr<const CompiledBackward> backward;
    int64_t last_use = 0;
  };
  mutable std::multimap<Arriving, OtherBackward> others_;
  mutable int64_t uses_ = 0;
  mutable std::set<Arriving> failed_;  // that a stage could not compile
  mutable std::map<std::vector<std::pair<int32_t, int>>, std::vector<OtherRecordings::Follower>> followers_;
};

// Marks those dimensions of `results` (the entry's first outputs) that are marked dimensions of `inputs`.
void hand_on_marks(const Entry& entry, std::span<const Tensor> inputs, std::span<const Tensor> results);

// How a recording is compiled.
struct EntryRequest {
  const CompileOptions& options;
  Sizes sizes;
  Device device;
  const Partition* like = nullptr;  // of an earlier entry: its choice is taken over
  std::vector<Part> parts = {};
  bool at_seams = false;            // somebody waits for gradients
  std::vector<bool> in_parts = {};  // by input: somebody wants its gradient in parts, where it may come so
  std::span<const MarkedDim> marked = {};
  // Whether code for the ranges of these marked dimensions is there already.
  absl::FunctionRef<bool(const OtherRecordings&)> ranges_met;
};
std::shared_ptr<Entry> compile_entry(const Graph& recorded, const EntryRequest& request);

// An entry with the floats of one recording: what a call runs. Floats are arguments of a run, so a factor that changes
// from call to call derives, plans and compiles nothing: the floats of the programs follow from the recording's by
// formulas. Thread safe.
class Binding {
 public:
  // To the floats of the recording that was compiled.
  explicit Binding(std::shared_ptr<const Entry> entry);
  // To those of another recording. REQUIRES: entry->guards.hold(recorded).
  Binding(std::shared_ptr<const Entry> entry, std::span<const double> recorded);

  const std::shared_ptr<const Entry>& entry() const { return entry_; }
  // The floats of the recording.
  std::span<const double> floats() const { return floats_; }
  // The floats of the entry's forward, and of its usual backward (null: there is none).
  const std::shared_ptr<const Floats>& forward() const { return forward_; }
  const std::shared_ptr<const Floats>& backward() const { return backward_; }
  // The recording, with these floats.
  const Graph& graph() const;

  struct Backward {
    std::shared_ptr<const CompiledBackward> compiled;  // null: as Entry::backward_for
    std::shared_ptr<const Floats> floats;
  };
  Backward backward_for(const Arriving& arriving) const;

 private:
  const std::shared_ptr<const Entry> entry_;
  const RecordedFloats floats_;
  const std::shared_ptr<const Floats> forward_, backward_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::unique_ptr<const Graph> graph_;
};

}  // namespace rondo::compile
