// Random numbers inside a region: the random state is data, so new numbers need no new recording; they are drawn within
// the kernels that use them.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

TEST(CompiledDropout, DrawsEagersMasksFromOneRecording) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const nn::GPT2Config config = {
      .vocab_size = 65, .block_size = 16, .n_layer = 4, .n_head = 2, .n_embd = 32, .dropout = 0.2};
  nn::GPT2 eager(config, 1), compiled(config, 1);
  const compile::Regions regions = compile::compile_regions(compiled, {.exact = true});
  const Tensor idx = Tensor::randint(0, 65, {2, 16});
  double previous = 0;
  for (uint64_t step = 0; step < 3; ++step) {
    manual_seed(100 + step);
    const Tensor a = eager.loss(idx, idx);
    a.backward();
    manual_seed(100 + step);
    const Tensor b = compiled.loss(idx, idx);
    b.backward();
    EXPECT_EQ(a.item(), b.item());
    EXPECT_NE(a.item(), previous);
    previous = a.item();
    EXPECT_EQ(eager.h[1].mlp.c_fc.weight.grad().to_vector<float>(),
              compiled.h[1].mlp.c_fc.weight.grad().to_vector<float>());
  }
  EXPECT_EQ(regions.report().at(0).entries, 1);
}

// A backward that recomputes its forward draws the masks again from the same state, those of attention too.
TEST(CompiledDropout, RecomputesTheSameMasks) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const nn::GPT2Config config = {
      .vocab_size = 65, .block_size = 18, .n_layer = 2, .n_head = 2, .n_embd = 32, .dropout = 0.2};
  const Tensor idx = Tensor::randint(0, 65, {2, 18});
  const auto grads = [&](std::optional<compile::Recompute> recompute) {
    nn::GPT2 model(config, 1);
    std::optional<compile::Regions> regions;
    if (recompute)
      regions = compile::compile_regions(model, {.exact = true, .recompute = *recompute, .recompute_budget = 2000});
    manual_seed(3);
    for (int step = 0; step < 2; ++step) model.loss(idx, idx).backward();
    std::vector<std::vector<float>> all;
    for (const Tensor& p : model.parameters()) all.push_back(p.grad().to_vector<float>());
    return all;
  };
  const auto expected = grads(std::nullopt);
  for (const compile::Recompute recompute :
       {compile::Recompute::kAuto, compile::Recompute::kNone, compile::Recompute::kFull, compile::Recompute::kBudget})
    EXPECT_EQ(grads(recompute), expected) << static_cast<int>(recompute);
}

// Every call stands somewhere else in the stream: a call's masks count from where the call begins.
TEST(CompiledDropout, GoesOnInTheStreamWithOneRecording) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const nn::GPT2Config config = {
      .vocab_size = 65, .block_size = 16, .n_layer = 3, .n_head = 2, .n_embd = 32, .dropout = 0.2};
  nn::GPT2 eager(config, 1), compiled(config, 1);
  const compile::Regions regions = compile::compile_regions(compiled, {.exact = true});
  const Tensor idx = Tensor::randint(0, 65, {2, 16});
  const auto losses = [&](nn::GPT2& model) {
    manual_seed(5);
    std::vector<double> list;
    for (int step = 0; step < 4; ++step) {
      list.push_back(model.loss(idx, idx).item());
      if (step % 2 == 1) Tensor::randn({3});  // somebody else draws, too
    }
    list.push_back(static_cast<double>(default_generator().offset()));
    return list;
  };
  const std::vector<double> expected = losses(eager);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ(losses(compiled), expected);
  EXPECT_EQ(regions.report().at(0).entries, 1);
}

// Kernels and library calls of a transformer block, forward and backward.
std::pair<int, int> launches_with(double p) {
  const nn::GPT2Config config = {
      .vocab_size = 65, .block_size = 16, .n_layer = 2, .n_head = 2, .n_embd = 32, .dropout = p};
  nn::GPT2 model(config, 1);
  const compile::Regions regions = compile::compile_regions(model);
  const Tensor idx = Tensor::randint(0, 65, {2, 16});
  model.loss(idx, idx).backward();
  return {regions.report().at(0).kernels, regions.report().at(0).library_calls};
}
// The one kernel more masks the gradient that the block is given, which products read as it comes without dropout.
TEST(CompiledDropout, JoinsTheKernelsOfABlock) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const auto [kernels, calls] = launches_with(0);
  EXPECT_EQ(launches_with(0.2), std::pair(kernels + 1, calls));
}

// Draws in every way between other ops, with gradients that need the masks.
struct Noisy : nn::Module<Noisy> {
  nn::Linear fc = child("fc", 24, 24);
  nn::LayerNorm norm = child("norm", 24);
  bool fails = false;
  Tensor forward(const Tensor& x) {
    const Tensor noise = Tensor::randn(x.sizes()) * 0.1 + Tensor::rand({x.size(0), 1});
    Tensor y = norm(ops::dropout(fc(x), 0.3) + x) * noise;
    y = y + ops::bernoulli(Tensor::full(x.sizes(), 0.4)) * ops::dropout(ops::gelu(y), 0.5);
    if (fails) throw std::runtime_error("in the middle");
    return y * Tensor::randn({x.size(1)}) + ops::dropout(y.transpose(0, 1), 0.25).transpose(0, 1);
  }
};
std::vector<Tensor> step(Noisy& model, const Tensor& data) {
  model.zero_grad();
  const Tensor x = data.detach().requires_grad_();
  const Tensor y = model(x * 1.5);
  ops::sum(y * y).backward();
  std::vector<Tensor> all = {y.detach(), x.grad()};
  for (const Tensor& p : model.parameters()) all.push_back(p.grad().clone());
  return all;
}
struct NoisyPair {
  Noisy eager, compiled;
  compile::Regions regions;
  explicit NoisyPair(compile::CompileOptions options) : regions(compile::compile_module(compiled, options)) {
    compiled.load_state_dict(eager.state_dict());
  }
  // From equal states of the generator; both leave it equal.
  void expect_equal(int64_t rows, uint64_t seed) {
    const Tensor x = Tensor::full({rows, 24}, 0.5);
    manual_seed(seed);
    const std::vector<Tensor> a = step(eager, x);
    const uint64_t offset = default_generator().offset();
    manual_seed(seed);
    const std::vector<Tensor> b = step(compiled, x);
    EXPECT_EQ(default_generator().offset(), offset);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::same_bits(a[i], b[i])) << i;
  }
};

TEST(CompiledRandom, DrawsEagersNumbers) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  for (const compile::Capture capture : {compile::Capture::kRecord, compile::Capture::kReplay}) {
    NoisyPair pair({.exact = true, .capture = capture});
    for (uint64_t seed = 1; seed < 4; ++seed) pair.expect_equal(6, seed);
    for (const int64_t rows : {7, 9, 16}) pair.expect_equal(rows, 9);
    const compile::RegionReport report = pair.regions.report().at(0);
    EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
    EXPECT_EQ(report.eager_runs, 0);
  }
}

TEST(CompiledRandom, DrawsTheSameWhereItRunsTwice) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  NoisyPair pair({.exact = true});
  const auto gradient = [](Noisy& model) {
    manual_seed(3);
    const Tensor x = Tensor::full({6, 24}, 0.5).requires_grad_();
    const std::vector<Tensor> in{x};
    ops::sum(autograd::checkpoint([&](std::span<const Tensor> t) { return std::vector<Tensor>{model(t[0])}; }, in)[0])
        .backward();
    return x.grad();
  };
  EXPECT_TRUE(test::same_bits(gradient(pair.eager), gradient(pair.compiled)));
}

TEST(CompiledRandom, AnExceptionLeavesTheStreamWhereItWas) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  NoisyPair pair({.exact = true});
  for (const bool fails : {true, false}) {
    uint64_t offsets[2];
    for (Noisy* model : {&pair.eager, &pair.compiled}) {
      manual_seed(4);
      model->fails = fails;
      if (fails) EXPECT_THROW((*model)(Tensor::ones({6, 24})), std::runtime_error);
      else (*model)(Tensor::ones({6, 24}));
      offsets[model == &pair.compiled] = default_generator().offset();
    }
    EXPECT_EQ(offsets[0], offsets[1]);
  }
  pair.expect_equal(6, 5);
}

TEST(CompiledRandom, ThreadsHaveStreamsOfTheirOwn) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  NoisyPair first({.exact = true}), second({.exact = true});
  const auto run = [device = default_device()](NoisyPair& pair, uint64_t seed) {
    const DeviceScope here(device);  // a thread has its own
    for (uint64_t i = 0; i < 5; ++i) pair.expect_equal(6, seed + i);
  };
  std::thread other([&] { run(second, 100); });
  run(first, 200);
  other.join();
}

// Wrong numbers of a kernel show: each of these bugs gives other results than eager execution.
TEST(CompiledRandom, PlantedBugsAreSeen) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  using compile::LoopKernel;
  void (*const bugs[])(LoopKernel&) = {[](LoopKernel& k) {  // the next offset
                                         for (compile::Operand& o : k.operands) o.increment += o.is_random;
                                       },
                                       [](LoopKernel& k) {  // every row draws the first row's numbers
                                         for (compile::Operand& o : k.operands)
                                           if (o.is_random) o.axes.clear();
                                       },
                                       [](LoopKernel& k) {  // rows that are one number too long
                                         for (compile::Operand& o : k.operands)
                                           for (compile::OperandAxis& axis : o.axes) axis.stride += o.is_random;
                                       },
                                       [](LoopKernel& k) {  // columns in steps of two
                                         for (compile::Operand& o : k.operands) o.col_stride += o.is_random;
                                       },
                                       [](LoopKernel& k) {  // the other word
                                         for (compile::Instr& i : k.instrs)
                                           if (i.op == LoopOp::kRandomFirst) i.op = LoopOp::kRandomSecond;
                                       }};
  for (auto* bug : bugs) {
    Noisy eager, compiled;
    compiled.load_state_dict(eager.state_dict());
    compile::miscompile_for_tests = bug;
    const compile::Regions regions = compile::compile_module(compiled, {.exact = true});
    const auto result = [](Noisy& model) {
      manual_seed(1);
      return model(Tensor::full({6, 24}, 0.5));
    };
    const Tensor right = result(eager), wrong = result(compiled);
    EXPECT_FALSE(test::same_bits(right, wrong));
    compile::miscompile_for_tests = nullptr;
  }
}

}  // namespace
}  // namespace rondo
