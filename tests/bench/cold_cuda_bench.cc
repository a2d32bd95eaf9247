// What the first training step on a CUDA device waits for: kernels that NVRTC compiles. No GPU is needed: the device is
// absent (runtime/cuda/absent.h), so everything is compiled and nothing computes.
//
//   RONDO_CACHE_DIR=$(mktemp -d) bench_cold_cuda           # cold
//   bench_cold_cuda                                        # twice: the second one is warm from disk
//   bench_cold_cuda --compile=regions --dtype=bf16
#include <chrono>
#include <cstdio>
#include <ctime>
#include <optional>
#include <utility>

#include "rondo/compile/compile.h"
#include "rondo/compile/exec/eager_ops.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/cuda/absent.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/tests/bench/options.h"

using namespace rondo;

namespace {

constexpr int kCapability = 90;

class Watch {
 public:
  double seconds() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(began_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

void measure(const bench::Options& options) {
  const cuda::AbsentDevice gpu(kCapability);
  const bool regions = options.text("compile", "none") == "regions";
  nn::GPT2 model({.vocab_size = 65,
                  .block_size = 64,
                  .n_layer = options.integer("n_layer", 4),
                  .n_head = 4,
                  .n_embd = 128,
                  .dropout = options.has("dropout") ? 0.1 : 0.0});
  model.to(gpu.device());
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-3, .weight_decay = 0.1});
  if (regions) compile::compile_regions(model), optim::compile(optimizer);
  const Tensor tokens = Tensor::zeros({12, 64}, {kI64, gpu.device()});
  std::printf("GPT-2 of %lld layers, %s, %s, sm_%d\n", static_cast<long long>(options.integer("n_layer", 4)),
              regions ? "regions" : "eager", options.text("dtype", "f32").c_str(), kCapability);
  for (int step = 1; step <= 2; ++step) {
    const int64_t generated = compile::eager_ops_report().compiled;
    const size_t by_hand = cuda::source_report(kCapability).compiled.size();
    const std::clock_t cpu = std::clock();
    Watch watch;
    Tensor loss;
    {
      std::optional<amp::Autocast> lower;
      if (options.text("dtype", "f32") == "bf16") lower.emplace(kBF16);
      loss = model.loss(tokens, tokens);
    }
    const double forward = watch.seconds();
    loss.backward();
    const double backward = watch.seconds();
    optimizer.step();
    optimizer.zero_grad();
    synchronize(gpu.device());
    const double update = watch.seconds();
    std::printf(
        "step %d: %.3f s, %.2f s of CPU (forward %.3f, backward %.3f, update %.3f), compiled %lld kernels of eager "
        "ops, %zu by hand\n",
        step, forward + backward + update, static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC, forward, backward,
        update, static_cast<long long>(compile::eager_ops_report().compiled - generated),
        cuda::source_report(kCapability).compiled.size() - by_hand);
  }
}

}  // namespace

int main(int argc, char** argv) try { measure(bench::Options(argc, argv)); } catch (const std::exception& e) {
  std::fprintf(stderr, "bench_cold_cuda: %s\n", e.what());
  return 1;
}
