// The interface that tracing implements (compile/). While a Recorder is active on a thread, ops append to it instead of
// running. The tensors they return have no storage until the recording is flushed.
#pragma once

#include <span>

#include "rondo/runtime/op.h"

namespace rondo {

class Recorder {
 public:
  virtual ~Recorder() = default;
  // Appends a call. `outputs` are new tensors with metadata and `requires_grad`, but without storage; the recorder sets
  // their `recorder` field. For an in-place call outputs[0] is a new handle for the new value of *inputs[0].
  virtual void record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                      std::span<Tensor> outputs, bool in_place, std::source_location where) = 0;
  // The data of `tensor` is read, but it is only recorded. The recorder runs what is recorded (a graph break), so that
  // `tensor` and every other live value gets storage.
  virtual void flush(const TensorImpl& tensor, std::source_location where) = 0;
  // As flush, when the gradient of `tensor` is asked for (a hook). Ops recorded after `tensor` was made must then run
  // separately, so that its whole gradient passes through the tape.
  virtual void flush_gradient(const TensorImpl& tensor, std::source_location where) { flush(tensor, where); }
};

// The recorder of this thread, or null.
Recorder* active_recorder();

class RecorderScope {
 public:
  explicit RecorderScope(Recorder* recorder);  // null: ops run again
  ~RecorderScope();
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  Recorder* previous_;
};

}  // namespace rondo
