// Gradients: backward() and grad() over the tape, the graph of nodes (node.h) that differentiable calls have made.
// Nodes run in reverse order of creation, so gradients are summed in a fixed order.
//
//   {
//     NoGrad off;                                   // nothing is recorded in this scope
//     w.add_(update);
//   }
//   auto grads = autograd::grad({&loss, 1}, inputs);  // returned, not accumulated into .grad
//
// Note [Gradients do not alias]. After backward(), the .grad of a leaf shares memory with no other .grad, not with the
// gradient the caller passed in, and not with what a hook returned. The results of grad() share memory neither with
// each other nor with the caller's gradients. The one exception is set_grad(), which keeps the tensor it is given.
//
// Thread safety: grad mode is a setting of the thread. Two threads may run backward() at the same time if no leaf, hook
// or retained gradient is reached by both.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "rondo/runtime/autograd/history.h"
#include "rondo/runtime/autograd/leaf.h"
#include "rondo/runtime/autograd/node.h"
#include "rondo/runtime/base/source_location.h"

#pragma GCC visibility push(default)
namespace rondo::autograd {

// Returns the gradients of `roots` with respect to `inputs`, and accumulates nothing into .grad. grads[i] is the
// gradient of roots[i]. If grads[i] is missing or undefined, roots[i] must have one element, and the gradient is 1.
std::vector<Tensor> grad(std::span<const Tensor> roots, std::span<const Tensor> inputs,
                         std::span<const Tensor> grads = {}, bool retain_graph = false, bool create_graph = false,
                         bool allow_unused = false, std::source_location where = std::source_location::current());
void backward(std::span<const Tensor> roots, std::span<const Tensor> grads, bool retain_graph, bool create_graph,
              std::source_location where);

// Activation checkpointing: runs fn without saving tensors, and runs it again during backward. Both runs draw the same
// random numbers, from whatever generators fn uses on this thread; the second run leaves each generator as it found it.
// Collectives (ops::all_reduce_sum) run once: the checkpoint keeps their sums for the second run. fn must not have
// other side effects. While a region is recorded, fn is simply part of it.
//
// fn may capture leaves, such as parameters: backward() adds to their .grad, and grad() with respect to them is an
// Error. Any other tensor that requires grad and was computed outside of fn must be one of `inputs`; it is an Error if
// fn captures it. create_graph through a checkpoint is an Error.
std::vector<Tensor> checkpoint(std::function<std::vector<Tensor>(std::span<const Tensor>)> fn,
                               std::span<const Tensor> inputs);

}  // namespace rondo::autograd
#pragma GCC visibility pop
