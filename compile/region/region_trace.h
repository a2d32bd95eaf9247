// RegionTrace: records one call of a region's module. It runs the recording at the end of the call, at graph breaks,
// and piece by piece in loops over time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rondo/compile/capture/known_recording.h"
#include "rondo/compile/capture/loop_steps.h"
#include "rondo/compile/region/region.h"
#include "rondo/compile/region/replay.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::compile {

class RegionTrace final : public FollowingTrace {
 public:
  // `random`: the random state that all ops of the call share. `in_pieces`: loops over time run in pieces; loops that
  // the region already knows do so from their first step on.
  RegionTrace(Region& region, const nn::ModuleCall& call, SharedRandomState& random, bool in_pieces)
      : FollowingTrace(&random),
        region_(region),
        call_(call),
        random_(random),
        finds_loops_(in_pieces),
        loops_(in_pieces ? region.loops().steps() : nullptr) {}

  // Compares the calls to come with the recording of `latest`, which an earlier call ran. Null: compares nothing.
  void follow(std::shared_ptr<const Binding> latest);
  // Call this after finish(). Returns the binding that ran the whole call. Null: the call ran in several pieces, or
  // eagerly.
  std::shared_ptr<const Binding> take_latest() { return std::move(latest_); }

  void append(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override;
  void flush(const TensorImpl&, std::source_location where) override { graph_break("a value is read", where); }
  void flush_gradient(const TensorImpl& tensor, std::source_location where) override;
  void before_write(const Storage& storage, std::source_location where) override;
  void before_history_change(const Tensor& tensor, std::source_location where) override;
  void before_read(const Storage& storage, std::source_location where) override;
  void interrupt(const char* what, std::source_location where) override { graph_break(what, where); }

  // Runs what is recorded. Drops the recording, also if this throws, so that nothing runs twice.
  void finish();

  // Does what finish() does, and returns a replay of the call. Null: the call must not be replayed; `why_not` is the
  // reason.
  std::shared_ptr<const Replay> finish_for_replay(std::span<const GeneratorState> drawn, std::string& why_not);

 private:
  bool has_read(const Tensor& tensor) const;
  bool is_stale_view(const Tensor& tensor) const;
  void renew_history(const Tensor& view);
  void graph_break(const std::string& reason, std::source_location where);
  std::shared_ptr<const Binding> run_piece(int number);
  bool run_known();  // false: nothing ran; the calls must be recorded after all
  template <class Run> std::shared_ptr<const Binding> run_now(const Run& run);

  // ---- Note [Loops over time] (capture/loop_steps.h)
  // Returns the calls of the recording, as lines of a program.
  std::vector<LoopSteps::Line> lines() const;
  // Call before recording a call in a loop. Runs the piece that is now complete, if any. True: the call itself was made
  // at once and is not to be recorded.
  bool runs_at_once_in_loop(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                            std::span<Tensor> outputs, std::source_location where);
  bool begins_known_loop(const LoopSteps::Line& line);
  static void call_now(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                       std::span<Tensor> outputs, std::source_location where);
  void record_of_dense_parts(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                             std::span<Tensor> outputs, std::source_location where);
  // Runs the recording, which holds `steps` steps of the loop; 0: the piece that starts before the loop. If that
  // throws, the loop is over, because its last steps can no longer be run.
  void run_steps(int steps);
  // Runs the steps that are left in pieces of few lengths, so that few recordings are enough for all numbers of steps.
  void run_steps_left();
  void end_loop();
  void forget_recording();

  Region& region_;
  const nn::ModuleCall& call_;
  SharedRandomState& random_;
  std::shared_ptr<const Binding> latest_;  // what an earlier call ran; after finish(), what this one ran
  int piece_ = 0;
  Device piece_device_;  // the device of the ops that are recorded now
  bool running_ = false;
  std::vector<Storage> written_by_pointer_;  // forward wrote to them; a replay does not run forward
  bool changed_history_ = false;             // forward changed a history; a replay does not run forward
  bool overwrote_ = false;                   // an op of this call wrote in place, so views may need a new history
  bool broken_ = false;                      // there was a graph break, maybe before the first op
  const bool finds_loops_;
  const std::shared_ptr<const KnownLoops::Steps> loops_;  // known loops, which run in pieces from the start; null: none
  LoopSteps loop_;
  bool in_pieces_ = false;  // a loop has run in pieces
  struct DensePart {
    Tensor of, dense;
  };
  HashMap<const TensorImpl*, DensePart> dense_parts_;  // by view: the copy that this piece reads instead
};

}  // namespace rondo::compile
