// A model that is one region: its buckets leave at the seams of its backward, and all is as with a region for each
// block, bit for bit.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/dist/ddp_cases.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/dist/staged_group.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/fake_device/fake_device.h"

namespace rondo::dist {
namespace {

using test::DdpCase;
using test::kDdpCases;

// On this rank.
void expect_regions_bits(const DdpCase& what, const std::shared_ptr<ProcessGroup>& group, Device device) {
  std::vector<Tensor> losses[2];
  const uint64_t regions = test::train(what, group, device, test::in_exact_regions, &losses[0]);
  EXPECT_EQ(test::train(what, group, device, test::as_exact_whole, &losses[1]), regions);
  ASSERT_EQ(losses[0].size(), losses[1].size());
  for (size_t i = 0; i < losses[0].size(); ++i)
    EXPECT_TRUE(test::same_bits(losses[0][i].to(kCPU), losses[1][i].to(kCPU))) << "loss " << i;
}

void expect_no_errors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

class DdpWhole : public testing::TestWithParam<DdpCase> {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
};

TEST_P(DdpWhole, HasTheBitsOfRegions) {
  for (const int ranks : {2, 3})
    expect_no_errors(test::run_ranks(ranks, [&](const Environment& e) {
      expect_regions_bits(GetParam(), ProcessGroup::connect(e, {.timeout = test::kPatient}), kCPU);
    }));
}

TEST_P(DdpWhole, OnADeviceThatRunsLate) {
  const test::FakeDevice fake({.seed = 3, .devices = 2});
  expect_no_errors(test::run_ranks(2, [&](const Environment& e) {
    const Device device = fake.device(e.rank);
    const auto host = ProcessGroup::connect(e, {.timeout = test::kPatient});
    expect_regions_bits(GetParam(), std::make_shared<test::StagedGroup>(host, device), device);
  }));
}

std::string name_of(const testing::TestParamInfo<DdpCase>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(, DdpWhole, testing::ValuesIn(kDdpCases), name_of);

// NCCL's sums of three ranks have no fixed order, those of two have the same bits in any.
class DdpWholeOnCuda : public testing::TestWithParam<DdpCase> {};

TEST_P(DdpWholeOnCuda, HasTheBitsOfRegions) {
  test::FakeCuda cuda({.seed = 1, .devices = 2});
  expect_no_errors(test::run_ranks(2, [&](const Environment& e) {
    const Device device = cuda.device(e.rank);
    expect_regions_bits(GetParam(), ProcessGroup::connect(e, {.timeout = test::kPatient, .device = device}), device);
  }));
}

INSTANTIATE_TEST_SUITE_P(, DdpWholeOnCuda, testing::ValuesIn(kDdpCases), name_of);

}  // namespace
}  // namespace rondo::dist
