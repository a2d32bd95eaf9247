// rondorun as its users meet it: a program that starts programs.
#include "rondo/dist/launcher/launcher.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/base/usable_cores.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/dist/launched.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::ends_soon;
using test::error_of;
using test::Finished;
using test::has;
using test::pid_in;
using test::rondorun;

TEST(Rondorun, GivesTorchrunsVariables) {
  const Finished run = rondorun(
      "--nproc-per-node 3 sh -c 'echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
      "${MASTER_PORT:+port} ${RONDO_STORE:+store} ${TORCHELASTIC_RUN_ID:+id}'");
  EXPECT_EQ(run.code, 0);
  for (const char* rank : {"0", "1", "2"})
    EXPECT_TRUE(has(run, absl::StrCat("[rank ", rank, "] ", rank, " ", rank, " 3 3 0 127.0.0.1 port store id\n")))
        << run.out;
}

TEST(Rondorun, DividesTheCoresUnlessTold) {
  const std::string echo = "--nproc-per-node 2 sh -c 'echo $OMP_NUM_THREADS $RONDO_NUM_THREADS'";
  const int cores = std::stoi(rondorun("--nproc-per-node 1 --no-prefix nproc").out);
  const int each = std::max(1, cores / 2);
  EXPECT_TRUE(has(rondorun(echo), absl::StrCat("[rank 1] ", each, " ", each, "\n")));
  EXPECT_TRUE(has(rondorun(echo, "OMP_NUM_THREADS=7"), "[rank 1] 7 7\n"));
  EXPECT_TRUE(has(rondorun(echo, "OMP_NUM_THREADS=7 RONDO_NUM_THREADS=3"), "[rank 1] 7 3\n"));
  EXPECT_TRUE(has(rondorun("--nproc-per-node 2 --master-port 43217 sh -c 'echo $MASTER_PORT'"), "[rank 1] 43217\n"));
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

// What a shell does with its child's signal, or an uncaught exception (SIGABRT), must not decide who is to blame.
TEST(Rondorun, TheFirstFailureInTimeIsTheCause) {
  const Finished run = rondorun(
      "--nproc-per-node 2 sh -c 'if [ $RANK = 1 ]; then sleep 0.1; kill -SEGV $$; fi; exit 3'");
  EXPECT_EQ(run.code, 3) << run.out;
  EXPECT_TRUE(has(run, "exited with code 3; the job ends\n")) << run.out;
  EXPECT_TRUE(has(run, "was killed by signal 11 (SIGSEGV)\n")) << run.out;
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

TEST(Rondorun, SaysWhatIsWrong) {
  const Finished help = rondorun("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(has(help, "Usage: rondorun --nproc-per-node N"));
  EXPECT_EQ(rondorun("--nproc-per-node 2").code, 2);
  const Finished missing = rondorun("--nproc-per-node 2 /no/such/program");
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.out, "rondorun: cannot run /no/such/program: No such file or directory\n");
}

// Each rank has two streams here.
TEST(Rondorun, TooFewDescriptorsAreNamed) {
#ifdef __SANITIZE_ADDRESS__
  constexpr int kFewest = 16;  // to see whether an object's memory can be read, UBSan needs a pipe
#else
  constexpr int kFewest = 13;
#endif
  for (int most = kFewest; most < 24; ++most) {
    const Finished run = rondorun("--nproc-per-node 8 sleep 20", absl::StrCat("prlimit --nofile=", most));
    EXPECT_EQ(run.code, 2) << most;
    EXPECT_TRUE(run.out.ends_with(": Too many open files\n")) << most << ": " << run.out;
  }
}

TEST(Rondorun, AMasterPortInUseIsAnError) {
  const Fd taken = listen_on("127.0.0.1", 0);
  const int port = port_of(taken);
  const Finished run = rondorun(absl::StrCat("--nproc-per-node 1 --master-port ", port, " true"));
  EXPECT_EQ(run.code, 2);
  EXPECT_EQ(run.out, absl::StrCat("rondorun: --master-port=", port, ": cannot listen on 127.0.0.1:", port,
                                  ": Address already in use\n"));
}

// ---- Started again

TEST(Rondorun, StartsAgainUntilAllRanksEndWell) {
  const Finished run = rondorun(
      "--nproc-per-node 2 --max-restarts 3 sh -c 'echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
      "if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then kill -9 $$; fi; "
      "if [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then exec sleep 100; fi; echo done'");
  EXPECT_EQ(run.code, 0) << run.out;
  for (const int restart : {1, 2})
    EXPECT_TRUE(has(
        run, absl::StrCat(") was killed by signal 9 (SIGKILL); all ranks start again (restart ", restart, " of 3)\n")))
        << run.out;
  for (const int attempt : {0, 1, 2})
    EXPECT_TRUE(has(run, absl::StrCat("[rank 0] try ", attempt, " of 3\n"))) << run.out;
  EXPECT_TRUE(has(run, "[rank 0] done\n") && has(run, "[rank 1] done\n")) << run.out;
  EXPECT_FALSE(has(run, "the job ends")) << run.out;
}

TEST(Rondorun, GivesUpAfterTheLastRestart) {
  const test::TempFolder folder;
  const Finished run = rondorun(absl::StrCat("--nproc-per-node 2 --max-restarts 2 sh -c 'echo $TORCHELASTIC_RUN_ID >> ",
                                             folder / "ids", "; exit $((5 + TORCHELASTIC_RESTART_COUNT))'"));
  EXPECT_EQ(run.code, 7) << run.out;
  EXPECT_TRUE(has(run, ") exited with code 6; all ranks start again (restart 2 of 2)\n")) << run.out;
  EXPECT_TRUE(has(run, ") exited with code 7; the job ends\n")) << run.out;
  // Every attempt is of one job, and another job has another name.
  const std::string ids = test::text_of(folder / "ids"), first = ids.substr(0, ids.find('\n'));
  EXPECT_NE(first, "none");
  for (const absl::string_view id : absl::StrSplit(ids, '\n', absl::SkipEmpty())) EXPECT_EQ(std::string(id), first);
  EXPECT_FALSE(has(rondorun("--nproc-per-node 1 sh -c 'echo $TORCHELASTIC_RUN_ID'"), first));
}

TEST(Rondorun, ASignalIsNoReasonToStartAgain) {
  const test::TempFolder folder;
  test::Launched job({"--nproc-per-node", "1", "--max-restarts", "5", "sh", "-c",
                      absl::StrCat("echo $$ > ", folder / "pid", "; exec sleep 100")},
                     folder / "log");
  EXPECT_GT(test::pid_in(folder / "pid"), 0);
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  EXPECT_EQ(test::text_of(folder / "log").find("start again"), std::string::npos) << test::text_of(folder / "log");
}

TEST(Rondorun, AProgramThatIsNotThereIsNotTriedAgain) {
  const Finished run = rondorun("--nproc-per-node 2 --max-restarts 5 /no/such/program");
  EXPECT_EQ(run.code, 2);
  EXPECT_FALSE(has(run, "start again")) << run.out;
}

TEST(Rondorun, AProcessForEachGpu) {
  const Finished run = rondorun("--nproc-per-node gpu true", "RONDO_CUDA=off");
  EXPECT_EQ(run.code, 2);
  EXPECT_TRUE(has(run, "rondorun: --nproc-per-node=gpu: no GPU was found: ")) << run.out;
  // A driver with three devices. rondorun opens none: the fake would say that one was left open.
  const std::string three = absl::StrCat("RONDO_CUDA_PATH=", tests::kFakeCudaDir, " RONDO_FAKE_CUDA=1:3:64");
  for (const char* count : {"gpu", "auto"})
    EXPECT_TRUE(
        has(rondorun(absl::StrCat("--nproc-per-node ", count, " sh -c 'echo $WORLD_SIZE'"), three), "[rank 2] 3\n"))
        << count;
  const Finished cores = rondorun("--nproc-per-node auto sh -c 'echo $WORLD_SIZE'", "RONDO_CUDA=off");
  EXPECT_TRUE(has(cores, absl::StrCat("[rank 0] ", usable_cores(), "\n"))) << cores.out;
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
  EXPECT_EQ(o.max_restarts, 0);
  EXPECT_EQ(parse_launch_options({"--nproc-per-node=1", "--max-restarts=3", "x"}).max_restarts, 3);
  EXPECT_EQ(parse_launch_options({"--nproc-per-node", "cpu", "x"}).nproc_per_node, usable_cores());
  EXPECT_EQ(error({"--nproc-per-node=1", "--max-restarts=-1", "x"}),
            "--max-restarts=-1: must be a number from 0 to 1000");
  for (const std::string text : {"0", "1025", "gpus", "", "2.0"})
    EXPECT_TRUE(error({"--nproc-per-node", text, "x"})
                    .starts_with(absl::StrCat("--nproc-per-node=", text,
                                              ": must be a number from 1 to 1024, or gpu, cpu or auto (")));
  EXPECT_EQ(error({"--nproc-per-node"}), "--nproc-per-node needs a value");
  EXPECT_EQ(error({"prog"}), "--nproc-per-node is missing: how many processes to start");
  EXPECT_EQ(error({"--nnodes=2", "--nproc-per-node=1", "x"}),
            "--nnodes=2: rondorun starts the processes of one machine only (--nnodes=1)");
  EXPECT_EQ(error({"--nodes=2", "x"}), "unknown option --nodes=2 (--help lists all)");
}

}  // namespace
}  // namespace rondo::dist
