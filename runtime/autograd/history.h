// The history of a tensor: the node that made the tensor. The tensor's gradient enters the tape at this node. A
// differentiable write in place gives the tensor a new history.
//
// Note [Views]. A view remembers its base, so that a write through the view reaches the base's history and a write to
// the base reaches the view's. A view made under no_grad has no history. A write to such a view is an error in grad
// mode if a gradient would pass through the write or through the base. After its base was overwritten, reading such a
// view is an error, too, if a gradient would pass. detach() gives a tensor that is no view in this sense.
#pragma once

#include <memory>

#include "rondo/runtime/autograd/node.h"
#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/op/op.h"

#pragma GCC visibility push(default)
namespace rondo {

// A tensor saved for backward. get() throws StaleTensorError if the tensor was overwritten in place after it was saved.
class SavedTensor {
 public:
  SavedTensor() = default;
  // `is_output`: the node that saves the tensor also made it. The saved tensor then leaves out its history, because
  // otherwise node and tensor would own each other.
  SavedTensor(const Tensor& tensor, bool is_output, std::source_location where = std::source_location::current());
  const Tensor& get(const char* op, std::source_location where) const;
  bool defined() const { return tensor_.defined(); }
  bool overwritten() const { return tensor_.defined() && tensor_.version() != version_; }

 private:
  Tensor tensor_;
  uint32_t version_ = 0;
};

namespace autograd {

// Returns the edge along which the gradient of `tensor` flows; an empty edge if `tensor` needs no gradient. Throws
// Error for a view made under no_grad whose base was overwritten since (Note [Views]). Inside a compiled region, the
// call is a graph break if `tensor` is the result of an op of the region.
Edge gradient_edge(const Tensor& tensor, std::source_location where = std::source_location::current());
// Makes `tensor`, of a floating dtype, output `output` of `node`. Tensors that were computed from `tensor` before keep
// their history. Inside a compiled region, the call is a graph break if an op of the region has made or read `tensor`.
void set_history(Tensor& tensor, std::shared_ptr<Node> node, int output,
                 std::source_location where = std::source_location::current());

// ---- For the runtime

// Like set_history(), for a tensor that no recording has made or read.
void put_history(Tensor& tensor, std::shared_ptr<Node> node, int output);
// Like put_history(), for a tensor that `node` has overwritten. If `target` is a view, its base gets a new history,
// too.
void put_history_of_write(Tensor& target, std::shared_ptr<Node> node);
// Throws Error if `target` must not be overwritten: two of its elements share memory, or the write would make a
// gradient wrong. `differentiable`: a gradient passes through the write.
void check_in_place(const OpDef& op, const Tensor& target, bool differentiable, std::source_location where);
// Throws Error if operand `input` is a view made under no_grad whose base was overwritten since, and the base requires
// grad.
void check_operand(const OpDef& op, const Tensor& input, std::source_location where);
// Makes `base` (or base's own base) the base of `view`: Note [Views]. `under_no_grad`: the view was made under no_grad.
void mark_view(Tensor& view, const Tensor& base, bool under_no_grad);
// Marks a view that was made under no_grad and is only recorded. It gets its base when its region has run.
void mark_no_grad_view(Tensor& view);
bool is_no_grad_view(const Tensor& tensor);

}  // namespace autograd
}  // namespace rondo
#pragma GCC visibility pop
