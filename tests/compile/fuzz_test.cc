// Random programs, compiled against eager (tests/fuzz/). tests/fuzz/run.sh runs many more.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/fuzz/fuzz.h"
#include "rondo/tests/fuzz/shrink.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo {
namespace {

class Fuzz : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    allocator::set_poison_on_free(true);
    compile::set_check_floats(true);
  }
  void TearDown() override {
    allocator::set_poison_on_free(false);
    compile::set_check_floats(compile::parse_checks(nullptr).floats);
  }
  static constexpr fuzz::GenerateOptions kSmall{.max_steps = 10, .large = 0.02};
  static void try_seeds(uint64_t from, uint64_t count) {
    fuzz::FuzzOptions options;
    options.generate = kSmall;
    uint64_t compiled = 0;  // programs; a few record nothing
    for (uint64_t seed = from; seed < from + count; ++seed) {
      const auto before = compile::outcome_counts();
      const std::string what = fuzz::try_seed(seed, options);
      EXPECT_TRUE(what.empty()) << what;
      const auto ran = static_cast<size_t>(compile::Outcome::kCompiled);
      compiled += compile::outcome_counts()[ran] > before[ran];
    }
    EXPECT_GT(compiled, count * 9 / 10);
  }
};

// Exact mode gives eager's bits, default mode comes close, and both run as many kernels.
TEST_F(Fuzz, CompiledIsEager) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "some of the programs ask for it");
  try_seeds(0, 300);
}

// Each thread has regions of its own; kernels, caches and counts belong to all.
TEST_F(Fuzz, TwoProgramsAtOnce) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "some of the programs ask for it");
  std::thread other([] { try_seeds(100000, 60); });
  try_seeds(200000, 60);
  other.join();
}

// The generator reaches everything it has.
TEST_F(Fuzz, ProgramsHaveEverything) {
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "some of the programs ask for it");
  std::set<std::string> kinds;
  int shared = 0, batches = 0, conditional = 0, repeated = 0, dtypes = 0, failing = 0;
  int nested = 0, layers = 0, parts_only = 0, twice = 0, every_call = 0, autocast = 0, inference = 0, watched = 0,
      dynamic = 0, flipped = 0, overwritten = 0, threads = 0, second_order = 0, annealed = 0, looks = 0,
      alternating = 0, results_overwritten = 0;
  int64_t replays = 0, verified = 0, own_nodes = 0;
  for (uint64_t seed = 0; seed < 1800; ++seed) {
    const fuzz::Program program = fuzz::generate(seed, kSmall);
    if (seed < 5) {
      EXPECT_EQ(to_string(program), to_string(fuzz::generate(seed, kSmall)));
    }
    // What a step reads is there: otherwise the program ends at that step, in all modes.
    std::set<fuzz::ValueId> there = {fuzz::kNone};
    for (const fuzz::Leaf& leaf : program.leaves) there.insert(leaf.id);
    for (const fuzz::Step& step : program.steps) {
      for (fuzz::ValueId id : step.in) EXPECT_TRUE(there.contains(id)) << to_string(program);
      there.insert(step.out.begin(), step.out.end());
    }
    for (fuzz::ValueId id : program.outputs) EXPECT_TRUE(there.contains(id)) << to_string(program);
    for (const fuzz::Step& step : program.steps) {
      kinds.insert(step.kind->name);
      conditional += step.when == fuzz::Step::When::kOddSteps;
      repeated += step.when == fuzz::Step::When::kRepeated;
    }
    std::set<DType> found;
    for (const fuzz::Leaf& leaf : program.leaves) {
      shared += leaf.same_as != fuzz::kNone;
      looks += leaf.same_as != fuzz::kNone && leaf.look != fuzz::Look::kAsItIs;
      alternating += leaf.same_as != fuzz::kNone && leaf.calls != fuzz::kEveryCall;
      if (leaf.bound == 0) found.insert(leaf.meta.dtype);
    }
    dtypes += found.size() > 1;
    nested += std::any_of(program.parts.begin(), program.parts.end(), [](const fuzz::Part& p) { return p.parent > 0; });
    layers += program.layers > 1;
    parts_only += program.compiled == fuzz::Program::Compiled::kParts;
    twice += program.backward == fuzz::Program::Backward::kTwice;
    every_call += program.backward == fuzz::Program::Backward::kEveryCall && program.calls > 1;
    autocast += program.autocast;
    inference += program.inference && program.batches.size() > 1;
    watched += program.watch;
    flipped += program.flip_leaves;
    overwritten += program.overwrite;
    results_overwritten += program.overwrite_results != fuzz::Program::OverwriteResults::kNo;
    threads += program.threads;
    annealed += program.anneal;
    second_order += program.backward == fuzz::Program::Backward::kCreateGraph;
    dynamic += program.options.shapes == compile::Shapes::kDynamic;
    if (seed < 900 && program.options.capture != compile::Capture::kRecord) {
      const fuzz::Trail trail = fuzz::run(program, fuzz::Mode::kExact);
      for (const compile::RegionReport& report : trail.reports) {
        replays += report.replays;
        verified += program.options.capture == compile::Capture::kVerify && report.why_not_replayed.empty()
                        ? report.calls
                        : 0;
      }
    }
    const bool has_own_node = std::ranges::any_of(
        program.steps, [](const fuzz::Step& step) { return step.kind->has(fuzz::kOwnNode); });
    if (seed < 600 && has_own_node)
      for (const compile::RegionReport& report : fuzz::run(program, fuzz::Mode::kExact).reports)
        own_nodes += report.last_break.find("a tape node is made") != std::string::npos ||
                     report.last_break.find("the history of a value is asked for") != std::string::npos;
    batches += std::set<int64_t>(program.batches.begin(), program.batches.end()).size() > 1;
    if (seed % 6 == 0) failing += fuzz::run(program, fuzz::Mode::kEager).backward_threw;
  }
  for (const fuzz::StepKind* kind : fuzz::all_steps()) EXPECT_TRUE(kinds.contains(kind->name)) << kind->name;
  for (int count : {shared,       batches,    conditional, repeated,    dtypes,
                    layers,       parts_only, twice,       autocast,    inference,
                    watched,      dynamic,    flipped,     overwritten, threads,
                    second_order, annealed,   looks,       alternating, results_overwritten})
    EXPECT_GT(count, 30);
  for (int count : {nested, every_call}) EXPECT_GT(count, 10);
  EXPECT_GT(replays, 30);
  EXPECT_GT(verified, 10);
  EXPECT_GT(own_nodes, 10);
  EXPECT_LT(failing, 20);  // of 100: what cannot go backward tests little
}

TEST_F(Fuzz, ShrinksToWhatFails) {
  const auto has = [](const fuzz::Program& program, const char* name) {
    for (const fuzz::Step& step : program.steps)
      if (std::string_view(step.kind->name) == name) return true;
    return false;
  };
  int shrunk = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const fuzz::Program program = fuzz::generate(seed, kSmall);
    if (!has(program, "softmax") || program.steps.size() < 4) continue;
    const auto fails = [&](const fuzz::Program& candidate) {
      return has(candidate, "softmax") && fuzz::run(candidate, fuzz::Mode::kEager).forward_errors == 0;
    };
    if (!fails(program)) continue;
    const fuzz::Program small = fuzz::shrink(program, fails);
    EXPECT_TRUE(fails(small));
    EXPECT_EQ(small.steps.size(), 1u) << to_string(small);
    EXPECT_EQ(small.leaves.size(), 1u) << to_string(small);
    EXPECT_EQ(small.batches.size(), 1u);
    ++shrunk;
  }
  EXPECT_GT(shrunk, 5);
}

}  // namespace
}  // namespace rondo
