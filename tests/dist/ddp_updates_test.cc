// The optimizer in backward under DistributedDataParallel: a bucket is updated after its average is there, and not
// before.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/warm_up.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/groups/collective.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using optim::UpdateAtSeams;
using test::error_of;

const nn::GPT2Config kConfig{.vocab_size = 31, .block_size = 8, .n_layer = 3, .n_head = 2, .n_embd = 16};
constexpr BucketOptions kPerBlock{.min_bytes = 1};

Tensor loss_of(nn::GPT2& model, int64_t rank, int64_t step) {
  std::vector<int64_t> tokens;
  for (int64_t i = 16 * rank; i < 16 * (rank + 1); ++i) tokens.push_back((i * i + 7 * i + 3 * step) % 31);
  const Tensor batch = Tensor::from(tokens, {2, 8});
  return model.loss(batch, batch);
}

std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

class DdpUpdates : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  // 10 steps of two backwards each; the hash of the parameters.
  uint64_t train(ProcessGroup& group, bool at_seams, BucketOptions buckets) const {
    nn::GPT2 model(kConfig, 1);
    DistributedDataParallel ddp(model, borrowed(group), buckets);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    if (GetParam()) compile::compile_regions(model), optim::compile(optimizer);
    std::unique_ptr<UpdateAtSeams> updates;
    if (at_seams) updates = std::make_unique<UpdateAtSeams>(ddp, optimizer);
    for (int64_t step = 0; step < 10; ++step) {
      {
        const auto local = ddp.no_sync();
        loss_of(model, group.rank(), 2 * step).backward();
      }
      loss_of(model, group.rank(), 2 * step + 1).backward();
      ddp.finish();
      if (!at_seams) {
        optimizer.step();
        optimizer.zero_grad();
        continue;
      }
      const optim::UpdateReport report = updates->finish();
      EXPECT_EQ(report.at_seams, 40);
      EXPECT_EQ(report.at_end + report.without_gradient, 0);
      for (const Tensor& p : model.parameters()) EXPECT_FALSE(p.grad().defined());
    }
    return ddp.check_parameters();
  }
};

TEST_P(DdpUpdates, TheBitsOfStepsAfterBackward) {
  for (const BucketOptions buckets :
       {kPerBlock, BucketOptions{.min_bytes = 20'000}, BucketOptions{.min_bytes = 1, .max_bytes = 2048}})
    test::with_groups(2, [&](ProcessGroup& group) {
      const uint64_t after = train(group, false, buckets);
      EXPECT_EQ(train(group, true, buckets), after);
    });
}

// One process, whose collectives end when the test says so.
class Slow final : public ProcessGroup {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  Work all_reduce(const Tensor&, ReduceOp, std::string_view) override {
    works.push_back(std::make_shared<Work::State>());
    if (on_issue) on_issue();
    return Work(works.back());
  }
  Work broadcast(const Tensor&, int, std::string_view) override { return {}; }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    return ProcessGroup::connect({})->reduce_scatter(out, in, op, name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    return ProcessGroup::connect({})->all_gather(out, in, name);
  }
  Work barrier(std::string_view) override { return {}; }
  void end(size_t i) { works.at(i)->finish(Work::Outcome::kDone, ""); }

  std::vector<std::shared_ptr<Work::State>> works;
  std::function<void()> on_issue;
};

TEST_P(DdpUpdates, NotBeforeTheAllReduceIsDone) {
  nn::GPT2 model(kConfig, 1);
  if (GetParam()) compile::compile_regions(model);
  const auto group = std::make_shared<Slow>();
  DistributedDataParallel ddp(model, group, kPerBlock);
  optim::AdamW optimizer(model.parameters());
  UpdateAtSeams updates(ddp, optimizer);
  const auto updated = [&] {
    std::string list;
    for (size_t i = 0; i < 3; ++i) list += updates.is_updated(model.h[i].ln_1.weight) ? 'x' : '-';
    return list + (updates.is_updated(model.wte.weight) ? 'x' : '-');
  };
  // The first step learns the order: finish() sends.
  group->on_issue = [&] { group->end(group->works.size() - 1); };
  loss_of(model, 0, 0).backward();
  EXPECT_NE(error_of([&] { updates.finish(); }).find("call finish() first"), std::string::npos);
  ddp.finish();
  EXPECT_EQ(updates.finish().at_seams, 40);
  group->works.clear();
  group->on_issue = nullptr;
  // Nothing is done by the end of backward.
  loss_of(model, 0, 0).backward();
  EXPECT_EQ(group->works.size(), 5u);
  EXPECT_EQ(updated(), "----");
  EXPECT_NE(error_of([&] { updates.finish(); }).find("call finish() first"), std::string::npos);
  EXPECT_NE(error_of([&] { updates.abandon(); }).find("call finish() first"), std::string::npos);
  for (size_t i = 0; i < 5; ++i) group->end(i);
  EXPECT_EQ(updated(), "----");
  ddp.finish();
  EXPECT_EQ(updated(), "xxxx");
  EXPECT_EQ(updates.finish().at_seams, 40);
  // The last block's average comes while the first block's backward runs, the second one's with the rest.
  group->works.clear();
  std::vector<std::string> seen;
  group->on_issue = [&] {
    seen.push_back(updated());
    if (group->works.size() == 4) group->end(0), group->end(1);
    if (group->works.size() == 5) group->end(2);
  };
  loss_of(model, 0, 1).backward();
  EXPECT_EQ(seen, (std::vector<std::string>{"----", "----", "----", "----", "--x-"}));
  EXPECT_EQ(updated(), "-xx-");
  group->end(3);
  group->end(4);
  ddp.finish();
  EXPECT_EQ(updates.finish().at_seams, 40);
}

// Rank 1 does not go through the first two blocks: on both ranks the same blocks are updated, and both say why.
TEST_P(DdpUpdates, AMissingGradientLeavesTheRanksAlike) {
  test::with_groups(2, [&](ProcessGroup& group) {
    nn::GPT2 model(kConfig, 1);
    if (GetParam()) compile::compile_regions(model);
    DistributedDataParallel ddp(model, borrowed(group), kPerBlock);
    optim::AdamW optimizer(model.parameters());
    UpdateAtSeams updates(ddp, optimizer);
    loss_of(model, group.rank(), 2).backward();
    ddp.finish();
    updates.finish();
    if (group.rank() == 1) ops::sum(model.ln_f(model.h[2](Tensor::ones({1, 4, 16})))).backward();
    else loss_of(model, 0, 0).backward();
    const std::string error = error_of<MismatchError>([&] { ddp.finish(); });
    EXPECT_NE(error.find("step 2, rank 1: the gradient of h.1."), std::string::npos) << error;
    EXPECT_TRUE(updates.is_updated(model.h[2].ln_1.weight));
    EXPECT_FALSE(updates.is_updated(model.h[1].ln_1.weight));
    const optim::UpdateReport report = updates.abandon();
    EXPECT_EQ(report.at_seams, 14);
    EXPECT_EQ(report.without_gradient, 26);
    ddp.check_parameters();
    loss_of(model, group.rank(), 1).backward();
    ddp.finish();
    EXPECT_EQ(updates.finish().at_seams, 40);
    ddp.check_parameters();
  });
}

INSTANTIATE_TEST_SUITE_P(EagerAndCompiled, DdpUpdates, testing::Bool(),
                         [](const auto& info) { return info.param ? "compiled" : "eager"; });

// Updating what is not averaged would let the ranks drift apart.
TEST(DdpUpdatesRules, GradientsHaveOneOwner) {
  nn::GPT2 model(kConfig, 1);
  optim::AdamW optimizer(model.parameters());
  {
    UpdateAtSeams updates(model, optimizer);
    EXPECT_NE(error_of([&] {
                DistributedDataParallel(model, ProcessGroup::connect({}));
              }).find("UpdateAtSeams(ddp, optimizer)"),
              std::string::npos);
  }
  DistributedDataParallel ddp(model, ProcessGroup::connect({}));
  EXPECT_NE(error_of([&] { UpdateAtSeams(model, optimizer); }).find("make it from that: UpdateAtSeams(ddp, optimizer)"),
            std::string::npos);
  EXPECT_NE(error_of([&] { DistributedDataParallel(model, ProcessGroup::connect({})); }).find("already averaged"),
            std::string::npos);
  UpdateAtSeams updates(ddp, optimizer);
  EXPECT_NE(error_of([&] { const auto more = updates.no_update(); }).find("use its no_sync()"), std::string::npos);
  EXPECT_NE(error_of([&] { optimizer.step(); }).find("UpdateAtSeams::finish()"), std::string::npos);
}

// A parameter's gradient that somebody holds stays as it is, though a region could make the next one in its memory.
TEST(DdpGradients, StayForWhoeverHoldsThem) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  test::with_groups(1, [](ProcessGroup& group) {
    nn::Linear model(2, 1, {.bias = false});
    compile::compile_module(model);
    DistributedDataParallel ddp(model, borrowed(group));
    const Tensor ones = Tensor::ones({1, 2}), hundreds = Tensor::full({1, 2}, 100.0);
    const auto backward = [&](const Tensor& x) { model(x).sum().backward(); };
    const auto grad = [&] { return model.weight.grad().to_vector<float>(); };
    const auto warm_up = [&] {
      const auto local = ddp.no_sync();
      compile::warm_up(model, {hundreds}, [&](std::span<const Tensor> batch) { backward(batch[0]); });
    };
    const std::vector<float> one = {1, 1}, two = {2, 2};
    backward(ones);
    ddp.finish();
    warm_up();
    EXPECT_EQ(grad(), one);
    model.zero_grad();
    {
      const auto local = ddp.no_sync();
      backward(ones);
    }
    warm_up();
    EXPECT_EQ(grad(), one);
    backward(ones);
    ddp.finish();
    EXPECT_EQ(grad(), two);
    model.zero_grad();
    const auto local = ddp.no_sync();
    backward(ones);
    const Tensor first = model.weight.grad();
    model.zero_grad();
    backward(hundreds);
    EXPECT_EQ(first.to_vector<float>(), one);
    EXPECT_EQ(grad()[0], 100);
  });
}

// What fails in finish() ends the step: the next one is as any other.
TEST(DdpFailures, AnUpdateThatFailsInFinish) {
  test::with_groups(1, [](ProcessGroup& group) {
    nn::Linear model(4, 4);
    DistributedDataParallel ddp(model, borrowed(group));
    optim::AdamW optimizer(model.parameters());
    UpdateAtSeams updates(ddp, optimizer);
    bool fails = true;
    const int64_t id = ddp.on_final([&](std::span<const Tensor>) {
      if (fails) throw Error("an update failed");
    });
    const auto backward = [&] { model(Tensor::ones({2, 4})).sum().backward(); };
    backward();
    EXPECT_EQ(error_of([&] { ddp.finish(); }), "an update failed");
    updates.abandon();
    fails = false;
    backward();
    ddp.finish();
    EXPECT_EQ(updates.finish().without_gradient, 0);
    ddp.remove_on_final(id);
  });
}

// An update that fails on one rank, in backward or in finish(), for want of memory too: all hear of it in that step.
TEST(DdpFailures, AnUpdateThatFailsOnOneRank) {
  const auto is_named = [](const std::string& error) { return absl::StrContains(error, "an update failed"); };
  for (const bool in_backward : {false, true})
    for (const int at : {0, 1, 3}) {
      std::vector<std::string> heard(2);
      const std::vector<std::string> errors = test::run_ranks(2, [&](const Environment& environment) {
        const auto group = ProcessGroup::connect(environment, {.timeout = test::kPatient});
        nn::GPT2 model(kConfig, 1);
        DistributedDataParallel ddp(model, group, kPerBlock);
        optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
        int64_t step = 0;
        int calls = 0;
        const int64_t id = ddp.on_final([&](std::span<const Tensor>) {
          if (step != 2 || calls++ != at || group->rank() != 1) return;
          if (at == 1) throw OutOfMemoryError("an update failed");
          throw Error("an update failed");
        });
        UpdateAtSeams updates(ddp, optimizer);
        // Buckets arrive while backward still runs.
        std::vector<std::pair<Tensor, int64_t>> waits;
        if (in_backward)
          for (const Tensor& p : model.parameters())
            waits.emplace_back(
                p, autograd::on_accumulated(p, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }));
        std::string& mine = heard[static_cast<size_t>(environment.rank)];
        for (; step < 3; ++step) {
          const std::string backward = error_of([&] { loss_of(model, group->rank(), step).backward(); });
          mine = error_of([&] { ddp.finish(); });
          backward.empty() && mine.empty() ? updates.finish() : updates.abandon();
          model.zero_grad();
        }
        for (const auto& [parameter, wait] : waits) autograd::remove_on_accumulated(parameter, wait);
        ddp.remove_on_final(id);
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "") << in_backward << at;
      for (const std::string& error : heard) EXPECT_TRUE(is_named(error)) << in_backward << at << ": " << error;
    }
}

}  // namespace
}  // namespace rondo::dist
