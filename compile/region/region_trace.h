// RegionTrace: the recording of one call of a region's module, which runs what is recorded: at its end, at graph
// breaks, and piece by piece in loops over time.
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
  // `random`: shared by all ops of the call. `in_pieces`: loops over time run in pieces, those that the region knows
  // from their first step on.
  RegionTrace(Region& region, const nn::ModuleCall& call, SharedRandomState& random, bool in_pieces)
      : FollowingTrace(&random),
        region_(region),
        call_(call),
        random_(random),
        finds_loops_(in_pieces),
        loops_(in_pieces ? region.loops().steps() : nullptr) {}

  // Compares the calls to come with what `latest`, which ran before, was recorded from. Null: there is none.
  void follow(std::shared_ptr<const Binding> latest);
  // At the end: what the whole call ran. Null: it ran in several pieces, or eagerly.
  std::shared_ptr<const Binding> take_latest() { return std::move(latest_); }

  void record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override;
  void flush(const TensorImpl&, std::source_location where) override { graph_break("a value is read", where); }
  void flush_gradient(const TensorImpl& tensor, std::source_location where) override;
  void before_write(const Storage& storage, std::source_location where) override;
  void before_history_change(const Tensor& tensor, std::source_location where) override;
  void before_read(const Storage& storage, std::source_location where) override;
  void interrupt(const char* what, std::source_location where) override { graph_break(what, where); }

  // The recording is gone afterwards, also if this throws: it must not run twice.
  void finish();

  // finish(), at the end of a call whose recording may be replayed. Null: it may not.
  std::shared_ptr<const Replay> finish_for_replay(std::span<const GeneratorState> drawn, std::string& why_not);

 private:
  bool has_read(const Tensor& tensor) const;
  bool is_stale_view(const Tensor& tensor) const;
  void look_again(const Tensor& view);
  void graph_break(const std::string& reason, std::source_location where);
  std::shared_ptr<const Binding> run_piece(int number);
  bool run_known();  // false: it must be recorded after all
  template <class Run> std::shared_ptr<const Binding> run_now(const Run& run);

  // ---- Note [Loops over time] (capture/loop_steps.h)
  // The calls of the recording, as lines of a program.
  std::vector<LoopSteps::Line> lines() const;
  // Before a call is recorded: runs the piece that is complete. True: the call has been made.
  bool runs_at_once_in_loop(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                            std::span<Tensor> outputs, std::source_location where);
  bool begins_known_loop(const LoopSteps::Line& line);
  static void call_now(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                       std::span<Tensor> outputs, std::source_location where);
  void record_of_dense_parts(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                             std::span<Tensor> outputs, std::source_location where);
  // Runs the recording: `steps` steps, or with 0 the piece in which the loop was found. If that throws, the loop is
  // over, because its last steps can no longer be run.
  void run_steps(int steps);
  // Runs the steps that are left in pieces of few lengths, so that few recordings serve all numbers of steps.
  void run_steps_left();
  void end_loop();
  void forget_recording();

  Region& region_;
  const nn::ModuleCall& call_;
  SharedRandomState& random_;
  std::shared_ptr<const Binding> latest_;  // of an earlier call, until finish()
  int piece_ = 0;
  Device piece_device_;  // of the ops that are recorded now
  bool running_ = false;
  std::vector<Storage> written_by_pointer_;  // a replay would leave that out
  bool changed_history_ = false;             // a replay would leave that out, too
  bool overwrote_ = false;                   // by an op of this call, so that views may be read again
  bool broken_ = false;                      // also by what happened before the first op, which makes no piece
  const bool finds_loops_;
  const std::shared_ptr<const KnownLoops::Steps> loops_;  // that run in pieces at once; null: none
  LoopSteps loop_;
  bool in_pieces_ = false;  // a loop has run in pieces
  struct DensePart {
    Tensor of, dense;
  };
  HashMap<const TensorImpl*, DensePart> dense_parts_;  // that this piece reads in place of views
};

}  // namespace rondo::compile
