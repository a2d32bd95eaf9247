// Adapters inside regions: one region serves all layers, and compiled equals eager.
#include "rondo/modules/lora/lora.h"

#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/small_modules.h"

namespace rondo {
namespace {

using test::same_bits;

constexpr nn::GPT2Config kConfig = {.vocab_size = 61, .block_size = 19, .n_layer = 4, .n_head = 2, .n_embd = 48};

void stir(nn::ModuleBase& model) {
  const NoGrad off;
  for (Tensor& p : model.parameters())
    if (p.requires_grad()) p.add_(Tensor::randn(p.sizes()).to(p.dtype()) * 0.1);
}

class LoraRegions : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    allocator::set_poison_on_free(true);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }
  Tensor idx = Tensor::randint(0, 61, {3, 19});
};

// Five steps with two adapters in turn and dropout: every loss and every parameter, bit for bit.
TEST_F(LoraRegions, TrainingEqualsEagerInEveryBit) {
  for (DType dtype : {kF32, kF64, kBF16}) {
    const auto train = [&](bool compiled) {
      nn::GPT2 model(kConfig, 7);
      model.to(dtype);
      manual_seed(9);
      nn::add_lora(model, {.rank = 4, .alpha = 8, .dropout = 0.3, .targets = {"c_attn", "mlp.c_proj"}, .adapter = "a"});
      nn::add_lora(model, {.rank = 2, .targets = {"c_fc"}, .modules_to_save = {"ln_1"}, .adapter = "b"});
      std::optional<compile::Regions> regions;
      if (compiled) regions = compile::compile_regions(model, {.exact = true});
      std::vector<Tensor> all = model.parameters();
      optim::AdamW optimizer(all, {.lr = 1e-2});
      if (compiled) optim::compile(optimizer);
      std::vector<Tensor> trail;
      for (int step = 0; step < 6; ++step) {
        nn::set_adapter(model, step % 2 == 0 ? "a" : "b");
        const Tensor loss = model.loss(idx, idx);
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        trail.push_back(loss.detach());
      }
      for (const Tensor& p : model.parameters()) trail.push_back(p.detach().clone());
      if (compiled) {
        EXPECT_EQ(regions->report().size(), 1u);
        const compile::RegionReport report = regions->report()[0];
        EXPECT_EQ(report.layers, 4);
        EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
        EXPECT_EQ(report.eager_runs, 0);
        // For each adapter the first block, whose input needs no gradient, and the others.
        EXPECT_EQ(report.entries, 4) << regions->summary();
      }
      return trail;
    };
    const std::vector<Tensor> eager = train(false), compiled = train(true);
    ASSERT_EQ(eager.size(), compiled.size());
    for (size_t i = 0; i < eager.size(); ++i)
      EXPECT_TRUE(same_bits(eager[i], compiled[i])) << name_of(dtype) << " value " << i;
  }
}

// Adapters that come after compilation, go, are switched off or merged: no recording is used for another state, with a
// replay of recordings, too.
TEST_F(LoraRegions, FollowTheAdapterThatIsActive) {
  for (const compile::Capture capture : {compile::Capture::kRecord, compile::Capture::kReplay}) {
    nn::GPT2 model(kConfig, 7), twin(kConfig, 7);
    compile::compile_regions(model, {.exact = true, .capture = capture});
    const auto both = [&](const auto& change) {
      for (nn::GPT2* m : {&model, &twin}) {
        manual_seed(4);
        change(*m);
      }
    };
    const auto expect_equal = [&](const char* when) {
      for (int call = 0; call < 2; ++call) EXPECT_TRUE(same_bits(model(idx).detach(), twin(idx).detach())) << when;
    };
    expect_equal("without an adapter");
    both([](nn::GPT2& m) { nn::add_lora(m, {.rank = 4, .targets = {"c_attn"}, .adapter = "a"}), stir(m); });
    expect_equal("with one");
    both([](nn::GPT2& m) { nn::add_lora(m, {.rank = 2, .targets = {"c_attn"}, .adapter = "b"}), stir(m); });
    expect_equal("with another");
    both([](nn::GPT2& m) { nn::set_adapter(m, "a"); });
    expect_equal("switched");
    {
      const nn::DisableAdapters first(model), second(twin);
      expect_equal("disabled");
    }
    expect_equal("enabled");
    both([](nn::GPT2& m) { nn::merge_adapter(m); });
    expect_equal("merged");
    both([](nn::GPT2& m) { nn::unmerge_adapter(m); });
    expect_equal("unmerged");
    both([](nn::GPT2& m) { nn::remove_adapter(m, "b"); });
    both([](nn::GPT2& m) { nn::merge_and_unload(m); });
    expect_equal("unloaded");
    compile::disable(model);
    EXPECT_TRUE(same_bits(model(idx).detach(), twin(idx).detach()));
  }
}

TEST_F(LoraRegions, DisablingRegionsLeavesAdapters) {
  nn::GPT2 model(kConfig, 7);
  nn::add_lora(model, {.rank = 4, .targets = {"c_attn"}});
  stir(model);
  const Tensor before = model(idx);
  compile::compile_regions(model, {.exact = true});
  EXPECT_TRUE(same_bits(model(idx).detach(), before.detach()));
  compile::disable(model);
  EXPECT_TRUE(same_bits(model(idx).detach(), before.detach()));
}

// A region of the target itself: the adapter's ops are in it.
TEST_F(LoraRegions, ARegionOfTheTarget) {
  struct Net : nn::Module<Net> {
    nn::ModuleList<nn::Linear> layers = child("layers", 3, 24, 24);
    Tensor forward(const Tensor& x) {
      Tensor y = x;
      for (nn::Linear& layer : layers) y = layer(y);
      return y;
    }
  } net;
  nn::add_lora(net, {.rank = 4, .target_pattern = R"(layers\.\d+)"});
  stir(net);
  const Tensor x = Tensor::randn({5, 24}), before = net(x);
  compile::Regions regions = compile::compile_regions(net, {.exact = true, .fullgraph = true});
  EXPECT_TRUE(same_bits(net(x).detach(), before.detach()));
  EXPECT_EQ(regions.report().size(), 1u);
  EXPECT_EQ(regions.report()[0].layers, 3);
}

// The weight's gradient is not computed where the weight is frozen; the input's is.
TEST_F(LoraRegions, AFrozenWeightCostsNoProduct) {
  const auto products = [](bool frozen) {
    test::OneLinear net(24);
    net.requires_grad_(!frozen);
    compile::Regions regions = compile::compile_module(net);
    Tensor x = Tensor::randn({5, 24}).requires_grad_();
    ops::sum(net(x)).backward();
    EXPECT_TRUE(x.grad().defined());
    EXPECT_EQ(net.fc.weight.grad().defined(), !frozen);
    return regions.report()[0].library_calls;
  };
  EXPECT_EQ(products(false), 3);
  EXPECT_EQ(products(true), 2);
}

// At the peak of a training step a frozen model holds no gradients and no states of its base, eagerly and in regions.
TEST_F(LoraRegions, TheMemoryReportShowsTheAdapterOnly) {
  allocator::set_poison_on_free(false);
  const nn::GPT2Config config = {.vocab_size = 512, .block_size = 32, .n_layer = 4, .n_head = 2, .n_embd = 128};
  const Tensor tokens = Tensor::randint(0, 512, {1, 32});
  const auto peak = [&](bool lora, bool compiled) {
    nn::GPT2 model(config, 1);
    int64_t trainable = model.num_parameters();
    if (lora) trainable = nn::add_lora(model, {.rank = 4, .targets = {"c_attn"}}).trainable;
    if (compiled) compile::compile_regions(model, {.recompute = compile::Recompute::kNone});
    optim::AdamW optimizer(model.parameters(), {});
    if (compiled) optim::compile(optimizer);
    const auto step = [&] {
      optimizer.zero_grad();
      model.loss(tokens, tokens).backward();
      optimizer.step();
    };
    step();
    memory::Recording recording;
    const memory::Report before = recording.report();
    step();
    const memory::Report r = recording.report();
    // The memory that training takes beyond the parameters, in elements of what is trained.
    const double states = static_cast<double>(r.states) / static_cast<double>(4 * trainable);
    EXPECT_GE(states, 2.0);
    EXPECT_LE(states, lora ? 4.0 : 2.5);  // small tensors are rounded up
    EXPECT_LE(r.gradients, (lora ? 4 : 2) * 4 * trainable);
    return r.in_use() - before.parameters;
  };
  for (const bool compiled : {false, true}) {
    const int64_t full = peak(false, compiled), lora = peak(true, compiled);
    EXPECT_LT(4 * lora, full) << (compiled ? "compiled" : "eager") << ": " << lora << " and " << full;
  }
}

}  // namespace
}  // namespace rondo
