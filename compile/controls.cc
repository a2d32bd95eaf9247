// Controls for the whole process, and for parts of compiled modules.
#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/region/region.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::compile {
namespace {

// The hook of a module that stays eager inside compiled ones.
class EagerHook final : public nn::CallHook {
 public:
  void around(const nn::ModuleCall& call, absl::FunctionRef<void()> forward) override {
    if (!is_compiling()) return forward();
    const std::string what = absl::StrCat(call.module.type_name(), " was disabled");
    const EagerScope eager(what.c_str());
    forward();
  }
};

}  // namespace

void disable(nn::ModuleBase& module) {
  static const auto& hook = *new auto(std::make_shared<EagerHook>());
  module.apply([](nn::ModuleBase& m) { m.call_hook = nullptr; });
  module.call_hook = hook;
  module.note_change();
}

bool is_compiling() { return active_recorder() != nullptr; }

ResetReport reset() {
  if (is_compiling())
    throw Error("compile::reset: a compiled module is being recorded on this thread; call it between steps");
  ResetReport report;
  Region::reset_all(report);
  report.kernels = forget_unused_kernels();
  return report;
}

}  // namespace rondo::compile
