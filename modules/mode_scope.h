// ModeScope: restores the modes (train or eval) of all modules of a tree at the end of a scope.
#pragma once

#include <utility>
#include <vector>

#include "rondo/modules/module.h"

namespace rondo::nn {

// At its end each module gets back its own mode, even if some modules were in training and others not.
//
//   const ModeScope modes(model);
//   model.eval();
class ModeScope {
 public:
  explicit ModeScope(ModuleBase& model) {
    for (const NamedModule& m : model.named_modules()) modes_.emplace_back(&m.module, m.module.is_training());
  }
  ~ModeScope() {
    // Parents come first, because train() changes the modules below, too.
    for (const auto& [module, training] : modes_)
      if (module->is_training() != training) module->train(training);
  }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  std::vector<std::pair<ModuleBase*, bool>> modes_;
};

}  // namespace rondo::nn
