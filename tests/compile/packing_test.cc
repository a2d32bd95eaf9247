// Packed rows inside regions: one region for all layers, and compiled equals eager.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo {
namespace {

using test::same_bits;

// Rows of sequences of random lengths.
Tensor some_positions(int64_t B, int64_t T) {
  Tensor positions = Tensor::empty({B, T}, {kI64, kCPU});
  for (int64_t row = 0; row < B; ++row) {
    const std::vector<int64_t> lengths = Tensor::randint(1, T, {T}).to_vector<int64_t>();
    int64_t left = 0, position = 0;
    size_t sequence = 0;
    for (int64_t i = 0; i < T; ++i, --left, ++position) {
      if (left == 0) left = lengths[sequence++], position = 0;
      positions.mutable_data<int64_t>()[row * T + i] = position;
    }
  }
  return positions.to(test::test_device());
}

template <class Model> struct Maker;
template <> struct Maker<nn::GPT2> {
  static std::unique_ptr<nn::GPT2> make() {
    return std::make_unique<nn::GPT2>(
        nn::GPT2Config{.vocab_size = 61, .block_size = 96, .n_layer = 4, .n_head = 2, .n_embd = 32}, 7);
  }
  static std::vector<std::string> targets() { return {"c_attn", "c_fc"}; }
};
template <> struct Maker<nn::Llama> {
  static std::unique_ptr<nn::Llama> make() {
    return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = 61,
                                                       .block_size = 96,
                                                       .n_layer = 4,
                                                       .n_head = 4,
                                                       .n_kv_head = 2,
                                                       .n_embd = 32,
                                                       .n_hidden = 48,
                                                       .qk_norm = true,
                                                       .sliding_window = 40},
                                       7);
  }
  static std::vector<std::string> targets() { return {"q_proj", "down_proj"}; }
};

template <class Model> class PackedRegions : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    allocator::set_poison_on_free(true);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }

  // Some steps with rows of two lengths, each with other sequences.
  std::vector<Tensor> run(const std::optional<compile::CompileOptions>& options, DType dtype, bool lora,
                          bool autocast) {
    const auto model = Maker<Model>::make();
    model->to(dtype);
    manual_seed(9);
    if (lora) {
      nn::add_lora(*model, {.rank = 2, .targets = Maker<Model>::targets()});
      const NoGrad off;
      for (Tensor& p : model->parameters())
        if (p.requires_grad()) p.add_(Tensor::randn(p.sizes()).to(dtype) * 0.1);
    }
    std::optional<compile::Regions> regions;
    if (options) regions = compile::compile_regions(*model, *options);
    manual_seed(10);
    std::vector<Tensor> trail;
    for (const int64_t T : {96, 96, 50, 96, 70}) {
      const Tensor positions = some_positions(2, T), idx = Tensor::randint(0, 61, {2, T});
      std::optional<amp::Autocast> scope;
      if (autocast) scope.emplace(kBF16);
      const Tensor loss = model->loss(idx, idx, positions);
      scope.reset();
      loss.backward();
      trail.push_back(loss.detach());
      for (const Tensor& p : model->parameters())
        if (p.requires_grad()) trail.push_back(p.grad().clone());
      model->zero_grad();
    }
    if (regions) {
      EXPECT_EQ(regions->report().size(), 1u);
      EXPECT_EQ(regions->report()[0].layers, 4);
      EXPECT_EQ(regions->report()[0].graph_breaks, 0) << regions->report()[0].last_break;
      EXPECT_EQ(regions->report()[0].eager_runs, 0);
    }
    return trail;
  }
  void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const char* what) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << what << " value " << i;
  }
};
using Models = testing::Types<nn::GPT2, nn::Llama>;
TYPED_TEST_SUITE(PackedRegions, Models);

TYPED_TEST(PackedRegions, EqualEagerInEveryBit) {
  for (const DType dtype : {kF32, kF64, kBF16})
    this->expect_same(this->run(std::nullopt, dtype, false, false),
                      this->run(compile::CompileOptions{.exact = true}, dtype, false, false), "plain");
}

TYPED_TEST(PackedRegions, WithAdaptersAutocastAndRecompute) {
  this->expect_same(this->run(std::nullopt, kF32, true, false),
                    this->run(compile::CompileOptions{.exact = true}, kF32, true, false), "lora");
  this->expect_same(this->run(std::nullopt, kF32, true, true),
                    this->run(compile::CompileOptions{.exact = true}, kF32, true, true), "autocast");
  this->expect_same(
      this->run(std::nullopt, kF32, false, false),
      this->run(compile::CompileOptions{.exact = true, .recompute = compile::Recompute::kFull}, kF32, false, false),
      "recompute");
}

TYPED_TEST(PackedRegions, ReplayedRecordingsTakeTheSequencesOfTheCall) {
  this->expect_same(
      this->run(std::nullopt, kF32, false, false),
      this->run(compile::CompileOptions{.exact = true, .capture = compile::Capture::kReplay}, kF32, false, false),
      "replay");
}

// A whole model as one region, with the positions as its argument.
TYPED_TEST(PackedRegions, WholeModel) {
  const auto model = Maker<TypeParam>::make(), twin = Maker<TypeParam>::make();
  compile::compile_module(*model, {.exact = true});
  manual_seed(3);
  const NoGrad off;
  for (int call = 0; call < 3; ++call) {
    const Tensor positions = some_positions(2, 96), idx = Tensor::randint(0, 61, {2, 96});
    EXPECT_TRUE(same_bits((*model)(idx, positions), (*twin)(idx, positions)));
  }
}

}  // namespace
}  // namespace rondo
