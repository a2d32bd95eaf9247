// A block whose forward the test supplies, run eagerly and compiled: the same results in every bit. Freed memory is
// poisoned with NaN.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo::test {

using Tensors = std::vector<Tensor>;

struct State {
  Tensors kept;  // what forward let escape
  int64_t step = 0;
  int hook_calls = 0;
};

// A block whose forward the test supplies.
struct Block : nn::Module<Block> {
  using Body = std::function<Tensors(Block&, const Tensor&)>;
  explicit Block(Body body, int64_t width = 6) : body(std::move(body)), width(width) {}
  Body body;
  int64_t width;
  nn::LayerNorm norm = child("norm", width);
  Tensor& weight = parameter("weight", Tensor::randn({width, width}));
  Tensor& bias = parameter("bias", Tensor::randn({width}));
  nn::Dropout dropout = child("dropout", 0.4);
  State state;
  Tensors forward(const Tensor& x) { return body(*this, x); }
};

class BlockTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    allocator::set_poison_on_free(true);
    manual_seed(1);  // the same numbers whatever ran before in this process
  }
  void TearDown() override { allocator::set_poison_on_free(false); }

  // Runs `use` on an eager block and on a compiled one with the same weights and random numbers; what it returns must
  // agree in every bit, and so must every gradient of the block. The report of the compiled one is left in `report`.
  void expect_as_eager(const Block::Body& body, const std::function<Tensors(Block&)>& use) {
    Tensors eager = run(body, use, false), compiled = run(body, use, true);
    ASSERT_EQ(eager.size(), compiled.size());
    for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(same_bits(eager[i], compiled[i])) << "result " << i;
  }
  compile::RegionReport report;

  Tensors run(const Block::Body& body, const std::function<Tensors(Block&)>& use, bool compiled) {
    manual_seed(31);
    Block block(body);
    std::unique_ptr<compile::Regions> regions;
    std::optional<MustRunCompiled> here;
    if (compiled) {
      regions = std::make_unique<compile::Regions>(compile::compile_module(block, {.exact = true}));
      here.emplace();
    }
    manual_seed(77);
    Tensors results = use(block);
    for (const Tensor& p : block.parameters()) results.push_back(p.grad());
    if (regions) report = regions->report()[0];
    return results;
  }
};

inline Tensor input(const Dims& sizes = {4, 6}) { return Tensor::randn(sizes).requires_grad_(); }

// Calls the block, sums a weighted loss over what it returns, goes backward.
inline Tensors train_step(Block& block, const Tensor& x) {
  Tensors results = block(x);
  Tensor loss;
  for (const Tensor& y : results) {
    if (!y.defined() || !y.requires_grad()) continue;
    const Tensor part = ops::sum(y * Tensor::rand(y.sizes()));
    loss = loss.defined() ? loss + part : part;
  }
  if (loss.defined()) loss.backward();
  results.push_back(x.grad());
  return results;
}
inline Tensors one_step(Block& block) { return train_step(block, input()); }

inline Tensor mlp(Block& b, const Tensor& x) { return ops::gelu(ops::matmul(b.norm(x), b.weight) + b.bias); }
inline Tensors plain_body(Block& b, const Tensor& x) { return {x + mlp(b, x)}; }

}  // namespace rondo::test
