// Seams: the places in a backward where the gradients of one part of a model become final. The parts are the repeated
// blocks (ModuleBase::repeated_blocks()), and what lies outside them. If one region holds several parts, its backward
// hands the gradients of each part over at the part's seam (compile/plan/seams.h). UpdateAtSeams updates a part at its
// seam (optim/update_at_seams.h), and dist/ddp/ddp.h forms its buckets from the parts.
#pragma once

#include <string>
#include <vector>

#include "rondo/modules/module.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct Seam {
  std::string path;                // the path of the block; "" outside the blocks
  std::vector<Tensor> parameters;  // the parameters whose gradients are final here
  bool complete = true;            // false: some of them got no gradient in this backward (optim::Seams::finish())
};

// Returns the parts of `model`, in the order in which a backward usually meets them: what is declared after the first
// block (norm, output layer), the blocks from the last to the first, what is declared before them (embeddings). Every
// parameter that requires a gradient is in exactly one part. If only blocks use it, it is in the part of the first of
// these blocks. If something outside of the blocks uses it as well, or two modules outside of the blocks share it, it
// is in the last part.
std::vector<Seam> plan_seams(const ModuleBase& model);

}  // namespace rondo::nn
#pragma GCC visibility pop
