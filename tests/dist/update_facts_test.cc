// Ranks whose optimizers update in different ways: every rank gets an error that names the rank and the option.
#include "rondo/optim/update_facts.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/sharded_optimizer.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/optimizers.h"
#include "rondo/optim/step.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/tests/dist/nccl_ranks.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/dist/sharded.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::error_of;
using OptimizerPtr = std::unique_ptr<optim::Optimizer>;

enum class Mode { kPlain, kAtSeams, kSharded };

// What a rank does in its own way. Defaults: as the others.
struct Rank {
  std::function<OptimizerPtr(const nn::GPT2&)> make = test::make_adamw;
  std::function<void(optim::Optimizer&, int64_t step)> before_step = [](optim::Optimizer&, int64_t) {};
  optim::StepOptions step = {};
  int64_t leaves_out = -1;  // this step
  nn::StateDict loads = {};
};

// A job of 2 ranks and at most 4 steps. Rank 1 does things in its own way. What each rank throws, and in which step.
struct Outcome {
  std::vector<std::string> errors;
  std::vector<int64_t> steps = {-1, -1};
};
Outcome train(Mode mode, const Rank& one, const Rank& rank_0 = {}) {
  Outcome outcome;
  outcome.errors = test::run_ranks(2, [&](const Environment& e) {
    const Rank& mine = e.rank == 1 ? one : rank_0;
    nn::GPT2 model(test::kShardedConfig, 1);
    DistributedDataParallel ddp(model, ProcessGroup::connect(e, {.timeout = test::kPatient}), test::kBucketPerBlock);
    const OptimizerPtr optimizer = mine.make(model);
    std::optional<ShardedOptimizer> shards;
    std::optional<optim::UpdateAtSeams> updates;
    if (mode == Mode::kSharded) shards.emplace(ddp, *optimizer);
    if (mode == Mode::kAtSeams) updates.emplace(ddp, *optimizer);
    if (!mine.loads.empty()) shards ? shards->load_state_dict(mine.loads) : optimizer->load_state_dict(mine.loads);
    for (int64_t step = 0; step < 4; ++step) {
      outcome.steps[static_cast<size_t>(e.rank)] = step;
      mine.before_step(*optimizer, step);
      test::sharded_loss(model, e.rank, 2, step).backward();
      ddp.finish();
      if (updates) updates->finish();
      else if (step != mine.leaves_out) optimizer->step(mine.step);
      optimizer->zero_grad();
    }
    ddp.check_parameters();
  });
  return outcome;
}

// Every rank has the same error, which says that rank 1 differs, and how.
void expect_named(const Outcome& outcome, const std::string& there, const std::string& first, int64_t step = 1) {
  for (size_t r = 0; r < 2; ++r) {
    const std::string& error = outcome.errors[r];
    EXPECT_NE(error.find("rank 1: its last update of the parameters was another one than that of rank 0: "),
              std::string::npos)
        << error;
    EXPECT_NE(error.find(there + " there, and " + first + " on rank 0"), std::string::npos) << error;
    EXPECT_EQ(outcome.steps[r], step);
  }
}

template <class Optimizer, class Options> std::function<OptimizerPtr(const nn::GPT2&)> maker(Options options) {
  return [options](const nn::GPT2& model) { return std::make_unique<Optimizer>(model.parameters(), options); };
}

class UpdateFactsOf : public testing::TestWithParam<Mode> {
 protected:
};

TEST_P(UpdateFactsOf, EqualRanksGoOn) {
  const Rank schedule = {.before_step = [](optim::Optimizer& optimizer, int64_t step) {
    optimizer.set_lr(1e-2 / static_cast<double>(1 + step));
  }};
  EXPECT_EQ(train(GetParam(), schedule, schedule).errors, std::vector<std::string>(2));
}

TEST_P(UpdateFactsOf, ALearningRateOfItsOwn) {
  const Rank late = {
      .before_step = [](optim::Optimizer& optimizer, int64_t step) { optimizer.set_lr(step < 2 ? 1e-2 : 2e-2); }};
  expect_named(train(GetParam(), late), "\"AdamW, group 0: lr is 0.02\"", "\"AdamW, group 0: lr is 0.01\"", 3);
}

TEST_P(UpdateFactsOf, OptionsOfTheConstructor) {
  using optim::AdamW, optim::AdamWOptions;
  const auto with = [&](AdamWOptions options) {
    options.lr = 1e-2;
    return train(GetParam(), {.make = maker<AdamW>(options)});
  };
  expect_named(with({.betas = {0.9, 0.95}, .weight_decay = 0.1}), "\"AdamW, group 0: beta2 is 0.94999999999999996\"",
               "\"AdamW, group 0: beta2 is 0.999\"");
  expect_named(with({.weight_decay = 0}), "\"AdamW, group 0: weight_decay is 0\"",
               "\"AdamW, group 0: weight_decay is 0.10000000000000001\"");
  // Options that are no numbers.
  expect_named(with({.weight_decay = 0.1, .maximize = true}), "\"AdamW, group 0: maximize is 1\"",
               "\"AdamW, group 0: maximize is 0\"");
  expect_named(with({.weight_decay = 0.1, .amsgrad = true}), "\"AdamW, group 0: amsgrad is 1\"",
               "\"AdamW, group 0: amsgrad is 0\"");
  expect_named(with({.weight_decay = 0.1, .state = optim::StateFormat::kBF16}), "\"AdamW, group 0: state is 1\"",
               "\"AdamW, group 0: state is 0\"");
}

TEST_P(UpdateFactsOf, GroupsAndOptimizersOfItsOwn) {
  const auto in_two = [](size_t first) {
    return [first](const nn::GPT2& model) -> OptimizerPtr {
      std::vector<Tensor> all = model.parameters();
      const std::vector<Tensor> rest(all.begin() + static_cast<std::ptrdiff_t>(first), all.end());
      all.resize(first);
      return std::make_unique<optim::AdamW>(
          std::vector<optim::ParamGroup<optim::AdamWOptions>>{{all, {.lr = 1e-2}}, {rest, {.lr = 1e-2}}});
    };
  };
  expect_named(train(GetParam(), {.make = in_two(3)}), "\"AdamW: number of groups is 2\"",
               "\"AdamW: number of groups is 1\"");
  expect_named(train(GetParam(), {.make = in_two(3)}, {.make = in_two(4)}),
               "\"AdamW, group 0: number of parameters is 3\"", "\"AdamW, group 0: number of parameters is 4\"");
  const Outcome adam = train(GetParam(), {.make = maker<optim::Adam>(optim::AdamOptions{.lr = 1e-2})});
  if (GetParam() != Mode::kSharded)
    return expect_named(adam, "\"Adam: number of groups is 1\"", "\"AdamW: number of groups is 1\"");
  for (const std::string& error : adam.errors)  // before any step
    EXPECT_NE(error.find("\"shards: Adam, master weights\" there"), std::string::npos) << error;
}

TEST_P(UpdateFactsOf, LoadedStates) {
  nn::StateDict state, changed;
  {
    nn::GPT2 model(test::kShardedConfig, 1);
    const OptimizerPtr optimizer = test::make_adamw(model);
    for (int64_t step = 0; step < 2; ++step) {
      test::sharded_loss(model, 0, 2, step).backward();
      optimizer->step();
      optimizer->zero_grad();
    }
    state = optimizer->state_dict();
    for (const auto& [name, value] : state) changed[name] = value.clone();
    NoGrad off;
    changed.at("state.7.exp_avg_sq").view({-1}).slice(0, {3, 4}).fill_(0.5);
  }
  EXPECT_EQ(train(GetParam(), {.loads = state}, {.loads = state}).errors, std::vector<std::string>(2));
  const Outcome other = train(GetParam(), {.loads = changed}, {.loads = state});
  for (const std::string& error : other.errors)
    EXPECT_NE(error.find("rank 1: its last update of the parameters was another one than that of rank 0: \"AdamW, "
                         "loaded: hash of state.7.exp_avg_sq is "),
              std::string::npos)
        << error;
  EXPECT_EQ(other.steps, (std::vector<int64_t>{1, 1}));  // states are compared once, after the first step
  const Outcome none = train(GetParam(), {}, {.loads = state});
  for (const std::string& error : none.errors)
    EXPECT_NE(error.find("nothing more there, and \"AdamW, loaded: hash of state."), std::string::npos) << error;
}

std::string name_of(const testing::TestParamInfo<Mode>& info) {
  return info.param == Mode::kPlain ? "plain" : info.param == Mode::kAtSeams ? "at_seams" : "sharded";
}
INSTANTIATE_TEST_SUITE_P(, UpdateFactsOf, testing::Values(Mode::kPlain, Mode::kAtSeams, Mode::kSharded), name_of);

// UpdateAtSeams has no such options.
TEST(UpdateFactsTest, OptionsOfAStep) {
  for (const Mode mode : {Mode::kPlain, Mode::kSharded})
    expect_named(train(mode, {.step = {.max_norm = 0.5}}, {.step = {.max_norm = 1}}), "\"AdamW: max_norm is 0.5\"",
                 "\"AdamW: max_norm is 1\"");
}

// A sharded step is a collective.
TEST(UpdateFactsTest, AStepThatOneRankLeavesOut) {
  expect_named(train(Mode::kPlain, {.leaves_out = 1}), "nothing more", "\"AdamW: number of groups is 1\"", 2);
}

// Counts the collectives of host tensors, and their bytes.
class Counting final : public ProcessGroup {
 public:
  explicit Counting(ProcessGroup& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    if (!name.starts_with("bucket")) ++others;
    return real_.all_reduce(tensor, op, name);
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    ++others;
    return real_.broadcast(tensor, root, name);
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    ++others;
    return real_.reduce_scatter(out, in, op, name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    ++others;
    bytes += in.nbytes();
    return real_.all_gather(out, in, name);
  }
  Work barrier(std::string_view name) override { return real_.barrier(name); }

  int64_t others = 0, bytes = 0;

 private:
  ProcessGroup& real_;
};

// One exchange of 32 bytes, which travels with the agreement on it (agreement.h, kInline).
TEST(UpdateFactsTest, TravelInTheExchangeOfTheStep) {
  test::with_groups(2, [](ProcessGroup& real) {
    const auto group = std::make_shared<Counting>(real);
    nn::GPT2 model(test::kShardedConfig, 1);
    DistributedDataParallel ddp(model, group, test::kBucketPerBlock);
    const OptimizerPtr optimizer = test::make_adamw(model);
    for (int64_t step = 0; step < 4; ++step) {
      group->others = group->bytes = 0;
      test::sharded_loss(model, group->rank(), 2, step).backward();
      ddp.finish();
      optimizer->step();
      optimizer->zero_grad();
      if (step == 0) continue;  // the order of the gradients
      EXPECT_EQ(group->others, 1);
      EXPECT_EQ(group->bytes, 32);
    }
  });
}

// On a device too: the collectives are equal, so the group goes on.
TEST(UpdateFactsTest, OfADevice) {
  RONDO_SKIP_WITHOUT_NCCL();
  test::NcclRanks ranks(2, 3);
  ranks.with_groups([](ProcessGroup& group, Device device) {
    nn::GPT2 model(test::kShardedConfig, 1);
    model.to(device);
    DistributedDataParallel ddp(model, test::borrowed(group), {.min_bytes = 1, .allow_unused = true});
    optim::AdamW optimizer(model.parameters(), {.lr = group.rank() == 1 ? 0.5 : 0.25});
    const auto step = [&](int64_t number) {
      const Tensor batch = Tensor::arange(16).view({2, 8}).to(device) + (number + group.rank());
      model.loss(batch, batch).backward();
      ddp.finish();
      optimizer.step();
      optimizer.zero_grad();
    };
    step(0);
    EXPECT_EQ(error_of<MismatchError>([&] { step(1); }),
              "DistributedDataParallel, step 2, rank 1: its last update of the parameters was another one than that of "
              "rank 0: \"AdamW, group 0: lr is 0.5\" there, and \"AdamW, group 0: lr is 0.25\" on rank 0. Every rank "
              "must make the same optimizers, set the same options, load the same states and make the same steps");
    EXPECT_EQ(group.failure(), "");
    group.check_sequence("", "still usable");
  });
}

}  // namespace
}  // namespace rondo::dist
