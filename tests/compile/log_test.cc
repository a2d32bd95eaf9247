// RONDO_LOGS: its grammar, sinks, and that each topic says something when its event happens.
#include "rondo/compile/log.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo::compile {
namespace {

using log::Detail;
using log::Topic;

// Collects messages as long as it lives, with topics chosen by `spec`.
class Listener {
 public:
  explicit Listener(std::string_view spec) {
    log::configure(spec);
    previous_ = log::set_log_sink([this](std::string_view message) { messages.emplace_back(message); });
  }
  ~Listener() {
    log::set_log_sink(std::move(previous_));
    log::configure("");
  }
  std::vector<std::string> messages;

 private:
  log::Sink previous_;
};

TEST(Log, NothingUnlessAsked) {
  const Listener log("");
  for (int topic = 0; topic < log::kTopics; ++topic) {
    EXPECT_FALSE(log::enabled(static_cast<Topic>(topic)));
    log::write(static_cast<Topic>(topic), "unheard");
  }
  EXPECT_TRUE(log.messages.empty());
}

TEST(Log, GrammarOfTorchLogs) {
  auto chosen = [](std::string_view spec) {
    const Listener log(spec);
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
  const Listener log("cache");
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
  Listener log("recompiles");
  log::write(Topic::kRecompiles, "why");
  log::write(Topic::kRecompiles, "two\nlines\n");
  log::write(Topic::kCache, "unheard");
  EXPECT_EQ(log.messages, (std::vector<std::string>{"[rondo recompiles] why\n", "[rondo recompiles] two\nlines\n"}));
}

TEST(Log, WarnsOnce) {
  Listener log("");
  for (int i = 0; i < 3; ++i) log::warn_once("log_test: only once");
  log::warn_once("log_test: another");
  EXPECT_EQ(log.messages,
            (std::vector<std::string>{"[rondo warning] log_test: only once\n", "[rondo warning] log_test: another\n"}));
}

TEST(Log, MessagesOfThreadsDoNotMix) {
  Listener log("fusion");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([i] {
      for (int k = 0; k < 100; ++k) log::write(Topic::kFusion, std::string(20, static_cast<char>('a' + i)));
    });
  for (std::thread& t : threads) t.join();
  ASSERT_EQ(log.messages.size(), 400u);
  for (const std::string& m : log.messages) EXPECT_EQ(m, "[rondo fusion] " + std::string(20, m[15]) + "\n");
}

// Whatever is told, no lock is held that a report needs.
TEST(Log, ASinkMayAskForReports) {
  const test::MeansToRun eagerly(test::Eagerly::kAll, "the limit is two compilations");
  if (!jit_available()) GTEST_SKIP() << "built without LLVM";
  struct Odd : nn::Module<Odd> {
    int repeats = 1;
    bool reads = false;
    Tensor forward(const Tensor& x) {
      Tensor y = x;
      for (int i = 0; i < repeats; ++i) y = ops::tanh(y * 1.5) + x;
      return reads && ops::sum(y).item() > 1e9 ? x : y;
    }
  };
  Odd odd;
  Regions regions = compile_module(odd, {.capture = compile::Capture::kReplay, .recompile_limit = 2});
  std::set<std::string> topics;
  log::configure("all");
  log::Sink previous = log::set_log_sink([&](std::string_view message) {
    topics.emplace(message.substr(0, message.find(']')));
    EXPECT_EQ(regions.report().size(), 1u);
    explain(regions);
    cache_report();
  });
  for (int repeats : {1, 2, 3, 4}) {
    odd.repeats = repeats;
    odd.reads = repeats == 2;
    const Tensor x = Tensor::randn({3, 10 + repeats}).requires_grad_();
    const Tensor y = odd(x);
    autograd::backward(std::vector{y, y}, std::vector{Tensor::ones(y.sizes()), Tensor::ones(y.sizes())}, false, false,
                       std::source_location::current());
  }
  log::set_log_sink(std::move(previous));
  log::configure("");
  for (const char* topic : {"[rondo graph_breaks", "[rondo recompiles", "[rondo perf_hints", "[rondo fusion",
                            "[rondo cache", "[rondo output_code", "[rondo warning"})
    EXPECT_TRUE(topics.contains(topic)) << topic;
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
