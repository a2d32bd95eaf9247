// Many sizes, few compilations: code that reads sizes at run time, bit for bit like eager.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

class Shapes : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    compile::forget_unused_kernels();
    allocator::set_poison_on_free(true);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }
};

// Loss and all gradients of a GPT for one batch of random tokens.
std::vector<Tensor> step(nn::GPT2& model, int64_t batch, int64_t length, uint64_t seed) {
  std::vector<int64_t> ids(static_cast<size_t>(batch * (length + 1)));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(philox(seed, i, 0)[0] % 31);
  const Tensor tokens = Tensor::from<int64_t>(ids, {batch, length + 1});
  model.zero_grad();
  const Tensor loss = model.loss(tokens.slice(1, {0, length}), tokens.slice(1, {1, length + 1}));
  loss.backward();
  std::vector<Tensor> results = {loss.detach()};
  for (const Tensor& p : model.parameters()) results.push_back(p.grad().clone());
  return results;
}

const nn::GPT2Config kConfig{.vocab_size = 31, .block_size = 64, .n_layer = 2, .n_head = 2, .n_embd = 24};

void expect_as_eager(nn::GPT2& eager, nn::GPT2& compiled, int64_t batch, int64_t length) {
  SCOPED_TRACE(testing::Message() << batch << " x " << length);
  const auto a = step(eager, batch, length, 7), b = step(compiled, batch, length, 7);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::same_bits(a[i], b[i])) << "result " << i;
}

TEST_F(Shapes, ManyLengthsCompileTwice) {
  nn::GPT2 eager(kConfig, 3), compiled(kConfig, 3);
  auto regions = compile::compile_regions(compiled, {.exact = true});
  for (int64_t length : {17, 5, 64, 33, 16, 48, 63, 32, 11, 17, 64}) expect_as_eager(eager, compiled, 3, length);
  const compile::RegionReport report = regions.report()[0];
  EXPECT_EQ(report.entries, 9);
  EXPECT_LE(report.compilations, 2);
}

TEST_F(Shapes, BatchesToo) {
  nn::GPT2 eager(kConfig, 3), compiled(kConfig, 3);
  auto regions = compile::compile_regions(compiled, {.exact = true});
  for (auto [batch, length] : {std::pair<int64_t, int64_t>{4, 20}, {2, 20}, {7, 9}, {5, 20}, {5, 31}, {2, 2}})
    expect_as_eager(eager, compiled, batch, length);
  EXPECT_LE(regions.report()[0].compilations, 2);
}

TEST_F(Shapes, StaticShapesCompileEachTime) {
  nn::GPT2 eager(kConfig, 3), compiled(kConfig, 3);
  auto regions = compile::compile_regions(compiled, {.exact = true, .shapes = compile::Shapes::kStatic});
  for (int64_t length : {17, 5, 64}) expect_as_eager(eager, compiled, 3, length);
  EXPECT_EQ(regions.report()[0].entries, 3);
}

// Code that serves these sizes and others may be there already.
TEST_F(Shapes, StaticShapesBorrowNothing) {
  nn::GPT2 any(kConfig, 3), one(kConfig, 3), again(kConfig, 3);
  const auto varying = compile::compile_regions(any, {.exact = true, .shapes = compile::Shapes::kDynamic});
  for (int64_t length : {17, 20}) step(any, 3, length, 1);
  EXPECT_EQ(varying.report()[0].compilations, 1);
  const auto fixed = compile::compile_regions(one, {.exact = true, .shapes = compile::Shapes::kStatic});
  const auto same = compile::compile_regions(again, {.exact = true, .shapes = compile::Shapes::kStatic});
  step(one, 3, 20, 1);
  step(again, 3, 20, 1);
  EXPECT_EQ(fixed.report()[0].compilations, 1);
  EXPECT_EQ(same.report()[0].compilations, 0);
}

TEST_F(Shapes, EntriesAreBounded) {
  nn::GPT2 eager(kConfig, 3), compiled(kConfig, 3);
  auto regions = compile::compile_regions(compiled, {.exact = true, .max_entries = 2});
  for (int64_t length : {9, 10, 11, 9, 9, 11, 10}) expect_as_eager(eager, compiled, 2, length);
  const compile::RegionReport report = regions.report()[0];
  EXPECT_EQ(report.entries, 4);  // 9, 10, 11 in place of 10, and 10 again
  EXPECT_LE(report.compilations, 2);
}

// Columns that vary: the last dimension itself.
struct Wide : nn::Module<Wide> {
  Tensor forward(const Tensor& x) {
    const Tensor y = ops::softmax(ops::gelu(x) * 2.0) + (x - ops::mean(x, {-1}, true));
    return ops::sum(y * x, {0}) + ops::max(x, {-1}, true) * ops::transpose(x, 0, 1).slice(0, {0, 1});
  }
};

TEST_F(Shapes, ColumnsVary) {
  Wide eager, compiled;
  auto regions = compile::compile_module(compiled, {.exact = true});
  for (DType dtype : {kF32, kF64, kBF16}) {
    for (int64_t n : {40, 7, 16, 100, 33, 64, 2, 31}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << n);
      manual_seed(static_cast<uint64_t>(n));
      const Tensor x = Tensor::randn({n, n}).to(dtype);
      Tensor results[2], grads[2];
      for (int i = 0; i < 2; ++i) {
        Tensor leaf = x.clone().requires_grad_();
        results[i] = i == 0 ? eager(leaf) : compiled(leaf);
        ops::sum(results[i] * results[i]).backward();
        grads[i] = leaf.grad();
      }
      EXPECT_TRUE(test::same_bits(results[0], results[1]));
      EXPECT_TRUE(test::same_bits(grads[0], grads[1]));
    }
  }
  EXPECT_LE(regions.report()[0].compilations, 6);  // two a dtype
}

struct Scaled : nn::Module<Scaled> {
  double factor = 1;
  Tensor forward(const Tensor& x) { return ops::gelu(x * factor) + factor; }
};

TEST_F(Shapes, AnotherFloatIsAnArgument) {
  Scaled eager, compiled;
  auto regions = compile::compile_module(compiled, {.exact = true});
  for (double factor : {1.0, 0.5, 3.25, 0.0, 1.0}) {
    eager.factor = compiled.factor = factor;
    const Tensor x = Tensor::randn({5, 7}).requires_grad_(), y = x.detach().requires_grad_();
    const Tensor a = eager(x), b = compiled(y);
    EXPECT_TRUE(test::same_bits(a, b)) << factor;
    ops::sum(a).backward();
    ops::sum(b).backward();
    EXPECT_TRUE(test::same_bits(x.grad(), y.grad())) << factor;
  }
  EXPECT_EQ(regions.report()[0].entries, 1);
  EXPECT_EQ(regions.report()[0].float_changes, 4);
  EXPECT_EQ(regions.report()[0].compilations, 1);
}

// Kernels are shared by all regions of the process.
TEST_F(Shapes, ASecondModelCompilesNothing) {
  nn::GPT2 one(kConfig, 3), two(kConfig, 4);
  auto first = compile::compile_regions(one), second = compile::compile_regions(two);
  step(one, 3, 20, 1);
  step(two, 3, 20, 1);
  EXPECT_EQ(first.report()[0].compilations, 1);
  EXPECT_EQ(second.report()[0].entries, 1);
  EXPECT_EQ(second.report()[0].compilations, 0);
}

}  // namespace
}  // namespace rondo
