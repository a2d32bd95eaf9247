// The logs of a run: metrics.jsonl and TensorBoard events.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "rondo/optim/trainer/event_writer.h"
#include "rondo/optim/trainer/metrics_file.h"
#include "rondo/runtime/base/error.h"
#include "rondo/tests/compile/temp_folder.h"

namespace rondo::optim {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

uint64_t number(const std::string& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = count; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes.at(at + i));
  return value;
}

// The events of a file, after their checksums were verified.
std::vector<std::string> events_in(const std::string& path) {
  const std::string bytes = contents(path);
  std::vector<std::string> records;
  for (size_t at = 0; at < bytes.size(); at += 16 + records.back().size()) {
    records.push_back(bytes.substr(at + 12, number(bytes, at, 8)));
    for (const auto& [start, count] : {std::pair(at, size_t{8}), std::pair(at + 12, records.back().size())})
      EXPECT_EQ(number(bytes, start + count, 4),
                std::rotr(crc32c(std::string_view(bytes).substr(start, count)), 15) + 0xa282ead8u);
  }
  return records;
}

std::string only_file_in(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path().string());
  EXPECT_EQ(paths.size(), 1u);
  return paths.at(0);
}

TEST(MetricsLine, ReadsBackToTheSameBits) {
  const MetricsRecord before{.step = 7, .loss = 0.1, .eval_loss = 1.0 / 3, .lr = 1e-3 / 3};
  const MetricsRecord after = metrics_from_json(to_json(before), "metrics.jsonl");
  EXPECT_EQ(after.step, 7);
  EXPECT_EQ(after.loss, before.loss);
  EXPECT_EQ(*after.eval_loss, *before.eval_loss);
  EXPECT_EQ(after.lr, before.lr);
  EXPECT_FALSE(after.peak_rss_mib);
  EXPECT_THROW(metrics_from_json("{\"step\":1,\"loss\":", "metrics.jsonl"), FileError);
}

TEST(MetricsLine, ALossThatIsNotANumberIsNull) {
  const std::string json = to_json({.step = 1, .loss = std::numeric_limits<double>::quiet_NaN(), .lr = 0});
  EXPECT_NE(json.find("\"loss\":null"), std::string::npos);
  EXPECT_TRUE(std::isnan(metrics_from_json(json, "metrics.jsonl").loss));
}

TEST(EventWriterTest, Crc32cOfRfc3720) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
}

TEST(EventWriterTest, EventsAreFramedRecords) {
  const test::TempFolder folder;
  {
    EventWriter events(folder / "events", 0);
    events.write(300, {{"loss", 1.5}});
  }
  const std::vector<std::string> records = events_in(only_file_in(folder / "events"));
  ASSERT_EQ(records.size(), 2u);
  EXPECT_TRUE(records[0].ends_with("brain.Event:2"));
  // step 300, then summary { value { tag: "loss" simple_value: 1.5 } }
  EXPECT_EQ(records[1].substr(9), std::string("\x10\xAC\x02\x2A\x0D\x0A\x0B\x0A\x04loss\x15\x00\x00\xC0\x3F", 18));
}

TEST(EventWriterTest, ARunThatGoesOnTellsReadersWhereFrom) {
  const test::TempFolder folder;
  { const EventWriter first(folder.path(), 0); }
  { const EventWriter resumed(folder.path(), 7); }
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) paths.push_back(entry.path().string());
  ASSERT_EQ(paths.size(), 2u);
  std::sort(paths.begin(), paths.end());
  EXPECT_EQ(events_in(paths[0]).size(), 1u);
  const std::vector<std::string> records = events_in(paths[1]);
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].substr(9), std::string("\x10\x08\x3A\x02\x08\x01", 6));  // step 8, session_log { status: START }
  { const EventWriter anew(folder.path(), 0); }
  EXPECT_EQ(events_in(only_file_in(folder.path())).size(), 1u);
}

TEST(EventWriterTest, AFolderThatCannotBeMadeIsAFileError) {
  const test::TempFolder folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_THROW(EventWriter(folder / "file/events", 0), FileError);
  EXPECT_THROW(MetricsFile(folder / "file/metrics.jsonl", 0), FileError);
  EXPECT_THROW(MetricsFile(folder.path(), 1), FileError);
}

// A disk that fills up in the middle of a record: it is cut off again, and later ones follow the last whole one.
TEST(AppendedFiles, AFullDiskLeavesWholeRecords) {
  const test::TempFolder folder;
  MetricsFile metrics(folder / "metrics.jsonl", 0);
  EventWriter events(folder / "events", 0);
  const EventWriter::Scalar scalar{"loss", 1.5};
  metrics.write({.step = 1, .loss = 1});
  events.write(1, {&scalar, 1});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const auto with_limit = [&](const std::string& path, const auto& fn) {
    const rlimit limit{static_cast<rlim_t>(std::filesystem::file_size(path)) + 5, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_THROW(fn(), FileError);
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  };
  const std::string event_file = only_file_in(folder / "events");
  with_limit(folder / "metrics.jsonl", [&] { metrics.write({.step = 2, .loss = 2}); });
  with_limit(event_file, [&] { events.write(2, {&scalar, 1}); });
  std::signal(SIGXFSZ, handler);
  metrics.write({.step = 3, .loss = 3});
  events.write(3, {&scalar, 1});
  EXPECT_EQ(events_in(event_file).size(), 3u);  // the version, steps 1 and 3
  const MetricsFile again(folder / "metrics.jsonl", 3);
  ASSERT_EQ(again.records().size(), 2u);
  EXPECT_EQ(again.records()[1].loss, 3);
}

// Cancelled right before an evaluation, resumed, killed right after it, resumed: the evaluation is made twice.
TEST(MetricsLogTest, AnEvaluationThatIsMadeAgainIsOneLine) {
  const test::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  Progress now{.step = 7, .loss = 2, .lr = 0.5};
  {
    MetricsLog log(path);
    log.on_begin({});
    log.on_log(now);
  }
  now.eval_loss = 1.5;
  for (int life = 0; life < 2; ++life) {
    MetricsLog log(path);
    log.on_begin(now);
    log.on_evaluate(now);
  }
  now.step = 8;
  {
    MetricsLog log(path);
    log.on_begin({.step = 7});
    log.on_log(now);
  }
  const std::vector<MetricsRecord> records = MetricsFile(path, 8).records();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_FALSE(records[0].eval_loss);
  EXPECT_EQ(records[1].eval_loss, 1.5);
  EXPECT_EQ(records[2].step, 8);
}

}  // namespace
}  // namespace rondo::optim
