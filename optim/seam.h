// Seams: the places in a backward where the gradients of one part of a model become final. The parts are the repeated
// blocks (ModuleBase::repeated_blocks()), and what lies outside them. UpdateAtSeams (update_at_seams.h) updates a part
// at its seam; dist/ddp.h forms its buckets from the parts.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rondo/modules/module.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct Seam {
  std::string path;                // of the block; "" outside the blocks
  std::vector<Tensor> parameters;  // whose gradients are final
  bool complete = true;            // false: some of them got no gradient in this backward (reported by finish())
};

// The parts of `model`, in the order in which a backward usually meets them: what is declared after the first block
// (norm, output layer), the blocks from the last to the first, what is declared before them (embeddings). Every
// parameter that requires a gradient is in exactly one part: the last that uses it.
std::vector<Seam> plan_seams(const nn::ModuleBase& model);

// Calls `callback` during backward, for each seam as soon as all of its gradients are final. The plan is made by the
// constructor. Not thread safe. The model must outlive it.
class Seams {
 public:
  using Callback = std::function<void(const Seam&)>;
  Seams(const nn::ModuleBase& model, Callback callback);
  ~Seams();
  Seams(const Seams&) = delete;
  Seams& operator=(const Seams&) = delete;

  const std::vector<Seam>& plan() const;
  // After each backward: calls back for the seams that have not been reached, with complete = false, and starts over.
  void finish();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
