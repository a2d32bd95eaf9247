// rondorun as its users meet it: a program that starts programs.
#include "rondo/dist/launcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/paths.h"

namespace rondo::dist {
namespace {

using std::chrono::steady_clock;
using test::error_of;

struct Finished {
  int code = -1;
  std::string out;  // stdout and stderr
  std::chrono::duration<double> took{};
};

// rondorun with these arguments, through a shell.
Finished rondorun(const std::string& arguments, const std::string& variables = "") {
  const std::string command = absl::StrCat("env -u OMP_NUM_THREADS -u RONDO_NUM_THREADS ", variables, " ",
                                           tests::kRondorun, " ", arguments, " 2>&1");
  Finished run;
  const auto began = steady_clock::now();
  std::FILE* pipe = ::popen(command.c_str(), "r");
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) run.out.append(buffer, n);
  const int status = ::pclose(pipe);
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  run.took = steady_clock::now() - began;
  return run;
}

bool has(const Finished& run, const std::string& part) { return run.out.find(part) != std::string::npos; }
std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}
// True once process `pid` has ended. Whoever inherits an orphan may take its time to bury it.
bool ends_soon(pid_t pid) {
  for (int i = 0; i < 500; ++i, std::this_thread::sleep_for(Milliseconds(20)))
    if (::kill(pid, 0) != 0 || text_of(absl::StrCat("/proc/", pid, "/stat")).find(") Z ") != std::string::npos)
      return true;
  return false;
}
pid_t pid_in(const std::string& path) {
  for (int i = 0; i < 1000; ++i, std::this_thread::sleep_for(Milliseconds(20)))
    if (const std::string text = text_of(path); text.ends_with("\n")) return std::stoi(text);
  return -1;
}

TEST(Rondorun, GivesTorchrunsVariables) {
  const Finished run = rondorun(
      "--nproc-per-node 3 sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
      "${MASTER_PORT:+port} ${RONDO_STORE:+store} $TORCHELASTIC_RUN_ID'");
  EXPECT_EQ(run.code, 0);
  for (const char* rank : {"0", "1", "2"})
    EXPECT_TRUE(has(run, absl::StrCat("[rank ", rank, "] ", rank, " ", rank, " 3 3 0 127.0.0.1 port store none\n")))
        << run.out;
}

TEST(Rondorun, DividesTheCoresUnlessTold) {
  const std::string echo = "--nproc-per-node 2 sh -c 'echo $OMP_NUM_THREADS $RONDO_NUM_THREADS'";
  const int cores = std::stoi(rondorun("--nproc-per-node 1 --no-prefix nproc").out);
  const int each = std::max(1, cores / 2);
  EXPECT_TRUE(has(rondorun(echo), absl::StrCat("[rank 1] ", each, " ", each, "\n")));
  EXPECT_TRUE(has(rondorun(echo, "OMP_NUM_THREADS=7"), "[rank 1] 7 7\n"));
  EXPECT_TRUE(has(rondorun(echo, "OMP_NUM_THREADS=7 RONDO_NUM_THREADS=3"), "[rank 1] 7 3\n"));
  EXPECT_TRUE(has(rondorun("--nproc-per-node 2 --master-port 4321 sh -c 'echo $MASTER_PORT'"), "[rank 1] 4321\n"));
}

TEST(Rondorun, LinesStayWhole) {
  const Finished run = rondorun(
      "--nproc-per-node 2 sh -c 'for i in 1 2 3; do printf \"a%s\" $RANK; sleep 0.01; printf \"b\\n\"; done; printf "
      "end; echo x >&2'");
  EXPECT_EQ(run.code, 0);
  int lines = 0;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(run.out, '\n'))) {
    if (line.empty()) continue;
    ++lines;
    EXPECT_TRUE(line == "[rank 0] a0b" || line == "[rank 1] a1b" || line == "[rank 0] end" || line == "[rank 1] end" ||
                line == "[rank 0] x" || line == "[rank 1] x")
        << line;
  }
  EXPECT_EQ(lines, 10);
  EXPECT_EQ(rondorun("--nproc-per-node 1 --no-prefix printf 'a\\nb\\n\\n'").out, "a\nb\n\n");
  // A line without an end, far longer than any buffer: nothing is lost.
  const Finished wide = rondorun("--nproc-per-node 1 --no-prefix sh -c 'head -c 300000 /dev/zero | tr \"\\000\" x'");
  EXPECT_EQ(std::count(wide.out.begin(), wide.out.end(), 'x'), 300000);
}

TEST(Rondorun, StandardInputIsEmpty) {
  EXPECT_EQ(rondorun("--nproc-per-node 1 --no-prefix sh -c 'cat; echo end'", "echo no |").out, "end\n");
}

TEST(Rondorun, AKilledRankEndsTheJobAndIsNamed) {
  const Finished run = rondorun("--nproc-per-node 3 sh -c 'if [ $RANK = 1 ]; then kill -9 $$; fi; exec sleep 100'");
  EXPECT_EQ(run.code, 137);
  EXPECT_TRUE(has(run, "rondorun: rank 1 (pid ")) << run.out;
  EXPECT_TRUE(has(run, ") was killed by signal 9 (SIGKILL); the job ends\n")) << run.out;
  EXPECT_FALSE(has(run, "rank 0 (pid")) << run.out;
  EXPECT_LT(run.took.count(), 10);
}

TEST(Rondorun, AFailingRankEndsTheJobWithItsCode) {
  const Finished run = rondorun(
      "--nproc-per-node 2 sh -c 'if [ $RANK = 0 ]; then echo why >&2; exit 7; fi; exec sleep 100'");
  EXPECT_EQ(run.code, 7);
  EXPECT_TRUE(has(run, "[rank 0] why\n")) << run.out;
  EXPECT_TRUE(has(run, ") exited with code 7; the job ends\n")) << run.out;
  EXPECT_LT(run.took.count(), 10);
}

TEST(Rondorun, ASignalIsTheCauseOfOtherRanksFailures) {
  const Finished run = rondorun(
      "--nproc-per-node 2 sh -c 'if [ $RANK = 1 ]; then sleep 0.05; kill -SEGV $$; fi; exit 3'");
  EXPECT_EQ(run.code, 128 + SIGSEGV) << run.out;
  EXPECT_TRUE(has(run, "signal 11 (SIGSEGV); the job ends\n")) << run.out;
  EXPECT_TRUE(has(run, "exited with code 3\n")) << run.out;
}

TEST(Rondorun, ARankThatDoesNotListenIsKilled) {
  const Finished run = rondorun(
      "--nproc-per-node 2 --grace-period 1 sh -c 'trap \"\" TERM; if [ $RANK = 0 ]; then sleep 0.2; exit 4; fi; sleep "
      "100; sleep 100'");
  EXPECT_EQ(run.code, 4);
  EXPECT_TRUE(has(run, "rondorun: rank 1 (pid ")) << run.out;
  EXPECT_TRUE(has(run, ") did not end in time and is killed\n")) << run.out;
  EXPECT_LT(run.took.count(), 20);
}

TEST(Rondorun, OneThatEndsWellDoesNotEndTheOthers) {
  const Finished run = rondorun("--nproc-per-node 2 sh -c 'if [ $RANK = 1 ]; then sleep 0.5; echo late; fi'");
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "[rank 1] late\n");
}

TEST(Rondorun, NothingIsLeftBehind) {
  const test::TempFolder folder;
  // A process of a rank's own, which holds the output open and does not listen.
  const Finished run = rondorun(
      absl::StrCat("--nproc-per-node 1 sh -c '(trap \"\" TERM; echo $$ > /dev/null; sh -c \"echo \\$\\$ > ",
                   folder / "pid", "; exec sleep 100\") & while ! [ -s ", folder / "pid", " ]; do sleep 0.01; done'"));
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(ends_soon(pid_in(folder / "pid")));
  EXPECT_LT(run.took.count(), 50);
}

// A launcher in the background, to send signals to.
class Launched {
 public:
  explicit Launched(const std::vector<std::string>& arguments, const std::string& out) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    std::vector<char*> argv;
    static const char* const kProgram = tests::kRondorun;
    argv.push_back(const_cast<char*>(kProgram));
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    if (std::freopen(out.c_str(), "w", stdout) == nullptr || ::dup2(1, 2) < 0) ::_exit(99);
    ::execv(kProgram, argv.data());
    ::_exit(98);
  }
  void signal(int number) const { ::kill(pid_, number); }
  // As a shell says it: 128 + n for signal n.
  int wait() const {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

TEST(Rondorun, PassesSignalsOn) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const test::TempFolder folder;
    const Launched job({"--nproc-per-node", "2", "sh", "-c",
                        absl::StrCat("trap 'echo caught; exit 0' INT TERM; echo $$ > ", folder.path(),
                                     "/$RANK; while :; do sleep 0.05; done")},
                       folder / "out");
    ASSERT_GT(pid_in(folder / "0"), 0);
    ASSERT_GT(pid_in(folder / "1"), 0);
    job.signal(signal);
    EXPECT_EQ(job.wait(), 128 + signal);
    const std::string out = text_of(folder / "out");
    EXPECT_NE(out.find(absl::StrCat("rondorun: passing signal ", signal)), std::string::npos) << out;
    EXPECT_NE(out.find("[rank 0] caught"), std::string::npos) << out;
    EXPECT_NE(out.find("[rank 1] caught"), std::string::npos) << out;
  }
}

TEST(Rondorun, ASecondSignalKills) {
  const test::TempFolder folder;
  const Launched job({"--nproc-per-node", "1", "--grace-period", "100", "sh", "-c",
                      absl::StrCat("trap '' INT; echo $$ > ", folder.path(), "/pid; while :; do sleep 0.05; done")},
                     folder / "out");
  ASSERT_GT(pid_in(folder / "pid"), 0);
  job.signal(SIGINT);
  std::this_thread::sleep_for(Milliseconds(300));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
}

TEST(Rondorun, RanksDoNotOutliveTheLauncher) {
  const test::TempFolder folder;
  const Launched job(
      {"--nproc-per-node", "1", "sh", "-c", absl::StrCat("echo $$ > ", folder.path(), "/pid; exec sleep 100")},
      folder / "out");
  const pid_t rank = pid_in(folder / "pid");
  ASSERT_GT(rank, 0);
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_TRUE(ends_soon(rank));
}

TEST(Rondorun, SaysWhatIsWrong) {
  const Finished help = rondorun("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(has(help, "Usage: rondorun --nproc-per-node N"));
  EXPECT_EQ(rondorun("--nproc-per-node 2").code, 2);
  const Finished missing = rondorun("--nproc-per-node 2 /no/such/program");
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.out, "rondorun: cannot run /no/such/program: No such file or directory\n");
}

TEST(LaunchOptions, AreParsed) {
  const LaunchOptions o = parse_launch_options(
      {"--nproc_per_node=4", "--master-port", "1234", "--grace-period=2", "--no-prefix", "prog", "--help", "-x"});
  EXPECT_EQ(o.nproc_per_node, 4);
  EXPECT_EQ(o.master_port, 1234);
  EXPECT_EQ(o.grace_period, Milliseconds(2000));
  EXPECT_FALSE(o.prefix);
  EXPECT_EQ(o.command, (std::vector<std::string>{"prog", "--help", "-x"}));
  EXPECT_EQ(parse_launch_options({"--standalone", "--nnodes=1", "--nproc-per-node=1", "--", "-strange"}).command[0],
            "-strange");
  EXPECT_TRUE(parse_launch_options({"-h"}).help);
  const auto error = [](const std::vector<std::string>& args) { return error_of([&] { parse_launch_options(args); }); };
  EXPECT_EQ(error({"--nproc-per-node", "0", "x"}), "--nproc-per-node=0: must be a number from 1 to 1024");
  EXPECT_EQ(error({"--nproc-per-node", "gpu", "x"}), "--nproc-per-node=gpu: must be a number from 1 to 1024");
  EXPECT_EQ(error({"--nproc-per-node"}), "--nproc-per-node needs a value");
  EXPECT_EQ(error({"prog"}), "--nproc-per-node is missing: how many processes to start");
  EXPECT_EQ(error({"--nnodes=2", "--nproc-per-node=1", "x"}), "--nnodes=2: must be a number from 1 to 1");
  EXPECT_EQ(error({"--nodes=2", "x"}), "unknown option --nodes=2 (--help lists all)");
}

}  // namespace
}  // namespace rondo::dist
