// Sharded states: the numbers of the optimizer without shards.
#include "rondo/dist/ddp/sharded_optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>

#include "rondo/compile/jit/executable.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/optim/average_scope.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/dist/sharded.h"

namespace rondo::dist {
namespace {

using test::same_bits;
using test::ShardedRun;
using test::with_groups;

class Sharded : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  ShardedRun::Options with(bool sharded) const { return {.sharded = sharded, .compiled = GetParam()}; }
  // 6 steps with and without shards: parameters, states and norms have the same bits.
  static void expect_same_bits(ProcessGroup& group, ShardedRun::Options options) {
    options.sharded = false;
    ShardedRun plain(group, options);
    options.sharded = true;
    ShardedRun sharded(group, options);
    for (int64_t step = 0; step < 6; ++step) {
      EXPECT_EQ(plain.step(step), sharded.step(step)) << step;
      if (!std::isfinite(options.step.max_norm)) continue;
      EXPECT_NEAR(plain.report.grad_norm(), sharded.report.grad_norm(), 1e-12 * plain.report.grad_norm());
    }
    sharded.ddp->check_parameters();
    const auto expected = plain.model.named_parameters(), found = sharded.model.named_parameters();
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(same_bits(found[i].tensor, expected[i].tensor)) << expected[i].name;
    expect_same_state(plain.state(), sharded.state());
  }
  static void expect_same_state(const nn::StateDict& expected, const nn::StateDict& found) {
    EXPECT_EQ(expected.size(), found.size());
    for (const auto& [name, value] : expected) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_TRUE(same_bits(found.at(name), value)) << name;
    }
  }
};

// With two ranks both kinds of averages have the same bits.
TEST_P(Sharded, TheBitsOfTwoRanksWithoutShards) {
  for (const BucketOptions buckets :
       {test::kBucketPerBlock, BucketOptions{.min_bytes = 20'000}, BucketOptions{.min_bytes = 1, .max_bytes = 2048}})
    with_groups(2, [&](ProcessGroup& group) {
      ShardedRun::Options options = with(true);
      options.buckets = buckets;
      expect_same_bits(group, options);
    });
}

// The order of a norm's sum is another one, so the factor of clipping may differ in its last bit. In f32 it does not.
TEST_P(Sharded, ClipsByTheNormOfAllShards) {
  with_groups(2, [&](ProcessGroup& group) {
    ShardedRun::Options options = with(true);
    options.step = {.max_norm = 0.05, .zero_grad = true};
    expect_same_bits(group, options);
  });
}

TEST_P(Sharded, EveryOptimizer) {
  using optim::StateFormat;
  const auto all = [](auto make) { return [make](const nn::GPT2& model) { return make(model.parameters()); }; };
  using List = std::vector<Tensor>;
  const std::vector<std::pair<const char*, test::MakeOptimizer>> optimizers = {
      {"SGD", all([](const List& p) {
         return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
       })},
      {"Adam", all([](const List& p) {
         return std::make_unique<optim::Adam>(p, optim::AdamOptions{.weight_decay = 0.01, .amsgrad = true});
       })},
      {"AdamW, bf16 states", all([](const List& p) {
         return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.state = StateFormat::kBF16});
       })},
      {"AdamW, 8 bits", all([](const List& p) {
         return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.state = StateFormat::k8Bit});
       })},
      {"Lion", all([](const List& p) { return std::make_unique<optim::Lion>(p, optim::LionOptions{.lr = 1e-3}); })},
      {"RMSprop", all([](const List& p) { return std::make_unique<optim::RMSprop>(p); })},
      {"Adagrad", all([](const List& p) { return std::make_unique<optim::Adagrad>(p); })},
      {"LAMB", all([](const List& p) { return std::make_unique<optim::LAMB>(p); })},
      {"Adafactor", all([](const List& p) { return std::make_unique<optim::Adafactor>(p); })},
  };
  for (const auto& [name, make] : optimizers) {
    SCOPED_TRACE(name);
    ShardedRun::Options options = with(true);
    options.make = make;
    with_groups(2, [&](ProcessGroup& group) { expect_same_bits(group, options); });
  }
}

// Parameters with 8-bit states of 4,096 elements and more, cut or not at will, keep their blocks.
TEST_P(Sharded, StatesOf8BitsKeepTheirBlocks) {
  with_groups(3, [&](ProcessGroup& group) {
    const auto train = [&](bool sharded) {
      nn::GPT2 model({.vocab_size = 300, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 40}, 1);
      DistributedDataParallel ddp(model, test::borrowed(group));
      optim::AdamW optimizer(model.parameters(), {.state = optim::StateFormat::k8Bit});
      std::optional<ShardedOptimizer> shards;
      if (sharded) shards.emplace(ddp, optimizer);
      for (int64_t step = 0; step < 3; ++step) {
        test::sharded_loss(model, 0, 2, step).backward();  // the same on every rank: sums are exact
        ddp.finish();
        optimizer.step();
        optimizer.zero_grad();
      }
      ddp.check_parameters();
      return shards ? shards->state_dict() : optimizer.state_dict();
    };
    const nn::StateDict expected = train(false), found = train(true);
    int scales = 0;
    for (const auto& [name, value] : expected) {
      scales += name.ends_with(".scale");
      EXPECT_TRUE(!name.ends_with(".exp_avg.scale") || value.numel() > 1) << name;
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_EQ(value.sizes(), found.at(name).sizes()) << name;
      EXPECT_EQ(value.dtype(), found.at(name).dtype()) << name;
    }
    EXPECT_GT(scales, 4);
    EXPECT_EQ(expected.size(), found.size());
  });
}

// Several optimizers: Muon takes the matrices of the blocks, whole, and AdamW the rest, cut.
TEST_P(Sharded, TwoOptimizersOfOneModel) {
  with_groups(2, [&](ProcessGroup& group) {
    std::vector<std::vector<Tensor>> results;
    for (const bool sharded : {false, true}) {
      nn::GPT2 model(test::kShardedConfig, 1);
      DistributedDataParallel ddp(model, test::borrowed(group), test::kBucketPerBlock);
      std::vector<Tensor> matrices, rest;
      for (const nn::NamedTensor& p : model.named_parameters())
        (p.tensor.rank() == 2 && p.name.starts_with("h.") ? matrices : rest).push_back(p.tensor);
      optim::Muon muon(matrices, {.lr = 0.02});
      optim::AdamW adamw(rest, {.lr = 1e-2});
      if (GetParam()) compile::compile_regions(model), optim::compile(muon), optim::compile(adamw);
      std::optional<ShardedOptimizer> first, second;
      if (sharded) first.emplace(ddp, muon), second.emplace(ddp, adamw);
      for (int64_t step = 0; step < 5; ++step) {
        test::sharded_loss(model, group.rank(), 2, step).backward();
        ddp.finish();
        muon.step();
        adamw.step({.max_norm = 1});
        muon.zero_grad();
        adamw.zero_grad();
      }
      ddp.check_parameters();
      std::vector<Tensor>& found = results.emplace_back();
      for (const Tensor& p : model.parameters()) found.push_back(p.detach().clone());
      if (sharded) {
        int64_t mine = first->elements() + second->elements();
        Tensor all = Tensor::scalar<int64_t>(mine);
        group.all_reduce(all, ReduceOp::kSum, "elements").wait();
        EXPECT_EQ(all.item<int64_t>(), model.num_parameters());
      }
    }
    for (size_t i = 0; i < results[0].size(); ++i) EXPECT_TRUE(same_bits(results[1][i], results[0][i])) << i;
  });
}

// More ranks than two: sums in another order.
TEST_P(Sharded, TheLossesOfFourRanks) {
  for (const int ranks : {3, 4})
    with_groups(ranks, [&](ProcessGroup& group) {
      ShardedRun plain(group, with(false)), sharded(group, with(true));
      for (int64_t step = 0; step < 20; ++step) {
        const double expected = plain.step(step), found = sharded.step(step);
        EXPECT_NEAR(found, expected, 1e-6 * expected) << step;
      }
      sharded.ddp->check_parameters();
      // Each rank has its share.
      const auto all = static_cast<double>(sharded.model.num_parameters());
      EXPECT_LE(static_cast<double>(sharded.shards->elements()), 1.15 * all / ranks);
    });
}

TEST_P(Sharded, Accumulates) {
  with_groups(2, [&](ProcessGroup& group) {
    std::vector<uint64_t> hashes;
    for (const bool sharded : {false, true}) {
      ShardedRun run(group, with(sharded));
      for (int64_t step = 0; step < 5; ++step) {
        {
          const auto local = run.ddp->no_sync();
          (test::sharded_loss(run.model, group.rank(), 2, 3 * step) / 3.0).backward();
          (test::sharded_loss(run.model, group.rank(), 2, 3 * step + 1) / 3.0).backward();
        }
        run.step(3 * step + 2);
      }
      hashes.push_back(run.ddp->check_parameters());
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  });
}

TEST_P(Sharded, AccumulatedGradientsCanBeDropped) {
  with_groups(2, [&](ProcessGroup& group) {
    ShardedRun run(group, with(true));
    {
      const auto local = run.ddp->no_sync();
      test::sharded_loss(run.model, group.rank(), 2, 1).backward();
    }
    run.optimizer->zero_grad();
    for (const Tensor& p : run.model.parameters()) EXPECT_FALSE(p.grad().defined());
  });
}

// Only adapters have gradients, and states.
TEST_P(Sharded, AnAdapter) {
  with_groups(2, [&](ProcessGroup& group) {
    ShardedRun::Options options = with(true);
    options.prepare = [](nn::GPT2& model) {
      manual_seed(1);
      nn::add_lora(model, {.rank = 2, .targets = {"c_attn"}, .modules_to_save = {"ln_f"}});
    };
    expect_same_bits(group, options);
  });
}

TEST_P(Sharded, UnusedParametersAreSkippedOnEveryRank) {
  with_groups(2, [&](ProcessGroup& group) {
    std::vector<uint64_t> hashes;
    for (const bool sharded : {false, true}) {
      ShardedRun::Options options = with(sharded);
      options.buckets.allow_unused = true;
      ShardedRun run(group, options);
      run.step(0);
      // Rank 1 goes through the last norm only.
      if (group.rank() == 0) test::sharded_loss(run.model, 0, 2, 1).backward();
      else ops::sum(run.model.ln_f(Tensor::ones({1, 4, 16})) * Tensor::arange(16).to(kF32)).backward();
      run.ddp->finish();
      EXPECT_EQ(run.ddp->unused_parameters().size(), group.rank() == 0 ? 0u : 38u);
      run.optimizer->step({.max_norm = 1});
      run.optimizer->zero_grad();
      run.step(2);
      hashes.push_back(run.ddp->check_parameters());
      // Nobody uses the blocks and the embeddings, whose parameters are still under way: they are not updated, and
      // their steps do not count.
      run.step(3);
      ops::sum(run.model.ln_f(Tensor::ones({1, 4, 16})) * Tensor::arange(16).to(kF32)).backward();
      run.ddp->finish();
      run.optimizer->step({.max_norm = 1});
      run.optimizer->zero_grad();
      int64_t four = 0, five = 0;
      for (const auto& [name, value] : run.state())
        if (name.ends_with(".step")) (value.item() == 4 ? four : five) += 1;
      EXPECT_EQ(four, 38);
      EXPECT_EQ(five, 2);
      hashes.push_back(run.ddp->check_parameters());
    }
    ASSERT_EQ(hashes.size(), 4u);
    EXPECT_EQ(hashes[0], hashes[2]);
    EXPECT_EQ(hashes[1], hashes[3]);
  });
}

// All ranks skip the same steps, with a loss scale and without.
TEST_P(Sharded, ANonFiniteGradientOfOneRankSkipsTheStepOnAll) {
  with_groups(2, [&](ProcessGroup& group) {
    ShardedRun run(group, with(true));
    amp::GradScaler scaler({.init_scale = 8});
    uint64_t before = run.ddp->check_parameters();
    for (int64_t step = 0; step < 6; ++step) {
      const bool bad = step % 2 == 1;
      const Tensor loss = scaler.scale(test::sharded_loss(run.model, group.rank(), 2, step));
      (bad && group.rank() == 1 ? loss * std::numeric_limits<double>::infinity() : loss).backward();
      run.ddp->finish();
      EXPECT_EQ(scaler.step(*run.optimizer, {.max_norm = 1}).skipped(), bad);
      scaler.update();
      run.optimizer->zero_grad();
      const uint64_t now = run.ddp->check_parameters();
      EXPECT_EQ(now == before, bad);
      before = now;
    }
    EXPECT_EQ(scaler.skipped(), 3);
    EXPECT_EQ(run.optimizer->skipped_steps(), 3);
  });
}

// The norm has the same bits on every rank, whatever share it has.
TEST_P(Sharded, OneNormOnAllRanks) {
  std::mutex mutex;
  std::vector<std::vector<double>> norms(4);
  with_groups(4, [&](ProcessGroup& group) {
    ShardedRun::Options options = with(true);
    options.step.max_norm = 0.1;
    ShardedRun run(group, options);
    for (int64_t step = 0; step < 8; ++step) {
      run.step(step);
      const std::lock_guard lock(mutex);
      norms[static_cast<size_t>(group.rank())].push_back(run.report.grad_norm());
    }
  });
  for (const auto& list : norms) EXPECT_EQ(list, norms[0]);
  EXPECT_GT(norms[0][0], 0);
}

TEST_P(Sharded, AveragesAndCopies) {
  with_groups(2, [&](ProcessGroup& group) {
    std::vector<std::vector<Tensor>> averages, copies;
    std::vector<Tensor> buffer_averages;
    for (const bool sharded : {false, true}) {
      const Tensor statistics = Tensor::zeros({5});
      ShardedRun::Options options = with(sharded);
      options.make = [&](const nn::GPT2& model) {
        auto optimizer = test::make_adamw(model);
        optimizer->track_average({.decay = 0.9, .warmup = true, .buffers = {statistics}});
        optimizer->keep_copies(kBF16);
        return optimizer;
      };
      ShardedRun run(group, options);
      const std::vector<Tensor> kept = run.optimizer->n_groups() == 1 && !sharded ? run.optimizer->copies()
                                                                                  : run.shards->copies();
      for (int64_t step = 0; step < 5; ++step) {
        Tensor(statistics).add_(static_cast<double>(step));
        run.step(step);
      }
      averages.push_back(sharded ? run.shards->averages() : run.optimizer->averages());
      for (Tensor& t : averages.back()) t = t.clone();
      buffer_averages.push_back(run.state().at("buffer.0.average").clone());
      std::vector<Tensor>& list = copies.emplace_back();
      for (const Tensor& t : kept) list.push_back(t.clone());
      if (!sharded) continue;
      const Tensor own = run.model.parameters()[0].detach().clone();
      {
        const optim::AverageScope scope(*run.optimizer, run.model.parameters(), run.shards->averages());
        EXPECT_TRUE(same_bits(run.model.parameters()[0].detach(), averages[1][0]));
        EXPECT_TRUE(same_bits(statistics, buffer_averages[1]));
      }
      EXPECT_TRUE(same_bits(run.model.parameters()[0].detach(), own));
      EXPECT_EQ(statistics.sum().item(), 50);
      run.step(5);
    }
    EXPECT_TRUE(same_bits(buffer_averages[0], buffer_averages[1]));
    ASSERT_EQ(averages[0].size(), averages[1].size());
    for (size_t i = 0; i < averages[0].size(); ++i) {
      EXPECT_TRUE(same_bits(averages[1][i], averages[0][i])) << i;
      EXPECT_TRUE(same_bits(copies[1][i], copies[0][i])) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(EagerAndCompiled, Sharded, testing::Bool(),
                         [](const auto& info) { return info.param ? "compiled" : "eager"; });

// ---- Weights of 16 bits

// The weights are f32 and only their rounded values are in the model: one process, beside the loop written out.
TEST(ShardedMasters, AreUpdatedInF32) {
  const auto group = ProcessGroup::connect({});
  ShardedRun::Options options;
  options.prepare = [](nn::GPT2& model) { model.to(kBF16); };
  ShardedRun run(*group, options);
  nn::GPT2 model(test::kShardedConfig, 1);
  model.to(kBF16);
  const std::vector<Tensor> parameters = model.parameters();
  std::vector<Tensor> masters;
  for (const Tensor& p : parameters) masters.push_back(p.detach().to(kF32).requires_grad_());
  optim::AdamW optimizer(masters, {.lr = 1e-2, .weight_decay = 0.1});
  for (int64_t step = 0; step < 6; ++step) {
    run.step(step);
    test::sharded_loss(model, 0, 2, step).backward();
    for (size_t i = 0; i < parameters.size(); ++i) masters[i].set_grad(parameters[i].grad().to(kF32));
    optimizer.step();
    const NoGrad off;
    for (size_t i = 0; i < parameters.size(); ++i) {
      Tensor p = parameters[i];
      p.copy_(masters[i].detach());
      p.set_grad(Tensor());
    }
  }
  const std::vector<Tensor> found = run.model.parameters();
  const nn::StateDict state = run.state(), expected = optimizer.state_dict();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].dtype(), kBF16);
    EXPECT_TRUE(same_bits(found[i], parameters[i])) << i;
    const std::string prefix = "state." + std::to_string(i) + ".";
    EXPECT_TRUE(same_bits(state.at(prefix + "master"), masters[i].detach())) << i;
    EXPECT_TRUE(same_bits(state.at(prefix + "exp_avg_sq"), expected.at(prefix + "exp_avg_sq"))) << i;
  }
}

TEST(ShardedMasters, SeveralRanksHaveOneModel) {
  for (const DType dtype : {kBF16, kF16})
    with_groups(3, [&](ProcessGroup& group) {
      ShardedRun::Options options;
      options.prepare = [dtype](nn::GPT2& model) { model.to(dtype); };
      ShardedRun run(group, options);
      const double first = run.step(0);
      double last = first;
      for (int64_t step = 1; step < 30; ++step) last = run.step(step % 3);
      EXPECT_LT(last, 0.8 * first);
      run.ddp->check_parameters();
      // A model is the rounded weights.
      const nn::StateDict state = run.state();
      const std::vector<Tensor> parameters = run.model.parameters();
      for (size_t i = 0; i < parameters.size(); ++i)
        EXPECT_TRUE(same_bits(state.at("state." + std::to_string(i) + ".master").to(dtype), parameters[i].detach()))
            << i;
    });
}

// Without them: as the optimizer does alone.
TEST(ShardedMasters, CanBeLeftOut) {
  with_groups(2, [&](ProcessGroup& group) {
    std::vector<uint64_t> hashes;
    for (const bool sharded : {false, true}) {
      ShardedRun::Options options{.sharded = sharded};
      options.prepare = [](nn::GPT2& model) { model.to(kBF16); };
      options.make = [](const nn::GPT2& model) {
        return std::make_unique<optim::AdamW>(model.parameters(),
                                              optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1, .masters = false});
      };
      ShardedRun run(group, options);
      for (int64_t step = 0; step < 5; ++step) run.step(step);
      hashes.push_back(run.ddp->check_parameters());
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  });
}

// A model that is loaded between steps decides; elements that it does not change keep their f32 weights.
TEST(ShardedMasters, FollowAModelThatIsLoaded) {
  const auto group = ProcessGroup::connect({});
  ShardedRun::Options options;
  options.prepare = [](nn::GPT2& model) { model.to(kBF16); };
  ShardedRun run(*group, options);
  for (int64_t step = 0; step < 3; ++step) run.step(step);
  const nn::StateDict before = run.state();
  {
    const NoGrad off;
    run.model.h[1].ln_1.weight.slice(0, {0, 5}).fill_(3);
  }
  run.optimizer->set_lr(0);
  run.step(3);
  const nn::StateDict after = run.state();
  const std::vector<nn::NamedTensor> parameters = run.model.named_parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string name = "state." + std::to_string(i) + ".master";
    Tensor expected = before.at(name).clone();
    if (parameters[i].name == "h.1.ln_1.weight") expected.slice(0, {0, 5}).fill_(3);
    EXPECT_TRUE(same_bits(after.at(name), expected)) << parameters[i].name;
  }
}

}  // namespace
}  // namespace rondo::dist
