// A region: the executables of one repeated block, keyed by what the block records. See compile.h.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "rondo/compile/capture/marks.h"
#include "rondo/compile/capture/trace.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/compile/transform/partition.h"
#include "rondo/runtime/autograd.h"

namespace rondo::compile {

// The whole recording, packed: inputs' metadata, calls, attributes, gradient flags and live outputs. Two recordings run
// the same executable if and only if these are equal.
using RecordingKey = std::vector<uint64_t>;
RecordingKey pack(const Graph& graph);

// The backward of an entry, for one set of gradients that arrive.
struct CompiledBackward {
  std::shared_ptr<const Program> program;
  std::vector<BackwardInput> inputs;  // kSaved: `index` is a position in partition.kept(), -1 where it is not read
  std::vector<int> contributions;     // to the gradient of each forward input
  std::vector<bool> adds_onto;        // BackwardGraph::adds_onto
  std::vector<int> grad_inputs;       // the program's results are the gradients of these forward inputs
};

// The report of a region. Its entries have it too: they compile backwards, even when the region is gone. Thread safe.
struct Ledger {
  std::mutex mutex;  // guards `report`; nothing is logged while it is held
  RegionReport report;

  // True if something new may not be compiled, because of the stance or the limit; counts that it runs eagerly.
  bool must_run_eagerly(const CompileOptions& options, const std::string& why);
  void add_backward(const ProgramStats& stats, const std::string& why);
  // REQUIRES: mutex is held.
  std::string limit_warning() const;
  // Returns compile(). With Stance::kFailOnRecompile and `is_recompile` no code is generated: throws Error if some is
  // needed.
  template <class Compile> auto guarded(const std::string& why, bool is_recompile, Compile compile) {
    if (!is_recompile || stance() != Stance::kFailOnRecompile) return compile();
    const ForbidCodeGeneration forbid;
    try {
      return compile();
    } catch (const CodeForbidden&) {
      throw_recompile(why);
    }
  }

 private:
  [[noreturn]] void throw_recompile(const std::string& why);
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
  double compile_ms = 0;               // all of compile_entry
  CompileOptions options;
  std::shared_ptr<Ledger> ledger;                 // of the region; null: there is none
  std::shared_ptr<const OtherRecordings> others;  // with marked dimensions, else null
  std::vector<ValueId> saved;                     // values that the usual backward reads

  // The dimensions of the outputs that are these dimensions of the inputs.
  const std::vector<OtherRecordings::Follower>& followers(std::span<const MarkedDim> dims) const;
  // The backward for what arrives. An output that nobody used sends no gradient at all, rather than zeros: that is less
  // work, and infinity times zero is NaN. Compiled when it is first needed; CompileOptions::max_entries of them are
  // kept. Null: it may not be compiled (stance, limit), so go backward op by op. Throws Error with
  // Stance::kFailOnRecompile.
  std::shared_ptr<const CompiledBackward> backward_for(const Arriving& arriving) const;
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
  mutable std::map<std::vector<std::pair<int32_t, int>>, std::vector<OtherRecordings::Follower>> followers_;
};

// `ranges_met`: whether code for the ranges of these marked dimensions is there already.
std::shared_ptr<Entry> compile_entry(const Graph& recorded, const CompileOptions& options, Sizes sizes,
                                     const Partition* like, std::span<const MarkedDim> marked,
                                     absl::FunctionRef<bool(const OtherRecordings&)> ranges_met);

// The items of every list of modules, in the order of the tree.
std::vector<nn::ModuleBase*> repeated_blocks(nn::ModuleBase& model);

// Thread safe.
class [[gnu::visibility("hidden")]] Region {
 public:
  Region(std::string name, CompileOptions options) : options_(options) { report_.name = std::move(name); }
  void add_layer() { ++report_.layers; }
  // Runs one recorded piece of `call` (there is one more after each graph break) and gives the live handles of
  // `trace` their storage and history.
  // Returns what ran; null if nothing did, or eagerly.
  std::shared_ptr<const Entry> run(Trace & trace, const nn::ModuleCall& call, int piece);
  const CompileOptions& options() const { return options_; }
  // Counts it. Throws Error if its arguments are not what CompileOptions::dynamic allows.
  void begin_call(const nn::ModuleCall& call);
  void count_replay();
  // A recording that must not be replayed, and why.
  void refuse_replay(const std::string& why);
  // Throws Error unless the recording is the one that would have been replayed.
  void verify_replay(Trace & trace, const Entry& expected) const;
  // Counts a graph break. Throws Error if there must be none.
  void break_graph(const std::string& reason);
  RegionReport report() const;
  // The latest used last.
  std::vector<std::shared_ptr<const Entry>> entries() const;

 private:
  // Null: run the recording eagerly.
  std::shared_ptr<const Entry> entry_for(const Trace& trace, const nn::ModuleCall& call, int piece);
  std::shared_ptr<const Entry> find(const RecordingKey& key);
  struct News {  // for the log
    std::string region, why, warning;
    bool compiled = false;
  };
  struct Slot {
    std::shared_ptr<const Entry> entry;
    int64_t last_use = 0;
    int piece = 0;
  };
  // What is there before a recording is compiled.
  struct Standing {
    std::vector<const Graph*> earlier;  // recordings of the same piece
    bool is_first = false;              // the region has compiled nothing yet
    bool eager = false;                 // the stance or the limit forbids another compilation
    bool explained = false;             // and the user knows
  };
  Standing standing_of(int piece, News& news);
  // `ranges` gets those of its marked dimensions.
  std::shared_ptr<Entry> compile_recording(const Trace& trace, const nn::ModuleCall& call, bool is_first,
                                           std::vector<int64_t>& ranges);
  void add(const RecordingKey& key, Slot slot, std::vector<int64_t> ranges);
  // As entry_for, for a recording that has no entry yet.
  std::shared_ptr<const Entry> make_entry(const Trace& trace, const nn::ModuleCall& call, int piece,
                                          const RecordingKey& key, News& news);
  // Gives the live handles of `trace`, in the order of graph.outputs, their memory and history.
  static void hand_over(Trace & trace, std::span<const Tensor> results, const std::shared_ptr<Node>& node);
  static void run_eagerly(Trace & trace);
  // Compiled code met an error of the data; then: run_eagerly() met none.
  void note_failure(const std::string& reason);
  void note_success(const std::string& reason);
  void forget_oldest();

  CompileOptions options_;
  std::mutex compile_mutex_;  // held while one recording is compiled; others run meanwhile. Taken before mutex_
  const std::shared_ptr<Ledger> ledger_ = std::make_shared<Ledger>();
  std::mutex& mutex_ = ledger_->mutex;  // guards what follows; nothing is logged while it is held
  absl::flat_hash_map<RecordingKey, Slot> entries_;
  std::set<std::vector<int64_t>> ranges_met_;  // of marked dimensions, by piece
  int64_t uses_ = 0;
  std::shared_ptr<const Entry> latest_;  // that was compiled
  RegionReport& report_ = ledger_->report;
};

}  // namespace rondo::compile
