// Callbacks on the gradient of a leaf, and claims to it: which averager may overwrite it, and which
// optimizer may free it.
#pragma once

#include <functional>

#include "rondo/runtime/autograd/node.h"

#pragma GCC visibility push(default)
namespace rondo::autograd {

// Calls fn at the end of each accumulation into leaf.grad(), from within backward(). Returns an id for
// remove_on_accumulated. fn may add other callbacks, which run from the next backward on, and remove itself or others.
// Throws Error if fn is empty, or unless `leaf` is a leaf that requires grad.
int64_t on_accumulated(const Tensor& leaf, std::function<void()> fn);
void remove_on_accumulated(const Tensor& leaf, int64_t id);

// A claim has one owner at a time: a second owner would see only what the first has left. `who` names the owner in
// messages and must outlive the claim. claim_gradient throws Error if the claim has an owner, or if `leaf` is not a
// leaf that requires grad.
void claim_gradient(const Tensor& leaf, GradientClaim claim, const char* who, UpdateListener* listener = nullptr);
void unclaim_gradient(const Tensor& leaf, GradientClaim claim);
const char* gradient_claim(const Tensor& leaf, GradientClaim claim);  // the owner; null if there is none
UpdateListener* update_listener(const Tensor& leaf);                  // the averager's listener, or null

}  // namespace rondo::autograd
#pragma GCC visibility pop
