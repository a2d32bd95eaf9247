#include "rondo/runtime/autograd/leaf.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/base/error.h"

namespace rondo::autograd {

int64_t on_accumulated(const Tensor& leaf, std::function<void()> fn) {
  if (!leaf.defined() || !leaf.requires_grad() || !leaf.is_leaf())
    throw Error("on_accumulated: the tensor is not a leaf that requires a gradient");
  if (!fn) throw Error("on_accumulated: the function is empty");
  accumulator_of(leaf);  // makes the leaf's GradSlot
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
  accumulator_of(leaf);  // makes the leaf's GradSlot
  const char*& owner = leaf.impl()->autograd->slot->claims[static_cast<size_t>(claim)];
  if (owner != nullptr)
    throw Error(absl::StrCat(who, ": the gradients of these parameters are already taken by ", owner));
  owner = who;
  if (claim == GradientClaim::kAverager) leaf.impl()->autograd->slot->listener = listener;
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
  if (claim == GradientClaim::kAverager) slot->listener = nullptr;
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
