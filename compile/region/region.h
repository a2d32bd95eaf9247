// A region: the executables of one repeated block, keyed by what the block records. See compile.h.
//
// run() gets each recording of a call. It finds a program in the table (entry_table.h), or compiles one (entry.h), and
// runs it (run.h). Then the values that somebody still holds get memory and history (live_outputs.h).
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "rondo/compile/capture/known_recording.h"
#include "rondo/compile/capture/loop_steps.h"
#include "rondo/compile/capture/recording_key.h"
#include "rondo/compile/options.h"
#include "rondo/compile/region/entry_table.h"
#include "rondo/compile/region/ledger.h"
#include "rondo/compile/region/recent_calls.h"
#include "rondo/compile/region/recompile_policy.h"
#include "rondo/compile/region_report.h"
#include "rondo/modules/module.h"

namespace rondo::compile {

// Thread safe.
class [[gnu::visibility("hidden")]] Region {
 public:
  Region(std::string name, CompileOptions options);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  // Resets every region of the process to the state of a new region, except for the number of its layers. Adds what the
  // regions forget to `sum`. Calls and backwards that are running finish with their old programs.
  static void reset_all(ResetReport & sum);
  // Adds a module that shares the region. Returns the place for the module's latest calls.
  std::shared_ptr<RecentCalls> add_layer();
  // Runs one recorded piece of `call` (there is one more after each graph break) and gives the live handles of `trace`
  // their storage and history.
  // Returns the binding that ran; null if nothing ran, or if the piece ran eagerly. Throws what a launch throws. Values
  // that were complete by then get memory, and reading another value throws Error with the reason. Nothing runs twice.
  std::shared_ptr<const Binding> run(FollowingTrace & trace, const nn::ModuleCall& call, int piece);
  // Does what run() does, for a recording that is_known() and belongs to the entry of `latest`. Returns null if nothing
  // ran, because the entry's guards reject the recording's floats.
  std::shared_ptr<const Binding> run_known(FollowingTrace & trace, const std::shared_ptr<const Binding>& latest);
  const CompileOptions& options() const { return options_; }
  // Counts a call. Throws Error if CompileOptions::dynamic does not allow its arguments.
  void begin_call(const nn::ModuleCall& call, bool is_replayed);
  void count_loop_piece();
  // Warns, once, that a module of the region was used but never called. `what`: RegionReport::used_without_call.
  void note_use_without_call(const std::string& what);
  // Returns the loops that were found in the region's recordings: Note [Loops over time].
  KnownLoops& loops() { return loops_; }
  // True if the recordings have several structures. Then a loop of few steps is likely to vary in its number of steps.
  bool varies() const { return table_.varies(); }
  // Reports that a recording must not be replayed, and why.
  void refuse_replay(const std::string& why);
  // Throws Error unless the recording is the one that would have been replayed.
  void verify_replay(FollowingTrace & trace, const Binding& expected) const;
  // Counts a graph break. Throws Error if CompileOptions::fullgraph forbids them.
  void break_graph(const std::string& reason);
  RegionReport report() const;
  // Returns the reasons of the region's graph breaks: the first 32 that differ.
  std::vector<std::string> breaks() const { return ledger_->breaks(); }
  // Returns the entries in the order of their last use, the most recent at the end.
  std::vector<std::shared_ptr<const Entry>> entries() const { return table_.entries(); }

 private:
  int64_t reset();  // returns the number of recordings that it forgot
  // Finds or compiles what runs a recording. Null: it runs op by op.
  std::shared_ptr<const Binding> binding_for(const FollowingTrace& trace, const nn::ModuleCall& call, int piece);
  std::shared_ptr<const Binding> find(const RecordingKey& key, std::span<const double> floats);
  struct CompileLog {  // what is to be logged
    std::string why, warning;
    bool compiled = false;
  };
  // Makes the binding of a recording that is not in the table. Null: the recording runs op by op.
  std::shared_ptr<const Binding> make_binding(const FollowingTrace& trace, const nn::ModuleCall& call, int piece,
                                              const RecordingKey& key, std::span<const double> floats,
                                              CompileLog& to_log);
  // Compiles a recording. Appends the ranges of its marked dimensions to `ranges`.
  std::shared_ptr<const Entry> compile_recording(const FollowingTrace& trace, const nn::ModuleCall& call,
                                                 std::vector<int64_t>& ranges);
  void count_entry(const Entry& entry);
  // Runs the recording, op by op if `binding` is null, and gives its outputs memory and history. Returns the binding
  // that ran.
  std::shared_ptr<const Binding> run_and_attach(FollowingTrace & trace, std::shared_ptr<const Binding> binding);

  const CompileOptions options_;
  const std::shared_ptr<Ledger> ledger_;
  const RecompilePolicy policy_;
  EntryTable table_;
  KnownLoops loops_;
  // Held while one recording is compiled; other recordings run meanwhile. Guards failed_ and ranges_met_.
  std::mutex compile_mutex_;
  std::set<RecordingKey> failed_;              // structures that a stage could not compile
  std::set<std::vector<int64_t>> ranges_met_;  // each: the number of a piece, then the ranges of its marked dimensions
  std::mutex layers_mutex_;
  std::vector<std::weak_ptr<RecentCalls>> layers_;  // guarded by layers_mutex_
};

}  // namespace rondo::compile
