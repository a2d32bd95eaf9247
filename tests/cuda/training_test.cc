// Whole training on a CUDA device: compiled blocks with products and attention, and the program train_gpt. The fake
// driver runs their kernels and products.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/attention.h"
#include "rondo/runtime/amp.h"
#include "rondo/runtime/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo {
namespace {

using test::FakeCuda;
using test::same_bits;

struct Named {
  std::string name;
  Tensor value;  // on the host
};

// A block of GPT-2, forward and backward: the result, and the gradients of its input and of all parameters.
struct Case {
  int64_t channels, heads;
  std::optional<DType> lower;
  double dropout;
};
std::vector<Named> block_step(Device device, bool compiled, const Case& c) {
  manual_seed(7);
  nn::TransformerBlock block(c.channels, c.heads, {.dropout = c.dropout});
  const Tensor x = Tensor::randn({2, 19, c.channels}).to(device).detach().requires_grad_(),
               grad = Tensor::randn({2, 19, c.channels}).to(device);
  block.to(device);
  std::optional<compile::Regions> regions;
  if (compiled) regions = compile::compile_module(block, {.exact = true});
  Tensor y;
  {
    const amp::Autocast scope(c.lower);
    y = block(x);
  }
  y.backward(grad.to(y.dtype()));
  if (compiled) {
    EXPECT_EQ(regions->report()[0].failed_compilations, 0) << regions->report()[0].last_failed_compilation;
    EXPECT_EQ(regions->report()[0].eager_runs, 0);
  }
  std::vector<Named> all = {{"y", y.detach().to(kCPU)}, {"x.grad", x.grad().to(kCPU)}};
  for (const nn::NamedTensor& p : block.named_parameters()) all.push_back({p.name, p.tensor.grad().to(kCPU)});
  return all;
}

TEST(CudaTraining, ACompiledBlockHasEagersBits) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  // Heads of 16 channels are attended to by one kernel, heads of 144 in chunks.
  for (const Case& c : {Case{48, 3, std::nullopt, 0}, Case{48, 3, std::nullopt, 0.25}, Case{48, 3, kBF16, 0},
                        Case{48, 3, kBF16, 0.25}, Case{144, 1, std::nullopt, 0}}) {
    FakeCuda cuda({.seed = 3});
    const std::vector<Named> eager = block_step(cuda.device(), false, c), compiled = block_step(cuda.device(), true, c);
    for (size_t i = 0; i < eager.size(); ++i)
      EXPECT_TRUE(same_bits(compiled[i].value, eager[i].value))
          << eager[i].name << (c.lower ? " in bf16, " : " in f32, ") << c.channels << " channels, dropout "
          << c.dropout;
  }
}

}  // namespace
}  // namespace rondo
