// The interface that tracing implements (compile/). While a Recorder is active on a thread, ops append to it instead of
// running. The tensors they return have no storage until the recording is flushed.
#pragma once

#include <span>

#include "rondo/runtime/op/op.h"

namespace rondo {

class Recorder {
 public:
  virtual ~Recorder() = default;
  // Appends a call. `outputs` are new tensors with metadata and `requires_grad`, but without storage; the recorder sets
  // their `recorder` field. For an in-place call outputs[0] is a new handle for the new value of *inputs[0].
  virtual void record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                      std::span<Tensor> outputs, bool in_place, std::source_location where) = 0;
  // Called before the results of a call are inferred, and before record(). Returns true if the recorder knows the call
  // from an earlier recording; it has then appended the call and made `outputs`. If it returns false, nothing has
  // changed.
  virtual bool append_known(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                            std::span<Tensor> outputs, std::source_location where);
  // Called when the data of `tensor` is read while its value is only recorded. The recorder runs what is recorded (a
  // graph break), so that `tensor` and every other live value gets storage.
  virtual void flush(const TensorImpl& tensor, std::source_location where) = 0;
  // As flush(), called when a hook or retain_grad() asks for the gradient of `tensor`. Ops recorded after `tensor` was
  // made must then run separately, so that its whole gradient passes through the tape.
  virtual void flush_gradient(const TensorImpl& tensor, std::source_location where) { flush(tensor, where); }
  // The caller is about to write the memory of `storage` without an op: if a recorded call reads it, run what is
  // recorded first (a graph break).
  virtual void before_write(const Storage& storage, std::source_location where);
  // The caller is about to read the memory of `storage` without an op: if a recorded call writes it, run what is
  // recorded first (a graph break).
  virtual void before_read(const Storage& storage, std::source_location where);
  // `tensor`, which has storage, is about to get another history on the tape. If a recorded call reads it, run what is
  // recorded first (a graph break): each call's gradient flows to the history that its operands had at that call.
  virtual void before_history_change(const Tensor& tensor, std::source_location where);
  // The caller is about to do something that no op describes, for example a backward. `what` names it in messages. Run
  // what is recorded (a graph break); the caller then records nothing until it is done.
  virtual void interrupt(const char* what, std::source_location where);
};

namespace detail {
extern constinit thread_local Recorder* recorder;
}
// Returns the recorder of this thread, or null.
inline Recorder* active_recorder() { return detail::recorder; }

// While in scope, this thread's ops go to `recorder`; null: they run.
class RecorderScope {
 public:
  explicit RecorderScope(Recorder* recorder);
  ~RecorderScope();
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  friend void before_write(const Storage& storage, std::source_location where);
  friend void before_read_of_written(const Storage& storage, std::source_location where);
  friend void before_history_change(const Tensor& tensor, std::source_location where);
  Recorder* recorder_;
  RecorderScope* outer_;
};

// REQUIRED before memory that a tensor may share is written through a pointer (Tensor::raw_mutable_data does it):
// recordings of this thread that read the memory run first. A recording reads memory when it runs, not when an op is
// recorded.
void before_write(const Storage& storage, std::source_location where = std::source_location::current());

// The number of this thread's recordings that write memory which tensors outside of them share.
extern constinit thread_local int writing_recordings;
// REQUIRED before memory that a recording may write is read (Tensor::raw_data calls it): the recordings that write the
// memory run first.
void before_read_of_written(const Storage& storage, std::source_location where);
inline void before_read(const Storage& storage, std::source_location where) {
  if (writing_recordings > 0) [[unlikely]]
    before_read_of_written(storage, where);
}

// REQUIRED before the history of `tensor` on the tape is read: a recorded value has none until it is computed.
void settle_history(const Tensor& tensor, std::source_location where);
// REQUIRED before the history of `tensor` changes.
void before_history_change(const Tensor& tensor, std::source_location where);

// Runs what this thread has recorded so far (Recorder::interrupt). While in scope, ops run instead of being recorded.
// Has no effect on a thread that records nothing.
class RecordingPause {
 public:
  RecordingPause(const char* what, std::source_location where);

 private:
  RecorderScope eager_;
};

}  // namespace rondo
