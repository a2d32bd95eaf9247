// Runs the backward of a region op by op.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/kept_values.h"
#include "rondo/compile/region/region_node.h"

namespace rondo::compile {

// An eager tape for one run of a region, made by running its recording again op by op. In the order of a backward, the
// ops' nodes take the place of the region's node.
class EagerTape {
 public:
  // `outputs`: the edge of each output of the recording. `inputs`: the edge of each input; it has no node if no
  // gradient is wanted.
  EagerTape(std::shared_ptr<const Binding> binding, std::vector<Edge> outputs, std::vector<Edge> inputs);

  // Runs the backward of the ops, and the hooks of their nodes. `grads_in[i]` holds the gradient that input i has
  // received so far (or undefined), and afterwards the new sum. `grads_in` is empty if no input's gradient is
  // requested. Throws the errors of the eager ops.
  void backward(std::span<const Tensor> grads_out, std::span<Tensor> grads_in, bool retain_graph) const;
  const Edge& output(int i) const { return outputs_[static_cast<size_t>(i)]; }
  // Gives the `extras` of the region's node (hooks, retained gradients) to the ops' nodes.
  void add(std::span<const Node::OutputExtras> extras) const;

 private:
  std::shared_ptr<const Binding> binding_;
  std::vector<Edge> outputs_, inputs_;
};

// Runs the recording again and returns its tape: for second derivatives, hooks inside the region, DetectAnomaly, and
// overwritten saved tensors. No collective runs again. `grads_out`: the gradients that will arrive. Throws
// StaleTensorError if the eager ops' backward of these gradients would.
std::shared_ptr<const EagerTape> replay(const RegionNode& region, std::shared_ptr<const Binding> binding,
                                        const KeptValues::Pass& pass, std::span<const Tensor> grads_out);

}  // namespace rondo::compile
