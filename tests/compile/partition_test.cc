// What a region keeps for its backward: bytes against what is expected by hand, and the same bits whatever is kept.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/gpt2.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using compile::Recompute;

class Partition : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    allocator::set_poison_on_free(true);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }
};

struct Body : nn::Module<Body> {
  using Function = std::function<Tensor(const Tensor& x, const Tensor& w)>;
  explicit Body(Function function) : function(std::move(function)) {}
  Function function;
  Tensor& weight = parameter("weight", Tensor::randn({32, 32}));
  Tensor forward(const Tensor& x) { return function(x, weight); }
};

struct Outcome {
  Tensor y, grad_x, grad_w;
  int64_t kept_bytes = 0;
};

Outcome run(const Body::Function& function, std::optional<Recompute> recompute, DType dtype = kF32) {
  manual_seed(11);
  Body body(function);
  body.to(dtype);
  std::optional<compile::Regions> regions;
  if (recompute) regions = compile::compile_module(body, {.exact = true, .recompute = *recompute});
  const Tensor x = Tensor::randn({64, 32}).to(dtype).detach().requires_grad_();
  const Tensor y = body(x * 1.0);
  ops::sum(y * y).backward();
  return {y.detach(), x.grad(), body.weight.grad(), regions ? regions->report()[0].kept_bytes : 0};
}

void expect_bytes(const Body::Function& function, int64_t automatic, int64_t none, int64_t full) {
  for (DType dtype : {kF32, kBF16, kF64}) {
    const Outcome eager = run(function, std::nullopt, dtype);
    const auto size = static_cast<int64_t>(size_of(dtype));
    for (auto [recompute, bytes] : {std::pair{Recompute::kAuto, automatic}, {Recompute::kNone, none}, {Recompute::kFull, full}}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << static_cast<int>(recompute));
      const Outcome compiled = run(function, recompute, dtype);
      EXPECT_TRUE(test::same_bits(eager.y, compiled.y));
      EXPECT_TRUE(test::same_bits(eager.grad_x, compiled.grad_x));
      EXPECT_TRUE(test::same_bits(eager.grad_w, compiled.grad_w));
      EXPECT_EQ(compiled.kept_bytes, bytes * 64 * 32 * size);
    }
  }
}

TEST_F(Partition, AnActivationIsComputedAgain) {
  // matmul(gelu(matmul(x, w)), w): the inner product is kept; gelu of it is not.
  expect_bytes([](const Tensor& x, const Tensor& w) { return ops::matmul(ops::gelu(ops::matmul(x, w)), w); }, 1, 2, 0);
}

TEST_F(Partition, ChainsOfActivations) {
  expect_bytes(
      [](const Tensor& x, const Tensor& w) {
        return ops::matmul(ops::sigmoid(ops::tanh(ops::relu(ops::exp(ops::matmul(x, w) * 0.1)))), w);
      },
      1, 3, 0);  // relu's gradient reads exp's result
}

TEST_F(Partition, ViewsOfOneMemoryCountOnce) {
  expect_bytes(
      [](const Tensor& x, const Tensor& w) {
        const Tensor y = ops::matmul(x, w);
        return y.slice(1, {0, 16}) * y.slice(1, {16, 32}) * ops::transpose(ops::reshape(y, {16, 2, 64}), 1, 2).slice(2, {0, 1}).reshape({64, 16});
      },
      1, 2, 0);  // two halves are computed from it
}

TEST_F(Partition, TheSumOfTwoProductsIsOneValue) {
  // Only exp of the sum is read, so one value is kept, not two.
  expect_bytes([](const Tensor& x, const Tensor& w) { return ops::matmul(ops::exp((ops::matmul(x, w) + ops::matmul(x, w.t())) * 0.01), w); },
               1, 1, 0);
}

// Of inputs and outputs, nothing is kept that eager execution does not keep: writing to them is allowed.
TEST_F(Partition, WritesThatEagerExecutionAllows) {
  for (bool compiled : {false, true}) {
    manual_seed(11);
    // The gradient of exp reads its result, which is not x.
    Body body([](const Tensor& x, const Tensor& w) { return ops::matmul(ops::exp(x), w); });
    if (compiled) compile::compile_module(body, {.exact = true});
    const Tensor leaf = Tensor::randn({64, 32}).requires_grad_();
    Tensor x = leaf * 1.0;
    Tensor y = body(x);
    no_grad([&] { x.detach().fill_(7); });
    y.add_(1.0);
    EXPECT_NO_THROW(ops::sum(y).backward()) << compiled;
  }
}

TEST_F(Partition, GptKeepsLessAndComputesTheSame) {
  const nn::GPT2Config config{.vocab_size = 31, .block_size = 16, .n_layer = 2, .n_head = 2, .n_embd = 24, .dropout = 0.2};
  std::vector<std::vector<Tensor>> grads;
  std::vector<int64_t> bytes;
  for (std::optional<Recompute> recompute : {std::optional<Recompute>(), {Recompute::kAuto}, {Recompute::kNone}, {Recompute::kFull}}) {
    nn::GPT2 model(config, 3);
    manual_seed(5);
    std::optional<compile::Regions> regions;
    if (recompute) regions = compile::compile_regions(model, {.exact = true, .recompute = *recompute});
    const Tensor tokens = Tensor::from<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, {2, 6});
    model.loss(tokens, tokens).backward();
    std::vector<Tensor>& all = grads.emplace_back();
    for (const Tensor& p : model.parameters()) all.push_back(p.grad());
    if (regions) bytes.push_back(regions->report()[0].kept_bytes);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(test::same_bits(all[i], grads[0][i])) << i;
  }
  EXPECT_LT(bytes[0], bytes[1]);
  EXPECT_EQ(bytes[2], 0);
}

}  // namespace
}  // namespace rondo
