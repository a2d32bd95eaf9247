// The tensors of one library call, and the context for its op's kernel.
#pragma once

#include <utility>

#include "absl/container/inlined_vector.h"
#include "rondo/compile/plan/plan.h"
#include "rondo/runtime/op/op.h"

namespace rondo::compile {

class LibraryCall {
 public:
  // `make_tensor(like, address)`: makes a tensor with the layout of `like` at `address`. The plan must
  // outlive this object.
  template <class MakeTensor>
  LibraryCall(const Plan& plan, const Launch& launch, MakeTensor make_tensor)
      : plan_(plan), launch_(launch), inputs_(launch.inputs.size()), outputs_(node().outputs.size()) {
    const Graph& graph = plan.graph;
    for (size_t i = 0; i < launch.inputs.size(); ++i)
      if (launch.inputs[i] != kNoValue) inputs_[i] = make_tensor(graph.value(launch.inputs[i]), launch.addresses[i]);
    // The op's own result is written to the memory of the last epilogue's result.
    const GraphNode& op = node();
    for (size_t i = 0; i < op.outputs.size(); ++i) {
      Value like = graph.value(op.outputs[i]);
      like.dtype = graph.value(launch.outputs[i]).dtype;
      outputs_[i] = make_tensor(like, launch.addresses[launch.inputs.size() + i]);
    }
  }

  const GraphNode& node() const { return plan_.graph.node(launch_.op()); }

  // Calls use(context), where `context` is the context for the op's kernel.
  template <class Use> void with_context(const Attrs& attrs, Use use) const {
    const GraphNode& op = node();
    absl::InlinedVector<const Tensor*, kUsualInputs> pointers;
    for (size_t i = 0; i < op.inputs.size(); ++i) pointers.push_back(&inputs_[i]);
    absl::InlinedVector<EpilogueCall, kMaxEpilogues> epilogues;
    size_t next = op.inputs.size();
    for (size_t i = 1; i < launch_.nodes.size(); ++i) {
      const GraphNode& epilogue = plan_.graph.node(launch_.nodes[i]);
      epilogues.push_back({epilogue.op->epilogue, epilogue.inputs.size() > 1 ? &inputs_[next++] : nullptr});
    }
    use(KernelContext{*op.op, pointers, {outputs_.data(), op.outputs.size()}, attrs, line_of(op), epilogues});
  }

 private:
  const Plan& plan_;
  const Launch& launch_;
  absl::InlinedVector<Tensor, kUsualInputs + kMaxEpilogues> inputs_;
  mutable absl::InlinedVector<Tensor, kUsualOutputs> outputs_;  // the kernel writes to their memory
};

}  // namespace rondo::compile
