// Takes the hooks of a model away for a while: for code that compiles the model for itself and leaves it as it was.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "rondo/modules/module.h"

namespace rondo::compile {

// The constructor takes the call_hook from all modules. The destructor puts them back.
class StashedHooks {
 public:
  explicit StashedHooks(nn::ModuleBase& model);
  ~StashedHooks();
  StashedHooks(const StashedHooks&) = delete;
  StashedHooks& operator=(const StashedHooks&) = delete;
  // True if one lives on this thread. Then a use of a module says nothing about the hooks that were taken away.
  static bool active();

 private:
  std::vector<std::pair<nn::ModuleBase*, std::shared_ptr<nn::CallHook>>> hooks_;
};

}  // namespace rondo::compile
