#include "rondo/optim/step_passes.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/log.h"
#include "rondo/optim/host_code.h"

namespace rondo::optim {

std::shared_ptr<Foreach> StepPasses::pass_for(const char* optimizer, Device device, const Body& body,
                                              std::vector<ArraySpec> arrays) {
  const bool generated = report_.compiled || !runs_host_code(device);
  for (const auto& pass : passes_)
    if (pass->is(body, arrays)) {
      if (generated) compile_one(optimizer, device, *pass);
      return pass;
    }
  const std::shared_ptr<Foreach> pass = passes_.emplace_back(std::make_shared<Foreach>(body, std::move(arrays)));
  if (generated) compile_one(optimizer, device, *pass);
  return pass;
}

void StepPasses::compile_one(const char* optimizer, Device device, Foreach& pass) {
  if (pass.compiled()) return;
  // A device that runs no host code has no eager pass to fall back on. So no stance postpones the compilation of its
  // passes, and kFailOnRecompile refuses a compilation only if optim::compile() was called.
  const compile::Stance stance = compile::stance();
  postponed_ = runs_host_code(device) &&
               (stance == compile::Stance::kForceEager || (stepped_ && stance == compile::Stance::kEagerOnRecompile));
  if (postponed_) return;
  if (stepped_ && report_.compiled && stance == compile::Stance::kFailOnRecompile)
    throw Error(absl::StrCat(optimizer, ": a step needs a new kernel, and the stance forbids it:\n",
                             compile::to_string(pass.kernel())));
  const auto start = std::chrono::steady_clock::now();
  const int compilations = pass.compile(device);
  report_.compile_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  report_.kernels += 1;
  report_.compilations += compilations;
  report_.late += stepped_ ? compilations : 0;
  if (stepped_ && compile::log::enabled(compile::log::Topic::kRecompiles))
    compile::log::write(
        compile::log::Topic::kRecompiles,
        absl::StrCat(optimizer, ": other dtypes or step options need another kernel, ", pass.kernel().name));
  if (compile::log::enabled(compile::log::Topic::kOutputCode))
    compile::log::write(compile::log::Topic::kOutputCode, compile::to_string(pass.kernel()));
}

void StepPasses::compile_all(const char* optimizer, Device device) {
  report_.compiled = true;
  for (const auto& pass : passes_) compile_one(optimizer, device, *pass);
  stepped_ = false;  // kernels that the next step compiles do not count as late
}

}  // namespace rondo::optim
