#include "rondo/examples/training_log.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "rondo/examples/event_writer.h"
#include "rondo/examples/loss_curve.h"
#include "rondo/runtime/error.h"

namespace rondo::examples {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct TrainingLogTest : ::testing::Test {
  TrainingLogTest() { std::filesystem::create_directories(folder); }
  ~TrainingLogTest() override { std::filesystem::remove_all(folder); }
  std::string folder = ::testing::TempDir() + "training_log_test_" +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST(MetricsLine, ReadsBackToTheSameBits) {
  const Record before{.step = 7, .loss = 0.1f, .val_loss = 1.0 / 3, .lr = 1e-3 / 3};
  const Record after = record_from_json(to_json(before), "metrics.jsonl");
  EXPECT_EQ(after.step, 7);
  EXPECT_EQ(after.loss, before.loss);
  EXPECT_EQ(*after.val_loss, *before.val_loss);
  EXPECT_EQ(after.lr, before.lr);
  EXPECT_FALSE(after.peak_rss_mib);
  EXPECT_THROW(record_from_json("{\"step\":1,\"loss\":", "metrics.jsonl"), FileError);
}

TEST(MetricsLine, ALossThatIsNotANumberIsNull) {
  const std::string json = to_json({.step = 1, .loss = std::numeric_limits<float>::quiet_NaN(), .lr = 0});
  EXPECT_NE(json.find("\"loss\":null"), std::string::npos);
  EXPECT_TRUE(std::isnan(record_from_json(json, "metrics.jsonl").loss));
}

TEST_F(TrainingLogTest, IsCutBackToTheStepItContinuesFrom) {
  {
    TrainingLog log(folder, 0, 100, 1);
    for (int64_t step = 1; step <= 5; ++step) log.write({.step = step, .loss = static_cast<float>(step), .lr = 0});
  }
  std::ofstream(folder + "/metrics.jsonl", std::ios::app) << "{\"step\":6,\"lo";  // a kill in the middle of a line
  {
    TrainingLog log(folder, 3, 100, 1);
    ASSERT_EQ(log.records().size(), 3u);
    log.write({.step = 4, .loss = 40, .lr = 0});
  }
  const TrainingLog log(folder, 4, 100, 1);
  ASSERT_EQ(log.records().size(), 4u);
  EXPECT_EQ(log.records()[2].loss, 3);
  EXPECT_EQ(log.records()[3].loss, 40);
}

TEST_F(TrainingLogTest, ANewRunStartsEmpty) {
  { TrainingLog(folder, 0, 10, 1).write({.step = 1, .loss = 1, .lr = 0}); }
  const TrainingLog log(folder, 0, 10, 1);
  EXPECT_TRUE(log.records().empty());
  EXPECT_EQ(contents(folder + "/metrics.jsonl"), "");
}

TEST(EventWriterTest, Crc32cOfRfc3720) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
}

TEST_F(TrainingLogTest, EventsAreFramedRecords) {
  {
    EventWriter events(folder, 0);
    const EventWriter::Scalar scalars[] = {{"loss", 1.5}};
    events.write(300, scalars);
  }
  const std::filesystem::path path = std::filesystem::directory_iterator(folder)->path();
  const std::string bytes = contents(path);
  const auto number = [&](size_t at, size_t count) {
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
    return value;
  };
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size(); at += 16 + records.back().size()) {
    records.push_back(bytes.substr(at + 12, number(at, 8)));
    for (const auto& [start, count] : {std::pair(at, size_t{8}), std::pair(at + 12, records.back().size())})
      EXPECT_EQ(number(start + count, 4),
                std::rotr(crc32c(std::string_view(bytes).substr(start, count)), 15) + 0xa282ead8u);
  }
  ASSERT_EQ(records.size(), 2u);
  EXPECT_TRUE(records[0].ends_with("brain.Event:2"));
  // step 300, then summary { value { tag: "loss" simple_value: 1.5 } }
  EXPECT_EQ(records[1].substr(9), std::string("\x10\xAC\x02\x2A\x0D\x0A\x0B\x0A\x04loss\x15\x00\x00\xC0\x3F", 18));
}

TEST(LossCurve, DrawsBothCurvesAndSurvivesNothing) {
  const Record records[] = {{.step = 1, .loss = 4.2f, .lr = 0}, {.step = 2, .loss = 3.1f, .val_loss = 3.25, .lr = 0}};
  const std::string svg = loss_curve_svg(records);
  EXPECT_TRUE(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("validation (last: 3.2500)"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  for (const std::string& odd : {loss_curve_svg({}), loss_curve_svg(std::span(records).first(1))})
    EXPECT_EQ(odd.find("nan"), std::string::npos) << odd;
}

}  // namespace
}  // namespace rondo::examples
