#include "rondo/runtime/op/recorder.h"

#include <utility>

namespace rondo {

constinit thread_local Recorder* detail::recorder = nullptr;
constinit thread_local int writing_recordings = 0;

namespace {
thread_local RecorderScope* innermost_scope = nullptr;
}

RecorderScope::RecorderScope(Recorder* r) : recorder_(r), outer_(std::exchange(innermost_scope, this)) {
  detail::recorder = r;
}
RecorderScope::~RecorderScope() {
  innermost_scope = outer_;
  detail::recorder = outer_ == nullptr ? nullptr : outer_->recorder_;
}

bool Recorder::append_known(const OpDef&, std::span<const Tensor* const>, const Attrs&, std::span<Tensor>,
                            std::source_location) {
  return false;
}
void Recorder::before_write(const Storage&, std::source_location) {}
void Recorder::before_read(const Storage&, std::source_location) {}
void Recorder::before_history_change(const Tensor&, std::source_location) {}
void Recorder::interrupt(const char* what, std::source_location where) {
  throw_internal(std::string("a rule that is traced may not call this: ") + what, where);
}

// Asks all scopes, because a scope in which ops run may lie inside of a scope whose recording is pending.
void before_write(const Storage& storage, std::source_location where) {
  for (RecorderScope* scope = innermost_scope; scope != nullptr; scope = scope->outer_)
    if (scope->recorder_ != nullptr) scope->recorder_->before_write(storage, where);
}

void before_read_of_written(const Storage& storage, std::source_location where) {
  for (RecorderScope* scope = innermost_scope; scope != nullptr; scope = scope->outer_)
    if (scope->recorder_ != nullptr) scope->recorder_->before_read(storage, where);
}

void settle_history(const Tensor& tensor, std::source_location where) {
  const TensorImpl& impl = *tensor.impl();
  if (impl.recorder != nullptr) impl.recorder->interrupt("the history of a value is asked for", where);
  if (impl.storage) before_read(impl.storage, where);  // a pending write may replace this history
}

void before_history_change(const Tensor& tensor, std::source_location where) {
  settle_history(tensor, where);
  for (RecorderScope* scope = innermost_scope; scope != nullptr; scope = scope->outer_)
    if (scope->recorder_ != nullptr) scope->recorder_->before_history_change(tensor, where);
}

namespace {
Recorder* interrupted(const char* what, std::source_location where) {
  if (active_recorder() != nullptr) active_recorder()->interrupt(what, where);
  return nullptr;
}
}  // namespace
RecordingPause::RecordingPause(const char* what, std::source_location where) : eager_(interrupted(what, where)) {}

}  // namespace rondo
