#include "rondo/tests/compiled_runs.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <utility>

#include "rondo/compile/stages/planted.h"
#include "rondo/runtime/base/error.h"

namespace rondo::test {
namespace {

using compile::kOutcomes;
using compile::Outcome;
using compile::OutcomeCounts;

// The outcomes that each scope allows.
constexpr std::array<Outcome, 2> kAll = {Outcome::kEager, Outcome::kBypassed};
constexpr std::array<Outcome, 2> kFailing = {Outcome::kFailed, Outcome::kEager};
constexpr std::array<Outcome, 1> kBackward = {Outcome::kReplayed};
constexpr std::array<Outcome, 1> kNothing = {Outcome::kRegion};
std::span<const Outcome> outcomes_of(Eagerly what) {
  switch (what) {
    case Eagerly::kAll: return kAll;
    case Eagerly::kFailing: return kFailing;
    case Eagerly::kBackward: return kBackward;
    case Eagerly::kNothing: return kNothing;
  }
  return {};
}

// What is made there need not run compiled.
bool runs_eagerly(Eagerly what) { return what == Eagerly::kAll || what == Eagerly::kFailing; }

int64_t at(const OutcomeCounts& counts, Outcome outcome) { return counts[static_cast<size_t>(outcome)]; }

// Counts of what happens outside of scopes, by outcome. Tests run in one thread.
class Unmeant {
 public:
  void begin_test() { counted_from_ = compile::outcome_counts(), sums_ = {}; }
  void open(Outcome outcome) {
    if (open_[index(outcome)]++ == 0) settle(outcome);
  }
  void close(Outcome outcome) {
    if (--open_[index(outcome)] == 0) counted_from_[index(outcome)] = compile::outcome_counts()[index(outcome)];
  }
  bool is_open(Outcome outcome) const { return open_[index(outcome)] > 0; }
  // So far in this test. REQUIRES: no scope is open.
  int64_t of(Outcome outcome) {
    settle(outcome);
    return sums_[index(outcome)];
  }

 private:
  static size_t index(Outcome outcome) { return static_cast<size_t>(outcome); }
  void settle(Outcome outcome) {
    const int64_t now = compile::outcome_counts()[index(outcome)];
    sums_[index(outcome)] += now - std::exchange(counted_from_[index(outcome)], now);
  }
  OutcomeCounts counted_from_{}, sums_{};
  std::array<int, kOutcomes> open_{};  // scopes
};
Unmeant& unmeant() {
  static Unmeant instance;
  return instance;
}

class Watch final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { unmeant().begin_test(); }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (test.result()->Skipped()) return;
    for (const Outcome outcome : {Outcome::kFailed, Outcome::kEager, Outcome::kBypassed, Outcome::kReplayed})
      if (const int64_t times = unmeant().of(outcome); times > 0)
        ADD_FAILURE() << "what the test compiled " << compile::name_of(outcome) << " " << times
                      << " times, which it did not say that it means to (tests/compiled_runs.h). The last time: "
                      << compile::last_reason(outcome);
    if (unmeant().of(Outcome::kRegion) > 0 && unmeant().of(Outcome::kCompiled) == 0)
      ADD_FAILURE() << "the test made regions, and nothing ran compiled (tests/compiled_runs.h)";
  }
};

}  // namespace

MeansToRun::MeansToRun(Eagerly what, std::string reason)
    : what_(what), reason_(std::move(reason)), before_(compile::outcome_counts()) {
  for (const Outcome outcome : outcomes_of(what)) unmeant().open(outcome);
  if (runs_eagerly(what)) unmeant().open(Outcome::kRegion);
}
MeansToRun::~MeansToRun() {
  if (runs_eagerly(what_)) unmeant().close(Outcome::kRegion);
  const OutcomeCounts now = compile::outcome_counts();
  int64_t times = 0;
  for (const Outcome outcome : outcomes_of(what_)) {
    times += at(now, outcome) - at(before_, outcome);
    unmeant().close(outcome);
  }
  if (testing::Test::IsSkipped()) return;
  EXPECT_GT(times, 0) << "nothing ran eagerly, though the test says so: " << reason_;
  if (what_ != Eagerly::kNothing) return;
  EXPECT_EQ(at(now, Outcome::kCompiled), at(before_, Outcome::kCompiled))
      << "something ran compiled, though the test says otherwise: " << reason_;
}

MustRunCompiled::MustRunCompiled() : before_(compile::outcome_counts()) {}
MustRunCompiled::~MustRunCompiled() {
  if (std::uncaught_exceptions() > 0 || unmeant().is_open(Outcome::kRegion)) return;
  EXPECT_GT(at(compile::outcome_counts(), Outcome::kCompiled), at(before_, Outcome::kCompiled))
      << "nothing ran compiled: there is nothing to compare";
}

void watch_compiled_runs() {
  testing::UnitTest::GetInstance()->listeners().Append(new Watch);  // Google Test deletes it
  const char* planted = std::getenv("RONDO_TEST_PLANT");
  if (planted == nullptr) return;
  try {
    compile::plant_failure(planted);
  } catch (const Error& error) {
    std::fprintf(stderr, "RONDO_TEST_PLANT: %s\n", error.what());
    std::exit(2);
  }
}

}  // namespace rondo::test
