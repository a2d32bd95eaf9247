// A region: the executables of one repeated block, keyed by what the block records. See compile.h.
//
// Each recording of a call comes to run(): the table has a program for it (entry_table.h), or one is compiled for it
// (entry.h). It runs (run.h), and the values that somebody holds get memory and history (live_outputs.h).
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
  // Every region of the process is as if it were new, but for the number of its layers; what they forget is added to
  // `sum`. Calls and backwards that are under way end with what they have.
  static void reset_all(ResetReport & sum);
  // A module that shares the region: a place for its latest calls.
  std::shared_ptr<RecentCalls> add_layer();
  // Runs one recorded piece of `call` (there is one more after each graph break) and gives the live handles of
  // `trace` their storage and history.
  // Returns what ran; null if nothing did, or eagerly. If a launch throws, so does this: values that were complete by
  // then get their memory, and reading another one throws Error with the reason. Nothing runs twice.
  std::shared_ptr<const Binding> run(FollowingTrace & trace, const nn::ModuleCall& call, int piece);
  // The same for a recording that is_known(), of the entry of `latest`. Null: nothing has happened, as the entry is not
  // for its floats.
  std::shared_ptr<const Binding> run_known(FollowingTrace & trace, const std::shared_ptr<const Binding>& latest);
  const CompileOptions& options() const { return options_; }
  // Counts it. Throws Error if its arguments are not what CompileOptions::dynamic allows.
  void begin_call(const nn::ModuleCall& call, bool is_replayed);
  void count_loop_piece();
  // A module of it was used, but never called: `what`, as in RegionReport::used_without_call. Warns, once.
  void note_use_without_call(const std::string& what);
  // The loops that its recordings have: Note [Loops over time].
  KnownLoops& loops() { return loops_; }
  // It has recordings of several structures: a loop of few steps is likely to have other numbers of them, too.
  bool varies() const { return table_.varies(); }
  // A recording that must not be replayed, and why.
  void refuse_replay(const std::string& why);
  // Throws Error unless the recording is the one that would have been replayed.
  void verify_replay(FollowingTrace & trace, const Binding& expected) const;
  // Counts a graph break. Throws Error if there must be none.
  void break_graph(const std::string& reason);
  RegionReport report() const;
  // The reasons of its graph breaks: the first 32 that differ.
  std::vector<std::string> breaks() const { return ledger_->breaks(); }
  // The latest used last.
  std::vector<std::shared_ptr<const Entry>> entries() const { return table_.entries(); }

 private:
  int64_t reset();  // returns the number of recordings that it forgot
  // What runs a recording: found, or compiled now. Null: it runs op by op.
  std::shared_ptr<const Binding> binding_for(const FollowingTrace& trace, const nn::ModuleCall& call, int piece);
  std::shared_ptr<const Binding> find(const RecordingKey& key, std::span<const double> floats);
  struct CompileLog {  // what is to be logged
    std::string why, warning;
    bool compiled = false;
  };
  // As binding_for, for a recording that nothing was found for.
  std::shared_ptr<const Binding> make_binding(const FollowingTrace& trace, const nn::ModuleCall& call, int piece,
                                              const RecordingKey& key, std::span<const double> floats,
                                              CompileLog& to_log);
  // `ranges` gets those of its marked dimensions.
  std::shared_ptr<const Entry> compile_recording(const FollowingTrace& trace, const nn::ModuleCall& call,
                                                 std::vector<int64_t>& ranges);
  void count_entry(const Entry& entry);
  // Null: op by op. Returns what ran compiled.
  std::shared_ptr<const Binding> run_and_attach(FollowingTrace & trace, std::shared_ptr<const Binding> binding);

  const CompileOptions options_;
  const std::shared_ptr<Ledger> ledger_;
  const RecompilePolicy policy_;
  EntryTable table_;
  KnownLoops loops_;
  // Held while one recording is compiled; others run meanwhile. Guards the next two.
  std::mutex compile_mutex_;
  std::set<RecordingKey> failed_;              // structures that a stage could not compile
  std::set<std::vector<int64_t>> ranges_met_;  // of marked dimensions, by piece
  std::mutex layers_mutex_;
  std::vector<std::weak_ptr<RecentCalls>> layers_;  // guarded by layers_mutex_
};

}  // namespace rondo::compile
