// Watches a backward for its seams (modules/seam_plan.h).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "rondo/modules/seam_plan.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

using nn::plan_seams;
using nn::Seam;

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
