// A trace that records writes in place: Note [Writes] in writes.cc.
#pragma once

#include <algorithm>
#include <vector>

#include "rondo/compile/capture/trace.h"

namespace rondo::compile {

// Knows the memory that recorded calls write, and the versions of its values. Without a write it is a plain Trace.
class WritingTrace : public Trace {
 public:
  ~WritingTrace() override;
  // Of written memory: the present version.
  ValueId value_of(const Tensor& tensor, std::source_location where = std::source_location::current()) override;

  bool has_writes() const { return !memories_.empty(); }
  // At the end of a recording: handles that are still alive show the last version of their memory.
  void refresh();
  // A recorded call writes memory of `storage`.
  bool writes(const Storage& storage) const { return memory_of(storage) != nullptr; }
  // The tensor outside of the recording of which `id` is a version; null: there is none.
  const Tensor* written_tensor(ValueId id) const;
  // The tensor outside of the recording that `id`, a view of written memory, stands for; null: there is none.
  const Tensor* outside_view(ValueId id) const;
  // True for a version of such a tensor whose history the writes leave alone.
  bool keeps_history(ValueId id) const;
  // True for a view that nothing has read since its base got a new history: Note [Views that wait].
  bool waits(ValueId id) const { return std::find(waiting_.begin(), waiting_.end(), id) != waiting_.end(); }

 protected:
  // Records a call that overwrites *inputs[0] as one that makes a new version of its memory; `next` is a new handle for
  // the result. Returns null, or why that cannot be said without a guess; then nothing has changed.
  const char* record_write(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, Tensor& next,
                           std::source_location where);
  // False for a tensor outside of the recording in memory that a recorded call writes, whose place in it is unknown.
  bool can_read(const Tensor& tensor) const;
  void abandon() override;

  // Memory that recorded calls write.
  struct Memory {
    // Outside of the recording: what covers everything that is written; undefined: it is the recording's.
    Tensor tensor;
    int32_t input = -1;     // the position of `tensor` in graph.inputs
    bool recorded = false;  // `tensor` gets a history here; until the run, its handle stands for the value
    ValueId first = kNoValue, current = kNoValue;  // versions; each is dense and its own root
    std::vector<Tensor> others = {};               // tensors outside of the recording that were read since, kept alive
  };
  const std::vector<Memory>& memories() const { return memories_; }
  const Memory* memory_of(ValueId root) const;
  const Memory* memory_of(const Storage& storage) const;
  // After reserve_memory(current), add_memory() needs no memory of its own.
  void reserve_memory(ValueId current);
  Memory& add_memory(Memory memory);

 private:
  Memory* memory_of(ValueId root);
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

  std::vector<Memory> memories_;
  std::vector<int32_t> memory_at_;  // by root value, of memories_; -1, or beyond the end: it is not written
  std::vector<ValueId> waiting_;
  bool counts_as_writing_ = false;  // in writing_recordings
};

}  // namespace rondo::compile
