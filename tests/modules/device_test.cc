// Whole models on a device that is not the host.
#include <gtest/gtest.h>

#include <filesystem>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo::nn {
namespace {

using test::FakeDevice;
using test::same_bits;

class ModelOnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::test_device() != kCPU) GTEST_SKIP() << "makes fake devices of its own";
  }
  const GPT2Config config = {.vocab_size = 31, .block_size = 12, .n_layer = 2, .n_head = 2, .n_embd = 16};
  const Tensor idx = Tensor::arange(24).view({2, 12}), targets = Tensor::arange(1, 25).view({2, 12});
};

TEST_F(ModelOnDevice, MovesWithItsGradients) {
  FakeDevice fake;
  GPT2 here(config, 3), moved(config, 3);
  for (GPT2* model : {&here, &moved}) model->loss(idx, targets).backward();
  moved.to(fake.device());
  EXPECT_TRUE(moved.wte.weight.is_same(*moved.tensor_slots()[0])) << "members are the same handles";
  const auto a = here.named_parameters(), b = moved.named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(b[i].tensor.device(), fake.device()) << b[i].name;
    EXPECT_TRUE(b[i].tensor.requires_grad());
    EXPECT_TRUE(same_bits(a[i].tensor.detach(), b[i].tensor.detach().to(kCPU))) << a[i].name;
    EXPECT_TRUE(same_bits(a[i].tensor.grad(), b[i].tensor.grad().to(kCPU))) << a[i].name;
  }
  EXPECT_NE(test::error_of([&] { moved.loss(idx, targets); }).find("move one with .to(Device)"), std::string::npos);
  EXPECT_EQ(moved.loss(idx.to(fake.device()), targets.to(fake.device())).item(), here.loss(idx, targets).item());
  moved.to(kCPU);
  EXPECT_EQ(moved.loss(idx, targets).item(), here.loss(idx, targets).item());
}

// y = w + x saves no parameter, so nothing that backward reads has changed.
TEST_F(ModelOnDevice, AGraphFromBeforeAMoveCannotGoBackward) {
  struct Shift : Module<Shift> {
    Tensor& w = parameter("w", Tensor::ones({3}));
    Tensor forward(const Tensor& x) { return w + x; }
  };
  FakeDevice fake;
  for (const bool casts : {false, true}) {
    Shift model;
    int hooked = 0;
    model.w.register_hook([&](const Tensor& g) { return ++hooked, g; });
    const Tensor x = Tensor::ones({3}), before = ops::sum(model(x));
    if (casts) model.to(kBF16);
    else model.to(fake.device());
    const std::string error = test::error_of([&] { before.backward(); });
    EXPECT_NE(
        error.find(casts ? "has become bf16 on cpu and was f32 on cpu" : "has become f32 on fake:0 and was f32 on"),
        error.npos)
        << error;
    EXPECT_FALSE(model.w.grad().defined());
    EXPECT_EQ(hooked, 0);
    // The graphs that come work, hooks included.
    ops::sum(model(x.to(model.w.device()).to(model.w.dtype()))).backward();
    EXPECT_EQ(model.w.grad().device(), model.w.device());
    EXPECT_EQ(model.w.grad().dtype(), model.w.dtype());
    EXPECT_EQ(hooked, 1);
  }
}

// Two models in one process, on two devices, take no notice of each other.
TEST_F(ModelOnDevice, AModelOnEachOfTwoDevices) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  FakeDevice fake({.seed = 5, .devices = 2});
  const auto train = [&](Device device, int steps, GPT2& model, optim::AdamW& optimizer) {
    double loss = 0;
    for (int step = 0; step < steps; ++step) {
      const Tensor value = model.loss(idx.to(device), targets.to(device));
      value.backward();
      optimizer.step({.max_norm = 1.0});
      optimizer.zero_grad();
      loss = value.item();
    }
    return loss;
  };
  GPT2 alone(config, 3), first(config, 3), second(config, 3);
  const auto regions = compile::compile_regions(alone, {.exact = true}),
             regions_1 = compile::compile_regions(first, {.exact = true}),
             regions_2 = compile::compile_regions(second, {.exact = true});
  first.to(fake.device(0));
  second.to(fake.device(1));
  optim::AdamW a(alone.parameters()), b(first.parameters()), c(second.parameters());
  const double expected = train(kCPU, 4, alone, a);
  // In turns.
  for (int step = 0; step < 3; ++step) train(fake.device(0), 1, first, b), train(fake.device(1), 1, second, c);
  EXPECT_EQ(train(fake.device(0), 1, first, b), expected);
  EXPECT_EQ(train(fake.device(1), 1, second, c), expected);
}

TEST_F(ModelOnDevice, StateCrossesDevices) {
  FakeDevice fake({.seed = 8});
  const std::string path = (std::filesystem::temp_directory_path() / "rondo_device_state.safetensors").string();
  GPT2 here(config, 3), there(config, 4);
  there.to(fake.device());
  there.load_state_dict(here.state_dict());
  EXPECT_EQ(there.wte.weight.device(), fake.device());
  EXPECT_TRUE(same_bits(there.wte.weight.detach().to(kCPU), here.wte.weight.detach()));
  io::save_safetensors(path, there.state_dict());
  GPT2 back(config, 5);
  back.load_state_dict(io::load_safetensors(path).tensors);
  EXPECT_TRUE(same_bits(back.wte.weight.detach(), here.wte.weight.detach()));
  std::filesystem::remove(path);
}

TEST_F(ModelOnDevice, OutOfMemoryMovesNothing) {
  FakeDevice fake;
  GPT2 model(config, 3);
  model.loss(idx, targets).backward();
  const double expected = model.loss(idx, targets).item();
  int failures = 0;
  for (int64_t n = 1;; ++n) {
    fake.fail_allocation(n);
    const std::string error = test::error_of([&] { model.to(fake.device()); });
    fake.fail_allocation(0);
    if (error.empty()) break;
    ++failures;
    for (const NamedTensor& p : model.named_parameters()) {
      ASSERT_EQ(p.tensor.device(), kCPU) << p.name << " after failure " << n;
      ASSERT_EQ(p.tensor.grad().device(), kCPU) << p.name << " after failure " << n;
    }
    EXPECT_EQ(model.loss(idx, targets).item(), expected);
    EXPECT_EQ(fake.counts().blocks_in_use, 0);
  }
  EXPECT_EQ(failures, 2 * std::ssize(model.named_parameters()));
  EXPECT_EQ(model.loss(idx.to(fake.device()), targets.to(fake.device())).item(), expected);
}

// Adapters lie where their base is, whatever the default device.
TEST_F(ModelOnDevice, AdaptersFollowTheirBase) {
  FakeDevice fake;
  const auto losses = [&](Device device, Device default_device) {
    GPT2 model(config, 3);
    model.to(device);
    manual_seed(8);
    {
      const DeviceScope scope(default_device);
      add_lora(model, {.rank = 2, .targets = {"c_attn", "wpe"}});
    }
    for (const NamedTensor& p : model.named_parameters()) EXPECT_EQ(p.tensor.device(), device) << p.name;
    optim::AdamW optimizer(model.parameters(), {.lr = 0.1});
    std::vector<double> values;
    for (int step = 0; step < 3; ++step) {
      const Tensor loss = model.loss(idx.to(device), targets.to(device));
      loss.backward();
      optimizer.step({.zero_grad = true});
      values.push_back(loss.item());
    }
    return values;
  };
  const std::vector<double> expected = losses(kCPU, kCPU);
  EXPECT_NE(expected[0], expected[2]);
  EXPECT_EQ(losses(fake.device(), kCPU), expected);
  EXPECT_EQ(losses(fake.device(), fake.device()), expected);
  EXPECT_EQ(losses(kCPU, fake.device()), expected);
}

TEST_F(ModelOnDevice, AMergedAdapterThatMovedSaysSo) {
  FakeDevice fake;
  GPT2 model(config, 3);
  add_lora(model, {.rank = 2, .targets = {"c_attn"}});
  merge_adapter(model);
  model.to(fake.device());
  const std::string error = test::error_of([&] { unmerge_adapter(model); });
  EXPECT_NE(error.find("c_attn.weight was given another device or dtype by .to() after merge_adapter()"), error.npos)
      << error;
  merge_and_unload(model);
  EXPECT_TRUE(adapter_names(model).empty());
}

}  // namespace
}  // namespace rondo::nn
