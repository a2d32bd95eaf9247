#include "rondo/compile/jit/executable.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/codegen/loop_verify.h"
#include "rondo/compile/jit/code_store.h"
#include "rondo/compile/jit/symbols.h"
#include "rondo/compile/log.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/parallel.h"

namespace rondo::compile {
namespace {

thread_local bool generation_forbidden = false;

// Runs work(i) for all i below n on all threads. Each thread takes the next i when it has finished one. Measured:
// compiling the eight kernels of a GPT-2 block, forward and backward, takes 32 ms on one core and 17 ms on two.
void for_each_in_parallel(size_t n, absl::FunctionRef<void(size_t)> work) {
  std::atomic<size_t> next{0};
  const auto threads = std::min(static_cast<int64_t>(n), static_cast<int64_t>(num_threads()));
  parallel_for(threads, 1, [&](int64_t, int64_t) {
    for (size_t i = next++; i < n; i = next++) work(i);
  });
}

}  // namespace

ForbidCodeGeneration::ForbidCodeGeneration() : outer_(std::exchange(generation_forbidden, true)) {}
ForbidCodeGeneration::~ForbidCodeGeneration() { generation_forbidden = outer_; }

KernelHandle Executable::handle(int i) const { return code_[static_cast<size_t>(i)]->handle(); }
KernelEntry Executable::entry(int i) const { return code_[static_cast<size_t>(i)]->entry(); }

std::shared_ptr<Executable> compile_kernels(std::span<const LoopKernel> kernels, const JitOptions& asked,
                                            const Target& target) {
  for (const LoopKernel& kernel : kernels)
    if (std::string what = verify(kernel); !what.empty()) throw_internal(absl::StrCat(kernel.name, ": ", what));
  CodeStore& store = CodeStore::of(target);
  JitOptions options = asked;
  if (log::enabled(log::Topic::kOutputCode, log::Detail::kVerbose)) options.dump_ir = options.dump_asm = true;
  const bool dump = options.dump_ir || options.dump_asm;
  std::vector<std::string> texts;
  std::vector<std::shared_ptr<const MachineCode>> code(kernels.size());
  std::vector<size_t> missing;
  int fresh = 0;
  std::vector<size_t> equal(kernels.size());  // for each kernel: the first kernel with the same text
  for (size_t i = 0; i < kernels.size(); ++i) {
    texts.push_back(code_text(kernels[i]));
    equal[i] = static_cast<size_t>(std::find(texts.begin(), texts.end(), texts[i]) - texts.begin());
    if (equal[i] < i) continue;
    CodeStore::Found found = dump ? CodeStore::Found() : store.find(texts[i]);
    code[i] = std::move(found.code);
    fresh += !found.in_memory;
    if (code[i] == nullptr) missing.push_back(i);
  }
  if (!missing.empty() && generation_forbidden) throw CodeForbidden("code generation is forbidden");
  if (!missing.empty()) {
    target.load_compiler();
    // Longest kernels first, so that no thread begins a long one when all others are done.
    std::stable_sort(missing.begin(), missing.end(),
                     [&](size_t a, size_t b) { return kernels[a].instrs.size() > kernels[b].instrs.size(); });
    const auto compile = [&](size_t i) {
      enter_stage(CompilerStage::kEmit);
      code[i] = store.add(texts[i], target.compile(kernels[i], options));
    };
    if (dump) std::for_each(missing.begin(), missing.end(), compile);  // listings must not mingle
    else for_each_in_parallel(missing.size(), [&](size_t i) { compile(missing[i]); });
  }
  for (size_t i = 0; i < kernels.size(); ++i) {
    code[i] = code[equal[i]];
    if (code[i]->bytes() > 0) show_symbol(code[i]->handle(), code[i]->bytes(), "rondo::" + kernels[i].name);
  }
  return std::make_shared<Executable>(std::move(code), static_cast<int>(missing.size()), fresh);
}

namespace {
bool can_make_code(const Target& target) { return target.can_compile() || CodeStore::of(target).has_artifacts(); }
}  // namespace

bool jit_available(Device device) {
  const Target* target = find_target(device);
  return target != nullptr && can_make_code(*target);
}
bool jit_available() {
  return std::any_of(targets().begin(), targets().end(),
                     [](const Target* target) { return can_make_code(*target) && device_of(*target).has_value(); });
}

int64_t forget_code() { return CodeStore::forget_all(); }

}  // namespace rondo::compile
