// FollowingTrace: compares each call with an earlier recording, and appends nothing while all calls are equal. Note
// [Known recordings] in known_recording.cc.
#pragma once

#include <memory>
#include <vector>

#include "rondo/compile/capture/float_trace.h"
#include "rondo/compile/capture/writes.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::compile {

// An earlier recording. Later recordings are compared with it, call by call, while they are made.
struct KnownRecording {
  std::shared_ptr<const Graph> graph;
  Device device;        // the device of all values of the recording
  uint64_t number = 0;  // unique among all recordings
};
// True if the writes in place of `recorded` can be compared with those of a later recording: each is the first write to
// its tensor and overwrites all of it, the tensor comes from outside of the recording, and no gradient is involved.
bool has_known_writes(const Graph& recorded);

// While the calls equal those of the known recording, a FollowingTrace counts them and appends nothing. Without a known
// recording it behaves as a WritingTrace.
class FollowingTrace : public WritingTrace {
 public:
  // `draws`: its op_recorded(operands) is called for each call that equals the known recording's next one. May be null.
  explicit FollowingTrace(SharedRandomState* draws = nullptr);
  ~FollowingTrace() override;

  void append(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override;
  bool append_known(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                    std::span<Tensor> outputs, std::source_location where) override;

  // Compares the calls from here on with those of `known`. REQUIRES: nothing is recorded yet.
  void follow(KnownRecording known);
  bool follows() const { return known_.graph != nullptr; }
  // True if exactly the calls of the known recording were made, and the same results are alive as at its end.
  bool is_known() const;
  // While this trace follows a known recording: returns the known recording, with the floats of an earlier call
  // (known_floats() has those of this call). Otherwise returns `graph`.
  const Graph& recorded() const override { return follows() ? *known_.graph : graph; }
  // Returns the float attributes of the calls so far. REQUIRES: follows().
  std::span<const double> known_floats() const { return known_floats_; }
  // Ends the comparison: appends the calls so far to `graph`, and records the next ones as usual.
  void stop_following();
  // Call before a known recording runs: makes each written tensor the handle of its last version.
  void show_known_versions();

 protected:
  // Like append_known(), for a call that overwrites *inputs[0].
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
  // Result handles that an earlier recording on this thread left for reuse.
  struct Spare {
    std::vector<Tensor> handles;
    uint64_t handles_of = 0;
  };

  SharedRandomState* const draws_;
  KnownRecording known_;  // the recording that this trace follows; a null graph: it follows none
  size_t n_known_ = 0;    // number of calls so far; all equal those of the known recording
  RecordedFloats known_floats_;
  // The result handles to reuse, indexed by the values of the recording number known_handles_of_. An undefined or
  // missing entry means that there is none to reuse.
  std::vector<Tensor> known_handles_;
  uint64_t known_handles_of_ = 0;
};

}  // namespace rondo::compile
