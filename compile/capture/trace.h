// Trace: a Recorder that appends ops to a Graph. The compiler derives graphs with it, by running op rules on symbolic
// tensors: gradients (transform/joint.cc), decompositions (transform/decompose.cc).
//
// Subclasses record a user's call. Each adds something to the one before it: WritingTrace (writes.h) records writes in
// place, FollowingTrace (known_recording.h) compares with an earlier recording, RegionTrace runs what is recorded.
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

  // Note [Recorded in memory order]. An elementwise call with a channels-last result (Note [Results keep the layout] in
  // runtime/op/op.h) is recorded as a call on views (B, H, W, C), which has a contiguous result, and a view that turns
  // the result back. So all later stages see elementwise ops in the order of memory.
  void record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) final;
  // Throws InternalError, because symbolic tensors have no data. Regions override this: they run what is recorded.
  void flush(const TensorImpl& tensor, std::source_location where) override;

  // Adds a symbolic input with the metadata of `like`.
  Tensor placeholder(const Value& like);
  // Returns the value that `tensor` stands for; a tensor with storage becomes an input. Throws Error if `tensor` has no
  // value because the region that should have computed it threw.
  virtual ValueId value_of(const Tensor& tensor, std::source_location where = std::source_location::current());
  // The tensor that stands for a value.
  const Tensor& handle(ValueId id) const { return handles_[static_cast<size_t>(id)]; }
  // True if somebody besides the trace still holds the value.
  bool is_alive(ValueId id) const { return handles_[static_cast<size_t>(id)].impl()->refs.load() > 1; }
  // The tensors with storage that calls have read, in the order of first use; parallel to graph.inputs unless
  // placeholders were made.
  const std::vector<Tensor>& external() const { return external_; }

  // Returns the calls recorded so far: `graph`, or an earlier recording that begins with the same calls.
  virtual const Graph& recorded() const { return graph; }

  // The origin of all calls that are recorded from now on; null: each call is its own origin. A node whose origin has
  // no call number gets one: its index plus `first_call`.
  const Origin* origin = nullptr;
  int32_t first_call = 0;
  // The device of placeholders.
  Device device = kCPU;

  Graph graph;

 protected:
  // Appends a call, as Recorder::record() says.
  virtual void append(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                      std::span<Tensor> outputs, bool in_place, std::source_location where);
  // True if a recorded call reads memory of `storage`.
  bool reads(const Storage& storage) const;
  // Call this after the history of `input` has changed. If `input` is an input of the graph, updates its flags in the
  // graph.
  void history_changed(const Tensor& input);
  // cut() removes the ops that were recorded after node `last` and returns them, so that the other ops can run first.
  // resume() records the removed ops again: all of them, or the first `n`, and removes these from the tail.
  struct Tail {
    std::vector<GraphNode> nodes;
    std::vector<Value> values;    // the graph's values before cut(); ids in `nodes` refer to them
    std::vector<Tensor> handles;  // of the values that the nodes read and make
  };
  Tail cut(int32_t last);
  void resume(Tail& tail, size_t n);
  void resume(Tail tail) { resume(tail, tail.nodes.size()); }
  // Forgets everything; handles that are still alive become ordinary tensors without storage.
  virtual void abandon();
  ValueId add_value(Tensor handle, int32_t producer);

  std::vector<Tensor> handles_;  // by value: the tensor that stands for the value
  std::vector<Tensor> external_;
  HashMap<const TensorImpl*, ValueId> external_ids_;

 private:
  // Memory of an earlier recording on this thread. A region records on every call, and reuses it to allocate nothing.
  struct Spare {
    Graph graph;
    std::vector<Tensor> handles, external;
    HashMap<const TensorImpl*, ValueId> external_ids;
  };

  // Returns a copy of `handles` (by value) that holds only the handles of values that the nodes read or make; the other
  // entries are undefined.
  static std::vector<Tensor> needed(std::span<const GraphNode> nodes, const std::vector<Tensor>& handles);
  std::source_location user_of(std::source_location where);
  const char* user_file_ = nullptr;  // a file that is known not to be Rondo's own
};

}  // namespace rondo::compile
