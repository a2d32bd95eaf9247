// BatchNorm, GroupNorm and DropPath: recorded values of PyTorch (tests/reference/record_norms.py), and regions against
// eager execution.
#include "rondo/modules/layers/channel_norm.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/convolution.h"
#include "rondo/modules/layers/fold_batch_norm.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/paths.h"

namespace rondo::nn {
namespace {

using test::error_of;

// The network that record_norms.py trains.
struct Net : Module<Net> {
  Conv2d conv1 = child("conv1", 3, 8, 3, Conv2dOptions{.padding = 1, .bias = false});
  BatchNorm2d bn1 = child("bn1", 8);
  Conv2d conv2 = child("conv2", 8, 8, 3, Conv2dOptions{.padding = 1, .bias = false});
  BatchNorm2d bn2 = child("bn2", 8, BatchNormOptions{.momentum = std::nullopt});
  GroupNorm norm = child("norm", 2, 8);
  Linear fc1 = child("fc1", 8, 6);
  BatchNorm1d bn3 = child("bn3", 6, BatchNormOptions{.momentum = 0.3});
  Linear fc2 = child("fc2", 6, 5);
  Tensor forward(const Tensor& images) {  // (B, 3, H, W) -> (B, 5)
    Tensor x = ops::relu(bn1(conv1(images)));
    x = ops::relu(bn2(conv2(x)) + x);
    return fc2(ops::relu(bn3(fc1(ops::mean(norm(x), {2, 3})))));
  }
};

class ChannelNormReference : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    file = io::load_safetensors(std::string(tests::kReferenceDir) + "/channel_norms.safetensors").tensors;
  }
  // Recorded values, those of one prefix as a state.
  StateDict state(const std::string& prefix) const {
    StateDict found;
    for (const auto& [name, tensor] : file)
      if (name.starts_with(prefix)) found[name.substr(prefix.size())] = tensor;
    return found;
  }
  void expect_close(const Tensor& got, const Tensor& want, const std::string& what) const {
    const double bound = GetParam() == kF64 ? 1e-11 : 1e-4;
    EXPECT_TRUE(test::is_close(got.to(want.dtype()), want, test::of_largest_above_1(bound))) << what;
  }
  void expect_state(const ModuleBase& module, const std::string& prefix, const std::string& suffix = "") const {
    for (const auto& [name, tensor] : module.state_dict())
      expect_close(tensor, file.at(prefix + name + suffix), name + suffix);
  }

  template <class M> void run(const std::string& name, std::unique_ptr<M> layer) {
    SCOPED_TRACE(name);
    layer->to(GetParam());
    layer->load_state_dict(state(name + ".start."));
    const auto leaf = [&](const std::string& key) { return file.at(name + key).to(GetParam()).clone(); };
    int steps = 0;
    for (std::string i = "0"; file.contains(name + ".x" + i); i = std::to_string(++steps)) {
      SCOPED_TRACE("step " + i);
      Tensor x = leaf(".x" + i).requires_grad_();
      const Tensor y = (*layer)(x);
      expect_close(y, file.at(name + ".y" + i), "result");
      layer->zero_grad();
      y.backward(leaf(".grad" + i));
      expect_close(x.grad(), file.at(name + ".dx" + i), "gradient of x");
      for (const auto& [parameter, tensor] : layer->named_parameters())
        expect_close(tensor.grad(), file.at(name + ".d." + parameter + i), "gradient of " + parameter);
      expect_state(*layer, name + ".state.", i);
    }
    EXPECT_GT(steps, 0);
    layer->eval();
    Tensor x = leaf(".x0").requires_grad_();
    const Tensor y = (*layer)(x);
    expect_close(y, file.at(name + ".eval"), "evaluation");
    y.backward(leaf(".grad0"));
    expect_close(x.grad(), file.at(name + ".eval_dx"), "gradient of x in evaluation");
  }

  io::TensorMap file;
};

TEST_P(ChannelNormReference, Layers) {
  run("bn2d", std::make_unique<BatchNorm2d>(3));
  run("bn2d_momentum", std::make_unique<BatchNorm2d>(3, BatchNormOptions{.eps = 1e-3, .momentum = 0.4}));
  run("bn2d_cumulative", std::make_unique<BatchNorm2d>(3, BatchNormOptions{.momentum = std::nullopt}));
  run("bn2d_plain", std::make_unique<BatchNorm2d>(3, BatchNormOptions{.affine = false}));
  run("bn2d_batch_only", std::make_unique<BatchNorm2d>(3, BatchNormOptions{.track_running_stats = false}));
  run("bn1d", std::make_unique<BatchNorm1d>(5));
  run("bn1d_rows", std::make_unique<BatchNorm1d>(4));
  run("gn", std::make_unique<GroupNorm>(2, 6));
  run("gn_each", std::make_unique<GroupNorm>(4, 4, GroupNormOptions{.eps = 1e-3}));
  run("gn_one", std::make_unique<GroupNorm>(1, 6, GroupNormOptions{.affine = false}));
}

// Losses, parameters and running statistics after ten steps, and the logits of the evaluation that follows; eagerly and
// compiled, recorded at each call and replayed.
TEST_P(ChannelNormReference, TenSteps) {
  for (const char* how : {"eager", "recorded", "replayed"}) {
    SCOPED_TRACE(how);
    const bool compiled = how[0] == 'r', replayed = std::string(how) == "replayed";
    if (compiled && !compile::jit_available()) continue;
    Net net;
    net.to(GetParam());
    net.load_state_dict(state("net.start."));
    std::unique_ptr<compile::Regions> regions;
    if (compiled)
      regions = std::make_unique<compile::Regions>(compile::compile_module(
          net, {.exact = true, .capture = replayed ? compile::Capture::kReplay : compile::Capture::kRecord}));
    optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
    const Tensor images = file.at("net.images").to(GetParam());
    std::vector<double> losses;
    for (int step = 0; step < 10; ++step) {
      const Tensor loss = ops::cross_entropy(net(images), file.at("net.targets"));
      losses.push_back(loss.item());
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
    const double bound = GetParam() == kF64 ? 1e-9 : 1e-3;
    EXPECT_TRUE(test::is_close(Tensor::from(losses, {10}), file.at("net.losses"), test::relative_above_1(bound)));
    for (const auto& [name, tensor] : net.state_dict()) {
      const Tensor& want = file.at("net.end." + name);
      EXPECT_TRUE(test::is_close(tensor.to(want.dtype()), want, test::of_largest_above_1(bound))) << name;
    }
    if (regions) {
      const compile::RegionReport report = regions->report()[0];
      EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
      EXPECT_EQ(report.entries, 1) << report.last_recompile;
      EXPECT_EQ(report.calls, 10);
      EXPECT_GE(report.replays, replayed ? 8 : 0) << report.why_not_replayed;
    }
    net.eval();
    const Tensor logits = no_grad([&] { return net(images); });
    EXPECT_TRUE(test::is_close(logits.to(kF64), file.at("net.logits"), test::of_largest_above_1(bound)));
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ChannelNormReference, testing::Values(kF64, kF32),
                         [](const auto& info) { return std::string(name_of(info.param)); });

// Everything that training leaves behind, after some steps.
std::vector<Tensor> train(Net& net, const Tensor& x, int steps) {
  std::vector<Tensor> results;
  for (int i = 0; i < steps; ++i) {
    const Tensor input = x.detach().requires_grad_();
    const Tensor y = net(input);
    net.zero_grad();
    y.backward(Tensor::ones(y.sizes(), {y.dtype()}));
    results.push_back(y);
    results.push_back(input.grad());
    for (const auto& [name, parameter] : net.named_parameters()) results.push_back(parameter.grad().clone());
  }
  for (const auto& [name, buffer] : net.named_buffers()) results.push_back(buffer.clone());
  return results;
}

TEST(ChannelNorm, CompiledEqualsEager) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  for (const DType dtype : {kF32, kBF16, kF64})
    for (const bool last : {false, true})
      for (const bool replayed : {false, true}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + (last ? ", channels last" : "") + (replayed ? ", replayed" : ""));
        manual_seed(3);
        Net net, other;
        other.load_state_dict(net.state_dict());
        net.to(dtype);
        other.to(dtype);
        Tensor x = Tensor::randn({5, 3, 6, 7}).to(dtype);
        if (last) x = x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
        const std::vector<Tensor> eager = train(net, x, 3);
        const auto regions = compile::compile_module(
            other, {.exact = true, .capture = replayed ? compile::Capture::kReplay : compile::Capture::kRecord});
        const test::MustRunCompiled here;
        const std::vector<Tensor> compiled = train(other, x, 3);
        for (size_t i = 0; i < eager.size(); ++i) {
          EXPECT_TRUE(test::same_bits(eager[i], compiled[i])) << i;
          EXPECT_EQ(to_string(eager[i].strides()), to_string(compiled[i].strides())) << i;
        }
        const compile::RegionReport report = regions.report()[0];
        EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
        EXPECT_EQ(report.entries, 1) << report.last_recompile;
      }
}

// All of a network that is channels last is: convolutions, norms, activations, their gradients.
TEST(ChannelNorm, ChannelsLastThroughARegion) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  struct Tail : Module<Tail> {
    Conv2d conv = child("conv", 4, 8, 3, Conv2dOptions{.padding = 1});
    BatchNorm2d bn = child("bn", 8);
    GroupNorm gn = child("gn", 2, 8);
    Tensor forward(const Tensor& x) { return ops::relu(gn(ops::relu(bn(conv(x)) + x.size(1)))) * 2.0; }
  };
  manual_seed(4);
  Tail eager, compiled;
  compiled.load_state_dict(eager.state_dict());
  const auto regions = compile::compile_module(compiled, {.exact = true});
  const test::MustRunCompiled here;
  const Tensor image = Tensor::randn({3, 5, 6, 4}).permute({0, 3, 1, 2});
  for (int step = 0; step < 2; ++step) {
    Tensor results[2][3];
    for (int i = 0; i < 2; ++i) {
      Tail& net = i == 0 ? eager : compiled;
      Tensor x = image.detach().requires_grad_();
      const Tensor y = net(x);
      net.zero_grad();
      y.backward(no_grad([&] { return y * 0.5; }));
      results[i][0] = y, results[i][1] = x.grad(), results[i][2] = net.bn.weight.grad();
    }
    for (int k = 0; k < 3; ++k) {
      EXPECT_TRUE(test::same_bits(results[0][k], results[1][k])) << k;
      EXPECT_EQ(to_string(results[0][k].strides()), to_string(results[1][k].strides())) << k;
    }
    EXPECT_EQ(results[1][0].strides()[1], 1);
  }
  EXPECT_EQ(regions.report()[0].graph_breaks, 0) << regions.report()[0].last_break;
}

// Under autocast a convolution gives 16 bits, and the layer's parameters and statistics stay f32.
TEST(ChannelNorm, Autocast) {
  BatchNorm2d norm(4);
  const Tensor x = Tensor::randn({3, 4, 5, 5}).to(kBF16);
  const amp::Autocast lower(kBF16);
  const Tensor y = norm(x);
  EXPECT_EQ(y.dtype(), kBF16);
  EXPECT_EQ(norm.running_mean.dtype(), kF32);
  y.backward(Tensor::ones(y.sizes(), {kBF16}));
  EXPECT_EQ(norm.weight.grad().dtype(), kF32);
  const auto [var, mean] = ops::var_mean(x.to(kF32), {0, 2, 3}, 1.0);
  EXPECT_TRUE(test::is_close(norm.running_mean, mean * 0.1, {.absolute = 1e-6}));
  EXPECT_TRUE(test::is_close(norm.running_var, var * 0.1 + 0.9, {.absolute = 1e-6}));
}

TEST(ChannelNorm, FrozenLayersKeepTheirStatistics) {
  BatchNorm2d norm(3);
  norm(Tensor::randn({4, 3, 5, 5}));
  const Tensor mean = norm.running_mean.clone(), var = norm.running_var.clone(),
               x = Tensor::randn({2, 3, 4, 4}) + Tensor::full({}, 3.0);
  const Tensor evaluated = [&] {
    norm.eval();
    return norm(x);
  }();
  norm.train();
  norm.freeze();
  EXPECT_TRUE(test::same_bits(norm(x), evaluated));
  EXPECT_TRUE(norm(Tensor::randn({1, 3, 1, 1})).defined());  // needs no statistics of the batch
  EXPECT_TRUE(test::same_bits(norm.running_mean, mean));
  EXPECT_TRUE(test::same_bits(norm.running_var, var));
  EXPECT_EQ(norm.num_batches_tracked.item<int64_t>(), 1);
  norm.freeze(false);
  norm(x);
  EXPECT_EQ(norm.num_batches_tracked.item<int64_t>(), 2);
  EXPECT_FALSE(test::same_bits(norm.running_mean, mean));
}

// Every step changes them by a tenth of a difference, which bf16 rounds to nothing long before they are right.
TEST(ChannelNorm, RunningStatisticsOfA16BitModelAreF32) {
  for (const DType dtype : {kBF16, kF16}) {
    BatchNorm1d norm(2);
    norm.to(dtype);
    EXPECT_EQ(norm.weight.dtype(), dtype);
    EXPECT_EQ(norm.running_mean.dtype(), kF32);
    EXPECT_EQ(norm.running_var.dtype(), kF32);
    Tensor x = Tensor::randn({512, 2});
    x = ((x - x.mean({0}, true)) / ops::sqrt(ops::var_mean(x, {0}, 1.0).var) * 3.0 + 10.0).to(dtype);
    const ops::VarAndMean is = ops::var_mean(x.to(kF32), {0}, 1.0);
    for (int step = 0; step < 200; ++step) norm(x);
    EXPECT_TRUE(test::is_close(norm.running_mean, is.mean, {.of_largest = 1e-4}));
    EXPECT_TRUE(test::is_close(norm.running_var, is.var, {.of_largest = 1e-4}));
    EXPECT_EQ(norm(x).dtype(), dtype);
    norm.to(kF64);
    EXPECT_EQ(norm.running_mean.dtype(), kF64);
    norm.to(dtype);
    EXPECT_EQ(norm.running_mean.dtype(), kF32);
  }
}

// A replayed region notices that a layer was frozen.
TEST(ChannelNorm, FreezingEndsAReplay) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  BatchNorm2d norm(3);
  const auto regions = compile::compile_module(norm, {.capture = compile::Capture::kReplay});
  const Tensor x = Tensor::randn({4, 3, 5, 5});
  for (int i = 0; i < 3; ++i) norm(x);
  EXPECT_EQ(norm.num_batches_tracked.item<int64_t>(), 3);
  norm.freeze();
  for (int i = 0; i < 3; ++i) norm(x);
  EXPECT_EQ(norm.num_batches_tracked.item<int64_t>(), 3);
}

TEST(ChannelNorm, ErrorsNameTheNumbers) {
  const auto expect = [](const std::function<void()>& run, std::initializer_list<const char*> parts) {
    const std::string message = error_of(run);
    for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  };
  BatchNorm2d norm(8);
  expect(
      [&] {
        norm(Tensor::zeros({1, 8, 1, 1}));
      },
      {"BatchNorm2d", "more than 1 value", "8 channels", "[1, 8, 1, 1]"});
  expect([&] { norm(Tensor::zeros({2, 5, 3, 3})); }, {"5 channels", "8", "[2, 5, 3, 3]"});
  expect([&] { norm(Tensor::zeros({2, 8, 3})); }, {"(B, C, H, W)", "[2, 8, 3]"});
  EXPECT_EQ(norm.num_batches_tracked.item<int64_t>(), 0);
  BatchNorm1d rows(4, {.track_running_stats = false});
  expect([&] { rows(Tensor::zeros({2, 4, 3, 3})); }, {"BatchNorm1d", "(B, C) or (B, C, L)", "[2, 4, 3, 3]"});
  expect([&] { rows.eval(), rows(Tensor::zeros({1, 4})); }, {"more than 1 value"});
  expect([&] { rows.freeze(); }, {"without running statistics"});
  expect([] { BatchNorm2d(0); }, {"positive, got 0"});
  expect([] { BatchNorm2d(4, {.momentum = 1.5}); }, {"[0, 1]", "1.5"});
  expect([] { GroupNorm(3, 8); }, {"3 groups", "8 channels"});
  GroupNorm groups(2, 4);
  expect([&] { groups(Tensor::zeros({2, 6, 3})); }, {"6 channels", "[4]"});
  expect([] { DropPath(1.5); }, {"[0, 1]", "1.5"});
}

// ---- Folding

struct Folded : Module<Folded> {
  Conv2d stem = child("stem", 3, 8, 3, Conv2dOptions{.padding = 1, .bias = false});
  BatchNorm2d bn1 = child("bn1", 8);
  Conv2d grouped = child("grouped", 8, 6, 3, Conv2dOptions{.groups = 2});
  BatchNorm2d bn2 = child("bn2", 6, BatchNormOptions{.eps = 1e-3, .affine = false});
  ConvTranspose2d up = child("up", 6, 4, 2, ConvTranspose2dOptions{.stride = 2, .groups = 2});
  BatchNorm2d bn3 = child("bn3", 4);
  // Not to be folded: the result is read again; an activation lies between; the statistics are those of the batch.
  Conv2d read_again = child("read_again", 4, 4, 1);
  BatchNorm2d bn4 = child("bn4", 4);
  Conv2d activated = child("activated", 4, 4, 1);
  BatchNorm2d bn5 = child("bn5", 4);
  Conv2d last = child("last", 4, 4, 1);
  BatchNorm2d bn6 = child("bn6", 4, BatchNormOptions{.track_running_stats = false});
  Tensor forward(const Tensor& images) {  // (B, 3, H, W)
    Tensor x = ops::relu(bn1(stem(images)));
    x = ops::relu(bn3(up(bn2(grouped(x)))));
    const Tensor branch = read_again(x);
    x = bn4(branch) + branch;
    x = bn5(ops::relu(activated(x)));
    return bn6(last(x));
  }
};

TEST(FoldBatchNorm, LeavesTheResult) {
  for (const DType dtype : {kF64, kF32}) {
    SCOPED_TRACE(name_of(dtype));
    manual_seed(11);
    Folded net;
    for (const Tensor& p : net.parameters()) no_grad([&] { Tensor(p).add_(Tensor::rand(p.sizes())); });
    net.to(dtype);
    const Tensor x = Tensor::randn({3, 3, 6, 5}).to(dtype);
    for (int i = 0; i < 5; ++i) net(x + i);
    EXPECT_NE(error_of([&] { fold_batch_norm(net, [&] { return net(x); }); }).find("eval()"), std::string::npos);
    net.eval();
    const Tensor want = no_grad([&] { return net(x); });
    EXPECT_EQ(fold_batch_norm(net, [&] { return net(x); }), 3);
    const Tensor got = no_grad([&] { return net(x); });
    EXPECT_TRUE(test::is_close(got, want, test::of_largest_above_1(dtype == kF64 ? 1e-12 : 1e-5)));
    std::string names;
    for (const auto& [name, tensor] : net.state_dict())
      if (name.starts_with("bn")) names += name.substr(0, 4);
    EXPECT_EQ(names.find("bn1."), std::string::npos);
    EXPECT_EQ(names.find("bn3."), std::string::npos);
    EXPECT_NE(names.find("bn4."), std::string::npos);
    EXPECT_TRUE(net.stem.bias.defined());
    EXPECT_EQ(fold_batch_norm(net, [&] { return net(x); }), 0);  // all that can be is
  }
}

// Regions of the model record what it is now, and are as they were after the examples.
TEST(FoldBatchNorm, OfACompiledModel) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  manual_seed(12);
  Folded net;
  const Tensor x = Tensor::randn({2, 3, 6, 5});
  net(x);
  net.eval();
  const auto regions = compile::compile_module(net, {.exact = true});
  const auto run = [&] { return no_grad([&] { return net(x); }); };
  const Tensor before = run();
  EXPECT_EQ(fold_batch_norm(net, [&] { return net(x); }), 3);
  const Tensor after = run();
  EXPECT_TRUE(test::is_close(after, before, test::of_largest_above_1(1e-5)));
  EXPECT_EQ(regions.report()[0].calls, 2);
  EXPECT_EQ(regions.report()[0].entries, 2);
}

TEST(DropPath, DropsWholeExamples) {
  manual_seed(5);
  DropPath path(0.25);
  Tensor x = Tensor::ones({400, 3, 2}).requires_grad_();
  const Tensor y = path(x);
  y.backward(Tensor::ones(y.sizes()));
  EXPECT_TRUE(test::same_bits(x.grad(), y));  // the same examples
  const std::vector<double> values = y.to_vector<double>();
  int dropped = 0;
  for (size_t i = 0; i < values.size(); i += 6) {
    for (size_t k = 1; k < 6; ++k) EXPECT_EQ(values[i + k], values[i]);
    EXPECT_TRUE(values[i] == 0 || values[i] == static_cast<double>(1 / 0.75f)) << values[i];
    dropped += values[i] == 0;
  }
  EXPECT_NEAR(dropped, 100, 40);
  path.eval();
  EXPECT_TRUE(path(x).is_same(x));
  DropPath all(1.0);
  EXPECT_EQ(test::largest(all(x)), 0);
}

TEST(DropPath, CompiledEqualsEager) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  for (const DType dtype : {kF32, kBF16}) {
    const Tensor x = Tensor::randn({32, 4, 5}).to(dtype);
    DropPath eager(0.5), compiled(0.5);
    manual_seed(7);
    const Tensor want = eager(x);
    const auto regions = compile::compile_module(compiled, {.exact = true});
    const test::MustRunCompiled here;
    manual_seed(7);
    EXPECT_TRUE(test::same_bits(compiled(x), want));
    EXPECT_EQ(regions.report()[0].graph_breaks, 0) << regions.report()[0].last_break;
  }
}

}  // namespace
}  // namespace rondo::nn
