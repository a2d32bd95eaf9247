// The state of a sharded optimizer: whole parameters, for any number of ranks and for a plain optimizer.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/dist/sharded.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::same_bits;
using test::ShardedRun;
using test::with_groups;

struct Saved {
  nn::StateDict model, optimizer;
  std::vector<double> losses;
};
nn::StateDict cloned(const nn::StateDict& state) {
  nn::StateDict copy;
  for (const auto& [name, value] : state) copy[name] = value.clone();
  return copy;
}
Saved save(ShardedRun& run) { return {cloned(run.model.state_dict()), cloned(run.state()), {}}; }
void load(ShardedRun& run, const Saved& saved) {
  run.model.load_state_dict(saved.model);
  if (run.shards) run.shards->load_state_dict(saved.optimizer);
  else run.optimizer->load_state_dict(saved.optimizer);
}

// 24 rows a step, whatever the number of ranks. The losses.
std::vector<double> train(ShardedRun& run, int64_t begin, int64_t end) {
  std::vector<double> losses;
  for (int64_t step = begin; step < end; ++step) losses.push_back(run.step(step, 24 / run.group.world_size()));
  return losses;
}

// Steps [begin, end) of one job, which goes on from `from`. What it ends with, the same on every rank.
Saved job(int ranks, bool sharded, const Saved* from, int64_t begin, int64_t end, ShardedRun::Options options = {}) {
  Saved result;
  std::mutex mutex;
  options.sharded = sharded;
  with_groups(ranks, [&](ProcessGroup& group) {
    ShardedRun run(group, options);
    if (from != nullptr) {
      const std::lock_guard lock(mutex);  // ranks are threads, and share `from`
      load(run, *from);
    }
    const std::vector<double> losses = train(run, begin, end);
    run.ddp->check_parameters();
    Saved now = save(run);
    now.losses = losses;
    const std::lock_guard lock(mutex);
    if (result.model.empty()) result = now;
    for (const auto& [name, value] : now.optimizer) EXPECT_TRUE(same_bits(value, result.optimizer.at(name))) << name;
  });
  return result;
}

void expect_same(const nn::StateDict& found, const nn::StateDict& expected, double tolerance) {
  EXPECT_EQ(found.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(found.contains(name)) << name;
    if (tolerance == 0 || !is_floating(value.dtype())) EXPECT_TRUE(same_bits(found.at(name), value)) << name;
    else EXPECT_TRUE(test::is_close(found.at(name), value, test::of_largest_above_1(tolerance))) << name;
  }
}

class ShardedState : public testing::Test {
 protected:
};

TEST_F(ShardedState, GoesOnWithAnyNumberOfRanksAndWithoutShards) {
  const Saved half = job(2, true, nullptr, 0, 4), plain_half = job(2, false, nullptr, 0, 4);
  expect_same(half.optimizer, plain_half.optimizer, 0);
  expect_same(half.model, plain_half.model, 0);
  const Saved whole = job(2, false, nullptr, 0, 8);
  // The same bits where the sums are the same.
  for (const bool sharded : {true, false}) {
    const Saved found = job(2, sharded, &half, 4, 8);
    expect_same(found.model, whole.model, 0);
    expect_same(found.optimizer, whole.optimizer, 0);
  }
  for (const int ranks : {1, 3, 4}) {
    const Saved found = job(ranks, true, &plain_half, 4, 8);
    ASSERT_EQ(found.losses.size(), 4u);
    for (size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(found.losses[i], whole.losses[4 + i], 1e-6 * whole.losses[4 + i]) << ranks << " ranks, " << i;
  }
}

// What a rank keeps depends on the kind of optimizer; the file does not.
TEST_F(ShardedState, OfWholeParametersAndOfBlocks) {
  ShardedRun::Options lamb, blocks;
  lamb.make = [](const nn::GPT2& m) { return std::make_unique<optim::LAMB>(m.parameters()); };
  blocks.make = [](const nn::GPT2& m) {
    return std::make_unique<optim::AdamW>(m.parameters(), optim::AdamWOptions{.state = optim::StateFormat::k8Bit});
  };
  for (const ShardedRun::Options& options : {lamb, blocks}) {
    const Saved half = job(3, true, nullptr, 0, 2, options);
    const Saved through = job(4, true, &half, 2, 2, options);  // before its first step
    expect_same(through.optimizer, half.optimizer, 0);
    const Saved plain = job(2, false, &half, 2, 4, options), sharded = job(2, true, &half, 2, 4, options);
    expect_same(sharded.model, plain.model, 0);
    expect_same(sharded.optimizer, plain.optimizer, 0);
  }
}

TEST_F(ShardedState, MasterWeightsAreThoseOfAPlainOptimizer) {
  ShardedRun::Options options;
  options.prepare = [](nn::GPT2& model) { model.to(kBF16); };
  const Saved half = job(2, true, nullptr, 0, 3, options);
  EXPECT_EQ(half.optimizer.count("state.0.master"), 1u);
  const Saved whole = job(2, true, nullptr, 0, 6, options), resumed = job(2, true, &half, 3, 6, options);
  expect_same(resumed.model, whole.model, 0);
  expect_same(resumed.optimizer, whole.optimizer, 0);
  const Saved elsewhere = job(3, true, &half, 3, 3, options);
  expect_same(elsewhere.optimizer, half.optimizer, 0);
  const Saved plain = job(2, false, &half, 3, 3, options);
  expect_same(plain.optimizer, half.optimizer, 0);
  const Saved moved = job(2, false, &half, 3, 4, options);
  EXPECT_EQ(moved.optimizer.at("state.0.step").item(), 4);
  const Saved back = job(3, true, &moved, 4, 4, options);
  expect_same(back.optimizer, moved.optimizer, 0);
}

// Loaded after the first step: into the shares.
TEST_F(ShardedState, IsLoadedBetweenSteps) {
  for (const DType dtype : {kF32, kBF16})
    with_groups(3, [&](ProcessGroup& group) {
      ShardedRun::Options options;
      options.prepare = [dtype](nn::GPT2& model) { model.to(dtype); };
      options.make = [](const nn::GPT2& model) {
        auto optimizer = test::make_adamw(model);
        optimizer->track_average();
        return optimizer;
      };
      ShardedRun run(group, options);
      train(run, 0, 3);
      const Saved before = save(run);
      train(run, 3, 5);
      const Saved expected = save(run);
      load(run, before);
      expect_same(run.state(), before.optimizer, 0);
      train(run, 3, 5);
      const Saved again = save(run);
      expect_same(again.model, expected.model, 0);
      expect_same(again.optimizer, expected.optimizer, 0);
    });
}

TEST_F(ShardedState, IsOnOneRankOnly) {
  with_groups(3, [&](ProcessGroup& group) {
    ShardedRun run(group, {});
    EXPECT_EQ(run.shards->state_dict(1).empty(), group.rank() != 1);
    run.step(0);
    const nn::StateDict all = run.shards->state_dict(), one = run.shards->state_dict(2);
    if (group.rank() == 2) expect_same(one, all, 0);
    else EXPECT_TRUE(one.empty());
    EXPECT_NE(error_of([&] { run.shards->state_dict(3); }).find("there is no rank 3"), std::string::npos);
    EXPECT_NE(error_of([&] { run.shards->averages(); }).find("track_average() first"), std::string::npos);
  });
}

// Nothing changes if something does not fit.
TEST_F(ShardedState, WhatDoesNotFitIsNamed) {
  with_groups(2, [&](ProcessGroup& group) {
    ShardedRun run(group, {});
    run.step(0);
    const nn::StateDict before = cloned(run.state());
    const auto error = [&](const std::function<void(nn::StateDict&)>& damage) {
      nn::StateDict state = before;
      damage(state);
      const std::string text = error_of<nn::StateDictError>([&] { run.shards->load_state_dict(state); });
      expect_same(run.state(), before, 0);
      return text;
    };
    EXPECT_NE(error([](nn::StateDict& s) { s.erase("state.3.exp_avg"); }).find("state.3.exp_avg"), std::string::npos);
    EXPECT_NE(error([](nn::StateDict& s) { s["state.40.exp_avg"] = Tensor::zeros({2}); }).find("state.40.exp_avg"),
              std::string::npos);
    EXPECT_NE(error([](nn::StateDict& s) { s["state.2.momentum"] = Tensor::zeros({2}); }).find("state.2.momentum"),
              std::string::npos);
    EXPECT_NE(error([](nn::StateDict& s) {
                s["state.0.exp_avg_sq"] = Tensor::zeros({496});
              }).find("state.0.exp_avg_sq: [31, 16] wanted, [496] given"),
              std::string::npos);
    EXPECT_NE(error([](nn::StateDict& s) { s["group.0.lr"] = Tensor::full({}, NAN, kF64); }).find("group.0.lr"),
              std::string::npos);
    EXPECT_NE(error([](nn::StateDict& s) { s["group.0.params"] = Tensor::scalar<int64_t>(7); }).find("group.0.params"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace rondo::dist
