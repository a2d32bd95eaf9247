#include "rondo/examples/training_log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "rondo/examples/loss_curve.h"

namespace rondo::examples {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct TrainingLogTest : ::testing::Test {
  TrainingLogTest() { std::filesystem::create_directories(folder); }
  ~TrainingLogTest() override { std::filesystem::remove_all(folder); }
  std::vector<optim::MetricsRecord> records() const {
    std::vector<optim::MetricsRecord> lines;
    std::ifstream file(folder + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(optim::metrics_from_json(line, "metrics.jsonl"));
    return lines;
  }
  std::string folder = ::testing::TempDir() + "training_log_test_" +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(TrainingLogTest, IsCutBackToTheStepItContinuesFrom) {
  {
    TrainingLog log(folder, 0, 100, 1);
    for (int64_t step = 1; step <= 5; ++step) log.write({.step = step, .loss = static_cast<double>(step), .lr = 0});
  }
  std::ofstream(folder + "/metrics.jsonl", std::ios::app) << "{\"step\":6,\"lo";  // a kill in the middle of a line
  {
    TrainingLog log(folder, 3, 100, 1);
    ASSERT_EQ(records().size(), 3u);
    log.write({.step = 4, .loss = 40, .lr = 0});
  }
  const TrainingLog log(folder, 4, 100, 1);
  ASSERT_EQ(records().size(), 4u);
  EXPECT_EQ(records()[2].loss, 3);
  EXPECT_EQ(records()[3].loss, 40);
}

TEST_F(TrainingLogTest, ANewRunStartsEmpty) {
  { TrainingLog(folder, 0, 10, 1).write({.step = 1, .loss = 1, .lr = 0}); }
  const TrainingLog log(folder, 0, 10, 1);
  EXPECT_TRUE(records().empty());
  EXPECT_EQ(contents(folder + "/metrics.jsonl"), "");
}

TEST(LossCurve, DrawsBothCurvesAndSurvivesNothing) {
  const optim::MetricsRecord records[] = {{.step = 1, .loss = 4.2, .lr = 0},
                                          {.step = 2, .loss = 3.1, .eval_loss = 3.25, .lr = 0}};
  const std::string svg = loss_curve_svg(records);
  EXPECT_TRUE(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("validation (last: 3.2500)"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  for (const std::string& odd : {loss_curve_svg({}), loss_curve_svg(std::span(records).first(1))})
    EXPECT_EQ(odd.find("nan"), std::string::npos) << odd;
}

}  // namespace
}  // namespace rondo::examples
