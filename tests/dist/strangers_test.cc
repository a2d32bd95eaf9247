// Jobs beside strangers: programs of other users of this machine, who connect to every port that a rank opens.
//   RONDO_STRANGERS_JOBS=200 test_dist --gtest_filter='Strangers.*'      the long form (strangers.sh)
#include "rondo/tests/dist/strangers.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_replace.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/dist/launched.h"
#include "rondo/tests/dist/ranks.h"

namespace rondo::dist {
namespace {

int jobs() {
  const char* text = std::getenv("RONDO_STRANGERS_JOBS");
  return text == nullptr ? 4 : std::atoi(text);
}

const std::vector<std::string> kJob = {"--nproc-per-node", "3", tests::kRankProgram, "losses"};

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

TEST(Strangers, AJobFinishesWithTheSameLosses) {
  const test::TempFolder folder;
  {
    test::Launched alone(kJob, folder / "alone");
    ASSERT_EQ(alone.wait(), 0) << test::text_of(folder / "alone");
  }
  const std::vector<std::string> losses = lines_of(folder / "alone");
  ASSERT_EQ(losses.size(), 30u);
  int failed = 0, connections = 0;
  size_t received = 0;
  for (int i = 0; i < jobs(); ++i) {
    test::Launched job(kJob, folder / "attacked");
    test::Strangers strangers(job.pid());
    const int code = job.wait();
    strangers.stop();
    connections += strangers.connections();
    received += strangers.bytes_received();
    EXPECT_EQ(code, 0) << test::text_of(folder / "attacked");
    EXPECT_EQ(lines_of(folder / "attacked"), losses);
    if (testing::Test::HasFailure() && ++failed == 3) break;
  }
  EXPECT_GT(connections, 5 * jobs());  // the strangers were there
  EXPECT_EQ(received, 0u);
  RecordProperty("connections", connections);
}

}  // namespace
}  // namespace rondo::dist
