// DistributedDataParallel on a device that runs late: the bits of the same training in host memory, in whatever order
// the device does its work. The group goes by the host here (staged_group.h); NCCL's is tested with its fake.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/dist/ddp_cases.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/dist/staged_group.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::kDdpCases;
using test::kDdpConfig;
using test::loss_of;
using test::train;

class DdpOnDevice : public testing::TestWithParam<std::tuple<test::DdpCase, bool>> {
 protected:
  void SetUp() override {
    if (compiled() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  static const test::DdpCase& what() { return std::get<0>(GetParam()); }
  static bool compiled() { return std::get<1>(GetParam()); }
};

TEST_P(DdpOnDevice, TheBitsOfHostMemory) {
  const test::CompileModel compile_model = compiled() ? test::in_regions : nullptr;
  for (const uint64_t seed : {1, 2}) {
    const test::FakeDevice fake({.seed = seed, .devices = 2});
    const std::vector<std::string> errors = test::run_ranks(2, [&](const Environment& e) {
      const auto host = ProcessGroup::connect(e, {.timeout = test::kPatient});
      const uint64_t expected = train(what(), host, kCPU, compile_model);
      const Device device = fake.device(e.rank);
      EXPECT_EQ(train(what(), std::make_shared<test::StagedGroup>(host, device), device, compile_model), expected);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(, DdpOnDevice, testing::Combine(testing::ValuesIn(kDdpCases), testing::Bool()),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name,
                                               std::get<1>(info.param) ? "Compiled" : "Eager");
                         });

// Two ranks on a fake device each.
class DdpDeviceRules : public testing::Test {
 protected:
  template <class Run> std::vector<std::string> on_devices(Run run) {
    const test::FakeDevice fake({.seed = 5, .devices = 2});
    return test::run_ranks(2, [&](const Environment& e) {
      const Device device = fake.device(e.rank);
      run(std::make_shared<test::StagedGroup>(ProcessGroup::connect(e, {.timeout = test::kPatient}), device), device);
    });
  }
};

// A step ends with one exchange; nothing else is asked of the other hosts, and no average is used before it.
TEST_F(DdpDeviceRules, OneExchangeForEachStep) {
  for (const std::string& error : on_devices([](std::shared_ptr<test::StagedGroup> group, Device device) {
         nn::GPT2 model(kDdpConfig, 1);
         model.to(device);
         DistributedDataParallel ddp(model, group, {.min_bytes = 1});
         EXPECT_EQ(group->exchanges.back(), "parameters of rank 0");
         std::vector<size_t> exchanges_before;
         ddp.on_final([&](std::span<const Tensor>) { exchanges_before.push_back(group->exchanges.size()); });
         for (int step = 1; step <= 3; ++step) {
           group->issued.clear();
           group->exchanges.clear();
           exchanges_before.clear();
           loss_of(model, group->rank(), step, device).backward();
           EXPECT_TRUE(group->exchanges.empty());
           EXPECT_EQ(group->issued.size(), step == 1 ? 0 : 4);  // the first step learns the order
           EXPECT_FALSE(model.wte.weight.grad().defined());
           ddp.finish();
           if (step > 1) {
             EXPECT_EQ(group->exchanges.size(), 1u);
           }
           EXPECT_EQ(group->exchanges.back(), absl::StrCat("end of step ", step));
           EXPECT_EQ(group->issued.size(), 4u);
           EXPECT_EQ(exchanges_before, std::vector<size_t>(4, group->exchanges.size()));
           EXPECT_EQ(model.wte.weight.grad().device(), device);
           model.zero_grad();
         }
       }))
    EXPECT_EQ(error, "");
}

TEST_F(DdpDeviceRules, AGradientThatDoesNotArriveIsAnErrorOnEveryRank) {
  const auto errors = on_devices([](std::shared_ptr<test::StagedGroup> group, Device device) {
    nn::GPT2 model(kDdpConfig, 1);
    model.to(device);
    DistributedDataParallel ddp(model, group, {.min_bytes = 1});
    loss_of(model, group->rank(), 1, device).backward();
    ddp.finish();
    model.zero_grad();
    if (group->rank() == 1) ops::sum(model.ln_f(model.h[1](Tensor::ones({1, 4, 16}, {kF32, device})))).backward();
    else loss_of(model, group->rank(), 2, device).backward();
    const std::string error = error_of<MismatchError>([&] { ddp.finish(); });
    for (const Tensor& p : model.parameters()) EXPECT_FALSE(p.grad().defined());
    // The step after may succeed.
    loss_of(model, group->rank(), 3, device).backward();
    ddp.finish();
    EXPECT_NE(ddp.check_parameters(), 0u);
    throw Error(error);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("step 2, rank 1: the gradient of h.0."), std::string::npos) << error;
}

// A bucket for each parameter, so gradients would be averaged where they are.
TEST_F(DdpDeviceRules, WhoeverHoldsAGradientKeepsItsValues) {
  for (const std::string& error : on_devices([](std::shared_ptr<test::StagedGroup> group, Device device) {
         nn::Linear model(3, 2);
         model.to(device);
         DistributedDataParallel ddp(model, group, {.min_bytes = 1, .max_bytes = 1});
         const auto backward = [&] {
           ops::sum(model(Tensor::full({4, 3}, group->rank() + 1, {kF32, device}))).backward();
         };
         for (int step = 0; step < 3; ++step) {
           std::optional<DistributedDataParallel::NoSync> local(std::in_place, ddp);
           backward();
           const Tensor kept = model.weight.grad();
           local.reset();
           backward();
           ddp.finish();
           EXPECT_EQ(kept.to_vector<double>(), std::vector<double>(6, 8 * (group->rank() + 1)));
           EXPECT_EQ(model.weight.grad().to_vector<double>(), std::vector<double>(6, 12));
           EXPECT_EQ(model.bias.grad().to_vector<double>(), std::vector<double>(2, 8));
           model.zero_grad();
         }
       }))
    EXPECT_EQ(error, "");
}

struct Pair : nn::Module<Pair> {
  nn::Linear low = child("low", 3, 3), high = child("high", 3, 2);
  Tensor forward(const Tensor& x) { return high(low(x)); }
};

// A group for another device, or for none, is no group for this model.
TEST_F(DdpDeviceRules, TheGroupServesTheDeviceOfTheModel) {
  const test::FakeDevice fake({.devices = 2});
  Pair model;
  model.to(fake.device(1));
  const auto solo = ProcessGroup::connect({});
  EXPECT_NE(error_of([&] {
              DistributedDataParallel(model, std::make_shared<test::StagedGroup>(solo, fake.device(0)));
            }).find("low.weight is on fake:1, and the process group serves fake:0"),
            std::string::npos);
  EXPECT_NE(error_of([&] { DistributedDataParallel(model, solo); })
                .find("low.weight is on fake:1, and the process group exchanges host memory only; connect it with "
                      "GroupOptions::device"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              DistributedDataParallel::check_device(fake.device(0));
            }).find("the model is on fake:0, for which there is no library of collectives"),
            std::string::npos);
  model.low.to(fake.device(0));
  EXPECT_NE(error_of([&] {
              DistributedDataParallel(model, std::make_shared<test::StagedGroup>(solo, fake.device(0)));
            }).find("high.weight is on fake:1, and the process group serves fake:0"),
            std::string::npos);
}

struct Buffers : nn::Module<Buffers> {
  Tensor mean = buffer("mean", Tensor::ones({3}));
  Tensor forward(const Tensor& x) { return x; }
};

// Whatever is wrong with the model of one rank is an error on all: none of them waits for the others.
TEST_F(DdpDeviceRules, AModelThatCannotBeWrappedIsAnErrorOnEveryRank) {
  const auto expect = [](const std::vector<std::string>& errors, const std::string& what) {
    for (const std::string& error : errors) EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  for (const bool all : {true, false}) {
    expect(on_devices([all](std::shared_ptr<test::StagedGroup> group, Device device) {
             Pair model;
             model.to(device);
             if (all || group->rank() == 1)
               for (Tensor& p : model.parameters()) p.requires_grad_(false);
             if (all) DistributedDataParallel(model, group);
             else throw Error(error_of<MismatchError>([&] { DistributedDataParallel(model, group); }));
           }),
           all ? "Pair has no parameter that requires a gradient" : "rank 1 has another plan than rank 0");
    expect(on_devices([all](std::shared_ptr<test::StagedGroup> group, Device device) {
             Pair model;
             if (!all && group->rank() == 0) model.to(device);
             DistributedDataParallel(model, group);
           }),
           all ? "DistributedDataParallel, rank 0: low.weight is on cpu, and the process group serves fake:0; call "
                 "model.to(device) before wrapping the model"
               : "DistributedDataParallel, rank 1: low.weight is on cpu, and the process group serves fake:1");
  }
  expect(on_devices([](std::shared_ptr<test::StagedGroup> group, Device device) {
           Buffers model;
           model.to(device);
           DistributedDataParallel(model, group);
         }),
         "Buffers has no parameter that requires a gradient");
}

TEST(DdpConstruction, ThereHasToBeAGroup) {
  nn::Linear model(3, 2);
  EXPECT_EQ(error_of([&] { DistributedDataParallel(model, nullptr); }),
            "DistributedDataParallel: no process group; subgroup() returns null on ranks outside it");
}

// A parameter whose elements do not lie side by side is sent as a copy.
TEST(DdpConstruction, EveryLayoutGetsTheValuesOfRank0) {
  test::with_groups(2, [](ProcessGroup& group) {
    nn::Linear model(3, 2);
    const float own = static_cast<float>(group.rank());
    model.weight = ops::transpose(Tensor::full({3, 2}, own + 1), 0, 1).detach().requires_grad_();
    EXPECT_FALSE(model.weight.is_contiguous());
    const std::shared_ptr<ProcessGroup> borrowed(&group, [](ProcessGroup*) {});
    const DistributedDataParallel ddp(model, borrowed);
    for (const float value : model.weight.detach().to_vector<float>()) EXPECT_EQ(value, 1);
  });
}

TEST(BucketOptions, GradientsTravelInFloats) {
  nn::Linear model(3, 2);
  for (const DType dtype : {kI32, kF64})
    EXPECT_NE(error_of([&] {
                DistributedDataParallel(model, ProcessGroup::connect({}), {.dtype = dtype});
              }).find("BucketOptions::dtype: gradients travel in f32, bf16 or f16"),
              std::string::npos);
}

TEST(BucketOptions, SizesMakeSense) {
  nn::Linear model(3, 2);
  const auto error = [&](int64_t least, int64_t most) {
    return error_of(
        [&] { DistributedDataParallel(model, ProcessGroup::connect({}), {.min_bytes = least, .max_bytes = most}); });
  };
  for (const auto& [least, most] : std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {-5, -1}, {-1, 64}, {65, 64}})
    EXPECT_EQ(error(least, most), absl::StrCat("BucketOptions: min_bytes=", least, ", max_bytes=", most,
                                               ": max_bytes must be positive, and min_bytes from 0 to max_bytes"));
  for (const auto& [least, most] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {64, 64}, {INT64_MAX, INT64_MAX}})
    EXPECT_EQ(error(least, most), "");
}

}  // namespace
}  // namespace rondo::dist
