// Calls back during backward when the gradients of a seam are final (modules/seam_plan.h).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "rondo/modules/seam_plan.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

using nn::plan_seams;
using nn::Seam;

// Calls `callback` during backward, for each seam as soon as all of its gradients are final. The constructor makes the
// plan. The model must outlive this object. Not thread safe.
class Seams {
 public:
  using Callback = std::function<void(const Seam&)>;
  Seams(const nn::ModuleBase& model, Callback callback);
  ~Seams();
  Seams(const Seams&) = delete;
  Seams& operator=(const Seams&) = delete;

  const std::vector<Seam>& plan() const;
  // Call this after each backward. Calls back with complete = false for seams that were not reached, and starts over.
  void finish();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
