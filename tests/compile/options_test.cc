// Stances, limits, fullgraph and compiled functions.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/region/region.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

using compile::Stance;
using Tensors = std::vector<Tensor>;

class CompileControl : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    compile::forget_unused_kernels();
    allocator::set_poison_on_free(true);
  }
  void TearDown() override {
    compile::set_stance(Stance::kDefault);
    allocator::set_poison_on_free(false);
  }
};

// `steps` different computations, each with code of its own.
struct Chain : nn::Module<Chain> {
  int steps = 1;
  bool reads = false;
  static constexpr int kReads = __LINE__ + 4;
  Tensor& weight = parameter("weight", Tensor::full({6}, 1.25));
  Tensor forward(const Tensor& x) {
    Tensor y = x * weight;
    if (reads && ops::sum(y).item() > 1e9) y = y * 2.0;
    for (int i = 0; i < steps; ++i) y = ops::tanh(y) + x;
    return y.slice(1, {0, 5});
  }
};

Tensors use(Chain& chain, int64_t rows = 4) {
  manual_seed(3);
  const Tensor x = Tensor::randn({rows, 6}).requires_grad_();
  chain.zero_grad();
  const Tensor y = chain(x);
  ops::sum(y * y).backward();
  return {y.detach(), x.grad(), chain.weight.grad().clone()};
}
void expect_as_eager(Chain& compiled, int64_t rows = 4) {
  Chain eager;
  eager.steps = compiled.steps;
  const Tensors a = use(eager, rows), b = use(compiled, rows);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::same_bits(a[i], b[i])) << i;
}

TEST_F(CompileControl, EagerOnRecompile) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "the stance");
  Chain chain;
  auto regions = compile::compile_module(chain, {.exact = true});
  compile::set_stance(Stance::kEagerOnRecompile);
  for (int steps : {1, 2, 3, 1}) {
    chain.steps = steps;
    expect_as_eager(chain);
  }
  EXPECT_EQ(regions.report()[0].entries, 1);
  EXPECT_EQ(regions.report()[0].eager_runs, 2);
}

TEST_F(CompileControl, FailOnRecompileSaysWhatDiffers) {
  Chain chain;
  auto regions = compile::compile_module(chain, {.exact = true});
  compile::set_stance(Stance::kFailOnRecompile);
  expect_as_eager(chain);
  chain.steps = 2;
  try {
    use(chain);
    ADD_FAILURE() << "compiled";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("options_test.cc"), std::string::npos) << e.what();
  }
  compile::set_stance(Stance::kDefault);
  expect_as_eager(chain);
  // Another size is another recording, but (once code reads sizes) no other code.
  expect_as_eager(chain, 7);
  compile::set_stance(Stance::kFailOnRecompile);
  expect_as_eager(chain, 9);
}

TEST_F(CompileControl, ForceEager) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "the stance");
  Chain chain;
  auto regions = compile::compile_module(chain);
  compile::set_stance(Stance::kForceEager);
  expect_as_eager(chain);
  EXPECT_EQ(regions.report()[0].calls, 0);
}

TEST_F(CompileControl, BeyondTheRecompileLimitNewRecordingsRunEagerly) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "the limit is three compilations");
  Chain chain;
  auto regions = compile::compile_module(chain, {.exact = true, .recompile_limit = 3});
  for (int steps : {1, 2, 3, 4, 5, 4, 2}) {
    chain.steps = steps;
    expect_as_eager(chain);
  }
  EXPECT_EQ(regions.report()[0].compilations, 3);
  EXPECT_EQ(regions.report()[0].eager_runs, 3);
}

TEST_F(CompileControl, FullgraphNamesTheLineThatBreaks) {
  Chain chain;
  chain.reads = true;
  compile::compile_module(chain, {.exact = true, .fullgraph = true});
  try {
    use(chain);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(absl::StrCat("options_test.cc:", Chain::kReads)), std::string::npos)
        << e.what();
  }
  chain.reads = false;
  expect_as_eager(chain);
}

TEST_F(CompileControl, DynamicShapesCompileOnce) {
  Chain chain;
  auto regions = compile::compile_module(chain, {.exact = true, .shapes = compile::Shapes::kDynamic});
  for (int64_t rows : {4, 9, 33}) expect_as_eager(chain, rows);
  EXPECT_EQ(regions.report()[0].compilations, 1);
}

// Deriving the backward and choosing what it keeps is work, too.
TEST_F(CompileControl, CompileTimeIsAllOfIt) {
  Chain chain;
  auto regions = compile::compile_module(chain);
  use(chain);
  const auto entry = regions.regions()[0]->entries()[0];
  ASSERT_NE(entry->backward().program, nullptr);
  EXPECT_GT(regions.report()[0].compile_ms,
            entry->forward().stats().compile_ms + entry->backward().program->stats().compile_ms);
}

TEST_F(CompileControl, AFunction) {
  const Tensor w = Tensor::randn({6, 6}).requires_grad_();
  const auto function = [&](const Tensor& x, const Tensor& y) { return ops::gelu(ops::matmul(x, w)) * y; };
  auto compiled = compile::compile(function, {.exact = true});
  for (int64_t rows : {4, 5, 4}) {
    const Tensor x = Tensor::randn({rows, 6}), y = Tensor::randn({rows, 6});
    EXPECT_TRUE(test::same_bits(compiled(x, y), function(x, y)));
  }
  EXPECT_EQ(compiled.regions().report()[0].entries, 2);
  auto pair = compile::compile([](const Tensor& x) { return std::pair(x * 2.0, ops::sum(x)); });
  const Tensor x = Tensor::randn({3, 3});
  EXPECT_TRUE(test::same_bits(pair(x).second, ops::sum(x)));
}

}  // namespace
}  // namespace rondo
