// A region: the executables of one repeated block, keyed by what the block records. See compile.h.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "rondo/compile/capture/loop_steps.h"
#include "rondo/compile/capture/recording_key.h"
#include "rondo/compile/capture/trace.h"
#include "rondo/compile/options.h"
#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/recent_calls.h"
#include "rondo/compile/region/recompile_policy.h"
#include "rondo/compile/region_report.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/hash_map.h"

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
  std::shared_ptr<const Binding> run(Trace & trace, const nn::ModuleCall& call, int piece);
  // The same for a recording that is_known(), of the entry of `latest`. Null: nothing has happened, as the entry is not
  // for its floats.
  std::shared_ptr<const Binding> run_known(Trace & trace, const std::shared_ptr<const Binding>& latest);
  const CompileOptions& options() const { return options_; }
  // Counts it. Throws Error if its arguments are not what CompileOptions::dynamic allows.
  void begin_call(const nn::ModuleCall& call, bool is_replayed);
  void count_loop_piece();
  // A module of it was used, but never called: `what`, as in RegionReport::used_without_call. Warns, once.
  void note_use_without_call(const std::string& what);
  // The steps of loops that recordings have; null: none. Note [Loops over time].
  std::shared_ptr<const std::vector<LoopSteps::Step>> loops() const;
  void add_loop(const LoopSteps::Step& step);
  // It has recordings of several structures: a loop of few steps is likely to have other numbers of them, too.
  bool varies() const { return varies_.load(std::memory_order_relaxed); }
  // A recording that must not be replayed, and why.
  void refuse_replay(const std::string& why);
  // Throws Error unless the recording is the one that would have been replayed.
  void verify_replay(Trace & trace, const Binding& expected) const;
  // Counts a graph break. Throws Error if there must be none.
  void break_graph(const std::string& reason);
  RegionReport report() const;
  // The reasons of its graph breaks: the first 32 that differ.
  std::vector<std::string> breaks() const;
  // The latest used last.
  std::vector<std::shared_ptr<const Entry>> entries() const;

 private:
  int64_t reset();  // returns the number of recordings that it forgot
  // Null: run the recording eagerly.
  std::shared_ptr<const Binding> binding_for(const Trace& trace, const nn::ModuleCall& call, int piece);
  // What is compiled for a recording with this key and these floats; null: nothing is.
  std::shared_ptr<const Binding> find(const RecordingKey& key, std::span<const double> floats);
  std::shared_ptr<const Binding> lookup(const RecordingKey& key, std::span<const double> floats);
  struct News {  // for the log
    std::string why, warning;
    bool compiled = false;
  };
  struct Slot {
    std::shared_ptr<const Entry> entry;
    int piece = 0;
    std::shared_ptr<const Binding> latest;  // to the floats of the latest call
  };
  // The state before a recording is compiled.
  struct Standing {
    std::vector<const Graph*> earlier;  // recordings of the same piece
    bool is_first = false;              // the region has compiled nothing yet
  };
  Standing standing_of(int piece);
  // `ranges` gets those of its marked dimensions.
  std::shared_ptr<const Entry> compile_recording(const Trace& trace, const nn::ModuleCall& call, bool is_first,
                                                 std::vector<int64_t>& ranges);
  void add(const RecordingKey& key, Slot slot, std::vector<int64_t> ranges, News& news);
  // As binding_for, for a recording that nothing was found for.
  std::shared_ptr<const Binding> make_binding(const Trace& trace, const nn::ModuleCall& call, int piece,
                                              const RecordingKey& key, std::span<const double> floats, News& news);
  // Null: op by op. Returns what ran compiled.
  std::shared_ptr<const Binding> run_and_hand_over(Trace & trace, std::shared_ptr<const Binding> binding);
  void note_use(const Entry& entry);
  void forget_least_used_entry();  // REQUIRES: mutex_ is held

  CompileOptions options_;
  std::mutex compile_mutex_;  // held while one recording is compiled; others run meanwhile. Taken before mutex_
  const std::shared_ptr<Ledger> ledger_;
  int most_launches_ = 0;  // of an entry that the latest call made; guarded by the ledger
  const RecompilePolicy policy_;
  mutable std::mutex mutex_;  // guards what follows; nothing is logged while it is held
  // By key without floats. Entries of one key differ in the floats that they are for.
  HashMap<RecordingKey, std::vector<Slot>> entries_;
  int n_entries_ = 0;
  std::vector<std::string> breaks_;
  std::set<RecordingKey> failed_;              // structures that a stage could not compile; guarded by compile_mutex_
  std::set<std::vector<int64_t>> ranges_met_;  // of marked dimensions, by piece
  std::shared_ptr<const Entry> latest_;        // that was compiled
  std::shared_ptr<const std::vector<LoopSteps::Step>> loops_;
  std::atomic<bool> has_loops_ = false, varies_ = false;
  std::atomic<int64_t> uses_ = 0, float_changes_ = 0;
  int64_t n_forgotten_ = 0;                          // guarded by mutex_
  std::vector<std::weak_ptr<RecentCalls>> modules_;  // guarded by mutex_
};

}  // namespace rondo::compile
