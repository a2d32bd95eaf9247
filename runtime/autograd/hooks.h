// Hooks on gradients, and gradients that retain_grad() asked for. backward() runs those of a node's outputs before the
// node; a node that stands for several ops (Node::adds_to_totals) runs them itself, since the gradient of one output
// may flow through another.
#pragma once

#include <span>
#include <vector>

#include "rondo/runtime/autograd/node.h"

namespace rondo::autograd {

// Each hook may replace the gradient.
void run_hooks(std::vector<Hook> hooks, Tensor& grad);

// Runs the hooks of `node`'s outputs on their complete gradients. A hook may replace a gradient. Then retains what
// retain_grad() asked for.
void apply_extras(Node& node, std::span<Tensor> grads);

// Adds to a retained gradient, or makes it: a copy of its own.
void retain(GradSlot& slot, const Tensor& grad);

}  // namespace rondo::autograd
