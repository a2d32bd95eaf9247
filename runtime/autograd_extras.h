// Hooks and retained gradients of a node's outputs. backward() runs them before the node; a node that stands for
// several ops (Node::adds_to_totals) runs them itself, since the gradient of one output may flow through another.
#pragma once

#include <memory>
#include <span>

#include "rondo/runtime/autograd.h"

namespace rondo::autograd {

// Runs the hooks of `node`'s outputs on their complete gradients. A hook may replace a gradient. Then retains what
// retain_grad() asked for.
void apply_extras(Node& node, std::span<Tensor> grads);

// Adds to a retained gradient, or makes it: a copy of its own.
void retain(GradSlot& slot, const Tensor& grad);

// The history that the results which `node` has saved get for a second derivative: `to`, output by output, instead of
// `node` itself. Whoever calls this keeps `to` alive.
void set_history_of_saved_results(Node& node, const std::shared_ptr<Node>& to);

}  // namespace rondo::autograd
