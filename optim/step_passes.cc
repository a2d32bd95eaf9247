#include "rondo/optim/step_passes.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/host_code.h"
#include "rondo/optim/step.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::optim {

std::shared_ptr<Foreach> StepPasses::pass_for(const Optimizer& optimizer, const Body& body,
                                              std::vector<ArraySpec> arrays) {
  const bool generated = report_.compiled || !runs_host_code(optimizer.device());
  for (const auto& pass : passes_)
    if (pass->is(body, arrays)) {
      if (generated) compile_one(optimizer, *pass);
      return pass;
    }
  const std::shared_ptr<Foreach> pass = passes_.emplace_back(std::make_shared<Foreach>(body, std::move(arrays)));
  if (generated) compile_one(optimizer, *pass);
  return pass;
}

void StepPasses::compile_one(const Optimizer& optimizer, Foreach& pass) {
  if (pass.compiled()) return;
  // Where no host code runs there is no eager pass to fall back on: no stance puts the compiled one off, and only a
  // step that was asked to be compiled can be refused.
  const compile::Stance stance = compile::stance();
  postponed_ = runs_host_code(optimizer.device()) &&
               (stance == compile::Stance::kForceEager || (stepped_ && stance == compile::Stance::kEagerOnRecompile));
  if (postponed_) return;
  if (stepped_ && report_.compiled && stance == compile::Stance::kFailOnRecompile)
    throw Error(absl::StrCat(optimizer.name(), ": a step needs a new kernel, and the stance forbids it:\n",
                             compile::to_string(pass.kernel())));
  const auto start = std::chrono::steady_clock::now();
  const int compilations = pass.compile(optimizer.device());
  report_.compile_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  report_.kernels += 1;
  report_.compilations += compilations;
  report_.late += stepped_ ? compilations : 0;
  if (stepped_ && compile::log::enabled(compile::log::Topic::kRecompiles))
    compile::log::write(
        compile::log::Topic::kRecompiles,
        absl::StrCat(optimizer.name(), ": other dtypes or step options need another kernel, ", pass.kernel().name));
  if (compile::log::enabled(compile::log::Topic::kOutputCode))
    compile::log::write(compile::log::Topic::kOutputCode, compile::to_string(pass.kernel()));
}

void StepPasses::compile_all(const Optimizer& optimizer) {
  report_.compiled = true;
  for (const auto& pass : passes_) compile_one(optimizer, *pass);
  stepped_ = false;  // from here on counts what is late
}

KernelReport compile(Optimizer& optimizer) try {
  const FloatingPointScope floating_point;
  compile::log::configure_from_environment();
  if (!compile::jit_available(optimizer.device()))
    throw Error(absl::StrCat(optimizer.name(), ": cannot be compiled: there is no code generator for ",
                             to_string(optimizer.device()), " (LLVM for the CPU, NVRTC for CUDA)"));
  StepPasses& passes = Step::state_of(optimizer).passes;
  if (!passes.report().compiled) passes.compile_all(optimizer);
  return passes.report();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("optim::compile");
}

}  // namespace rondo::optim
