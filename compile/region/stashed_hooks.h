// The hooks of a model, taken away for a while: by what compiles the model for itself and leaves it as it was.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "rondo/modules/module.h"

namespace rondo::compile {

// While one lives, the modules have no call_hook of before; the destructor puts them back.
class StashedHooks {
 public:
  explicit StashedHooks(nn::ModuleBase& model);
  ~StashedHooks();
  StashedHooks(const StashedHooks&) = delete;
  StashedHooks& operator=(const StashedHooks&) = delete;
  // On this thread one lives: what is used now says nothing about the hooks of before.
  static bool active();

 private:
  std::vector<std::pair<nn::ModuleBase*, std::shared_ptr<nn::CallHook>>> hooks_;
};

}  // namespace rondo::compile
