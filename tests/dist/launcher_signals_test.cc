// Signals, readers that do not read, and processes that must not outlive their job.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/dist/launcher/descendants.h"
#include "rondo/dist/launcher/launcher.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/dist/launched.h"

namespace rondo::dist {
namespace {

using test::comes_true;
using test::ends_soon;
using test::Finished;
using test::has;
using test::Launched;
using test::pid_in;
using test::rondorun;
using test::TempFolder;
using test::text_of;

// A rank that starts a child and a child in a session of its own, and writes the numbers of all three into files.
std::string rank_with_children(const TempFolder& folder, const std::string& then) {
  return absl::StrCat(
      "cd ", folder.path(),
      "; sh -c 'echo $$ > child; exec sleep 1000' & setsid sh -c 'echo $$ > session; exec sleep 1000' & "
      "while ! [ -s child ] || ! [ -s session ]; do sleep 0.01; done; echo $$ > rank; ",
      then);
}

TEST(LauncherSignals, ArePassedOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const TempFolder folder;
    Launched job({"--nproc-per-node", "2", "sh", "-c",
                  absl::StrCat("trap 'echo caught; exit 0' INT TERM HUP; echo $$ > ", folder.path(),
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

TEST(LauncherSignals, ASecondSignalKills) {
  const TempFolder folder;
  Launched job({"--nproc-per-node", "1", "--grace-period", "100", "sh", "-c",
                absl::StrCat("trap '' INT; echo $$ > ", folder.path(), "/pid; while :; do sleep 0.05; done")},
               folder / "out");
  ASSERT_GT(pid_in(folder / "pid"), 0);
  job.signal(SIGINT);
  EXPECT_TRUE(comes_true([&] { return text_of(folder / "out").find("passing") != std::string::npos; }));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(), 130);
}

// nohup rondorun ...; and then the terminal goes away.
TEST(LauncherSignals, ThoseInheritedAsIgnoredStayIgnored) {
  for (const int signal : {SIGHUP, SIGINT}) {
    const TempFolder folder;
    Launched job({"--nproc-per-node", "1", "sh", "-c",
                  absl::StrCat("cd ", folder.path(), "; echo $$ > pid; while ! [ -e end ]; do sleep 0.02; done")},
                 folder / "out", [signal] { ::signal(signal, SIG_IGN); });
    const pid_t rank = pid_in(folder / "pid");
    ASSERT_GT(rank, 0);
    job.signal(signal);
    ::kill(rank, signal);  // ignored there, too
    std::ofstream(folder / "end") << "now";
    EXPECT_EQ(job.wait(), 0) << text_of(folder / "out");
    EXPECT_EQ(text_of(folder / "out"), "");
  }
}

// A parent that does not want to know about its children hands SIGCHLD down as ignored.
TEST(LauncherSignals, AnIgnoredChildSignalChangesNothing) {
  const TempFolder folder;
  Launched job({"--nproc-per-node", "2", "sh", "-c", "sleep 0.1; exit $((RANK * 7))"}, folder / "out",
               [] { ::signal(SIGCHLD, SIG_IGN); });
  EXPECT_EQ(job.wait(), 7);
  EXPECT_NE(text_of(folder / "out").find("rank 1 "), std::string::npos);
}

// As a pager that was stopped with Ctrl-Z.
TEST(LauncherOutput, SignalsEndAJobWhoseReaderDoesNotRead) {
  for (const char* program : {"while :; do echo a line that nobody reads; done",
                              "trap 'echo goodbye; exit 0' TERM; while :; do echo a line that nobody reads; done"}) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const Fd reader(ends[0]);
    const TempFolder folder;
    Launched job({"--nproc-per-node", "2", "sh", "-c", absl::StrCat("echo $$ > ", folder.path(), "/$RANK; ", program)},
                 ends[1]);
    ::close(ends[1]);
    ASSERT_GT(pid_in(folder / "0"), 0);
    ASSERT_GT(pid_in(folder / "1"), 0);
    // The launcher, the pipes and the ranks fill up.
    std::this_thread::sleep_for(Milliseconds(1000));
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(), 128 + SIGTERM);
  }
}

TEST(LauncherOutput, ASlowReaderGetsEverything) {
  const Finished run = rondorun(
      "--nproc-per-node 2 --no-prefix sh -c 'yes 12345678901234567890123456789 | head -n 150000' | (sleep 1; wc -c)");
  EXPECT_EQ(run.out, "9000000\n");
}

TEST(LauncherOutput, AReaderThatGoesAwayDoesNotEndTheJob) {
  const TempFolder folder;
  rondorun(
      absl::StrCat("--nproc-per-node 1 sh -c 'yes | head -n 100000; echo done > ", folder / "end", "' | head -n 1"));
  EXPECT_TRUE(comes_true([&] { return text_of(folder / "end") == "done\n"; }));
}

TEST(LauncherProcesses, NoneIsLeftWhenTheLauncherIsKilled) {
  const TempFolder folder;
  Launched job({"--nproc-per-node", "1", "sh", "-c", rank_with_children(folder, "exec sleep 1000")}, folder / "out");
  const pid_t rank = pid_in(folder / "rank");
  ASSERT_GT(rank, 0);
  job.signal(SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  for (const char* name : {"rank", "child", "session"}) EXPECT_TRUE(ends_soon(pid_in(folder / name))) << name;
}

TEST(LauncherProcesses, NoneIsLeftWhenTheGuardIsKilled) {
  const TempFolder folder;
  Launched job({"--nproc-per-node", "1", "sh", "-c", rank_with_children(folder, "exec sleep 1000")}, folder / "out");
  const pid_t rank = pid_in(folder / "rank");
  ASSERT_GT(rank, 0);
  ProcessInfo info;
  ASSERT_TRUE(read_process(rank, info));
  ASSERT_NE(info.parent, job.pid()) << "there is no guard";
  ::kill(info.parent, SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  EXPECT_NE(text_of(folder / "out").find("the guard process was killed"), std::string::npos);
  for (const char* name : {"rank", "child", "session"}) EXPECT_TRUE(ends_soon(pid_in(folder / name))) << name;
}

// kill -9 %1 in a shell: the whole process group of the launcher.
TEST(LauncherProcesses, NoneIsLeftWhenTheLaunchersGroupIsKilled) {
  const TempFolder folder;
  Launched job({"--nproc-per-node", "1", "sh", "-c", rank_with_children(folder, "exec sleep 1000")}, folder / "out",
               [] { ::setpgid(0, 0); });
  ASSERT_GT(pid_in(folder / "rank"), 0);
  ::kill(-job.pid(), SIGKILL);
  EXPECT_EQ(job.wait(), 137);
  for (const char* name : {"rank", "child", "session"}) EXPECT_TRUE(ends_soon(pid_in(folder / name))) << name;
}

TEST(LauncherProcesses, NoneIsLeftAtTheEndOfTheJob) {
  for (const char* end : {"exit 0", "exit 3", "kill -9 $$"}) {
    const TempFolder folder;
    Launched job({"--nproc-per-node", "1", "sh", "-c", rank_with_children(folder, end)}, folder / "out");
    EXPECT_EQ(job.wait(), std::string(end) == "exit 0" ? 0 : std::string(end) == "exit 3" ? 3 : 137);
    // At once: launch() returns when no process of the job is left.
    for (const char* name : {"child", "session"}) {
      ProcessInfo info;
      EXPECT_FALSE(read_process(pid_in(folder / name), info) && info.state != 'Z') << name;
    }
  }
}

// A program of the user's own that calls launch() goes on as it was.
TEST(LauncherProcesses, LaunchLeavesItsCallerAsItWas) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  const pid_t child = ::fork();
  if (child == 0) {
    const pid_t bystander = ::fork();
    if (bystander == 0) {
      ::pause();
      ::_exit(0);
    }
    ::signal(SIGHUP, SIG_IGN);
    sigset_t before, now;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    LaunchOptions options;
    options.command = {"sh", "-c", "exit 5"};
    std::string text;
    const int code = launch(options, [&](int, std::string_view more) { text += more; });
    int flag = -1;
    ::prctl(PR_GET_CHILD_SUBREAPER, &flag);
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    const bool there = ::kill(bystander, SIGKILL) == 0 && ::waitpid(bystander, nullptr, 0) == bystander;
    ::_exit(code != 5                                                     ? 1
            : flag != 0                                                   ? 2
            : sigismember(&now, SIGTERM) != sigismember(&before, SIGTERM) ? 3
            : !there                                                      ? 4
            : text.find("exited with code 5") == std::string::npos        ? 5
            : children_of(::getpid()).empty()                             ? 0
                                                                          : 6);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

}  // namespace
}  // namespace rondo::dist
