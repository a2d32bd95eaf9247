// Entry: one compiled recording, with its backwards; Binding: an entry with the floats of one call.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rondo/compile/capture/recording_key.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/options.h"
#include "rondo/compile/region/ledger.h"
#include "rondo/compile/region/marks.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/compile/transform/partition.h"

namespace rondo::compile {

// The backward of an entry, for one set of gradients that arrive.
struct CompiledBackward {
  std::shared_ptr<const Program> program;
  std::vector<BackwardInput> inputs;  // kSaved: `index` is a position in partition.kept(), -1 where it is not read
  std::vector<Contribution> contributions;  // by forward input
  std::vector<int> grad_inputs;             // the program's results are the gradients of these forward inputs
  int32_t stale_for = -1;  // the call of the recording whose gradient needs what the recording overwrote; -1: none
};

// One compiled recording. Thread safe.
struct Entry {
  Graph forward_graph;  // as recorded: for double backward
  std::shared_ptr<const Program> forward;
  int n_outputs = 0;  // the caller's; what the backward needs follows
  // For gradients of all outputs that require one; its program is null where none does.
  CompiledBackward backward;
  std::optional<Partition> partition;  // what the forward keeps; none without a backward
  ProgramOptions program_options;      // exact where asked for, or needed: codegen/relax.h
  Device device;                       // of everything in it
  double compile_ms = 0;               // all of compile_entry
  CompileOptions options;
  std::shared_ptr<Ledger> ledger;                 // of the region; null: there is none
  std::shared_ptr<const OtherRecordings> others;  // with marked dimensions, else null
  std::vector<ValueId> saved;                     // values that the usual backward reads
  mutable std::atomic<int64_t> last_use = 0;      // counted by the region

  // The dimensions of the outputs that are these dimensions of the inputs.
  const std::vector<OtherRecordings::Follower>& followers(std::span<const MarkedDim> dims) const;
  // True if `backward` is for this.
  bool is_usual(const Arriving& arriving) const;
  // The backward for what arrives. An output that nobody used sends no gradient at all, rather than zeros: that is less
  // work, and infinity times zero is NaN. Compiled when it is first needed; CompileOptions::max_entries of them are
  // kept. Null: it may not be compiled (stance, limit), so go backward op by op. Throws Error with
  // Stance::kFailOnRecompile.
  std::shared_ptr<const CompiledBackward> backward_for(const Arriving& arriving) const;
  // With some floats a rule or a pass makes another graph. This compiles the backward of that graph, `recorded`, with
  // its partition, and does not keep it here. Null and errors as above.
  std::shared_ptr<const CompiledBackward> compile_backward_of(const Graph& recorded, const Partition& partition,
                                                              const Arriving& arriving) const;
  // `backward` and what backward_for() added.
  std::vector<std::shared_ptr<const Program>> backwards() const;

 private:
  mutable std::mutex mutex_;
  struct OtherBackward {
    std::shared_ptr<const CompiledBackward> backward;
    int64_t last_use = 0;
  };
  mutable std::map<Arriving, OtherBackward> others_;
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
  std::span<const MarkedDim> marked = {};
  // Whether code for the ranges of these marked dimensions is there already.
  absl::FunctionRef<bool(const OtherRecordings&)> ranges_met;
};
std::shared_ptr<Entry> compile_entry(const Graph& recorded, const EntryRequest& request);

// An entry with the floats of one recording: what a call runs. Floats are arguments of a run, so a factor that changes
// from call to call plans and compiles nothing. But gradient rules may compute floats from floats, and passes may
// choose by them. So the graphs are derived again from the recording, and must equal the entry's but for floats. That
// costs no fusion, lowering, memory planning or code. Thread safe.
class Binding {
 public:
  // To the floats of the recording that was compiled.
  explicit Binding(std::shared_ptr<const Entry> entry);
  // To the floats of `recorded`, which differs from the entry's recording in floats only. Null: what is derived from it
  // differs in more than floats, so it needs an entry of its own.
  static std::shared_ptr<const Binding> make(std::shared_ptr<const Entry> entry, const Graph& recorded);

  const std::shared_ptr<const Entry>& entry() const { return entry_; }
  // The floats of the entry's forward.
  const std::shared_ptr<const Floats>& forward() const { return forward_; }
  // The recording, with these floats.
  const Graph& graph() const;

  struct Backward {
    std::shared_ptr<const CompiledBackward> compiled;  // null: as Entry::backward_for
    std::shared_ptr<const Floats> floats;
  };
  Backward backward_for(const Arriving& arriving) const;

 private:
  bool is_own() const { return floats_.empty(); }

  std::shared_ptr<const Entry> entry_;
  std::vector<double> floats_;  // of all nodes of the recording; empty: the entry's own
  std::shared_ptr<const Floats> forward_, backward_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::unique_ptr<const Graph> graph_;
  mutable std::map<Arriving, Backward> others_;
};

}  // namespace rondo::compile
