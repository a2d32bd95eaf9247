// Trace: a Recorder that appends ops to a Graph. The compiler derives graphs with it, by running op rules on symbolic
// tensors: gradients (transform/joint.cc), decompositions (transform/decompose.cc).
//
// The recording of a user's call adds to it, class by class: WritingTrace (writes.h) records writes in place,
// FollowingTrace (known_recording.h) compares with an earlier recording, RegionTrace runs what is recorded.
#pragma once

#include <vector>

#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::compile {

class Trace : public Recorder {
 public:
  Trace();
  ~Trace() override;

  void record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override;
  // A symbolic tensor cannot be read; only a region (which overrides this) can run what is recorded.
  void flush(const TensorImpl& tensor, std::source_location where) override;

  // A symbolic input.
  Tensor placeholder(const Value& like);
  // The value that `tensor` stands for; a tensor with storage becomes an input. Throws Error if it has no value,
  // because the region that was to make it threw.
  virtual ValueId value_of(const Tensor& tensor, std::source_location where = std::source_location::current());
  // A handle to a value.
  const Tensor& handle(ValueId id) const { return handles_[static_cast<size_t>(id)]; }
  // True if somebody besides the trace still holds the value.
  bool is_alive(ValueId id) const { return handles_[static_cast<size_t>(id)].impl()->refs.load() > 1; }
  // Real tensors met, in order; parallel to graph.inputs unless placeholders were made.
  const std::vector<Tensor>& external() const { return external_; }

  // The calls recorded so far: `graph`, or an earlier recording that begins with the same calls.
  virtual const Graph& recorded() const { return graph; }

  // The origin of all calls that are recorded from now on; null: each call is its own origin. A call without a number
  // gets one, from `first_call` on.
  const Origin* origin = nullptr;
  int32_t first_call = 0;
  // For placeholders only.
  Device device = kCPU;

  Graph graph;

 protected:
  // True if a recorded call reads memory of `storage`.
  bool reads(const Storage& storage) const;
  // Call when `input`, which may be an input of the graph already, has got another history.
  void history_changed(const Tensor& input);
  // cut() takes out the ops recorded behind node `last`, so that the rest can run first. resume() records them again:
  // all, or the first `n`, which it removes from the tail.
  struct Tail {
    std::vector<GraphNode> nodes;
    std::vector<Value> values;    // as before cut(); ids in `nodes` refer to them
    std::vector<Tensor> handles;  // of the values that the nodes read and make
  };
  Tail cut(int32_t last);
  void resume(Tail& tail, size_t n);
  void resume(Tail tail) { resume(tail, tail.nodes.size()); }
  // Forgets everything; handles that are still alive become ordinary tensors without storage.
  virtual void abandon();
  ValueId add_value(Tensor handle, int32_t producer);

  std::vector<Tensor> handles_;  // by value
  std::vector<Tensor> external_;
  HashMap<const TensorImpl*, ValueId> external_ids_;

 private:
  // Memory of an earlier recording on this thread: a region records on every call, and should not allocate for it.
  struct Spare {
    Graph graph;
    std::vector<Tensor> handles, external;
    HashMap<const TensorImpl*, ValueId> external_ids;
  };

  // Keeps, of `handles` (by value), those that the nodes read or make; the others are undefined.
  static std::vector<Tensor> needed(std::span<const GraphNode> nodes, const std::vector<Tensor>& handles);
  std::source_location user_of(std::source_location where);
  const char* user_file_ = nullptr;  // a file that is known not to be Rondo's own
};

}  // namespace rondo::compile
