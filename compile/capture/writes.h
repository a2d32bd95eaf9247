// A trace that records writes in place: Note [Writes] in writes.cc.
#pragma once

#include <algorithm>
#include <vector>

#include "rondo/compile/capture/trace.h"

namespace rondo::compile {

// Tracks the memory that recorded calls write, and the versions of its values. Until the first write it behaves as
// a plain Trace.
class WritingTrace : public Trace {
 public:
  ~WritingTrace() override;
  // Does what Trace::value_of() does. For a tensor in written memory, returns the value in the current version of the
  // memory.
  ValueId value_of(const Tensor& tensor, std::source_location where = std::source_location::current()) override;

  bool has_writes() const { return !memories_.empty(); }
  // Call at the end of a recording: makes all live handles show the last version of their memory.
  void refresh();
  // True if a recorded call writes memory of `storage`.
  bool writes(const Storage& storage) const { return memory_of(storage) != nullptr; }
  // If `id` is a version of a tensor outside of the recording, returns that tensor; otherwise null.
  const Tensor* written_tensor(ValueId id) const;
  // If `id` is a view of written memory that stands for a tensor outside of the recording, returns it; otherwise null.
  const Tensor* outside_view(ValueId id) const;
  // True if `id` is a version of a tensor from outside, and the recorded writes do not change that tensor's history.
  bool keeps_history(ValueId id) const;
  // True for a view that nothing has read since its base got a new history: Note [Stale views].
  bool is_left_stale(ValueId id) const {
    return std::find(stale_views_.begin(), stale_views_.end(), id) != stale_views_.end();
  }

 protected:
  // Records a call that overwrites *inputs[0] as a call that makes a new version of its memory. `next`: a new handle
  // for the result. Returns null on success. If the write cannot be recorded, returns the reason and changes nothing.
  const char* record_write(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, Tensor& next,
                           std::source_location where);
  // True if a recorded call can read `tensor`. False if `tensor` comes from outside and lies in memory that a recorded
  // call writes, but at an unknown place.
  bool can_read(const Tensor& tensor) const;
  void abandon() override;

  // Memory that recorded calls write.
  struct Memory {
    // The tensor from outside that covers all written elements. Undefined: the recording itself made the memory.
    Tensor tensor;
    int32_t input = -1;     // the position of `tensor` in graph.inputs
    bool recorded = false;  // the recording gives `tensor` a history; its handle stands for a value until the run
    ValueId first = kNoValue, current = kNoValue;  // versions of the memory; each is dense and its own root
    std::vector<Tensor> others = {};  // other tensors from outside that were read in this memory; kept alive
  };
  const std::vector<Memory>& memories() const { return memories_; }
  const Memory* memory_of(ValueId root) const;
  const Memory* memory_of(const Storage& storage) const;
  // After reserve_memory(current), add_memory() does not allocate.
  void reserve_memory(ValueId current);
  Memory& add_memory(Memory memory);

 private:
  Memory* memory_of(ValueId root);
  // Returns the Memory that holds the target of a call, and adds it if it is new. Returns null if the write cannot be
  // recorded; then `why` is the reason.
  Memory* memory_to_write(const Tensor& target, bool differentiable, const char*& why);
  // The next three functions return null if the write can be recorded, otherwise the reason why it is a graph break.
  const char* write_break_reason(const Tensor& target, bool differentiable, std::source_location where,
                                 std::span<const Tensor* const> inputs, const OpDef& op) const;
  // `base`: no recorded call has written its memory.
  const char* first_write_break_reason(const Tensor& base, bool differentiable) const;
  const char* later_write_break_reason(const Memory& memory, bool differentiable) const;
  bool can_read_all(std::span<const Tensor* const> inputs) const;
  bool has_unreadable_view(const Memory& memory) const;
  bool follows_history(ValueId id) const;
  // Returns, by operand: a tensor that replaces the operand in the recorded call, or undefined.
  std::vector<Tensor> operands_apart(const OpDef& op, std::span<const Tensor* const> inputs, const Memory& memory,
                                     std::source_location where);
  void drop_unread_views();
  ValueId record_placed(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, ValueId whole,
                        const Value& shown, bool differentiable, std::source_location where);
  ValueId record_overwrite(ValueId whole, const Value& shown, std::span<const Tensor* const> operands,
                           const Attrs& numbers, bool differentiable, std::source_location where);
  ValueId record_version(const OpDef& op, std::span<const Tensor* const> operands, const Attrs& attrs, Tensor result,
                         std::source_location where);
  // From this call on, the user's handle of a tensor from outside stands for recorded values.
  void adopt(Memory& memory);
  // Makes `next` the current version of the memory.
  void advance(Memory& memory, ValueId next);
  // Returns the value in the current version that corresponds to `id`, a value of an earlier version.
  ValueId renewed(ValueId id);
  ValueId rebuild_view(ValueId view, ValueId root);
  ValueId rebuild_view_with_history(ValueId view, ValueId root);
  ValueId rebuild_as_view_of_root(ValueId view, ValueId root, bool with_history);
  // Like renewed(), for the value of a user's handle. From this call on, the handle stands for the returned value.
  ValueId renew(TensorImpl& handle);
  ValueId move_to(TensorImpl& handle, ValueId now);
  bool may_stay_stale(ValueId id) const;
  ValueId read_of_written(const Tensor& outside);
  // Makes a new handle for the value. Only the recording holds it.
  Tensor own_handle(ValueId id) const;
  Tensor result_like(ValueId id, bool requires_grad) const;

  std::vector<Memory> memories_;
  std::vector<int32_t> memory_at_;  // index into memories_, by root value; -1, or beyond the end: not written
  std::vector<ValueId> stale_views_;
  bool counts_as_writing_ = false;  // this is counted in writing_recordings
};

}  // namespace rondo::compile
