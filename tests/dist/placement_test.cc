// Which device and which cores a rank takes.
#include "rondo/dist/groups/placement.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/usable_cores.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/dist/launched.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"

namespace rondo::dist {
namespace {

using test::error_of;

Environment rank_of_machine(int local_rank, int local_world_size) {
  Environment e;
  e.rank = e.local_rank = local_rank;
  e.world_size = e.local_world_size = local_world_size;
  return e;
}

TEST(DeviceOfRank, IsThatOfTheLocalRank) {
  const test::FakeDevice fake({.devices = 3});
  for (int r = 0; r < 3; ++r) EXPECT_EQ(device_of_rank("fake", rank_of_machine(r, 3)), fake.device(r));
  // A second machine.
  Environment other = rank_of_machine(1, 2);
  other.rank = 5, other.world_size = 6;
  EXPECT_EQ(device_of_rank("fake", other), fake.device(1));
  // Named with a number, one process, the CPU.
  EXPECT_EQ(device_of_rank("fake:2", rank_of_machine(0, 3)), fake.device(2));
  EXPECT_EQ(device_of_rank("fake", rank_of_machine(0, 1)), fake.device(0));
  EXPECT_EQ(device_of_rank("cpu", rank_of_machine(2, 3)), kCPU);
  EXPECT_EQ(
      error_of([] { device_of_rank("fake", rank_of_machine(3, 4)); }),
      "rank 3 is process 3 of 4 on this machine, and the last of the 3 devices that it sees is fake:2: start fewer "
      "processes, or show them more devices (CUDA_VISIBLE_DEVICES)");
  for (const int n : {1, 4})
    EXPECT_EQ(error_of([n] { device_of_rank("fake:9", rank_of_machine(0, n)); }),
              "no device fake:9: fake has 3 devices, counted from 0");
}

TEST(DeviceOfRank, OneVisibleDeviceIsTheRanksOwn) {
  const test::FakeDevice fake({.devices = 1});
  EXPECT_EQ(device_of_rank("fake", rank_of_machine(1, 2)), fake.device(0));
}

std::vector<std::string> errors_of_claims(const std::vector<DeviceClaim>& claims) {
  return test::run_ranks(static_cast<int>(claims.size()), [&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    check_devices(*group, claims[static_cast<size_t>(e.rank)]);
  });
}

TEST(CheckDevices, NamesBothRanksThatTakeOneDevice) {
  const auto errors = errors_of_claims({{"cuda:0", "m", "a"}, {"cuda:1", "m", "b"}, {"cuda:0", "m", "a"}});
  for (const std::string& error : errors)
    EXPECT_TRUE(error.starts_with("ranks 0 and 2 of one machine both use cuda:0 (unit a). Each rank needs")) << error;
  // The same number on another machine is another device; without a unit, ranks share what they use.
  EXPECT_EQ(errors_of_claims({{"cuda:0", "m", "a"}, {"cuda:0", "n", "a"}}), std::vector<std::string>(2));
  EXPECT_EQ(errors_of_claims({{"cpu", "m", ""}, {"cpu", "m", ""}}), std::vector<std::string>(2));
  for (const std::string& error : errors_of_claims({{"cuda:0", "m", "a"}, {"cpu", "m", ""}}))
    EXPECT_EQ(error, "rank 0 trains on cuda:0 and rank 1 on cpu: all ranks of a job need the same kind of device");
}

TEST(CheckDevices, ReadsTheDevicesOfThisMachine) {
  const test::FakeDevice fake({.devices = 2});
  EXPECT_FALSE(claim_of(fake.device(0)).machine.empty());
  EXPECT_NE(claim_of(fake.device(0)).unit, claim_of(fake.device(1)).unit);
  const auto errors_with = [&](const std::function<Device(int)>& device) {
    return test::run_ranks(2, [&](const Environment& e) {
      check_devices(*ProcessGroup::connect(e, {.timeout = test::kPatient}), device(e.rank));
    });
  };
  EXPECT_EQ(errors_with([&](int rank) { return fake.device(rank); }), std::vector<std::string>(2));
  for (const std::string& error : errors_with([&](int) { return fake.device(1); }))
    EXPECT_TRUE(error.starts_with("ranks 0 and 1 of one machine both use fake:1 (unit fake device 1).")) << error;
}

// ---- Cores

cpu_set_t cores_of_this_thread() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}
int a_core_of(const cpu_set_t& cores, int skip = 0) {
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(static_cast<size_t>(core), &cores) && skip-- == 0) return core;
  return -1;
}

// A table like the CPU's, whose device has a PCI address.
BackendTable with_bus() {
  BackendTable table = backend_of(kCPU);
  table.name = "fake";
  table.place = [](int) { return DevicePlace{.unit = "u", .bus = "0000:3B:00.0"}; };
  return table;
}

class PinThreads : public testing::Test {
 protected:
  void SetUp() override { install_backend(Backend::kFake, &table_); }
  void TearDown() override {
    install_backend(Backend::kFake, nullptr);
    sched_setaffinity(0, sizeof before_, &before_);
  }
  // What the system says about the device.
  void say(const std::string& cores) {
    const std::string folder = sysfs_ / "bus/pci/devices/0000:3b:00.0";
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/local_cpulist") << cores << "\n";
  }
  Pinned pin() { return pin_threads({Backend::kFake, 0}, sysfs_ / ""); }
  const cpu_set_t before_ = cores_of_this_thread();
  const BackendTable table_ = with_bus();
  const test::TempFolder sysfs_;
};

TEST_F(PinThreads, ToTheCoresNearTheDevice) {
  const int core = a_core_of(before_);
  // Also cores that this process may not use, or that are not there.
  say(absl::StrCat(core, ",900-901"));
  std::atomic<bool> pinned = false, seen = false;
  std::atomic<int> cores_of_other = 0;
  std::thread other([&] {
    while (!pinned) std::this_thread::yield();
    const cpu_set_t cores = cores_of_this_thread();
    cores_of_other = CPU_COUNT(&cores);
    seen = true;
  });
  const Pinned done = pin();
  pinned = true;
  other.join();
  EXPECT_EQ(done.cores, 1) << done.text;
  EXPECT_EQ(done.text, absl::StrCat("threads run on cores ", core, ", near fake:0 (0000:3B:00.0)"));
  const cpu_set_t now = cores_of_this_thread();
  EXPECT_EQ(CPU_COUNT(&now), 1);
  EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(core), &now));
  EXPECT_EQ(usable_cores(), 1);
  EXPECT_EQ(cores_of_other, 1);  // threads that were there before, too
  int of_new = 0;
  std::thread([&] {
    const cpu_set_t cores = cores_of_this_thread();
    of_new = CPU_COUNT(&cores);
  }).join();
  EXPECT_EQ(of_new, 1);
}

TEST_F(PinThreads, WidensNothing) {
  if (CPU_COUNT(&before_) < 2) GTEST_SKIP() << "one core";
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(a_core_of(before_, 1)), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  say("0-1023");
  EXPECT_EQ(pin().cores, 1);
  const cpu_set_t now = cores_of_this_thread();
  EXPECT_TRUE(CPU_EQUAL(&now, &one));
}

TEST_F(PinThreads, ChangesNothingIfItCannotKnow) {
  const auto expect_nothing = [&](const std::string& why) {
    const Pinned done = pin();
    EXPECT_EQ(done.cores, 0);
    EXPECT_NE(done.text.find(why), std::string::npos) << done.text;
    EXPECT_TRUE(done.text.starts_with("threads are not pinned: ")) << done.text;
    const cpu_set_t now = cores_of_this_thread();
    EXPECT_TRUE(CPU_EQUAL(&now, &before_));
  };
  expect_nothing("the system does not say which cores are near fake:0");
  for (const char* text : {"x", "3-", "5-2", "-1", "1-2-3", "2000", "0;1"}) {
    say(text);
    expect_nothing("is no list of cores");
  }
  say("901-902");
  expect_nothing("this process may use none of the cores 901-902");
  const Pinned cpu = pin_threads(kCPU);
  EXPECT_EQ(cpu.text, "threads are not pinned: cpu has no PCI address");
}

// ---- Whole programs on the fake driver

TEST(DevicesOfPrograms, AreThoseThatAreVisible) {
  const std::string fake = absl::StrCat("RONDO_CUDA_PATH=", tests::kFakeCudaDir, " RONDO_FAKE_CUDA=1:3:64 ");
  const auto count = [&](const std::string& visible) {
    return test::rondorun("--nproc-per-node gpu --no-prefix true", fake + visible);
  };
  const auto world = [&](const std::string& visible) {
    return test::rondorun("--nproc-per-node gpu --no-prefix sh -c 'test $RANK = 1 || echo $WORLD_SIZE'", fake + visible)
        .out;
  };
  EXPECT_EQ(world("CUDA_VISIBLE_DEVICES=2,0"), "2\n");
  EXPECT_EQ(world("CUDA_VISIBLE_DEVICES=2"), "1\n");
  const test::Finished none = count("CUDA_VISIBLE_DEVICES=");
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(test::has(none, "no GPU was found: ")) << none.out;
}

}  // namespace
}  // namespace rondo::dist
