// Seams: the places between the backwards of a model's repeated blocks, where a block's gradients are final.
// Communication (dist/ddp.h) and updates (optim/update_at_seams.h) hang here.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rondo/modules/module.h"

#pragma GCC visibility push(default)
namespace rondo::compile {

struct Seam {
  std::string path;                // of the block; "" for what belongs to no block
  std::vector<Tensor> parameters;  // whose gradients are final
  bool complete = true;            // false: some of them got no gradient in this backward (reported by finish())
};

// The plan is fixed when this is made: the repeated blocks of `model` from the last to the first, as a backward meets
// them, then everything else (embeddings, the head). A parameter that requires a gradient stands in one seam, the last
// that uses it. `callback` is called during backward, in the order of the plan: a seam that is ready early waits for
// those before it. Not thread safe. The model must outlive it.
class Seams {
 public:
  using Callback = std::function<void(const Seam&)>;
  Seams(nn::ModuleBase& model, Callback callback);
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

}  // namespace rondo::compile
#pragma GCC visibility pop
