// Parameters under way, what a sharded optimizer refuses, and a group that fails.
#include <gtest/gtest.h>

#include <set>

#include "rondo/compile/jit/executable.h"
#include "rondo/dist/groups/collective.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/dist/sharded.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::run_ranks;
using test::same_bits;
using test::ShardedRun;
using test::with_groups;

// A group whose gathers of parameters end when the test says so, and which can lose a reduce-scatter.
class Held final : public ProcessGroup {
 public:
  explicit Held(ProcessGroup& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    return real_.all_reduce(tensor, op, name);
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    return real_.broadcast(tensor, root, name);
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    if (name == lost) return Work();
    return real_.reduce_scatter(out, in, op, name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    const Work work = real_.all_gather(out, in, name);
    if (!name.starts_with("parameters of bucket")) return work;
    gathers.emplace_back(name);
    if (!fails) return work;
    const auto state = std::make_shared<Work::State>();
    work.wait();
    state->finish(Work::Outcome::kLost, "rank 1 is gone");
    return Work(state);
  }
  Work barrier(std::string_view name) override { return real_.barrier(name); }

  std::vector<std::string> gathers;
  std::string lost;
  bool fails = false;

 private:
  ProcessGroup& real_;
};

bool is_under_way(const Tensor& tensor) { return !tensor.impl()->storage; }

class ShardedRules : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  ShardedRun::Options options() const { return {.compiled = GetParam()}; }
};

// The next forward takes each block's parameters when it comes to the block.
TEST_P(ShardedRules, ParametersArriveWhenTheyAreUsed) {
  with_groups(2, [&](ProcessGroup& group) {
    ShardedRun run(group, options());
    run.step(0);
    std::vector<Tensor> parameters = run.model.parameters();
    for (const Tensor& p : parameters) EXPECT_TRUE(is_under_way(p));
    // Facts that are no values leave them where they are.
    EXPECT_TRUE(parameters[0].requires_grad() && parameters[0].is_leaf());
    EXPECT_EQ(parameters[0].sizes(), Dims({31, 16}));
    EXPECT_FALSE(parameters[0].grad().defined());
    EXPECT_TRUE(is_under_way(parameters[0]));
    std::vector<std::string> seen;
    Tensor x = Tensor::ones({1, 4, 16});
    for (size_t block = 0; block < 3; ++block) {
      std::string list;
      for (size_t i = 0; i < 3; ++i) list += is_under_way(run.model.h[i].attn.c_attn.weight) ? '-' : 'x';
      seen.push_back(list);
      x = run.model.h[block](x);
    }
    EXPECT_EQ(seen, (std::vector<std::string>{"---", "x--", "xx-"}));
    EXPECT_TRUE(is_under_way(run.model.wte.weight));
    run.shards->wait();
    for (const Tensor& p : parameters) EXPECT_FALSE(is_under_way(p));
  });
}

// Whatever reads a parameter through its handle reads the new values.
TEST_P(ShardedRules, NoReadIsOld) {
  with_groups(2, [&](ProcessGroup& group) {
    ShardedRun::Options plain = options();
    plain.sharded = false;
    ShardedRun expected(group, plain);
    const std::vector<std::function<void(ShardedRun&, Tensor)>> reads = {
        [](ShardedRun&, const Tensor& p) { static_cast<void>(p.detach()); },
        [](ShardedRun&, const Tensor& p) { static_cast<void>(p.to_vector<float>()); },
        [](ShardedRun&, const Tensor& p) {
          static_cast<void>(p.slice(0, {0, 1}));
        },
        [](ShardedRun&, const Tensor& p) { static_cast<void>(p.raw_data()); },
        [](ShardedRun&, const Tensor& p) { static_cast<void>(ops::sum(p)); },
        [](ShardedRun&, Tensor p) {
          const NoGrad off;
          p.mul_(1.0);
        },
        [](ShardedRun&, const Tensor& p) { static_cast<void>(p.to(kBF16)); },
        [](ShardedRun& run, const Tensor&) { static_cast<void>(run.model.state_dict()); },
        [](ShardedRun& run, const Tensor&) { run.model.load_state_dict(run.model.state_dict(), true, true); },
        [](ShardedRun& run, const Tensor&) { static_cast<void>(run.ddp->check_parameters()); },
    };
    ShardedRun run(group, options());
    for (size_t k = 0; k < reads.size(); ++k) {
      expected.step(static_cast<int64_t>(k));
      run.step(static_cast<int64_t>(k));
      const std::vector<Tensor> all = run.model.parameters(), values = expected.model.parameters();
      for (size_t i = 0; i < all.size(); ++i) {
        reads[k](run, all[i]);
        ASSERT_FALSE(is_under_way(all[i])) << "read " << k;
        EXPECT_TRUE(same_bits(all[i].detach(), values[i].detach())) << "read " << k << ", " << i;
      }
    }
  });
}

// A recording that begins while its parameters are under way is replayed as any other.
TEST(ShardedRecordings, OfParametersUnderWayAreReplayed) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  with_groups(2, [&](ProcessGroup& group) {
    nn::GPT2 model(test::kShardedConfig, 1);
    DistributedDataParallel ddp(model, test::borrowed(group), test::kBucketPerBlock);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    ShardedOptimizer shards(ddp, optimizer);
    std::optional<compile::Regions> regions;
    for (int64_t step = 0; step < 4; ++step) {
      if (step == 1) regions = compile::compile_regions(model, {.capture = compile::Capture::kReplay});
      test::sharded_loss(model, group.rank(), 2, step).backward();
      ddp.finish();
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(regions->report()[0].replays, 6) << regions->report()[0].why_not_replayed;  // three blocks, two steps
    ddp.check_parameters();
  });
}

// Another memory for the model's parameters, between two steps.
TEST_P(ShardedRules, FollowsAModelWhoseMemoryIsReplaced) {
  with_groups(2, [&](ProcessGroup& group) {
    std::vector<uint64_t> hashes;
    for (const bool sharded : {false, true}) {
      ShardedRun::Options o = options();
      o.sharded = sharded;
      ShardedRun run(group, o);
      run.step(0);
      nn::GPT2 other(test::kShardedConfig, 5);
      run.model.load_state_dict(other.state_dict(), true, /*assign=*/true);
      for (int64_t step = 1; step < 4; ++step) run.step(step);
      hashes.push_back(run.ddp->check_parameters());
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  });
}

TEST_P(ShardedRules, AConvertedModelIsRefused) {
  with_groups(2, [&](ProcessGroup& group) {
    ShardedRun run(group, options());
    run.step(0);
    run.model.to(kF64);
    const std::string error = error_of([&] { run.step(1); });
    EXPECT_NE(error.find("was f32 on cpu and is f64 on cpu"), std::string::npos) << error;
  });
}

// Gradients add up over several finish() before a step, over steps that do not zero them, and onto zeros: as without
// shards, but for the order of the sums.
TEST_P(ShardedRules, GradientsAddUpUntilTheyAreZeroed) {
  with_groups(2, [&](ProcessGroup& group) {
    for (const std::string_view how : {"two finishes", "never zeroed", "zeros stay", "the step zeroes"}) {
      SCOPED_TRACE(how);
      std::vector<std::vector<Tensor>> parameters;
      for (const bool sharded : {false, true}) {
        ShardedRun::Options o = options();
        o.sharded = sharded;
        o.step.zero_grad = how == "the step zeroes";
        o.make = [](const nn::GPT2& model) {
          return std::make_unique<optim::SGD>(model.parameters(), optim::SGDOptions{.lr = 0.1});
        };
        ShardedRun run(group, o);
        for (int64_t step = 0; step < 4; ++step) {
          for (int64_t part = 0; part < (how == "two finishes" ? 2 : 1); ++part) {
            test::sharded_loss(run.model, group.rank(), 2, 7 * part + step).backward();
            run.ddp->finish();
          }
          run.optimizer->step(o.step);
          if (how == "two finishes") run.optimizer->zero_grad();
          if (how == "zeros stay") run.optimizer->zero_grad(/*set_to_none=*/false);
        }
        run.ddp->check_parameters();
        std::vector<Tensor>& values = parameters.emplace_back();
        for (const Tensor& p : run.model.parameters()) values.push_back(p.detach().clone());
      }
      for (size_t i = 0; i < parameters[0].size(); ++i)
        EXPECT_TRUE(test::is_close(parameters[1][i], parameters[0][i], test::of_largest_above_1(1e-6))) << i;
    }
  });
}

// A gather that fails: the parameters that have not arrived can never be read, not even after the optimizer is gone.
TEST_P(ShardedRules, ALostParameterCannotBeRead) {
  with_groups(2, [&](ProcessGroup& group) {
    const auto held = std::make_shared<Held>(group);
    nn::GPT2 model(test::kShardedConfig, 1);
    DistributedDataParallel ddp(model, held, test::kBucketPerBlock);
    optim::AdamW optimizer(model.parameters());
    {
      ShardedOptimizer shards(ddp, optimizer);
      test::sharded_loss(model, group.rank(), 2, 0).backward();
      ddp.finish();
      held->fails = true;
      optimizer.step();
      EXPECT_NE(error_of<ConnectionError>([&] { model.wte.weight.to_vector<float>(); }).find("rank 1 is gone"),
                std::string::npos);
      EXPECT_NE(error_of<ConnectionError>([&] { shards.wait(); }).find("rank 1 is gone"), std::string::npos);
    }
    EXPECT_NE(error_of([&] { model.wte.weight.to_vector<float>(); }).find("did not come from the other processes"),
              std::string::npos);
  });
}

// Tags: a reduce-scatter that no rank makes.
TEST_P(ShardedRules, ALostReduceScatterIsCaught) {
  const auto errors = run_ranks(2, [&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    const auto held = std::make_shared<Held>(*group);
    nn::GPT2 model(test::kShardedConfig, 1);
    DistributedDataParallel ddp(model, held, test::kBucketPerBlock);
    optim::AdamW optimizer(model.parameters());
    ShardedOptimizer shards(ddp, optimizer);
    held->lost = "bucket 1 of step 2";
    for (int64_t step = 1; step <= 2; ++step) {
      test::sharded_loss(model, e.rank, 2, step).backward();
      const std::string error = error_of<MismatchError>([&] { ddp.finish(); });
      if (step == 1) {
        EXPECT_EQ(error, "");
        optimizer.step();
        continue;
      }
      // The averages of this step are of no use, those of the step before are gone.
      EXPECT_NE(error_of([&] { optimizer.step(); }).find("has a gradient"), std::string::npos);
      throw Error(error);
    }
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("step 2, rank 0: the reduce-scatter of bucket 1 (h.2."), std::string::npos) << error;
}

TEST_P(ShardedRules, RanksThatDoNotShardAlikeAreTold) {
  for (const bool masters : {false, true}) {
    const auto errors = run_ranks(2, [&](const Environment& e) {
      const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
      nn::GPT2 model(test::kShardedConfig, 1);
      DistributedDataParallel ddp(model, group);
      optim::AdamW optimizer(model.parameters(), {.masters = !masters || e.rank == 0});
      std::optional<ShardedOptimizer> shards;
      if (masters || e.rank == 0) shards.emplace(ddp, optimizer);
      test::sharded_loss(model, e.rank, 2, 0).backward();
      ddp.finish();
    });
    for (const std::string& error : errors)
      EXPECT_NE(error.find("rank 1 has another plan than rank 0"), std::string::npos) << error;
  }
}

INSTANTIATE_TEST_SUITE_P(EagerAndCompiled, ShardedRules, testing::Bool(),
                         [](const auto& info) { return info.param ? "compiled" : "eager"; });

// ---- What is refused, in one process

bool says(const std::function<void()>& call, const char* text) {
  const std::string error = error_of([&] { call(); });
  if (error.find(text) == std::string::npos) ADD_FAILURE() << "\"" << error << "\" does not say: " << text;
  return !error.empty();
}

TEST(ShardedErrors, BeforeTheFirstStep) {
  nn::GPT2 model(test::kShardedConfig, 1), other(test::kShardedConfig, 2);
  DistributedDataParallel ddp(model, ProcessGroup::connect({}));
  optim::AdamW optimizer(model.parameters()), foreign(other.parameters());
  EXPECT_TRUE(says([&] { ShardedOptimizer(ddp, foreign); }, "parameter 0 of AdamW requires a gradient and is not"));
  other.requires_grad_(false);
  EXPECT_TRUE(says([&] { ShardedOptimizer(ddp, foreign); }, "has no parameter of the model"));
  {
    optim::UpdateAtSeams updates(ddp, optimizer);
    EXPECT_TRUE(says([&] { ShardedOptimizer(ddp, optimizer); }, "make the ShardedOptimizer first"));
  }
  ShardedOptimizer shards(ddp, optimizer);
  optim::AdamW second(model.parameters());
  EXPECT_TRUE(says([&] { ShardedOptimizer(ddp, optimizer); }, "has or had one already"));
  EXPECT_TRUE(says([&] { ShardedOptimizer(ddp, second); }, "already taken by ShardedOptimizer"));
  EXPECT_TRUE(says([&] { optim::UpdateAtSeams(model, optimizer); }, "make it from the DistributedDataParallel"));
  EXPECT_TRUE(says([&] { optim::UpdateAtSeams(ddp, second); }, "already taken by ShardedOptimizer"));
  EXPECT_TRUE(says([&] { optimizer.step(); }, "there was no gradient yet"));
}

TEST(ShardedErrors, OfTheOptimizersOwnCalls) {
  nn::GPT2 model(test::kShardedConfig, 1);
  DistributedDataParallel ddp(model, ProcessGroup::connect({}));
  optim::AdamW optimizer(model.parameters());
  std::optional<ShardedOptimizer> shards;
  shards.emplace(ddp, optimizer);
  const Tensor extra = Tensor::ones({3}).requires_grad_();
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(says([&] { optimizer.state_dict(); }, "use ShardedOptimizer::state_dict()"));
    EXPECT_TRUE(says([&] { optimizer.load_state_dict({}); }, "use ShardedOptimizer::load_state_dict()"));
    EXPECT_TRUE(says([&] { optimizer.averages(); }, "use ShardedOptimizer::averages()"));
    EXPECT_TRUE(says([&] { optimizer.copies(); }, "use ShardedOptimizer::copies()"));
    EXPECT_TRUE(says([&] { optimizer.keep_copies(kBF16); }, "keep copies before"));
    EXPECT_TRUE(says([&] { optimizer.add_param_group({.params = {extra}}); }, "add groups before"));
    EXPECT_TRUE(says([&] { optim::clip_grad_norm_(model.parameters(), 1); }, "ShardedOptimizer uses these gradients"));
    test::sharded_loss(model, 0, 2, round).backward();
    EXPECT_TRUE(says([&] { optimizer.step(); }, round == 0 ? "not averaged yet" : "not averaged yet"));
    ddp.finish();
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_TRUE(says([&] { optimizer.step(); }, "has a gradient"));
    optimizer.step({.allow_no_gradients = true});
  }
  EXPECT_TRUE(says(
      [&] {
        optim::SGD late(model.parameters());
        ShardedOptimizer(ddp, late);
      },
      "before the first backward"));
  shards.reset();
  EXPECT_TRUE(says([&] { optimizer.step(); }, "it is gone"));
  EXPECT_TRUE(says([&] { optimizer.state_dict(); }, "spread over processes"));
  test::sharded_loss(model, 0, 2, 3).backward();
  EXPECT_TRUE(says([&] { ddp.finish(); }, "is gone"));
}

// One that was never used leaves the optimizer and the model as they were.
TEST(ShardedErrors, OneThatMadeNoStepLeavesNothing) {
  nn::GPT2 model(test::kShardedConfig, 1);
  DistributedDataParallel ddp(model, ProcessGroup::connect({}));
  optim::AdamW optimizer(model.parameters());
  { const ShardedOptimizer shards(ddp, optimizer); }
  test::sharded_loss(model, 0, 2, 0).backward();
  ddp.finish();
  optim::clip_grad_norm_(model.parameters(), 1);
  optimizer.step();
  EXPECT_EQ(optimizer.state_dict().at("state.0.step").item(), 1);
}

}  // namespace
}  // namespace rondo::dist
