// A trace that follows an earlier recording: Note [Known recordings] in known_recording.cc.
#pragma once

#include <memory>
#include <vector>

#include "rondo/compile/capture/float_trace.h"
#include "rondo/compile/capture/writes.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::compile {

// A recording that later ones are compared with while they are made.
struct KnownRecording {
  std::shared_ptr<const Graph> graph;
  Device device;        // all that it reads and makes is there
  uint64_t number = 0;  // no other has it
};
// A recording whose writes can be compared: each is the first one of all of a tensor from outside.
bool has_known_writes(const Graph& recorded);

// As long as its calls are those of a known recording, it counts them and appends nothing. Without a known one it is a
// WritingTrace.
class FollowingTrace : public WritingTrace {
 public:
  // `draws`: is told of the operands of every op that is the next of a known recording. Null: nobody is.
  explicit FollowingTrace(SharedRandomState* draws = nullptr);
  ~FollowingTrace() override;

  void record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override;
  bool append_known(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                    std::span<Tensor> outputs, std::source_location where) override;

  // From here on calls are compared with those of `known`. REQUIRES: nothing is recorded.
  void follow(KnownRecording known);
  bool follows() const { return known_.graph != nullptr; }
  // The same calls were made as in the known recording, and the same of their results are alive.
  bool is_known() const;
  // The known recording, but for its floats, while this follows one.
  const Graph& recorded() const override { return follows() ? *known_.graph : graph; }
  // All floats of the calls so far. REQUIRES: follows().
  std::span<const double> known_floats() const { return known_floats_; }
  // Makes this a recording like any other: what was compared so far goes into `graph`.
  void stop_following();
  // Before a known recording runs: the tensors that it writes stand for their versions.
  void show_known_versions();

 protected:
  // As append_known(), for a call that overwrites *inputs[0].
  bool append_known_write(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                          std::source_location where);
  void abandon() override;

 private:
  bool is_next_known(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, size_t n_outputs,
                     bool in_place, std::source_location where);
  bool may_follow_write(const Tensor& target) const;
  bool is_version(ValueId id) const;
  bool is_known_operand(const Tensor& tensor, ValueId id);
  bool infers_as_known(const GraphNode& node, std::span<const Tensor* const> inputs, const Attrs& attrs,
                       std::source_location where) const;
  Tensor known_result(ValueId id);
  void keep_known_handles();
  // Handles of an earlier recording on this thread.
  struct Spare {
    std::vector<Tensor> handles;
    uint64_t handles_of = 0;
  };

  SharedRandomState* const draws_;
  KnownRecording known_;  // that is followed; without a graph: none
  size_t n_known_ = 0;    // calls that were the same so far
  RecordedFloats known_floats_;
  // By value of the recording of that number, to be used again; undefined, or missing at the end: none.
  std::vector<Tensor> known_handles_;
  uint64_t known_handles_of_ = 0;
};

}  // namespace rondo::compile
