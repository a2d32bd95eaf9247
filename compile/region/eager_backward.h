// A backward of a region, op by op.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "rondo/compile/region/entry.h"
#include "rondo/compile/region/kept_values.h"
#include "rondo/compile/region/region_node.h"

namespace rondo::compile {

// The ends of an eager tape for one run of a region: what its recording leaves when it runs again, op by op. The ops'
// nodes stand in the place of the region's own in the order of a backward.
class EagerTape {
 public:
  // By output of the recording; by input of the recording, without a node where no gradient is wanted.
  EagerTape(std::shared_ptr<const Binding> binding, std::vector<Edge> outputs, std::vector<Edge> inputs);

  // `grads_in[i]` holds what input i has received so far (or undefined), and afterwards the new sum; it is empty if no
  // input's gradient is asked for. Runs the hooks of the ops' nodes. Throws what the eager ops throw.
  void backward(std::span<const Tensor> grads_out, std::span<Tensor> grads_in, bool retain_graph) const;
  const Edge& output(int i) const { return outputs_[static_cast<size_t>(i)]; }
  // `extras` of the region's node, which the ops' nodes get, too.
  void add(std::span<const Node::OutputExtras> extras) const;

 private:
  std::shared_ptr<const Binding> binding_;
  std::vector<Edge> outputs_, inputs_;
};

// Runs the recording again, for second derivatives, hooks inside the region, DetectAnomaly, and what was overwritten.
// No collective runs again. `grads_out`: what is about to arrive. Throws StaleTensorError where the eager ops' backward
// of it does.
std::shared_ptr<const EagerTape> replay(const RegionNode& region, std::shared_ptr<const Binding> binding,
                                        const KeptValues::Pass& pass, std::span<const Tensor> grads_out);

}  // namespace rondo::compile
