// The memory report of a whole training step: every purpose, regions as causes, and what recomputation saves.
#include "rondo/runtime/device/memory.h"

#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo {
namespace {

constexpr nn::GPT2Config kDeep = {.vocab_size = 65, .block_size = 64, .n_layer = 12, .n_head = 2, .n_embd = 32};

struct Step {
  nn::GPT2 model{kDeep, 1};
  Tensor idx = Tensor::randint(0, 65, {2, 64}), targets = Tensor::randint(0, 65, {2, 64});

  // Activations at their peak, of one step.
  int64_t most_activations() {
    model.loss(idx, targets).backward();  // compiles
    const memory::Recording recording;
    const int64_t before = recording.report().most_activations;
    model.loss(idx, targets).backward();
    return recording.report().most_activations - before;
  }
};

// The code of a user who checkpoints blocks by hand.
struct Checkpointed : nn::CallHook {
  explicit Checkpointed(nn::TransformerBlock& block) : block(block) {}
  nn::TransformerBlock& block;
  void around(const nn::ModuleCall& call, absl::FunctionRef<void()>) override {
    const auto forward = [this](std::span<const Tensor> x) { return std::vector<Tensor>{block.forward(x[0])}; };
    *call.result = autograd::checkpoint(forward, {call.inputs[0], 1})[0];
  }
};

class MemoryOfRegions : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

TEST_F(MemoryOfRegions, RecomputingKeepsAFifthOfTheActivationsAtMost) {
  const auto compiled = [](compile::Recompute recompute) {
    Step step;
    compile::compile_regions(step.model, {.recompute = recompute});
    return step.most_activations();
  };
  const int64_t none = compiled(compile::Recompute::kNone), full = compiled(compile::Recompute::kFull);
  const int64_t inputs = kDeep.n_layer * 2 * 64 * 32 * 4;  // of the blocks, which any way must keep
  EXPECT_GE(full, inputs);
  EXPECT_LE(5 * full, none);
  EXPECT_LE(compiled(compile::Recompute::kAuto), none);
}

TEST(MemoryOfCheckpoints, BlocksKeepAFifthOfTheActivationsAtMost) {
  Step plain, checkpointed;
  for (nn::TransformerBlock& block : checkpointed.model.h) block.call_hook = std::make_shared<Checkpointed>(block);
  const int64_t none = plain.most_activations(), full = checkpointed.most_activations();
  EXPECT_LE(5 * full, none) << full << " and " << none;
}

TEST_F(MemoryOfRegions, AStepFillsEveryLine) {
  memory::Recording recording;
  const memory::Report before = recording.report();
  Step step;
  optim::AdamW optimizer(step.model.parameters(), {});
  compile::compile_regions(step.model);
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    step.model.loss(step.idx, step.targets).backward();
    optimizer.step();
  }
  recording.restart();
  const Tensor loss = step.model.loss(step.idx, step.targets);
  const memory::Report r = recording.report();
  const int64_t parameters = step.model.num_parameters() * 4;
  for (auto [bytes, copies] : {std::pair(r.parameters - before.parameters, 1),
                               {r.gradients - before.gradients, 1},
                               {r.states - before.states, 2}}) {
    EXPECT_GE(bytes, copies * parameters);
    EXPECT_LE(bytes, copies * parameters * 5 / 4);  // many small tensors, each rounded up; buffers
  }
  EXPECT_GT(r.most_activations, kDeep.n_layer * 2 * 64 * 32 * 4);
  // The same for a call of a block.
  Tensor x = Tensor::zeros({2, 64, 32});
  recording.restart();
  const Tensor y = step.model.h[0](x);
  const std::string cause = recording.report().cause;
  EXPECT_NE(cause.find("region TransformerBlock (" __FILE__ ":" + std::to_string(__LINE__ - 2) + ", in h.0"),
            std::string::npos)
      << cause;
}

struct Head : nn::Module<Head> {
  Tensor& weight = parameter("weight", Tensor::randn({16, 8}));
  Tensor forward(const Tensor& x) {
    const Tensor target = Tensor::from<int64_t>({3, 1, 15, 7}, {4});
    return ops::linear_cross_entropy(ops::gelu(ops::matmul(x, ops::matmul(weight.t(), weight))), weight, Tensor(),
                                     target);
  }
};

// A loss of a region brings its gradients along; the arena in which the region works is none of them, for all that a
// gradient which nobody wants (that of the bias, here) lies there.
TEST_F(MemoryOfRegions, AnArenaIsNoGradient) {
  Head head;
  const compile::Regions regions = compile::compile_module(head,
                                                           {.mode = compile::Mode::kReduceOverhead});  // keeps arenas
  const auto gradients = [] { return allocator::stats().by_purpose[static_cast<int>(Purpose::kGradients)]; };
  const int64_t before = gradients();
  {
    const Tensor loss = head(Tensor::randn({4, 8}));
    EXPECT_GE(gradients() - before, 16 * 8 * 4);
  }
  EXPECT_EQ(gradients(), before);
}

}  // namespace
}  // namespace rondo
