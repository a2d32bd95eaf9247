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

#include "rondo/compile/capture/known_recording.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/options.h"
#include "rondo/compile/region/ledger.h"
#include "rondo/compile/region/marks.h"
#include "rondo/compile/transform/derivation.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/compile/transform/partition.h"

namespace rondo::compile {

// The backward of an entry, for one set of arriving gradients.
struct CompiledBackward {
  std::shared_ptr<const Program> program;
  std::vector<BackwardInput> inputs;  // kSaved: `index` is a position in partition.kept(), -1 where it is not read
  std::vector<Contribution> contributions;  // by forward input
  std::vector<int> grad_inputs;             // the program's first results are the gradients of these forward inputs
  std::vector<BackwardGraph::Rows> rows;    // the program's further results
  int32_t stale_for = -1;  // the call of the recording whose gradient needs what the recording overwrote; -1: none
  // For a backward that is not its entry's usual one. `guards`: the floats that it holds for. `floats`: those that it
  // was compiled for.
  FloatGuards guards;
  RecordedFloats floats;
};

// A part of the model (modules/seam_plan.h).
struct Part {
  std::string path;             // the path of the block; "" for parameters outside of the blocks
  std::vector<int32_t> inputs;  // the part's parameters: positions among the recording's inputs
};

// One compiled recording. Thread safe: its programs are fixed when it is made. Two things change later: backward_for()
// adds backwards for other gradients when they are needed, and the region's table counts uses (Use).
class Entry : public std::enable_shared_from_this<Entry> {
 public:
  // How a recording is compiled.
  struct Request {
    const CompileOptions& options;
    std::shared_ptr<Ledger> ledger;  // the region's; it counts backwards even when the region is gone
    Sizes sizes;
    Device device;
    const Partition* like = nullptr;  // an earlier entry's partition; its choice of kept values is taken over
    std::vector<Part> parts = {};
    bool at_seams = false;            // an averager or an optimizer waits for gradients during backward
    std::vector<bool> in_parts = {};  // by input: an averager wants its gradient in parts, if the gradient can come in
                                      // parts
    std::span<const MarkedDim> marked = {};
    // Returns whether code for these ranges of the marked dimensions exists already.
    absl::FunctionRef<bool(const OtherRecordings&)> ranges_met;
  };
  // Compiles `recorded`.
  Entry(const Graph& recorded, const Request& request);

  // ---- The recording
  const Graph& recording() const { return recording_; }  // as its first call recorded it; used for double backward
  const RecordedFloats& floats() const { return floats_; }
  Device device() const { return device_; }            // the device of all values
  bool communicates() const { return communicates_; }  // true if the recording has collectives
  // Returns the recording in the form that later recordings are compared with. The result has no graph if no later
  // recording may be compared with this one.
  KnownRecording known() const;

  // ---- The programs
  // Returns the guards: they say for which floats the forward and the usual backward hold.
  const FloatGuards& guards() const { return guards_; }
  // Returns the program of the forward. Its results: the recording's outputs, then the values that the backward needs.
  const Program& forward() const { return *forward_; }
  // Returns the usual backward: for gradients of all outputs that require one. Its program is null if no output does.
  const CompiledBackward& backward() const { return backward_; }
  // True if backward() is for these gradients.
  bool is_usual(const Arriving& arriving) const;
  // Returns the backward for `arriving`, or null if it may not be compiled (stance, limit): then go backward op by op.
  // It is compiled when it is first needed, and CompileOptions::max_entries of them are kept. An output that nobody
  // used sends no gradient at all, rather than zeros: that is less work, and infinity times zero is NaN. Throws Error
  // with Stance::kFailOnRecompile. `recorded`: the floats of the call. If the guards of the existing backwards reject
  // these floats, one more backward is compiled.
  std::shared_ptr<const CompiledBackward> backward_for(const Arriving& arriving,
                                                       std::span<const double> recorded) const;
  // Returns the programs of backward() and of the backwards that backward_for() added.
  std::vector<std::shared_ptr<const Program>> backwards() const;

  // ---- How the programs were compiled
  const CompileOptions& options() const { return options_; }
  // Returns which values the forward keeps for a backward; nullopt without a backward.
  const std::optional<Partition>& partition() const { return partition_; }
  // Returns the values of the recording that are saved for backward: those that the usual backward reads, and those
  // that are needed to run the recording again.
  const std::vector<ValueId>& saved() const { return saved_; }
  // Returns, for each of saved(), the corresponding value of the graph with chosen layouts.
  const std::vector<ValueId>& saved_as_laid_out() const { return laid_out_; }
  // Derives the graphs of `recorded`, which is the recording with other floats or sizes, in the same way as this
  // entry's graphs. Derives no backward if `arriving` is null.
  DerivedGraphs derive_again(const Graph& recorded, const Arriving* arriving) const;
  // Returns the parts of the model whose gradients leave at seams. Empty if there are no seams.
  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<int32_t>& may_split() const { return may_split_; }  // inputs_in_parts(); empty without seams
  const ResultMarks& result_marks() const { return result_marks_; }
  bool has_marked_sizes() const { return others_ != nullptr; }
  double compile_ms() const { return compile_ms_; }  // the time that the constructor took
  Ledger& ledger() const { return *ledger_; }

  // ---- Counts of uses, which the region's table changes: Note [Kept recordings] in entry_table.cc
  struct Use {
    std::atomic<int64_t> latest = 0;
    std::atomic<int> count = 0;  // at most kMostUses; halved after every max_entries drops
    std::atomic<bool> forgotten = false;
  };
  Use& use() const { return use_; }

 private:
  void choose_usual(const Request& request);
  void compile_programs(const Graph& symbolic, const Request& request);
  std::shared_ptr<const Program> compile_forward(const Graph& graph, bool ranges_met) const;
  CompiledBackward compile_backward(BackwardGraph derived, const Partition& partition, const Arriving& arriving,
                                    bool ranges_met) const;
  std::shared_ptr<const CompiledBackward> compile_other(const Arriving& arriving,
                                                        std::span<const double> recorded) const;
  std::optional<SizeMarks> forward_marks(bool ranges_met) const;
  std::optional<SizeMarks> backward_marks(const Arriving& arriving, bool ranges_met) const;

  // Fixed.
  const Graph recording_;
  const RecordedFloats floats_;
  const Device device_;
  const bool communicates_;
  const CompileOptions options_;
  const std::shared_ptr<Ledger> ledger_;
  const uint64_t number_;           // unique in the process
  const uint64_t stages_disabled_;  // the stages that were disabled when it was compiled
  const ResultMarks result_marks_;
  std::unique_ptr<const OtherRecordings> others_;  // with marked dimensions, else null
  Arriving usual_;                                 // the gradients that backward_ is for
  std::vector<Part> parts_;
  std::vector<int32_t> may_split_;
  ProgramOptions program_options_;  // exact if asked for, or if needed (codegen/relax.h)
  std::vector<ValueId> saved_, laid_out_;
  bool lays_out_ = false;  // Note [Chosen layouts] in transform/lay_out.h
  std::optional<Partition> partition_;
  std::shared_ptr<const Program> forward_;
  CompiledBackward backward_;
  FloatGuards guards_;
  double compile_ms_ = 0;

  mutable Use use_;
  mutable std::mutex mutex_;  // guards the members below
  struct OtherBackward {
    std::shared_ptr<const CompiledBackward> backward;
    int64_t last_use = 0;
  };
  mutable std::multimap<Arriving, OtherBackward> other_backwards_;
  mutable int64_t uses_ = 0;           // of all other_backwards_ together
  mutable std::set<Arriving> failed_;  // those whose backward a stage could not compile
};

// An entry with the floats of one recording: this is what a call runs. Floats are arguments of a run, and the floats of
// the programs are computed by formulas from the floats of the recording. So if a factor changes from call to call,
// nothing is derived, planned or compiled again. Thread safe.
class Binding {
 public:
  // Binds the entry to the floats of the recording that was compiled.
  explicit Binding(std::shared_ptr<const Entry> entry);
  // Binds the entry to the floats of another recording. REQUIRES: entry->guards().hold(recorded).
  Binding(std::shared_ptr<const Entry> entry, std::span<const double> recorded);

  const std::shared_ptr<const Entry>& entry() const { return entry_; }
  // Returns the floats of the recording.
  std::span<const double> floats() const { return floats_; }
  // Return the floats of the entry's forward, and of its usual backward (null if there is none).
  const std::shared_ptr<const Floats>& forward() const { return forward_; }
  const std::shared_ptr<const Floats>& backward() const { return backward_; }
  // Returns the recording with these floats.
  const Graph& graph() const;

  struct Backward {
    std::shared_ptr<const CompiledBackward> compiled;  // null: see Entry::backward_for()
    std::shared_ptr<const Floats> floats;
  };
  Backward backward_for(const Arriving& arriving) const;

 private:
  const std::shared_ptr<const Entry> entry_;
  const RecordedFloats floats_;
  const std::shared_ptr<const Floats> forward_, backward_;
  mutable std::mutex mutex_;  // guards the members below
  mutable std::unique_ptr<const Graph> graph_;
};

}  // namespace rondo::compile
