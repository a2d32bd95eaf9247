// Sharded states that are updated at seams: each rank updates its pieces of a bucket when their averages are there. The
// bits of steps after backward.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rondo/compile/jit/executable.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/dist/nccl_ranks.h"
#include "rondo/tests/dist/sharded.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using optim::UpdateAtSeams;
using test::error_of;
using test::ShardedRun;
using test::with_groups;

enum class Mode { kWhole, kSharded, kAtSeams };

struct Trained {
  std::vector<Tensor> parameters;
  nn::StateDict state;
  std::vector<double> losses;
  uint64_t hash = 0;
};

// 6 steps of two backwards each.
Trained train(ProcessGroup& group, Mode mode, ShardedRun::Options options, optim::UpdateAtSeamsOptions how = {}) {
  options.sharded = mode != Mode::kWhole;
  ShardedRun run(group, options);
  std::optional<UpdateAtSeams> updates;
  if (mode == Mode::kAtSeams) updates.emplace(*run.ddp, *run.optimizer, how);
  std::vector<double> losses;
  for (int64_t step = 0; step < 6; ++step) {
    {
      const auto local = run.ddp->no_sync();
      test::sharded_loss(run.model, group.rank(), 2, 2 * step).backward();
    }
    const Tensor loss = test::sharded_loss(run.model, group.rank(), 2, 2 * step + 1);
    loss.backward();
    losses.push_back(loss.item());
    run.ddp->finish();
    if (!updates) {
      run.optimizer->step(options.step);
      run.optimizer->zero_grad();
      continue;
    }
    EXPECT_GT(updates->finish().at_seams, 0);
    if (!how.drop_grads) run.optimizer->zero_grad();
    for (const Tensor& p : run.model.parameters()) EXPECT_FALSE(p.grad().defined());
  }
  Trained trained{{}, run.state(), losses, run.ddp->check_parameters()};
  for (const Tensor& p : run.model.parameters()) trained.parameters.push_back(p.detach().clone());
  return trained;
}

class ShardedSeams : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  ShardedRun::Options options(BucketOptions buckets = test::kBucketPerBlock) const {
    return {.compiled = GetParam(), .buckets = buckets};
  }
};

TEST_P(ShardedSeams, TheBitsOfStepsAfterBackward) {
  for (const int n : {2, 3, 4})
    for (const BucketOptions buckets :
         {test::kBucketPerBlock, BucketOptions{.min_bytes = 20'000}, BucketOptions{.min_bytes = 1, .max_bytes = 2048}})
      with_groups(n, [&](ProcessGroup& group) {
        const Trained after = train(group, Mode::kSharded, options(buckets));
        for (const optim::UpdateAtSeamsOptions& how :
             {optim::UpdateAtSeamsOptions{}, {.step = {.zero_grad = true}}, {.drop_grads = false}}) {
          const Trained seams = train(group, Mode::kAtSeams, options(buckets), how);
          EXPECT_EQ(seams.hash, after.hash);
          EXPECT_EQ(seams.state.size(), after.state.size());
          for (const auto& [name, value] : after.state)
            EXPECT_TRUE(test::same_bits(seams.state.at(name), value)) << name;
        }
        const Trained whole = train(group, Mode::kWhole, options(buckets));
        for (size_t i = 0; i < whole.losses.size(); ++i)
          EXPECT_NEAR(after.losses[i], whole.losses[i], 1e-6 * whole.losses[i]) << i;
      });
}

// Not AdamW, which divides a gradient that is zero but for rounding (that of the keys' bias) by its own size.
TEST_P(ShardedSeams, TheParametersOfWholeStates) {
  for (const int n : {2, 3, 4})
    with_groups(n, [&](ProcessGroup& group) {
      ShardedRun::Options sgd = options();
      sgd.make = [](const nn::GPT2& model) {
        return std::make_unique<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
      };
      const Trained seams = train(group, Mode::kAtSeams, sgd), whole = train(group, Mode::kWhole, sgd);
      for (size_t i = 0; i < whole.parameters.size(); ++i)
        EXPECT_TRUE(test::is_close(seams.parameters[i], whole.parameters[i], test::of_largest_above_1(1e-6))) << i;
    });
}

// Optimizers that need whole parameters, master weights, and a rank that has no element at all of some buckets.
TEST_P(ShardedSeams, WholeParametersAndMasterWeights) {
  with_groups(3, [&](ProcessGroup& group) {
    ShardedRun::Options lamb = options(), bf16 = options();
    lamb.make = [](const nn::GPT2& model) { return std::make_unique<optim::LAMB>(model.parameters()); };
    bf16.prepare = [](nn::GPT2& model) { model.to(kBF16); };
    for (const ShardedRun::Options& o : {lamb, bf16})
      EXPECT_EQ(train(group, Mode::kAtSeams, o).hash, train(group, Mode::kSharded, o).hash);
  });
}

// A branch that no rank takes in some steps: its bucket has no gradient, and is neither updated nor sent.
TEST_P(ShardedSeams, UnusedParametersAreLeftAlone) {
  with_groups(2, [&](ProcessGroup& group) {
    std::vector<uint64_t> hashes;
    for (const bool at_seams : {false, true}) {
      ShardedRun run(group, options({.min_bytes = 1, .allow_unused = true}));
      std::optional<UpdateAtSeams> updates;
      if (at_seams) updates.emplace(*run.ddp, *run.optimizer);
      for (int64_t step = 0; step < 4; ++step) {
        Tensor x = run.model.wte(Tensor::from<int64_t>({1, 2 + step, 3, 4}, {1, 4}));
        x = run.model.h[0](x);
        if (step % 2 == 0 || group.rank() == 1) x = run.model.h[1](x);
        (x * x).mean().backward();
        run.ddp->finish();
        if (updates) updates->finish();
        else run.optimizer->step();
        run.optimizer->zero_grad();
        EXPECT_EQ(run.shards->state_dict().contains("state.39.step"), false);  // ln_f has never had a gradient
      }
      hashes.push_back(run.ddp->check_parameters());
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  });
}

// A group that loses a reduce-scatter: on the CPU, buckets before it are updated already.
class Losing final : public ProcessGroup {
 public:
  explicit Losing(ProcessGroup& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    return real_.all_reduce(tensor, op, name);
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    return real_.broadcast(tensor, root, name);
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    return name == lost ? Work() : real_.reduce_scatter(out, in, op, name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    if (name.starts_with("parameters of bucket")) gathered.emplace(name);
    return real_.all_gather(out, in, name);
  }
  Work barrier(std::string_view name) override { return real_.barrier(name); }

  std::string lost;
  std::multiset<std::string> gathered;

 private:
  ProcessGroup& real_;
};

TEST_P(ShardedSeams, AFailedStepLeavesAllRanksEqual) {
  with_groups(2, [&](ProcessGroup& real) {
    Losing group(real);
    ShardedRun run(group, options());
    UpdateAtSeams updates(*run.ddp, *run.optimizer);
    const auto step = [&](int64_t number) {
      test::sharded_loss(run.model, group.rank(), 2, number).backward();
      run.ddp->finish();
      return updates.finish();
    };
    step(0);
    step(1);
    const std::vector<float> first = run.model.wte.weight.to_vector<float>(),
                             last = run.model.ln_f.weight.to_vector<float>();
    group.lost = "bucket 1 of step 3";
    group.gathered.clear();
    EXPECT_NE(error_of<MismatchError>([&] { step(2); }).find("the reduce-scatter of bucket 1"), std::string::npos);
    updates.abandon();
    EXPECT_EQ(group.gathered, (std::multiset<std::string>{"parameters of bucket 0 after step 3"}));
    run.ddp->check_parameters();
    EXPECT_EQ(run.model.wte.weight.to_vector<float>(), first);
    EXPECT_EQ(run.model.ln_f.weight.to_vector<float>() == last, false);  // bucket 0: updated before the loss
    EXPECT_GT(step(3).at_seams, 0);
    run.ddp->check_parameters();
  });
}

TEST_P(ShardedSeams, WhatIsUpdated) {
  with_groups(2, [&](ProcessGroup& group) {
    ShardedRun run(group, options());
    UpdateAtSeams updates(*run.ddp, *run.optimizer);
    EXPECT_NE(error_of([&] { updates.finish(); }).find("none of the 40 parameters has a gradient"), std::string::npos);
    for (int64_t step = 0; step < 2; ++step) {
      test::sharded_loss(run.model, group.rank(), 2, step).backward();
      EXPECT_NE(error_of([&] { updates.finish(); }).find("call finish() first"), std::string::npos);
      run.ddp->finish();
      const std::vector<Tensor> all = run.model.parameters();
      const auto updated = [&](const Tensor& p) { return updates.is_updated(p); };
      EXPECT_GT(std::count_if(all.begin(), all.end(), updated), 0);  // each rank has whole ones or pieces
      EXPECT_NE(error_of([&] { run.optimizer->set_lr(0.5); }).find("a step is under way"), std::string::npos);
      EXPECT_NE(error_of([&] { run.optimizer->step(); }).find("are updated at seams"), std::string::npos);
      updates.finish();
      EXPECT_EQ(std::count_if(all.begin(), all.end(), updated), 0);
      EXPECT_NE(error_of([&] { updates.finish(); }).find("has a gradient"), std::string::npos);
    }
    EXPECT_NE(error_of([&] { UpdateAtSeams(*run.ddp, *run.optimizer); }).find("has one already"), std::string::npos);
  });
}

INSTANTIATE_TEST_SUITE_P(EagerAndCompiled, ShardedSeams, testing::Bool(),
                         [](const auto& info) { return info.param ? "compiled" : "eager"; });

// On a device all of it is enqueued by finish(), in any legal order.
TEST(ShardedSeamsOnCuda, TheBitsOfStepsAfterBackward) {
  RONDO_SKIP_WITHOUT_NCCL();
  std::set<uint64_t> hashes;
  for (const uint64_t seed : {1, 2, 3}) {
    test::NcclRanks ranks(3, seed);
    ranks.with_groups([&](ProcessGroup& group, Device device) {
      for (const bool at_seams : {false, true}) {
        nn::GPT2 model(test::kShardedConfig, 1);
        model.to(device);
        DistributedDataParallel ddp(model, test::borrowed(group), test::kBucketPerBlock);
        optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
        ShardedOptimizer shards(ddp, optimizer);
        std::optional<UpdateAtSeams> updates;
        if (at_seams) updates.emplace(ddp, optimizer);
        for (int64_t step = 0; step < 4; ++step) {
          const Tensor batch = Tensor::arange(16).view({2, 8}).to(device) + (step + group.rank());
          model.loss(batch, batch).backward();
          ddp.finish();
          if (updates) EXPECT_GT(updates->finish().at_seams, 0);
          else optimizer.step();
          optimizer.zero_grad();
        }
        const uint64_t hash = ddp.check_parameters();
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        hashes.insert(hash);
      }
    });
  }
  EXPECT_EQ(hashes.size(), 1u);
}

}  // namespace
}  // namespace rondo::dist
