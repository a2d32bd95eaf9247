#include "rondo/compile/region/stashed_hooks.h"

namespace rondo::compile {
namespace {
thread_local int depth = 0;
}  // namespace

StashedHooks::StashedHooks(nn::ModuleBase& model) {
  // Reserves memory first, so that nothing throws after a hook was taken.
  size_t count = 0;
  model.apply([&](nn::ModuleBase&) { ++count; });
  hooks_.reserve(count);
  model.apply([&](nn::ModuleBase& module) { hooks_.emplace_back(&module, std::exchange(module.call_hook, nullptr)); });
  ++depth;
}
StashedHooks::~StashedHooks() {
  --depth;
  for (auto& [module, hook] : hooks_) module->call_hook = std::move(hook);
}
bool StashedHooks::active() { return depth > 0; }

}  // namespace rondo::compile
