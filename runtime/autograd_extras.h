// What a node's own backward may need. Nodes that stand for several ops (Node::adds_to_totals): the gradient of one
// output may flow through another, so backward() leaves hooks and retained gradients of such a node to its own
// backward().
#pragma once

#include <span>

#include "rondo/runtime/autograd.h"

namespace rondo::autograd {

// Runs the hooks of `node`'s outputs on their complete gradients, which a hook may replace, and keeps what is retained.
void apply_extras(Node& node, std::span<Tensor> grads);

// True while a node's backward() runs that is the last to read what the node saved: release_saved() follows.
bool releasing();

// True if the memory is gone when `tensor` is: nobody else holds either.
bool is_only_holder(const Tensor& tensor);

// True if nobody else can see a gradient on its way change, so that another may be added to it in place: those of a
// tied embedding, say, are too large for a third copy.
bool may_overwrite(const Tensor& tensor);

}  // namespace rondo::autograd
