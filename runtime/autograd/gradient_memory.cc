#include "rondo/runtime/autograd/gradient_memory.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/autograd_extras.h"
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

bool is_only_holder(const Tensor& tensor) { return owns_memory_alone(tensor) && tensor.impl()->refs.load() == 1; }

bool may_overwrite(const Tensor& gradient) { return !grad_enabled() && may_add_slices_in_place(gradient); }

// A saved tensor shares the memory, so what is held once is saved by nobody.
bool may_add_slices_in_place(const Tensor& gradient) {
  return active_recorder() == nullptr && is_only_holder(gradient) && gradient.is_contiguous() &&
         !(grad_enabled() && gradient.requires_grad() && gradient.is_leaf());
}

bool may_become_grad(const Tensor& gradient) { return is_only_holder(gradient) && gradient.is_contiguous(); }

Tensor apart_from_grads(Tensor gradient) {
  return gradient.storage().purpose() == Purpose::kGradients ? gradient.clone() : std::move(gradient);
}

// The node and its gradient rule both hold the handle, so only the memory is asked about.
bool may_overwrite_saved(const Tensor& saved) {
  return last_read && active_recorder() == nullptr && owns_memory_alone(saved);
}

void end_graphs_of_leaf(const Tensor& leaf, const std::string& error) {
  AutogradMeta* meta = leaf.impl()->autograd.get();
  if (meta == nullptr || meta->accumulator.expired()) return;  // no graph leads to it
  auto next = std::make_shared<GradSlot>(*meta->slot);
  *meta->slot = {};
  meta->slot->hooks.push_back({-1, [error](const Tensor&) -> Tensor { throw Error(error); }});
  meta->slot = std::move(next);
  meta->accumulator.reset();
}

int64_t on_accumulated(const Tensor& leaf, std::function<void()> fn) {
  if (!leaf.defined() || !leaf.requires_grad() || !leaf.is_leaf())
    throw Error("on_accumulated: the tensor is not a leaf that requires a gradient");
  gradient_edge(leaf);  // makes the slot
  static std::atomic<int64_t> next_id{0};
  const int64_t id = next_id.fetch_add(1);
  leaf.impl()->autograd->slot->accumulated.emplace_back(id, std::move(fn));
  return id;
}
void remove_on_accumulated(const Tensor& leaf, int64_t id) {
  if (!leaf.defined() || leaf.impl()->autograd == nullptr || leaf.impl()->autograd->slot == nullptr) return;
  std::erase_if(leaf.impl()->autograd->slot->accumulated, [id](const auto& entry) { return entry.first == id; });
}

void claim_gradient(const Tensor& leaf, GradientClaim claim, const char* who, UpdateListener* listener) {
  if (!leaf.defined() || !leaf.requires_grad() || !leaf.is_leaf())
    throw Error(absl::StrCat(who, ": the tensor is not a leaf that requires a gradient"));
  gradient_edge(leaf);  // makes the slot
  const char*& owner = leaf.impl()->autograd->slot->claims[static_cast<size_t>(claim)];
  if (owner != nullptr)
    throw Error(absl::StrCat(who, ": the gradients of these parameters are already taken by ", owner));
  owner = who;
  if (claim == GradientClaim::kChanges) leaf.impl()->autograd->slot->listener = listener;
}
namespace {
GradSlot* slot_of(const Tensor& leaf) {
  const bool has_slot = leaf.defined() && leaf.impl()->autograd != nullptr;
  return has_slot ? leaf.impl()->autograd->slot.get() : nullptr;
}
}  // namespace
void unclaim_gradient(const Tensor& leaf, GradientClaim claim) {
  GradSlot* const slot = slot_of(leaf);
  if (slot == nullptr) return;
  slot->claims[static_cast<size_t>(claim)] = nullptr;
  if (claim == GradientClaim::kChanges) slot->listener = nullptr;
}
const char* gradient_claim(const Tensor& leaf, GradientClaim claim) {
  const GradSlot* const slot = slot_of(leaf);
  return slot != nullptr ? slot->claims[static_cast<size_t>(claim)] : nullptr;
}
UpdateListener* update_listener(const Tensor& leaf) {
  const GradSlot* const slot = slot_of(leaf);
  return slot != nullptr ? slot->listener : nullptr;
}

}  // namespace rondo::autograd
