// One rank of the tests of the fake of NCCL: nccl_rank SCENARIO RANK RANKS FOLDER SEED. Ranks find each other's unique
// id in FOLDER. What they print is read by processes_test.cc.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "rondo/runtime/base/error.h"
#include "rondo/tests/fake_nccl/rank_scenarios.h"

namespace rondo::test {
namespace {

UniqueId shared_id(int rank, const std::string& folder) {
  UniqueId id{};
  const std::string path = folder + "/id";
  if (rank == 0) {
    check(nccl().get_unique_id(&id));
    std::ofstream(path + ".part", std::ios::binary).write(id.internal, sizeof id.internal);
    std::filesystem::rename(path + ".part", path);
    return id;
  }
  while (!std::filesystem::exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::ifstream(path, std::ios::binary).read(id.internal, sizeof id.internal);
  return id;
}

int run(const std::string& scenario, int rank, int ranks, const std::string& folder, uint64_t seed) {
  FakeCuda cuda({.seed = seed * 64 + static_cast<uint64_t>(rank), .devices = ranks});
  Rank self{.cuda = cuda, .device = cuda.device(scenario == "same_device" ? 0 : rank), .rank = rank, .ranks = ranks};
  self.id = shared_id(rank, folder);
  return run_scenario(scenario, self) ? 0 : 1;
}

}  // namespace
}  // namespace rondo::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 6) {
    std::fprintf(stderr, "nccl_rank SCENARIO RANK RANKS FOLDER SEED\n");
    return 2;
  }
  // Runs after the destructors of what is made from now on: threads that still run then have the time to crash.
  if (std::string(argv[1]) == "busy_exit")
    std::atexit([] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    const int code = rondo::test::run(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), argv[4],
                                      std::strtoull(argv[5], nullptr, 10));
    // FakeCuda's own checks.
    return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 3 : code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 4;
  }
}
