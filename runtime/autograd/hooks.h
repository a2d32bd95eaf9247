// Hooks on gradients, and gradients that retain_grad() asked for. backward() runs the hooks of a node's outputs before
// it runs the node. A node that stands for several ops (Node::adds_to_totals) runs them itself, since the gradient of
// one output may flow through another.
#pragma once

#include <span>
#include <vector>

#include "rondo/runtime/autograd/node.h"

namespace rondo::autograd {

// Runs the hooks in order. Each may replace `grad`.
void run_hooks(std::vector<Hook> hooks, Tensor& grad);

// Runs the hooks of `node`'s outputs on their complete gradients. A hook may replace a gradient. Then adds
// to the gradients that retain_grad() requested.
void apply_extras(Node& node, std::span<Tensor> grads);

// Adds `grad` to the retained gradient of `slot`. The first gradient is copied, so that nothing else shares its memory.
void retain(GradSlot& slot, const Tensor& grad);

}  // namespace rondo::autograd
