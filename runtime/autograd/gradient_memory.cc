#include "rondo/runtime/autograd/gradient_memory.h"

#include <utility>

#include "rondo/runtime/autograd/node.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::autograd {

namespace {
thread_local bool last_read = false;
struct One {
  Tensor tensor;
  uint32_t version = 0;
};
One& known_one() {
  thread_local One one;
  return one;
}

bool owns_memory_alone(const Tensor& tensor) {
  return tensor.defined() && tensor.impl()->storage && tensor.impl()->storage.is_unique() &&
         !tensor.impl()->storage.is_borrowed();
}
}  // namespace

KnownOne::KnownOne(Tensor one) : previous_(known_one().tensor), previous_version_(known_one().version) {
  const uint32_t version = one.defined() ? one.version() : 0;
  known_one() = {std::move(one), version};
}
KnownOne::~KnownOne() { known_one() = {std::move(previous_), previous_version_}; }
bool is_known_one(const Tensor& gradient) {
  const One& one = known_one();
  return one.tensor.defined() && gradient.impl() == one.tensor.impl() && gradient.version() == one.version;
}

LastRead::LastRead(bool last) : previous_(std::exchange(last_read, last)) {}
LastRead::~LastRead() { last_read = previous_; }
bool LastRead::now() { return last_read; }

bool overlaps_itself(const Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  for (int i = 0; i < tensor.rank(); ++i)
    if (tensor.strides()[i] == 0 && tensor.sizes()[i] > 1) return true;
  return false;
}

bool is_only_holder(const Tensor& tensor) { return owns_memory_alone(tensor) && tensor.impl()->refs.load() == 1; }

bool may_overwrite(const Tensor& gradient) { return !grad_enabled() && may_add_slices_in_place(gradient); }

// If a node had saved the gradient, the saved tensor would be a second holder of the memory. So a gradient with one
// holder is saved by no node.
bool may_add_slices_in_place(const Tensor& gradient) {
  return active_recorder() == nullptr && is_only_holder(gradient) && gradient.is_contiguous() &&
         !(grad_enabled() && gradient.requires_grad() && gradient.is_leaf());
}

bool may_become_grad(const Tensor& gradient) { return is_only_holder(gradient) && gradient.is_contiguous(); }

Tensor apart_from_grads(Tensor gradient) {
  return gradient.storage().purpose() == Purpose::kGradients ? gradient.clone() : std::move(gradient);
}

// The node and its gradient rule both hold the handle, so counting handles says
// nothing. Only the holders of the memory are counted.
bool may_overwrite_saved(const Tensor& saved) {
  return last_read && active_recorder() == nullptr && owns_memory_alone(saved);
}

}  // namespace rondo::autograd
