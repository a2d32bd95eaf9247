// Modes of a tree (train or eval), given back at the end of a scope.
#pragma once

#include <utility>
#include <vector>

#include "rondo/modules/module.h"

namespace rondo::nn {

// At its end each module has the mode again that it had, even if some were in training and some not.
//
//   const ModeScope modes(model);
//   model.eval();
class ModeScope {
 public:
  explicit ModeScope(ModuleBase& model) {
    for (const NamedModule& m : model.named_modules()) modes_.emplace_back(&m.module, m.module.is_training());
  }
  ~ModeScope() {
    // Parents come first: train() reaches down.
    for (const auto& [module, training] : modes_)
      if (module->is_training() != training) module->train(training);
  }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  std::vector<std::pair<ModuleBase*, bool>> modes_;
};

}  // namespace rondo::nn
