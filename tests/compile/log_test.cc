// RONDO_LOGS: its grammar, sinks, and that each topic says something when its event happens.
#include "rondo/compile/log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "rondo/runtime/error.h"

namespace rondo::compile {
namespace {

using log::Detail;
using log::Topic;

// Collects messages as long as it lives, with topics chosen by `spec`.
class Capture {
 public:
  explicit Capture(std::string_view spec) {
    log::configure(spec);
    previous_ = log::set_log_sink([this](std::string_view message) { messages.emplace_back(message); });
  }
  ~Capture() {
    log::set_log_sink(std::move(previous_));
    log::configure("");
  }
  std::vector<std::string> messages;

 private:
  log::Sink previous_;
};

TEST(Log, NothingUnlessAsked) {
  const Capture log("");
  for (int topic = 0; topic < log::kTopics; ++topic) {
    EXPECT_FALSE(log::enabled(static_cast<Topic>(topic)));
    log::write(static_cast<Topic>(topic), "unheard");
  }
  EXPECT_TRUE(log.messages.empty());
}

TEST(Log, GrammarOfTorchLogs) {
  auto chosen = [](std::string_view spec) {
    const Capture log(spec);
    std::string text;
    for (int i = 0; i < log::kTopics; ++i) {
      const auto topic = static_cast<Topic>(i);
      text += log::enabled(topic, Detail::kVerbose) ? '+' : log::enabled(topic) ? 'x' : '.';
    }
    return text;
  };
  EXPECT_EQ(chosen("graph_breaks"), "x.....");
  EXPECT_EQ(chosen("recompiles, perf_hints"), ".xx...");
  EXPECT_EQ(chosen("+output_code,cache"), "....x+");
  EXPECT_EQ(chosen("all"), "xxxxxx");
  EXPECT_EQ(chosen("all,-fusion,+cache"), "xxx.+x");
  EXPECT_EQ(chosen("+all,fusion"), "+++x++");
  EXPECT_EQ(chosen("-cache"), "......");
  EXPECT_EQ(chosen("cache,-cache"), "......");
  EXPECT_EQ(chosen(",,"), "......");
}

TEST(Log, UnknownTopicsListTheKnownOnes) {
  const Capture log("cache");
  for (const char* spec : {"graph_break", "+", "recompiles;cache", "all-cache", "help"}) {
    try {
      log::configure(spec);
      ADD_FAILURE() << spec;
    } catch (const Error& e) {
      for (int i = 0; i < log::kTopics; ++i)
        EXPECT_NE(std::string(e.what()).find(log::name_of(static_cast<Topic>(i))), std::string::npos) << e.what();
    }
  }
  EXPECT_TRUE(log::enabled(Topic::kCache)) << "a wrong choice changes nothing";
}

TEST(Log, SinkGetsWholeMessages) {
  Capture log("recompiles");
  log::write(Topic::kRecompiles, "why");
  log::write(Topic::kRecompiles, "two\nlines\n");
  log::write(Topic::kCache, "unheard");
  EXPECT_EQ(log.messages, (std::vector<std::string>{"[rondo recompiles] why\n", "[rondo recompiles] two\nlines\n"}));
}

TEST(Log, WarnsOnce) {
  Capture log("");
  for (int i = 0; i < 3; ++i) log::warn_once("log_test: only once");
  log::warn_once("log_test: another");
  EXPECT_EQ(log.messages,
            (std::vector<std::string>{"[rondo warning] log_test: only once\n", "[rondo warning] log_test: another\n"}));
}

TEST(Log, MessagesOfThreadsDoNotMix) {
  Capture log("fusion");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([i] {
      for (int k = 0; k < 100; ++k) log::write(Topic::kFusion, std::string(20, static_cast<char>('a' + i)));
    });
  for (std::thread& t : threads) t.join();
  ASSERT_EQ(log.messages.size(), 400u);
  for (const std::string& m : log.messages) EXPECT_EQ(m, "[rondo fusion] " + std::string(20, m[15]) + "\n");
}

// In a process of its own, which has read nothing yet.
TEST(LogDeathTest, EnvironmentIsReadOnceAndChecked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("RONDO_LOGS", "casche", 1);
        bool refused = false;
        try {
          log::configure_from_environment();
        } catch (const Error&) {
          refused = true;
        }
        setenv("RONDO_LOGS", "cache", 1);
        log::configure_from_environment();
        const bool on = log::enabled(Topic::kCache);
        log::configure("fusion");
        log::configure_from_environment();  // what the program chose stays
        const bool kept = log::enabled(Topic::kFusion) && !log::enabled(Topic::kCache);
        log::write(Topic::kFusion, "on stderr");
        std::_Exit(refused && on && kept ? 0 : 1);
      },
      testing::ExitedWithCode(0), "rondo fusion. on stderr");
}

}  // namespace
}  // namespace rondo::compile
