#include "rondo/runtime/gradient_memory.h"

#include "rondo/runtime/autograd.h"
#include "rondo/runtime/recorder.h"

namespace rondo::autograd {

namespace {
thread_local bool last_read = false;

bool owns_memory_alone(const Tensor& tensor) {
  return tensor.defined() && tensor.impl()->storage && tensor.impl()->storage.is_unique() &&
         !tensor.impl()->storage.is_borrowed();
}
}  // namespace

LastRead::LastRead(bool last) : previous_(std::exchange(last_read, last)) {}
LastRead::~LastRead() { last_read = previous_; }
bool LastRead::now() { return last_read; }

bool is_only_holder(const Tensor& tensor) { return owns_memory_alone(tensor) && tensor.impl()->refs.load() == 1; }

bool may_overwrite(const Tensor& gradient) {
  return !grad_enabled() && active_recorder() == nullptr && is_only_holder(gradient) && gradient.is_contiguous();
}

bool may_become_grad(const Tensor& gradient) { return is_only_holder(gradient) && gradient.is_contiguous(); }

Tensor apart_from_grads(Tensor gradient) {
  return gradient.storage().purpose() == Purpose::kGradients ? gradient.clone() : std::move(gradient);
}

// The node and its gradient rule both hold the handle, so only the memory is asked about.
bool may_overwrite_saved(const Tensor& saved) {
  return last_read && active_recorder() == nullptr && owns_memory_alone(saved);
}

}  // namespace rondo::autograd
