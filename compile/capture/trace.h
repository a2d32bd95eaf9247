// Trace: a Recorder that appends ops to a Graph. Used for what users run (compile.cc) and for what the compiler derives
// by running op rules on symbolic tensors: gradients (transform/joint.cc) and decompositions (transform/decompose.cc).
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "rondo/compile/capture/float_trace.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::compile {

// A recording that later ones are compared with while they are made: Note [Known recordings] in known_recording.cc.
struct KnownRecording {
  std::shared_ptr<const Graph> graph;
  Device device;        // all that it reads and makes is there
  uint64_t number = 0;  // no other has it
};

class Trace : public Recorder {
 public:
  // `draws`: is told of the operands of every op that is the next of a known recording. Null: nobody is.
  explicit Trace(SharedRandomState* draws = nullptr);
  ~Trace() override;

  void record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override;
  bool append_known(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                    std::span<Tensor> outputs, std::source_location where) override;
  // A symbolic tensor cannot be read; only a region (which overrides this) can run what is recorded.
  void flush(const TensorImpl& tensor, std::source_location where) override;

  // A symbolic input.
  Tensor placeholder(const Value& like);
  // The value that `tensor` stands for; a tensor with storage becomes an input. Throws Error if it has no value,
  // because the region that was to make it threw.
  ValueId value_of(const Tensor& tensor, std::source_location where = std::source_location::current());
  // A handle to a value.
  const Tensor& handle(ValueId id) const { return handles_[static_cast<size_t>(id)]; }
  // True if somebody besides the trace still holds the value.
  bool is_alive(ValueId id) const { return handles_[static_cast<size_t>(id)].impl()->refs.load() > 1; }
  // Real tensors met, in order; parallel to graph.inputs unless placeholders were made.
  const std::vector<Tensor>& external() const { return external_; }

  // ---- Known recordings: Note [Known recordings] in known_recording.cc
  // From here on calls are compared with those of `known`. REQUIRES: nothing is recorded.
  void follow(KnownRecording known);
  bool follows() const { return known_.graph != nullptr; }
  // The same calls were made as in the known recording, and the same of their results are alive.
  bool is_known() const;
  // What is recorded: `graph`, which is empty while this follows a known recording, or that one, but for its floats.
  const Graph& recorded() const { return follows() ? *known_.graph : graph; }
  // All floats of the calls so far. REQUIRES: follows().
  std::span<const double> known_floats() const { return known_floats_; }
  // Makes this a recording like any other: what was compared so far goes into `graph`.
  void stop_following();
  // Before a known recording runs: the tensors that it writes stand for their versions.
  void show_known_versions();
  // A recording whose writes can be compared: each is the first one of all of a tensor from outside.
  static bool has_known_writes(const Graph& recorded);

  // ---- Writes: Note [Writes] in writes.cc
  bool has_writes() const { return !memories_.empty(); }
  // At the end of a recording: handles that are still alive show the last version of their memory.
  void refresh();
  // A recorded call writes memory of `storage`.
  bool writes(const Storage& storage) const;
  // The tensor outside of the recording of which `id` is a version; null: there is none.
  const Tensor* written_tensor(ValueId id) const;
  // The tensor outside of the recording that `id`, a view of written memory, stands for; null: there is none.
  const Tensor* outside_view(ValueId id) const;
  // True for a version of such a tensor whose history the writes leave alone.
  bool keeps_history(ValueId id) const;
  // True for a view that nothing has read since its base got a new history: Note [Views that wait].
  bool waits(ValueId id) const { return std::find(waiting_.begin(), waiting_.end(), id) != waiting_.end(); }

  // The origin of all that is recorded from now on: this call; null: each call is its own. A call without a number gets
  // one, from `first_call` on.
  const Origin* origin = nullptr;
  int32_t first_call = 0;
  // For placeholders only.
  Device device = kCPU;

  Graph graph;

 protected:
  // True if a recorded call reads memory of `storage`.
  bool reads(const Storage& storage) const;
  // The tensor, which may be an input already, has got another history.
  void history_changed(const Tensor& input);
  // The ops recorded behind node `last`, taken out so that the rest can run first; and recorded again after that, all
  // or the first `n` of them, which leave the tail.
  struct Tail {
    std::vector<GraphNode> nodes;
    std::vector<Value> values;    // as they were; ids in `nodes` are theirs
    std::vector<Tensor> handles;  // of what the nodes read and make
  };
  Tail cut(int32_t last);
  void resume(Tail& tail, size_t n);
  void resume(Tail tail) { resume(tail, tail.nodes.size()); }
  // Forgets everything; handles that are still alive become ordinary tensors without storage.
  void abandon();

  // Records a call that overwrites *inputs[0] as one that makes a new version of its memory; `next` is a new handle for
  // the result. Returns null, or why that cannot be said without a guess; then nothing has changed.
  const char* record_write(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, Tensor& next,
                           std::source_location where);
  // False for a tensor outside of the recording in memory that a recorded call writes, whose place in it is unknown.
  bool can_read(const Tensor& tensor) const;
  // As append_known(), for a call that overwrites *inputs[0].
  bool append_known_write(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                          std::source_location where);

 private:
  // Memory that recorded calls write.
  struct Memory {
    Tensor
        tensor;  // outside of the recording: what covers everything that is written; undefined: it is the recording's
    int32_t input = -1;     // the position of `tensor` in graph.inputs
    bool recorded = false;  // `tensor` gets a history here; until the run, its handle stands for the value
    ValueId first = kNoValue, current = kNoValue;  // versions; each is dense and its own root
    std::vector<Tensor> others = {};               // tensors outside of the recording that were read since, kept alive
  };
  bool is_next_known(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, size_t n_outputs,
                     bool in_place, std::source_location where);
  bool may_follow_write(const Tensor& target) const;
  bool is_version(ValueId id) const;
  bool is_known_operand(const Tensor& tensor, ValueId id);
  bool infers_as_known(const GraphNode& node, std::span<const Tensor* const> inputs, const Attrs& attrs,
                       std::source_location where) const;
  Tensor known_result(ValueId id);
  void keep_known_handles();
  const Memory* memory_of(ValueId root) const;
  Memory* memory_of(ValueId root);
  const Memory* memory_of(const Storage& storage) const;
  // The memory of a call's target. May add it. Null: `why` says why it cannot be known.
  Memory* memory_to_write(const Tensor& target, bool differentiable, const char*& why);
  // These return null, or a reason.
  const char* why_not_go_on(const Memory& memory, bool differentiable) const;
  const char* why_not_begin(const Tensor& base, bool differentiable) const;
  const char* why_not_write(const Tensor& target, bool differentiable, std::source_location where,
                            std::span<const Tensor* const> inputs, const OpDef& op) const;
  bool can_read_all(std::span<const Tensor* const> inputs) const;
  bool has_unreadable_view(const Memory& memory) const;
  bool follows_history(ValueId id) const;
  // By operand: what stands for it, or undefined.
  std::vector<Tensor> operands_apart(const OpDef& op, std::span<const Tensor* const> inputs, const Memory& memory,
                                     std::source_location where);
  void drop_unread_views();
  ValueId record_placed(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, ValueId whole,
                        const Value& shown, bool differentiable, std::source_location where);
  ValueId record_overwrite(ValueId whole, const Value& shown, std::span<const Tensor* const> operands,
                           const Attrs& numbers, bool differentiable, std::source_location where);
  ValueId record_version(const OpDef& op, std::span<const Tensor* const> operands, const Attrs& attrs, Tensor result,
                         std::source_location where);
  // From here on the user's handle of memory outside of the recording stands for recorded values.
  void adopt(Memory& memory);
  // `next` is the value of the memory from here on.
  void advance(Memory& memory, ValueId next);
  // What a value of an earlier version shows of the present one.
  ValueId renewed(ValueId id);
  ValueId show_again(ValueId view, ValueId root);
  ValueId show_with_history(ValueId view, ValueId root);
  ValueId show_at_place(ValueId view, ValueId root, bool with_history);
  // As renewed(), for a user's handle; it stands for the result from here on.
  ValueId renew(TensorImpl& handle);
  ValueId move_to(TensorImpl& handle, ValueId now);
  bool may_wait(ValueId id) const;
  ValueId read_of_written(const Tensor& outside);
  // A handle of the recording's own.
  Tensor own_handle(ValueId id) const;
  Tensor result_like(ValueId id, bool requires_grad) const;
  // Memory of an earlier recording on this thread: a region records on every call, and should not allocate for it.
  struct Spare {
    Graph graph;
    std::vector<Tensor> handles, external;
    HashMap<const TensorImpl*, ValueId> external_ids;
    std::vector<Tensor> known_handles;
    uint64_t known_handles_of = 0;
  };

  // Keeps, of `handles` (by value), those that the nodes read or make; the others are undefined.
  static std::vector<Tensor> needed(std::span<const GraphNode> nodes, const std::vector<Tensor>& handles);
  std::source_location user_of(std::source_location where);
  ValueId add_value(Tensor handle, int32_t producer);
  std::vector<Tensor> handles_;  // by value
  std::vector<Tensor> external_;
  HashMap<const TensorImpl*, ValueId> external_ids_;
  SharedRandomState* const draws_;
  KnownRecording known_;  // that is followed; without a graph: none
  size_t n_known_ = 0;    // calls that were the same so far
  RecordedFloats known_floats_;
  // By value of the recording of that number, to be used again; undefined, or missing at the end: none.
  std::vector<Tensor> known_handles_;
  uint64_t known_handles_of_ = 0;
  std::vector<Memory> memories_;
  std::vector<ValueId> waiting_;
  bool counts_as_writing_ = false;   // in writing_recordings
  std::vector<int32_t> memory_at_;   // by root value, of memories_; -1, or beyond the end: it is not written
  const char* user_file_ = nullptr;  // known not to be Rondo's own
};

}  // namespace rondo::compile
