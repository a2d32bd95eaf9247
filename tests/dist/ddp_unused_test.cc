// BucketOptions::allow_unused: parameters that a step of some rank does not use.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/dist/staged_group.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"

namespace rondo::dist {
namespace {

using test::with_groups;

// A trunk, one of two branches, and a layer that nobody uses.
struct Branches : nn::Module<Branches> {
  Branches()
      : trunk(child("trunk", 6, 40)),
        left(child("left", 40, 3)),
        right(child("right", 40, 3)),
        never(child("never", 2, 2)) {}
  nn::Linear trunk, left, right, never;
  Tensor forward(const Tensor& x, bool goes_left) {
    const Tensor h = ops::tanh(trunk(x));
    return goes_left ? left(h) : right(h);
  }
};

std::unique_ptr<Branches> make_branches() {
  manual_seed(5);
  return std::make_unique<Branches>();
}
Tensor batch(int rank, int step) {
  Generator generator(static_cast<uint64_t>(10 * step + rank));
  return Tensor::randn({4, 6}, {}, &generator);
}
Tensor loss_of(Branches& model, int rank, int step, bool goes_left) {
  const Tensor y = model(batch(rank, step), goes_left);
  return (y * y).mean();
}
// The branch of a rank in a step: in step 2 both go left, in the others each takes its own.
bool goes_left(int rank, int step) { return rank == 0 || step == 2; }

std::shared_ptr<ProcessGroup> shared(ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

class DdpUnused : public testing::TestWithParam<int64_t> {
 protected:
  // Parameters whole in one bucket each, or in pieces of a few elements.
  static BucketOptions options() { return {.min_bytes = 1, .max_bytes = GetParam(), .allow_unused = true}; }
};
INSTANTIATE_TEST_SUITE_P(Bytes, DdpUnused, testing::Values(64 << 20, 256),
                         [](const auto& info) { return info.param == 256 ? "pieces" : "whole"; });

TEST_P(DdpUnused, CountAsZerosWhereAnotherRankUsesThem) {
  const std::unique_ptr<Branches> alone = make_branches();
  optim::AdamW alone_optimizer(alone->parameters(), {.lr = 1e-2});
  std::vector<std::vector<Tensor>> gradients;
  std::vector<Tensor> after;
  for (int step = 0; step < 4; ++step) {
    ((loss_of(*alone, 0, step, goes_left(0, step)) + loss_of(*alone, 1, step, goes_left(1, step))) * 0.5).backward();
    std::vector<Tensor>& of_step = gradients.emplace_back();
    for (const Tensor& p : alone->parameters()) of_step.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
    alone_optimizer.step();
    alone_optimizer.zero_grad();
  }
  with_groups(2, [&](ProcessGroup& group) {
    const std::unique_ptr<Branches> model = make_branches();
    DistributedDataParallel ddp(*model, shared(group), options());
    optim::AdamW optimizer(model->parameters(), {.lr = 1e-2});
    for (int step = 0; step < 4; ++step) {
      SCOPED_TRACE(absl::StrCat("step ", step));
      const bool left = goes_left(group.rank(), step);
      loss_of(*model, group.rank(), step, left).backward();
      ddp.finish();
      const std::string other = left ? "right" : "left";
      std::vector<std::string> unused = ddp.unused_parameters();
      std::sort(unused.begin(), unused.end());
      std::vector<std::string> expected = {"never.bias", "never.weight", other + ".bias", other + ".weight"};
      std::sort(expected.begin(), expected.end());
      EXPECT_EQ(unused, expected);
      const std::vector<nn::NamedTensor> parameters = model->named_parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const Tensor& wanted = gradients[static_cast<size_t>(step)][i];
        ASSERT_EQ(parameters[i].tensor.grad().defined(), wanted.defined()) << parameters[i].name;
        if (!wanted.defined()) continue;
        EXPECT_TRUE(test::is_close(parameters[i].tensor.grad(), wanted, test::of_largest_above_1(1e-6)))
            << parameters[i].name;
      }
      optimizer.step();
      optimizer.zero_grad();
      ddp.check_parameters();
    }
    for (size_t i = 0; i < model->parameters().size(); ++i)
      EXPECT_TRUE(test::is_close(model->parameters()[i], alone->parameters()[i], test::of_largest_above_1(1e-4))) << i;
  });
}

TEST_P(DdpUnused, AnUpdateAtSeamsTakesThemToo) {
  std::vector<Tensor> expected;
  for (const bool at_seams : {false, true})
    with_groups(2, [&](ProcessGroup& group) {
      const std::unique_ptr<Branches> model = make_branches();
      DistributedDataParallel ddp(*model, shared(group), options());
      optim::AdamW optimizer(model->parameters(), {.lr = 1e-2});
      std::optional<optim::UpdateAtSeams> updates;
      if (at_seams) updates.emplace(ddp, optimizer);
      for (int step = 0; step < 4; ++step) {
        loss_of(*model, group.rank(), step, goes_left(group.rank(), step)).backward();
        ddp.finish();
        if (updates) updates->finish();
        else optimizer.step(), optimizer.zero_grad();
        ddp.check_parameters();
      }
      if (group.rank() != 0) return;
      const std::vector<Tensor> parameters = model->parameters();
      for (size_t i = 0; i < parameters.size(); ++i)
        if (!at_seams) expected.push_back(parameters[i].detach().clone());
        else EXPECT_TRUE(test::same_bits(parameters[i].detach(), expected[i])) << i;
    });
}

// What an earlier backward of the step has left is sent, and is not unused.
TEST_P(DdpUnused, AGradientOfAnEarlierBackwardIsSent) {
  with_groups(2, [](ProcessGroup& group) {
    const std::unique_ptr<Branches> model = make_branches();
    DistributedDataParallel ddp(*model, shared(group), options());
    for (int step = 0; step < 3; ++step) {
      {
        const auto local = ddp.no_sync();
        loss_of(*model, group.rank(), step, true).backward();
      }
      const Tensor mine = model->left.weight.grad().clone();
      Tensor mean = mine.clone();
      group.all_reduce(mean, ReduceOp::kAverage, "mean").wait();
      loss_of(*model, group.rank(), step, false).backward();
      ddp.finish();
      EXPECT_TRUE(test::is_close(model->left.weight.grad(), mean, test::of_largest_above_1(1e-6)));
      EXPECT_EQ(ddp.unused_parameters(), (std::vector<std::string>{"never.weight", "never.bias"}));
      model->zero_grad();
    }
  });
}

TEST_P(DdpUnused, IsNothingThatOneRankDecides) {
  const std::vector<std::string> errors = test::run_ranks(2, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    const std::unique_ptr<Branches> model = make_branches();
    BucketOptions mine = options();
    mine.allow_unused = e.rank == 1;
    DistributedDataParallel ddp(*model, group, mine);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 1 has another plan than rank 0"), std::string::npos) << error;
}

TEST_P(DdpUnused, WithoutTheOptionItIsAnErrorOnEveryRank) {
  const std::vector<std::string> errors = test::run_ranks(2, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    const std::unique_ptr<Branches> model = make_branches();
    BucketOptions strict = options();
    strict.allow_unused = false;
    DistributedDataParallel ddp(*model, group, strict);
    loss_of(*model, e.rank, 0, true).backward();
    ddp.finish();
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("did not arrive"), std::string::npos) << error;
}

// A device is not read: the hosts tell each other what they have a gradient for, in the exchange that ends a step.
TEST_P(DdpUnused, OnADeviceHostsSayWhatTheyUse) {
  const test::FakeDevice fake({.seed = 3, .devices = 2});
  const auto train = [](std::shared_ptr<ProcessGroup> group, Device device, test::StagedGroup* staged) {
    const std::unique_ptr<Branches> model = make_branches();
    model->to(device);
    DistributedDataParallel ddp(*model, group, options());
    optim::AdamW optimizer(model->parameters(), {.lr = 1e-2});
    for (int step = 0; step < 4; ++step) {
      const Tensor y = (*model)(batch(group->rank(), step).to(device), goes_left(group->rank(), step));
      (y * y).mean().backward();
      if (staged != nullptr) staged->exchanges.clear();
      ddp.finish();
      if (staged != nullptr && step > 0) {
        EXPECT_EQ(staged->exchanges.size(), 1u) << step;
      }
      EXPECT_EQ(ddp.unused_parameters().size(), 4u);
      EXPECT_EQ(model->right.weight.grad().defined(), step != 2);
      EXPECT_FALSE(model->never.weight.grad().defined());
      optimizer.step();
      optimizer.zero_grad();
    }
    return ddp.check_parameters();
  };
  const std::vector<std::string> errors = test::run_ranks(2, [&](const Environment& e) {
    const auto host = ProcessGroup::connect(e, {.timeout = test::kPatient});
    const uint64_t expected = train(host, kCPU, nullptr);
    const auto staged = std::make_shared<test::StagedGroup>(host, fake.device(e.rank));
    EXPECT_EQ(train(staged, fake.device(e.rank), staged.get()), expected);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Rank 1 has no last part of the batch. Its first part counts all the same.
TEST(FinishWithZeros, KeepsWhatNoSyncHasAddedUp) {
  const auto part_of = [](nn::Linear& model, int rank, int part) {
    const Tensor y = model(batch(rank, part));
    return (y * y).mean();
  };
  with_groups(2, [&](ProcessGroup& group) {
    nn::Linear alone(6, 3), model(6, 3);
    DistributedDataParallel ddp(model, shared(group));
    alone.load_state_dict(model.state_dict());  // rank 0's
    ((part_of(alone, 0, 0) + part_of(alone, 0, 1) + part_of(alone, 1, 0)) * 0.5).backward();
    for (int step = 0; step < 2; ++step) {
      {
        const auto local = ddp.no_sync();
        part_of(model, group.rank(), 0).backward();
      }
      if (group.rank() == 0) {
        part_of(model, 0, 1).backward();
        ddp.finish();
      } else {
        ddp.finish_with_zeros();
      }
      EXPECT_TRUE(test::is_close(model.weight.grad(), alone.weight.grad(), test::of_largest_above_1(1e-6)));
      EXPECT_TRUE(test::is_close(model.bias.grad(), alone.bias.grad(), test::of_largest_above_1(1e-6)));
      model.zero_grad();
    }
  });
}

}  // namespace
}  // namespace rondo::dist
