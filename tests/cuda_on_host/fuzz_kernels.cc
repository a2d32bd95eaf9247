#include "rondo/tests/cuda_on_host/fuzz_kernels.h"

#include <cstdlib>
#include <set>

#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/log.h"
#include "rondo/tests/fuzz/differential.h"
#include "rondo/tests/fuzz/generate.h"

namespace rondo::compile::cuda {

FuzzKernels fuzz_kernels(uint64_t seed, int count, int64_t max_elements) {
  setenv("RONDO_DUMP", "lower", 1);  // each kernel, as text
  FuzzKernels result;
  std::set<std::string> met;
  bool of_this_program = false;
  const log::Sink outer = log::set_log_sink([&](std::string_view message) {
    constexpr std::string_view kHeading = "---- lower\n";
    if (!message.starts_with(kHeading)) return;
    LoopKernel kernel = parse_loop_kernel(message.substr(kHeading.size()));
    of_this_program = true;
    if (kernel.rows * kernel.cols > max_elements) return;
    kernel.name = "kernel";
    kernel.varying.clear();
    kernel.ranges.clear();
    if (met.insert(to_string(kernel)).second) result.kernels.push_back(std::move(kernel));
  });
  for (; result.programs < count; ++seed) {
    of_this_program = false;
    fuzz::run(fuzz::generate(seed, {.max_steps = 10, .large = 0.02}),
              seed % 2 == 0 ? fuzz::Mode::kExact : fuzz::Mode::kDefault);
    result.programs += of_this_program ? 1 : 0;
  }
  log::set_log_sink(outer);
  return result;
}

}  // namespace rondo::compile::cuda
