// Whichever way a rank fails, and whatever the other ranks die of, the launcher names the rank that failed first.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/tests/dist/launched.h"
#include "rondo/tests/dist/ranks.h"

namespace rondo::dist {
namespace {

using test::Finished;
using test::has;
using test::rondorun;

struct Failure {
  const char* how;       // dist_rank's argument
  const char* ending;    // what the launcher says of rank 1
  const char* in_shell;  // the same if rank 1 is a shell that runs the program
  friend std::ostream& operator<<(std::ostream& out, const Failure& failure) { return out << failure.how; }
};

class Blame : public testing::TestWithParam<Failure> {
 protected:
  static Finished run(const std::string& program) { return rondorun(absl::StrCat("--nproc-per-node 3 ", program)); }
  static void expect_rank_1(const Finished& run, const std::string& ending) {
    size_t n = 0;
    for (size_t at = 0; (at = run.out.find("; the job ends", at)) != std::string::npos; ++at) ++n;
    EXPECT_EQ(n, 1u) << run.out;
    EXPECT_TRUE(has(run, "rondorun: rank 1 (pid ")) << run.out;
    EXPECT_TRUE(has(run, absl::StrCat(ending, "; the job ends"))) << run.out;
    const size_t line = run.out.rfind("rondorun: ", run.out.find("; the job ends"));
    EXPECT_EQ(run.out.substr(line, 17), "rondorun: rank 1 ") << run.out;
    EXPECT_NE(run.code, 0);
  }
};

TEST_P(Blame, GoesToTheRankThatFailedFirst) {
  const std::string program = absl::StrCat(tests::kRankProgram, " '", GetParam().how, "'");
  // What the ranks throw is caught, or ends them with SIGABRT.
  expect_rank_1(run(program + " recorded"), GetParam().ending);
  expect_rank_1(run(program + " uncaught"),
                std::string(GetParam().how) == "throw" ? "was killed by signal 6 (SIGABRT)" : GetParam().ending);
  // A shell around the program hides signals behind codes, and may end later than the victims do.
  expect_rank_1(
      run(absl::StrCat("sh -c '\"$@\"; code=$?; [ $RANK != 1 ] || sleep 0.1; exit $code' sh ", program, " recorded")),
      GetParam().in_shell);
}

INSTANTIATE_TEST_SUITE_P(
    Every, Blame,
    testing::Values(Failure{"kill", "was killed by signal 9 (SIGKILL)", "exited with code 137"},
                    Failure{"kill in transfer", "was killed by signal 9 (SIGKILL)", "exited with code 137"},
                    Failure{"exit 3", "exited with code 3", "exited with code 3"},
                    Failure{"exit 0", "exited with code 0 while other ranks needed it",
                            "exited with code 0 while other ranks needed it"},
                    Failure{"return 0", "exited with code 0 while other ranks needed it",
                            "exited with code 0 while other ranks needed it"},
                    Failure{"throw", "exited with code 9", "exited with code 9"},
                    Failure{"stop", "is stopped (SIGSTOP or SIGTSTP)", "is stopped (SIGSTOP or SIGTSTP)"},
                    Failure{"late", "does not take part any more", "does not take part any more"}),
    [](const auto& info) {
      std::string name = info.param.how;
      for (char& c : name)
        if (c == ' ') c = '_';
      return name;
    });

TEST(BlameReport, TellsWhatTheRankWrote) {
  const Finished run = rondorun(absl::StrCat("--nproc-per-node 2 ", tests::kRankProgram, " throw recorded"));
  EXPECT_EQ(run.code, 9) << run.out;
  EXPECT_TRUE(has(run, "rondorun: rank 1 reports: the data are gone\n")) << run.out;
}

TEST(FailureRecordTest, SurvivesTheStoreAndRefusesGarbage) {
  const FailureRecord record = FailureRecord::now({2, 0}, "why");
  const std::string text = record.to_text();
  const std::optional<FailureRecord> read = FailureRecord::from_text(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->time, record.time);
  EXPECT_EQ(read->causes, record.causes);
  EXPECT_EQ(read->message, "why");
  for (size_t n = 0; n < text.size(); ++n) EXPECT_FALSE(FailureRecord::from_text(text.substr(0, n))) << n;
  EXPECT_FALSE(FailureRecord::from_text(text + "x"));
}

}  // namespace
}  // namespace rondo::dist
