// The fake of NCCL with a process for each rank (rank_program.cc).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/paths.h"

extern char** environ;

namespace rondo::test {
namespace {

struct Ended {
  int code = -1, signal = 0;
  std::string out;
  bool has(const std::string& part) const { return out.find(part) != std::string::npos; }
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

pid_t start(const std::vector<std::string>& arguments, const std::string& out) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t process = -1;
  EXPECT_EQ(posix_spawn(&process, argv[0], &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  return process;
}

// The ranks of a scenario, each in a process of its own. A rank that has not ended after two minutes is killed. They
// give up a collective after so many milliseconds.
constexpr int kLong = 60000, kShort = 3000;
std::vector<Ended> run_ranks(const std::string& scenario, int ranks, uint64_t seed = 1, const char* behaviour = nullptr,
                             int patience = kLong) {
  static int runs = 0;
  const std::string folder = absl::StrCat(testing::TempDir(), "/fake_nccl_", getpid(), "_", ++runs);
  std::filesystem::create_directories(folder);
  const Setting setting("RONDO_FAKE_NCCL", behaviour), waits("RONDO_TEST_PATIENCE", absl::StrCat(patience).c_str());
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank)
    processes.push_back(
        start({tests::kNcclRank, scenario, absl::StrCat(rank), absl::StrCat(ranks), folder, absl::StrCat(seed)},
              absl::StrCat(folder, "/", rank)));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  std::vector<Ended> results(processes.size());
  for (size_t rank = 0; rank < processes.size(); ++rank) {
    int status = 0;
    while (waitpid(processes[rank], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) kill(processes[rank], SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    Ended& ended = results[rank];
    if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
    ended.out = read_file(absl::StrCat(folder, "/", rank));
  }
  std::filesystem::remove_all(folder);
  return results;
}

// Orders of the work. tests/nightly.sh has more.
uint64_t seeds(uint64_t usual) {
  const char* const more = std::getenv("RONDO_TEST_SEEDS");
  return more == nullptr ? usual : std::strtoull(more, nullptr, 10);
}

void expect_right(const std::vector<Ended>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    EXPECT_EQ(ranks[rank].code, 0) << "rank " << rank << ", signal " << ranks[rank].signal << "\n" << ranks[rank].out;
}
std::string hash_of(const Ended& rank) { return rank.out.substr(rank.out.find("hash ")); }

class NcclRanks : public testing::TestWithParam<int> {};

// Each kind, type and reduction, in place and not; late, and beside each other.
TEST_P(NcclRanks, Collectives) {
  for (uint64_t seed = 1; seed <= seeds(1); ++seed) expect_right(run_ranks("collectives", GetParam(), seed));
}

TEST_P(NcclRanks, TheSameBitsOnAllRanksForEveryOrder) {
  std::set<std::string> hashes;
  for (uint64_t seed = 1; seed <= seeds(8); ++seed) {
    const std::vector<Ended> ranks = run_ranks("steps", GetParam(), seed);
    expect_right(ranks);
    for (const Ended& rank : ranks) hashes.insert(hash_of(rank));
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST_P(NcclRanks, Splits) { expect_right(run_ranks("splits", GetParam())); }

INSTANTIATE_TEST_SUITE_P(, NcclRanks, testing::Values(1, 2, 3, 4), testing::PrintToStringParamName());

TEST(NcclProcesses, Blocking) { expect_right(run_ranks("blocking", 2)); }

TEST(NcclProcesses, AHostThatIsBusyElsewhereHoldsUpNobody) { expect_right(run_ranks("idle_host", 3)); }

TEST(NcclProcesses, ExitWhileTheDeviceWorks) {
  for (uint64_t seed = 1; seed <= seeds(3); ++seed)
    for (const Ended& rank : run_ranks("busy_exit", 2, seed))
      EXPECT_EQ(rank.code, 5) << "signal " << rank.signal << "\n" << rank.out;
}

TEST(NcclProcesses, TwoRanksOnOneDevice) {
  for (const Ended& rank : run_ranks("same_device", 2)) {
    EXPECT_EQ(rank.code, 4);
    EXPECT_TRUE(rank.has("Duplicate GPU detected : rank 0 and rank 1")) << rank.out;
  }
}

// ---- Calls that do not fit each other

TEST(NcclMismatch, WaitsForEver) {
  for (const char* odd : {"odd_count", "odd_dtype", "odd_reduction", "odd_kind", "odd_root"})
    for (const Ended& rank : run_ranks(odd, 2, 1, "mismatch=hang", kShort)) {
      EXPECT_EQ(rank.code, 0) << rank.out;
      EXPECT_TRUE(rank.has("step 1: 64 of 64 right")) << odd << "\n" << rank.out;
      // A root may have left already.
      EXPECT_TRUE(rank.has("step 2: hangs") || odd == std::string("odd_root")) << odd << "\n" << rank.out;
      EXPECT_FALSE(rank.has("error:")) << rank.out;
    }
}

TEST(NcclMismatch, ComputesGarbage) {
  for (const char* odd : {"odd_count", "odd_dtype", "odd_reduction", "odd_kind"}) {
    bool all_right = true;
    for (const Ended& rank : run_ranks(odd, 2, 1, "mismatch=garbage")) {
      EXPECT_EQ(rank.code, 0) << rank.out;
      EXPECT_FALSE(rank.has("hangs")) << odd << "\n" << rank.out;
      EXPECT_TRUE(rank.has("step 3: 64 of 64 right")) << odd << "\n" << rank.out;
      all_right = all_right && rank.has("step 2: 64 of 64 right");
    }
    EXPECT_FALSE(all_right) << odd;
  }
}

// The ranks are one collective apart from then on; the one that has called more waits.
TEST(NcclMismatch, OneCallMore) {
  const std::vector<Ended> ranks = run_ranks("odd_skipped", 2, 1, nullptr, kShort);
  EXPECT_TRUE(ranks[0].has("step 3: hangs")) << ranks[0].out;
}

// ---- Ranks that stall, come late, die or abort

TEST(NcclFaults, ARankThatDies) {
  // As between devices of one machine: nothing says so.
  std::vector<Ended> ranks = run_ranks("odd_none", 3, 1, "die@2,1", kShort);
  EXPECT_EQ(ranks[2].signal, SIGKILL);
  for (const int rank : {0, 1}) EXPECT_TRUE(ranks[rank].has(": hangs")) << ranks[rank].out;
  ranks = run_ranks("odd_none", 3, 1, "die@2,1:peers=error");
  for (const int rank : {0, 1}) EXPECT_TRUE(ranks[rank].has(": remote process exited")) << ranks[rank].out;
}

TEST(NcclFaults, ARankThatCallsSomethingElse) {
  for (const Ended& rank : run_ranks("odd_none", 2, 1, "other@1,2:mismatch=hang", kShort))
    EXPECT_TRUE(rank.has("step 2: hangs")) << rank.out;
  // A maximum of ones.
  const std::vector<Ended> ranks = run_ranks("odd_none", 2, 1, "other@1,2:mismatch=garbage");
  EXPECT_TRUE(ranks[0].has("step 2: 64 of 64 right")) << ranks[0].out;
  EXPECT_TRUE(ranks[1].has("step 2: 0 of 64 right")) << ranks[1].out;
}

TEST(NcclFaults, ARankThatStalls) {
  for (const Ended& rank : run_ranks("odd_none", 2, 1, "stall@1,2", kShort)) {
    EXPECT_TRUE(rank.has("step 1: 64 of 64 right")) << rank.out;
    EXPECT_TRUE(rank.has("step 2: hangs")) << rank.out;
  }
}

TEST(NcclFaults, ARankThatComesLate) {
  const auto began = std::chrono::steady_clock::now();
  for (const Ended& rank : run_ranks("odd_none", 2, 1, "late@1,2,700"))
    EXPECT_TRUE(rank.has("step 3: 64 of 64 right")) << rank.out;
  EXPECT_GT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(700));
}

TEST(NcclFaults, AnAsynchronousError) {
  const std::vector<Ended> ranks = run_ranks("odd_none", 2, 1, "error@1,2,2", kShort);
  EXPECT_TRUE(ranks[1].has("step 2: unhandled system error")) << ranks[1].out;
  EXPECT_TRUE(ranks[0].has("step 2: hangs")) << ranks[0].out;
}

TEST(NcclFaults, Initialisation) {
  for (const Ended& rank : run_ranks("connect", 2, 1, "late@1,init,300")) EXPECT_EQ(rank.code, 0) << rank.out;
  EXPECT_TRUE(run_ranks("connect", 1, 1, "error@0,init,3")[0].has("internal error")) << "ncclInternalError";
}

// The driver's waiting calls let other threads in.
TEST(NcclFaults, AbortFromAnotherThread) {
  const std::vector<Ended> ranks = run_ranks("abort", 2);
  EXPECT_EQ(ranks[0].code, 0) << ranks[0].out;
  EXPECT_TRUE(ranks[0].has("went on with poison") || ranks[0].has("went on with its own")) << ranks[0].out;
  EXPECT_TRUE(ranks[1].has("went on with its own")) << ranks[1].out;
}

}  // namespace
}  // namespace rondo::test
