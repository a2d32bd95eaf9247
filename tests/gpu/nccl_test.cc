// NCCL as this machine has it, and the fake of it in CTest: one rank through ProcessGroup, and two processes where two
// devices are. Where no libnccl.so.2 is found the tests skip and say so.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "rondo/dist/groups/nccl_communicator.h"
#include "rondo/dist/groups/nccl_group.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::dist {
namespace {

using test::FakeCuda;

constexpr std::chrono::milliseconds kPatient{60'000};
constexpr DType kMoved[] = {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool};

// The library, or null and the test is skipped.
#define RONDO_FIND_NCCL(library)                          \
  forget_nccl();                                          \
  std::string why_not;                                    \
  const NcclLibrary* const library = find_nccl(&why_not); \
  if (library == nullptr) GTEST_SKIP() << why_not

TEST(ConformanceNccl, SaysItsVersion) {
  FakeCuda cuda;
  RONDO_FIND_NCCL(nccl);
  int version = 0;
  EXPECT_EQ(nccl->version(&version), NcclResult::kSuccess);
  EXPECT_GE(version, 21800);
  for (int result = 0; result < 8; ++result) {
    const char* text = nccl->error_string(static_cast<NcclResult>(result));
    ASSERT_NE(text, nullptr);
    EXPECT_NE(*text, '\0');
  }
  std::printf("NCCL %s, %s\n", nccl->version_text.c_str(), nccl->path.c_str());
}

TEST(ConformanceNccl, OneRankMovesAndReducesEveryDType) {
  FakeCuda cuda;
  RONDO_FIND_NCCL(nccl);
  const Device device = cuda.device();
  const auto group = make_nccl_group(make_solo_group({}), {.timeout = kPatient, .device = device}, nccl, "");
  for (const DType dtype : kMoved)
    for (const int64_t size : {1, 3, 10'000}) {
      const std::vector<double> ones(static_cast<size_t>(size), 1);
      const Tensor x = Tensor::ones({size}, {dtype, kCPU}).to(device);
      Tensor rows = Tensor::zeros({1, size}, {dtype, kCPU}).to(device),
             row = Tensor::zeros({size}, {dtype, kCPU}).to(device);
      group->all_gather(rows, x, "gather").wait();
      EXPECT_EQ(rows.to_vector<double>(), ones);
      group->broadcast(rows, 0, "broadcast").wait();
      if (dtype == kU8 || dtype == kBool) continue;
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
        if (op == ReduceOp::kAverage && !is_floating(dtype)) continue;
        group->all_reduce(rows, op, "reduce").wait();
        group->reduce_scatter(row, rows, op, "scatter").wait();
        EXPECT_EQ(row.to_vector<double>(), ones);
      }
    }
  group->check_sequence("", "end");
}

// A long chain on the compute stream, a collective behind it, and a reader behind that.
TEST(ConformanceNccl, CollectivesComeAfterTheComputeStreamAndBeforeItsLaterWork) {
  FakeCuda cuda;
  RONDO_FIND_NCCL(nccl);
  const Device device = cuda.device();
  const auto group = make_nccl_group(make_solo_group({}), {.timeout = kPatient, .device = device}, nccl, "");
  Tensor x = Tensor::zeros({1 << 16}, {kF32, kCPU}).to(device),
         all = Tensor::zeros({1, 1 << 16}, {kF32, kCPU}).to(device);
  for (int i = 0; i < 50; ++i) {
    x = x + 1.0;
    const Work work = group->all_gather(all, x, "x");
    work.wait();
    x = all.view({1 << 16}) + 1.0;
  }
  const Work last = group->all_gather(all, x, "last");
  last.synchronize();
  EXPECT_TRUE(last.is_done());
  EXPECT_EQ(all.to_vector<double>().back(), 100);
}

// What Rondo does when a rank is gone: the communicator goes, the device stays.
TEST(ConformanceNccl, TheDeviceWorksOnAfterAnAbort) {
  FakeCuda cuda;
  RONDO_FIND_NCCL(nccl);
  const Device device = cuda.device();
  Tensor x = Tensor::ones({1000}, {kF32, kCPU}).to(device);
  try {
    const auto group = make_nccl_group(make_solo_group({}), {.timeout = kPatient, .device = device}, nccl, "");
    group->all_reduce(x, ReduceOp::kSum, "x").wait();
    throw Error("an exception aborts");
  } catch (const Error&) {
  }
  EXPECT_THROW(synchronize(device), Error);  // a collective was given up: said once more, and then the device is free
  EXPECT_EQ((x * 2.0).to_vector<double>()[999], 2);
  const auto again = make_nccl_group(make_solo_group({}), {.timeout = kPatient, .device = device}, nccl, "");
  again->all_reduce(x, ReduceOp::kAverage, "x").wait();
  EXPECT_EQ(x.to_vector<double>()[0], 1);
}

// ---- Two processes. The second one is this program, with a folder in which the two meet.

constexpr const char* kFolder = "RONDO_TEST_NCCL_FOLDER";

// Two ranks whose hosts exchange nothing: the communicator alone is tried.
class Pair final : public HostGroup {
 public:
  explicit Pair(int rank) : rank_(rank) {}
  int rank() const override { return rank_; }
  int world_size() const override { return 2; }
  int rank_in_job(int rank) const override { return rank; }
  std::string failure() override { return ""; }
  void give_up(const std::string&) override {}
  PeerStatus* peers() override { return nullptr; }
  Work all_reduce(const Tensor&, ReduceOp, std::string_view) override { return none(); }
  Work broadcast(const Tensor&, int, std::string_view) override { return none(); }
  Work all_gather(const Tensor&, const Tensor&, std::string_view) override { return none(); }
  Work reduce_scatter(const Tensor&, const Tensor&, ReduceOp, std::string_view) override { return none(); }
  Work barrier(std::string_view) override { return none(); }
  std::shared_ptr<HostGroup> host_subgroup(const std::vector<int>&, std::string_view) override { return nullptr; }

 private:
  static Work none() { throw Error("the hosts of this test exchange nothing"); }
  const int rank_;
};

void two_ranks(const NcclLibrary& nccl, int rank, Device device, const std::string& folder) {
  NcclId id = {};
  const std::string file = folder + "/id", part = file + ".part";
  if (rank == 0) {
    ASSERT_EQ(nccl.unique_id(&id), NcclResult::kSuccess);
    std::ofstream(part, std::ios::binary).write(id.bytes, sizeof id.bytes);
    std::filesystem::rename(part, file);
  } else {
    for (int i = 0; i < 6000 && !std::filesystem::exists(file); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::ifstream(file, std::ios::binary).read(id.bytes, sizeof id.bytes);
  }
  NcclCommunicator communicator(nccl, id,
                                {.device = device, .rank = rank, .world_size = 2, .timeout = kPatient, .label = ""},
                                std::make_shared<Pair>(rank));
  std::thread watching([&] { communicator.watch(); });
  SequenceRecord record;
  for (const int64_t size : {1, 1000, 1 << 20}) {
    Tensor x = Tensor::full({size}, rank + 1, {kF32, kCPU}).to(device);
    const auto n = static_cast<size_t>(size);
    void* const data = x.mutable_address();
    const NamedCall& call = record.add({.numel = size, .kind = CollectiveKind::kAllReduce, .dtype = kF32}, "x");
    communicator
        .issue(call, x, Tensor(),
               [&](const NcclLibrary& library, NcclComm comm, void* stream) {
                 return library.all_reduce(data, data, n, NcclType::kF32, NcclOp::kAverage, comm, stream);
               })
        .wait();
    EXPECT_EQ(x.to_vector<double>().back(), 1.5);
  }
  EXPECT_TRUE(communicator.close(/*unwinds=*/false, std::chrono::milliseconds(10'000)));
  watching.join();
}

TEST(ConformanceNcclTwo, ProcessesAverageOverTwoDevices) {
  const char* const folder = std::getenv(kFolder);
  FakeCuda cuda({.devices = 2});
  RONDO_FIND_NCCL(nccl);
  if (folder != nullptr) return two_ranks(*nccl, 1, cuda.device(1), folder);
  const test::TempFolder meeting;
  const std::string path = meeting.path();
  const pid_t other = ::fork();
  if (other == 0) {
    ::setenv(kFolder, path.c_str(), 1);
    ::execl("/proc/self/exe", "test_gpu", "--gtest_filter=ConformanceNcclTwo.*", "--gtest_brief=1", nullptr);
    ::_exit(98);
  }
  two_ranks(*nccl, 0, cuda.device(0), path);
  int status = -1;
  ::waitpid(other, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace rondo::dist
