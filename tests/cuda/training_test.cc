// Whole training on a CUDA device: compiled blocks with products and attention, and the program train_gpt. The fake
// driver runs their kernels and products.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/modules/layers/attention.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/cuda/near.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo {
namespace {

using test::FakeCuda;
using test::largest;
using test::Named;
using test::same_bits;

// A block of GPT-2, forward and backward: the result, and the gradients of its input and of all parameters.
struct Case {
  int64_t channels, heads;
  std::optional<DType> lower;
  double dropout;
};
// Twice, from new gradients: the second call finds what the first one compiled.
using Options = std::optional<compile::CompileOptions>;
std::vector<Named> block_step(Device device, const Options& options, const Case& c) {
  manual_seed(7);
  nn::TransformerBlock block(c.channels, c.heads, {.dropout = c.dropout});
  Tensor x = Tensor::randn({2, 19, c.channels}).to(device).detach().requires_grad_();
  const Tensor grad = Tensor::randn({2, 19, c.channels}).to(device);
  block.to(device);
  std::optional<compile::Regions> regions;
  if (options) regions = compile::compile_module(block, *options);
  Tensor y;
  for (int call = 0; call < 2; ++call) {
    manual_seed(9);  // of dropout
    block.zero_grad();
    x.set_grad({});
    {
      const amp::Autocast scope(c.lower);
      y = block(x);
    }
    y.backward(grad.to(y.dtype()));
  }
  if (options) {
    EXPECT_EQ(regions->report()[0].failed_compilations, 0) << regions->report()[0].last_failed_compilation;
    EXPECT_EQ(regions->report()[0].eager_runs, 0);
  }
  std::vector<Named> all = {{"y", y.detach().to(kCPU)}, {"x.grad", x.grad().to(kCPU)}};
  for (const nn::NamedTensor& p : block.named_parameters()) all.push_back({p.name, p.tensor.grad().to(kCPU)});
  return all;
}

TEST(CudaTraining, ACompiledBlockHasEagersBits) {
  // Heads of 16 channels are attended to by one kernel, heads of 144 in chunks.
  for (const Case& c : {Case{48, 3, std::nullopt, 0}, Case{48, 3, std::nullopt, 0.25}, Case{48, 3, kBF16, 0},
                        Case{48, 3, kBF16, 0.25}, Case{144, 1, std::nullopt, 0}}) {
    FakeCuda cuda({.seed = 3});
    const std::vector<Named> eager = block_step(cuda.device(), std::nullopt, c),
                             compiled = block_step(cuda.device(), compile::CompileOptions{.exact = true}, c);
    for (size_t i = 0; i < eager.size(); ++i)
      EXPECT_TRUE(same_bits(compiled[i].value, eager[i].value))
          << eager[i].name << (c.lower ? " in bf16, " : " in f32, ") << c.channels << " channels, dropout "
          << c.dropout;
  }
}

// bf16 rounds, and the devices do so at other places (attention's weights are bf16 on CUDA only): what a step computes
// on CUDA is no further from what it computes on the CPU than the CPU's bf16 is from its f32.
TEST(CudaTraining, AStepInBF16IsWithinTheCPUsOwnDifference) {
  FakeCuda cuda({.seed = 5});
  // The root of the mean square, over all values of a step, of their differences relative to their size.
  const auto distance = [](const std::vector<Named>& a, const std::vector<Named>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const Tensor there = a[i].value.to(kF64), here = b[i].value.to(kF64), difference = there - here;
      sum += ops::sum(difference * difference).item() / ops::sum(here * here).item();
    }
    return std::sqrt(sum / static_cast<double>(a.size()));
  };
  for (const double dropout : {0.0, 0.25})
    for (const int64_t heads : {1, 3}) {
      const Case lower{144, heads, kBF16, dropout}, full{144, heads, std::nullopt, dropout};
      const std::vector<Named> f32 = block_step(kCPU, std::nullopt, full), here = block_step(kCPU, std::nullopt, lower),
                               there = block_step(cuda.device(), std::nullopt, lower);
      const std::string what = absl::StrCat(heads, " heads, dropout ", dropout);
      EXPECT_GT(distance(here, f32), 0) << what;
      EXPECT_LE(distance(there, here), distance(here, f32)) << what;
    }
}

// The promises of the compiler: in exact mode eager's bits, otherwise eager's values within rounding.
TEST(CudaTraining, EveryWayToCompileABlock) {
  using compile::CompileOptions;
  const std::pair<const char*, CompileOptions> ways[] = {
      {"reduced overhead", {.mode = compile::Mode::kReduceOverhead}},
      {"autotuned", {.mode = compile::Mode::kMaxAutotune}},
      {"autotuned, epilogues", {.mode = compile::Mode::kMaxAutotune, .epilogues = compile::Epilogues::kAlways}},
      {"epilogues", {.epilogues = compile::Epilogues::kAlways}},
      {"no epilogues", {.epilogues = compile::Epilogues::kNever}},
      {"replayed", {.capture = compile::Capture::kReplay}},
      {"verified", {.capture = compile::Capture::kVerify}},
      {"dynamic", {.shapes = compile::Shapes::kDynamic}},
      {"recomputes all", {.recompute = compile::Recompute::kFull}},
      {"recomputes nothing", {.recompute = compile::Recompute::kNone}},
  };
  for (const Case& c : {Case{48, 3, std::nullopt, 0.25}, Case{48, 3, kBF16, 0}}) {
    FakeCuda cuda({.seed = 8});
    const std::vector<Named> eager = block_step(cuda.device(), std::nullopt, c);
    for (const auto& [name, way] : ways)
      for (const bool exact : {true, false}) {
        CompileOptions options = way;
        options.exact = exact;
        const std::vector<Named> compiled = block_step(cuda.device(), options, c);
        for (size_t i = 0; i < eager.size(); ++i) {
          const std::string what = std::string(name) + ", " + eager[i].name + (c.lower ? " in bf16" : " in f32");
          if (exact) {
            EXPECT_TRUE(same_bits(compiled[i].value, eager[i].value)) << what;
            continue;
          }
          // The gradient of the keys' biases is zero but for rounding.
          EXPECT_LE(largest(compiled[i].value - eager[i].value),
                    (c.lower ? 2e-2 : 1e-5) * std::max(largest(eager[i].value), 1.0))
              << what;
        }
      }
  }
}

}  // namespace
}  // namespace rondo
