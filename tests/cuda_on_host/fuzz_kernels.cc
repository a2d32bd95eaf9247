#include "rondo/tests/cuda_on_host/fuzz_kernels.h"

#include <cstdlib>
#include <functional>
#include <set>

#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/log.h"
#include "rondo/tests/fuzz/differential.h"
#include "rondo/tests/fuzz/generate.h"

namespace rondo::compile::cuda {

namespace {

// Runs programs until `done()`, and gives each kernel and graph that they compile to `kernel` and `graph`, as text.
void run_programs(uint64_t seed, const std::function<bool()>& done, const std::function<void(std::string_view)>& kernel,
                  const std::function<void(std::string_view)>& graph) {
  setenv("RONDO_DUMP", "input,lower", 1);
  const log::Sink outer = log::set_log_sink([&](std::string_view message) {
    constexpr std::string_view kKernel = "---- lower\n", kGraph = "---- input\n";
    if (message.starts_with(kKernel)) kernel(message.substr(kKernel.size()));
    if (message.starts_with(kGraph)) graph(message.substr(kGraph.size()));
  });
  for (; !done(); ++seed)
    fuzz::run(fuzz::generate(seed, {.max_steps = 10, .large = 0.02}),
              seed % 2 == 0 ? fuzz::Mode::kExact : fuzz::Mode::kDefault);
  log::set_log_sink(outer);
}

}  // namespace

FuzzKernels fuzz_kernels(uint64_t seed, int count, int64_t max_elements) {
  FuzzKernels result;
  std::set<std::string> met;
  bool of_this_program = false;
  const auto done = [&] {
    result.programs += of_this_program ? 1 : 0;
    of_this_program = false;
    return result.programs == count;
  };
  const auto add = [&](std::string_view text) {
    LoopKernel kernel = parse_loop_kernel(text);
    of_this_program = true;
    if (kernel.rows * kernel.cols > max_elements) return;
    kernel.name = "kernel";
    kernel.varying.clear();
    kernel.ranges.clear();
    if (met.insert(to_string(kernel)).second) result.kernels.push_back(std::move(kernel));
  };
  run_programs(seed, done, add, [](std::string_view) {});
  return result;
}

std::vector<std::string> fuzz_graphs(uint64_t seed, int count, int64_t max_elements) {
  std::vector<std::string> graphs;
  std::string last;  // of this program
  int kernels = 0;
  int64_t largest = 0;
  const auto done = [&] {
    if (kernels > 0 && largest <= max_elements) graphs.push_back(last);
    kernels = 0;
    largest = 0;
    return std::ssize(graphs) == count;
  };
  const auto see = [&](std::string_view text) {
    const LoopKernel kernel = parse_loop_kernel(text);
    ++kernels;
    largest = std::max(largest, kernel.rows * kernel.cols);
  };
  run_programs(seed, done, see, [&](std::string_view text) { last = text; });
  return graphs;
}

}  // namespace rondo::compile::cuda
