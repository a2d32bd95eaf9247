// Note [Failed devices]: what reads of a device's tensors say from its failure on, and how that ends.
#include "rondo/runtime/device/device_failure.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo {
namespace {

using test::error_of;
using test::FakeDevice;

class DeviceFailureTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::test_device() != kCPU) GTEST_SKIP() << "makes fake devices of its own";
    fake_.emplace(test::FakeDeviceOptions{.seed = 3, .devices = 2});
    failed_ = Tensor::full({4}, 2, {kF32, fake_->device(0)});
    other_ = Tensor::full({4}, 3, {kF32, fake_->device(1)});
  }
  static std::exception_ptr error(const char* text) { return std::make_exception_ptr(OutOfMemoryError(text)); }
  // Each way to see a number of the device says `text`, each time.
  void every_read_throws(const std::string& text) {
    const std::function<void()> reads[] = {
        [&] { failed_.to_vector<float>(); },
        [&] { ops::sum(failed_).item(); },
        [&] { failed_.to(kCPU); },
        [&] { failed_.to(other_.device()); },
        [&] { synchronize(other_.device()), failed_.to(other_.device()).to_vector<float>(); },
    };
    for (const auto& read : reads)
      for (int i = 0; i < 2; ++i) EXPECT_EQ(error_of<OutOfMemoryError>(read), text);
  }

  std::optional<FakeDevice> fake_;
  Tensor failed_, other_;
};

TEST_F(DeviceFailureTest, EveryReadThrowsUntilTheProgramSaysThatItKnows) {
  std::optional<DeviceFailure> failure(std::in_place, failed_.device(), error("aborted"));
  every_read_throws("aborted");
  // A wait throws it, too. It ends nothing while the failure is held.
  for (int i = 0; i < 2; ++i) EXPECT_EQ(error_of<OutOfMemoryError>([&] { synchronize(failed_.device()); }), "aborted");
  every_read_throws("aborted");
  failure.reset();
  every_read_throws("aborted");
  EXPECT_EQ(error_of<OutOfMemoryError>([&] { synchronize(failed_.device()); }), "aborted");
  synchronize(failed_.device());
  EXPECT_EQ(failed_.to_vector<float>()[3], 2);
  EXPECT_EQ(failed_.to(other_.device()).to_vector<float>()[3], 2);
}

TEST_F(DeviceFailureTest, OtherDevicesGoOn) {
  const DeviceFailure failure(failed_.device(), error("aborted"));
  EXPECT_EQ(ops::sum(other_).item(), 12);
  synchronize(other_.device());
  // Writing is no reading: a program that starts over does it.
  failed_ = other_.to(failed_.device());
  failed_ = Tensor::ones({4}).to(failed_.device());
  EXPECT_EQ(other_.to(kCPU).to_vector<float>()[0], 3);
}

TEST_F(DeviceFailureTest, TheFirstOfTwoIsKeptAndBothHaveToGo) {
  std::optional<DeviceFailure> first(std::in_place, failed_.device(), error("first"));
  std::optional<DeviceFailure> second(std::in_place, failed_.device(), error("second"));
  first.reset();
  EXPECT_EQ(error_of<OutOfMemoryError>([&] { synchronize(failed_.device()); }), "first");
  every_read_throws("first");
  second.reset();
  EXPECT_EQ(error_of<OutOfMemoryError>([&] { synchronize(failed_.device()); }), "first");
  EXPECT_EQ(failed_.to_vector<float>()[3], 2);
  // Over is over: the next one has its own error.
  first.emplace(failed_.device(), error("another"));
  every_read_throws("another");
}

// What work of the device threw meanwhile is gone with the failure, which is its cause.
TEST_F(DeviceFailureTest, ItComesBeforeAnErrorOfData) {
  enqueue(failed_.device(), [] { throw Error("a bad index"); });
  std::optional<DeviceFailure> failure(std::in_place, failed_.device(), error("aborted"));
  failure.reset();
  EXPECT_EQ(error_of<OutOfMemoryError>([&] { synchronize(failed_.device()); }), "aborted");
  synchronize(failed_.device());
  EXPECT_EQ(failed_.to_vector<float>()[3], 2);
}

TEST_F(DeviceFailureTest, DevicesThatAreTakenAwayTakeItAlong) {
  std::optional<DeviceFailure> failure(std::in_place, failed_.device(), error("aborted"));
  failure.reset();
  failed_ = other_ = Tensor();
  fake_.reset();
  fake_.emplace();
  EXPECT_EQ(Tensor::full({4}, 2, {kF32, fake_->device()}).to_vector<float>()[3], 2);
}

}  // namespace
}  // namespace rondo
