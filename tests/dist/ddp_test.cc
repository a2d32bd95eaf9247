#include "rondo/dist/ddp/ddp.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/grad_scaler.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/runs.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::run_ranks;
using test::Runs;
using test::with_groups;

const nn::GPT2Config kConfig{.vocab_size = 31, .block_size = 8, .n_layer = 3, .n_head = 2, .n_embd = 16};
// A bucket per block, small as they are.
constexpr BucketOptions kPerBlock{.min_bytes = 1};

// Rows [first, first + count) of a batch that is the same for everyone.
Tensor rows(int64_t first, int64_t count, int64_t step = 0) {
  std::vector<int64_t> tokens;
  for (int64_t i = first * 8; i < (first + count) * 8; ++i) tokens.push_back((i * i + 7 * i + 3 * step) % 31);
  return Tensor::from(tokens, {count, 8});
}
Tensor loss_of(nn::GPT2& model, int64_t first, int64_t count, int64_t step = 0) {
  const Tensor tokens = rows(first, count, step);
  return model.loss(tokens, tokens);
}

void expect_close(const Tensor& a, const Tensor& b, const std::string& what) {
  EXPECT_TRUE(test::is_close(a, b, test::of_largest_above_1(1e-6))) << what;
}

class Ddp : public testing::TestWithParam<Runs> {
 protected:
  void SetUp() override {
    if (compiled() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  static bool compiled() { return GetParam() != Runs::kEagerly; }
  static void compile_if_wanted(nn::ModuleBase& model) { test::compile_as(GetParam(), model); }
};

TEST_P(Ddp, GradientsAreThoseOfTheWholeBatch) {
  nn::GPT2 whole(kConfig, 1);
  loss_of(whole, 0, 6).backward();
  const std::vector<nn::NamedTensor> expected = whole.named_parameters();
  with_groups(3, [&](ProcessGroup& group) {
    nn::GPT2 model(kConfig, 100 + static_cast<uint64_t>(group.rank()));  // rank 0's is what counts
    if (group.rank() == 0) model.load_state_dict(whole.state_dict());
    DistributedDataParallel ddp(model, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}), kPerBlock);
    compile_if_wanted(model);
    EXPECT_EQ(ddp.plan().buckets.size(), 5u);  // ln_f, three blocks, the embeddings
    for (int step = 0; step < 3; ++step) {
      loss_of(model, 2 * group.rank(), 2).backward();
      ddp.finish();
      const std::vector<nn::NamedTensor> parameters = model.named_parameters();
      for (size_t i = 0; i < parameters.size(); ++i)
        expect_close(parameters[i].tensor.grad(), expected[i].tensor.grad(), parameters[i].name);
      model.zero_grad(/*set_to_none=*/step != 0);
    }
  });
}

// Only the adapter is averaged: the buckets hold nothing of the frozen base, which is sent once, at the start.
TEST_P(Ddp, AnAdapterIsAllThatIsSent) {
  const auto make = [](uint64_t seed) {
    auto model = std::make_unique<nn::GPT2>(kConfig, seed);
    manual_seed(seed);
    nn::add_lora(*model, {.rank = 2, .targets = {"c_attn"}, .modules_to_save = {"ln_f"}});
    const NoGrad off;
    for (Tensor& p : model->parameters())
      if (p.requires_grad()) p.add_(Tensor::randn(p.sizes()) * 0.1);
    return model;
  };
  const std::unique_ptr<nn::GPT2> whole = make(1);
  loss_of(*whole, 0, 6).backward();
  const std::vector<nn::NamedTensor> expected = whole->named_parameters();
  with_groups(3, [&](ProcessGroup& group) {
    const std::unique_ptr<nn::GPT2> model = make(group.rank() == 0 ? 1 : 50 + static_cast<uint64_t>(group.rank()));
    DistributedDataParallel ddp(*model, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}), kPerBlock);
    compile_if_wanted(*model);
    int64_t sent = 0;
    for (const Bucket& bucket : ddp.plan().buckets) {
      sent += bucket.numel;
      for (const BucketSlot& slot : bucket.slots) EXPECT_TRUE(slot.parameter.requires_grad()) << slot.name;
    }
    EXPECT_EQ(sent, 3 * 2 * (16 + 48) + 2 * 16);
    for (int step = 0; step < 2; ++step) {
      loss_of(*model, 2 * group.rank(), 2).backward();
      ddp.finish();
      const std::vector<nn::NamedTensor> parameters = model->named_parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        ASSERT_EQ(parameters[i].tensor.grad().defined(), parameters[i].tensor.requires_grad()) << parameters[i].name;
        if (parameters[i].tensor.requires_grad())
          expect_close(parameters[i].tensor.grad(), expected[i].tensor.grad(), parameters[i].name);
      }
      model->zero_grad();
    }
    ddp.check_parameters();
  });
}

TEST_P(Ddp, RanksStayTheSameBitForBit) {
  std::map<int, std::vector<uint64_t>> hashes;
  std::mutex mutex;
  std::vector<double> alone;
  {
    nn::GPT2 model(kConfig, 1);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 5; ++step) {
      const Tensor loss = loss_of(model, 0, 4, step);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      alone.push_back(loss.item());
    }
  }
  with_groups(2, [&](ProcessGroup& group) {
    nn::GPT2 model(kConfig, 1);
    DistributedDataParallel ddp(model, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
    compile_if_wanted(model);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 5; ++step) {
      const Tensor loss = loss_of(model, 2 * group.rank(), 2, step);
      loss.backward();
      ddp.finish();
      optimizer.step();
      optimizer.zero_grad();
      Tensor mean = Tensor::scalar<double>(loss.item());
      group.all_reduce(mean, ReduceOp::kAverage, "loss").wait();
      EXPECT_NEAR(mean.item(), alone[static_cast<size_t>(step)], 1e-5 * alone[static_cast<size_t>(step)]) << step;
      const uint64_t hash = ddp.check_parameters();
      const std::lock_guard lock(mutex);
      hashes[group.rank()].push_back(hash);
    }
  });
  EXPECT_EQ(hashes[0].size(), 5u);
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_NE(hashes[0][0], hashes[0][1]);
}

TEST_P(Ddp, AccumulatesWithoutSending) {
  nn::GPT2 whole(kConfig, 1);
  ((loss_of(whole, 0, 4, 0) + loss_of(whole, 0, 4, 1) + loss_of(whole, 0, 4, 2)) / 3.0).backward();
  const std::vector<nn::NamedTensor> expected = whole.named_parameters();
  with_groups(2, [&](ProcessGroup& group) {
    nn::GPT2 model(kConfig, 1);
    compile_if_wanted(model);
    DistributedDataParallel ddp(model, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}), kPerBlock);
    for (int round = 0; round < 2; ++round) {
      {
        const auto local = ddp.no_sync();
        (loss_of(model, 2 * group.rank(), 2, 0) / 3.0).backward();
        (loss_of(model, 2 * group.rank(), 2, 1) / 3.0).backward();
      }
      (loss_of(model, 2 * group.rank(), 2, 2) / 3.0).backward();
      ddp.finish();
      const std::vector<nn::NamedTensor> parameters = model.named_parameters();
      for (size_t i = 0; i < parameters.size(); ++i)
        expect_close(parameters[i].tensor.grad(), expected[i].tensor.grad(), parameters[i].name);
      model.zero_grad();
    }
  });
}

// A group that counts, and can lose, all-reduces of buckets.
class Spy final : public ProcessGroup {
 public:
  explicit Spy(ProcessGroup& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    sent.emplace_back(name);
    if (name == lost) return Work();
    return real_.all_reduce(tensor, op, name);
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    return real_.broadcast(tensor, root, name);
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    return real_.reduce_scatter(out, in, op, name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    return real_.all_gather(out, in, name);
  }
  Work barrier(std::string_view name) override { return real_.barrier(name); }

  std::vector<std::string> sent;
  std::string lost;

 private:
  ProcessGroup& real_;
};

TEST_P(Ddp, BucketsLeaveWhileBackwardRuns) {
  with_groups(2, [&](ProcessGroup& group) {
    nn::GPT2 model(kConfig, 1);
    compile_if_wanted(model);
    const auto spy = std::make_shared<Spy>(group);
    DistributedDataParallel ddp(model, spy, kPerBlock);
    // The first step learns the order and sends its buckets in finish().
    loss_of(model, group.rank(), 1).backward();
    EXPECT_TRUE(spy->sent.empty());
    ddp.finish();
    EXPECT_EQ(spy->sent.size(), 6u);  // the output layer's part of wte, ln_f, three blocks, wpe
    spy->sent.clear();
    model.zero_grad();
    // The first block's backward comes last of the blocks: by then the others are on their way.
    std::vector<size_t> sent_before;
    const Tensor first = model.h[0].parameters()[0];
    const int64_t id = autograd::on_accumulated(first, [&] { sent_before.push_back(spy->sent.size()); });
    loss_of(model, group.rank(), 1).backward();
    EXPECT_EQ(spy->sent.size(), 6u);  // before finish()
    EXPECT_FALSE(first.grad().defined());
    ddp.finish();
    autograd::remove_on_accumulated(first, id);
    ASSERT_EQ(sent_before.size(), 1u);
    EXPECT_GE(sent_before[0], 4u);
    EXPECT_EQ(spy->sent, (std::vector<std::string>{"bucket 0 of step 2", "bucket 1 of step 2", "bucket 2 of step 2",
                                                   "bucket 3 of step 2", "bucket 4 of step 2", "bucket 5 of step 2"}));
  });
}

TEST_P(Ddp, AnAllReduceThatEveryRankDropsIsCaught) {
  const auto errors = run_ranks(2, [&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    nn::GPT2 model(kConfig, 1);
    compile_if_wanted(model);
    const auto spy = std::make_shared<Spy>(*group);
    DistributedDataParallel ddp(model, spy, kPerBlock);
    spy->lost = "bucket 2 of step 2";
    for (int step = 1; step <= 2; ++step) {
      loss_of(model, e.rank, 1).backward();
      const std::string error = error_of<MismatchError>([&] { ddp.finish(); });
      if (step == 2) throw Error(error);
      EXPECT_EQ(error, "");
      model.zero_grad();
    }
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("step 2, rank 0: the all-reduce of bucket 2 (h.2."), std::string::npos) << error;
}

TEST_P(Ddp, AnAllReduceThatOneRankDropsIsCaught) {
  // A middle one: its peer would meet the next bucket, of the same size. And the last one: its peer meets the end of
  // the step.
  for (const std::string lost : {"bucket 1 of step 1", "bucket 4 of step 1"}) {
    const auto errors = run_ranks(2, [&](const Environment& e) {
      const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
      nn::GPT2 model(kConfig, 1);
      compile_if_wanted(model);
      const auto spy = std::make_shared<Spy>(*group);
      DistributedDataParallel ddp(model, spy, kPerBlock);
      if (e.rank == 1) spy->lost = lost;
      loss_of(model, e.rank, 1).backward();
      ddp.finish();
    });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("the ranks do not call the same collectives"), std::string::npos) << error;
      EXPECT_NE(error.find(lost), std::string::npos) << error;
    }
  }
}

TEST_P(Ddp, AGradientThatDoesNotArriveIsAnErrorOnEveryRank) {
  const auto errors = run_ranks(2, [&](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    nn::GPT2 model(kConfig, 1);
    compile_if_wanted(model);
    DistributedDataParallel ddp(model, group, kPerBlock);
    loss_of(model, e.rank, 1).backward();
    ddp.finish();
    model.zero_grad();
    // Rank 1 leaves out the first blocks, the embedding and the output layer.
    if (e.rank == 1) ops::sum(model.ln_f(model.h[2](Tensor::ones({1, 4, 16})))).backward();
    else loss_of(model, e.rank, 1).backward();
    const std::string error = error_of<MismatchError>([&] { ddp.finish(); });
    // The step after may succeed.
    model.zero_grad();
    loss_of(model, e.rank, 1).backward();
    ddp.finish();
    throw Error(error);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("step 2, rank 1: the gradient of wte.weight did not arrive"), std::string::npos) << error;
}

// The average is not finite anywhere if one rank's gradient is not: nobody makes the step, and a loss scale falls
// everywhere.
TEST_P(Ddp, ANonFiniteGradientOfOneRankSkipsTheStepOnAll) {
  with_groups(2, [&](ProcessGroup& group) {
    nn::GPT2 model(kConfig, 1);
    compile_if_wanted(model);
    DistributedDataParallel ddp(model, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}), kPerBlock);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
    if (compiled()) optim::compile(optimizer);
    amp::GradScaler scaler({.init_scale = 8});
    uint64_t before = ddp.check_parameters();
    for (int64_t step = 0; step < 6; ++step) {
      const bool bad = step % 2 == 1;
      const Tensor loss = scaler.scale(loss_of(model, 2 * group.rank(), 2, step));
      (bad && group.rank() == 1 ? loss * std::numeric_limits<double>::infinity() : loss).backward();
      ddp.finish();
      EXPECT_EQ(scaler.step(optimizer, {.max_norm = 1}).skipped(), bad);
      scaler.update();
      optimizer.zero_grad();
      const uint64_t now = ddp.check_parameters();
      EXPECT_EQ(now == before, bad);
      before = now;
    }
    EXPECT_EQ(optimizer.skipped_steps(), 3);
    EXPECT_EQ(scaler.get_scale(), 1);
  });
}

INSTANTIATE_TEST_SUITE_P(EagerAndCompiled, Ddp, testing::ValuesIn(test::kAllRuns), test::name_of_runs);

class DdpRules : public testing::Test {
 protected:
};

TEST_F(DdpRules, AnotherPlanIsAnErrorBeforeAParameterMoves) {
  const auto errors = run_ranks(3, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    nn::GPT2Config config = kConfig;
    if (e.rank == 2) config.n_embd = 32;
    nn::GPT2 model(config, 1);
    DistributedDataParallel ddp(model, group, kPerBlock);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 2 has another plan than rank 0; line 1 is \"bucket 0 after what is outside the "
                         "blocks: ln_f.weight f32[32] at 0\" there"),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("f32[16] at 0\" on rank 0"), std::string::npos) << error;
  }
}

TEST_F(DdpRules, FrozenParametersAreFrozenEverywhere) {
  const auto errors = run_ranks(2, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    nn::GPT2 model(kConfig, 1);
    if (e.rank == 1) model.h[0].requires_grad_(false);
    DistributedDataParallel ddp(model, group);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 1 has another plan than rank 0"), std::string::npos) << error;
}

TEST_F(DdpRules, AParameterInNoBucketIsNamed) {
  const auto errors = run_ranks(2, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    nn::GPT2 model(kConfig, 1);
    model.h[1].ln_1.weight.requires_grad_(false);
    DistributedDataParallel ddp(model, group);
    if (e.rank == 1) model.h[1].ln_1.weight.requires_grad_(true);
    loss_of(model, e.rank, 1).backward();
    ddp.finish();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 1: the parameter h.1.ln_1.weight is in no bucket"), std::string::npos) << error;
}

TEST_F(DdpRules, FinishIsNotForgotten) {
  with_groups(2, [](ProcessGroup& group) {
    nn::GPT2 model(kConfig, 1);
    DistributedDataParallel ddp(model, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
    optim::AdamW optimizer(model.parameters());
    // The first step learns the order of the gradients, the second one sends them during backward.
    for (int step = 0; step < 2; ++step) {
      loss_of(model, 0, 1).backward();
      EXPECT_NE(error_of([&] { optimizer.step(); })
                    .find("AdamW: parameter 0 has no gradient, because DistributedDataParallel averages it: call its "
                          "finish()"),
                std::string::npos);
      const Tensor again = loss_of(model, 0, 1);
      EXPECT_NE(error_of([&] { again.backward(); }).find("changed after it was sent; call finish() once per step"),
                std::string::npos);
      EXPECT_NE(error_of([&] { const auto second = ddp.no_sync(); }).find("call finish()"), std::string::npos);
      ddp.finish();
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto local = ddp.no_sync();
    EXPECT_NE(error_of([&] { ddp.finish(); }).find("under no_sync()"), std::string::npos);
    EXPECT_NE(error_of([&] { const auto second = ddp.no_sync(); }).find("there is one already"), std::string::npos);
  });
}

TEST_F(DdpRules, DriftIsSeen) {
  const auto errors = run_ranks(2, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    nn::GPT2 model(kConfig, 1);
    DistributedDataParallel ddp(model, group);
    ddp.check_parameters();
    if (e.rank == 1) no_grad([&] { model.h[1].ln_2.bias[3].add_(1e-6); });
    ddp.check_parameters();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("the ranks have drifted apart: h.1.ln_2.bias on rank 1"), std::string::npos) << error;
}

struct Mixed : nn::Module<Mixed> {
  nn::Linear low = child("low", 4, 4);
  nn::Linear high = child("high", 4, 4);
  Tensor& count = buffer("count", Tensor::zeros({2}, {kI64}));
  Tensor forward(const Tensor& x) { return high(low(x.to(low.weight.dtype())).to(high.weight.dtype())); }
};

TEST_F(DdpRules, DtypesHaveBucketsOfTheirOwnAndBuffersAreSent) {
  with_groups(2, [](ProcessGroup& group) {
    Mixed model;
    model.low.to(kBF16);
    model.high.to(kF64);
    model.count.fill_(group.rank() == 0 ? 5 : 7);
    DistributedDataParallel ddp(model, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}));
    ASSERT_EQ(ddp.plan().buckets.size(), 2u);
    EXPECT_EQ(ddp.plan().buckets[0].dtype, kF64);
    EXPECT_EQ(ddp.plan().buckets[1].dtype, kF32);  // of the bf16 parameters
    EXPECT_EQ(model.count.to_vector<int64_t>()[1], 5);
    const auto backward = [&] { ops::sum(model(Tensor::full({1, 4}, group.rank() + 1))).backward(); };
    {
      const auto local = ddp.no_sync();
      backward();
    }
    const Tensor own = model.low.weight.grad().clone();
    model.zero_grad();
    backward();
    ddp.finish();
    EXPECT_EQ(model.low.weight.grad().dtype(), kBF16);
    EXPECT_EQ(model.high.weight.grad().dtype(), kF64);
    // Gradients of `low` are proportional to x: 1 and 2 average to 1.5.
    const Tensor error = model.low.weight.grad().to(kF32) - own.to(kF32) * (1.5 / (group.rank() + 1));
    EXPECT_LE(ops::max(ops::abs(error)).item(), 0.01 * ops::max(ops::abs(own.to(kF32))).item());
  });
}

// No processes: what the plan looks like.
TEST(BucketPlan, SmallRegionsShareLargeOnesAreSplit) {
  nn::GPT2 model(kConfig, 1);
  const std::vector<optim::Seam> seams = optim::plan_seams(model);
  const auto sizes = [&](BucketOptions options) {
    std::vector<std::pair<size_t, size_t>> all;
    size_t n = 0;
    for (const Bucket& b : plan_buckets(model, seams, options).buckets)
      all.emplace_back(b.seam, b.slots.size()), n += b.slots.size();
    EXPECT_EQ(n, model.parameters().size());
    return all;
  };
  using Sizes = std::vector<std::pair<size_t, size_t>>;
  EXPECT_EQ(sizes({.min_bytes = 1}), (Sizes{{0, 2}, {1, 12}, {2, 12}, {3, 12}, {4, 2}}));
  EXPECT_EQ(sizes({.min_bytes = 1 << 20}), (Sizes{{4, 40}}));
  EXPECT_EQ(sizes({.min_bytes = 20'000}), (Sizes{{2, 26}, {4, 14}}));
  // A parameter that is larger than a bucket is cut into pieces, whose buckets follow each other.
  std::map<std::string, int64_t> covered;
  const BucketPlan plan = plan_buckets(model, seams, {.min_bytes = 1, .max_bytes = 1024});
  for (const Bucket& bucket : plan.buckets) {
    EXPECT_LE(bucket.numel, 256);
    for (const BucketSlot& slot : bucket.slots) {
      EXPECT_EQ(slot.begin, covered[slot.name]) << slot.name;
      EXPECT_LE(slot.offset + slot.numel, bucket.numel);
      covered[slot.name] += slot.numel;
    }
  }
  for (const nn::NamedTensor& p : model.named_parameters()) EXPECT_EQ(covered[p.name], p.tensor.numel()) << p.name;
  EXPECT_NE(plan.text.find("wte.weight f32[31, 16] at 0, elements 256 to 496"), std::string::npos) << plan.text;
}

// An output layer of its own: its gradient is final first.
struct Untied : nn::Module<Untied> {
  nn::Embedding in = child("in", 31, 16);
  nn::ModuleList<nn::Linear> h = child("h", 3, 16, 16);
  nn::Linear late = child("late", 16, 16);  // declared last, used first
  nn::Linear head = child("head", 16, 31);
  Tensor forward(const Tensor& idx) {
    Tensor x = late(in(idx));
    for (nn::Linear& linear : h) x = ops::tanh(linear(x));
    return head(x);
  }
};

TEST_P(Ddp, BucketsFollowTheOrderInWhichGradientsBecomeFinal) {
  with_groups(2, [&](ProcessGroup& group) {
    manual_seed(1);
    Untied model;
    compile_if_wanted(model);
    DistributedDataParallel ddp(model, std::shared_ptr<ProcessGroup>(&group, [](auto*) {}),
                                {.min_bytes = 1, .max_bytes = 1024});
    const std::string before = ddp.plan().text;
    uint64_t hash = 0;
    for (int step = 0; step < 3; ++step) {
      ops::sum(model(rows(group.rank(), 1, step))).backward();
      ddp.finish();
      std::vector<std::string> order;
      for (const Bucket& bucket : ddp.plan().buckets)
        for (const BucketSlot& slot : bucket.slots) {
          const std::string name = slot.name.substr(0, slot.name.rfind('.'));
          if (order.empty() || order.back() != name) order.push_back(name);
        }
      EXPECT_EQ(order, (std::vector<std::string>{"head", "h.2", "h.1", "h.0", "late", "in"}));
      // A parameter of several pieces has one gradient, the average.
      Untied alone;
      alone.load_state_dict(model.state_dict());
      ((ops::sum(alone(rows(0, 1, step))) + ops::sum(alone(rows(1, 1, step)))) / 2.0).backward();
      for (size_t i = 0; i < model.parameters().size(); ++i)
        expect_close(model.parameters()[i].grad(), alone.parameters()[i].grad(), model.named_parameters()[i].name);
      model.zero_grad(/*set_to_none=*/step == 0);
      hash = ddp.check_parameters();
    }
    EXPECT_NE(hash, 0u);
    EXPECT_NE(ddp.plan().text, before);
  });
}

TEST(BucketPlan, AModelOnADeviceIsRefused) {
  const test::FakeDevice fake;
  nn::Linear model(3, 2);
  model.to(fake.device());
  EXPECT_NE(error_of([&] {
              DistributedDataParallel(model, ProcessGroup::connect({}));
            }).find("weight is on fake:0, and the process group exchanges host memory only"),
            std::string::npos);
  // What is not trained is shared, too.
  model.requires_grad_(false);
  EXPECT_NE(error_of([&] { DistributedDataParallel(model, ProcessGroup::connect({})); }).find("weight is on fake:0"),
            std::string::npos);
}

// Every rank says so at the first backward. A device that is chosen for new tensors only changes nothing.
TEST(BucketPlan, AModelThatMovesAfterwardsIsRefused) {
  const test::FakeDevice fake;
  const std::vector<std::string> errors = run_ranks(2, [&](const Environment& environment) {
    const DeviceScope scope(fake.device());
    nn::Linear model(3, 2);
    model.to(kCPU);
    DistributedDataParallel ddp(model, ProcessGroup::connect(environment, {.timeout = test::kPatient}));
    const auto step = [&](Device device) {
      ops::sum(model(Tensor::ones({4, 3}, {kF32, device}))).backward();
      ddp.finish();
      EXPECT_EQ(model.weight.grad().device(), device);
      EXPECT_NE(ddp.check_parameters(), 0u);
    };
    for (int i = 0; i < 2; ++i) step(kCPU);
    model.zero_grad();
    model.to(fake.device());
    step(fake.device());
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("weight is on fake:0, and the process group exchanges host memory only"), error.npos) << error;
}

TEST(BucketPlan, AModelWithoutParametersIsRefused) {
  struct Hidden : nn::Module<Hidden> {
    Tensor forward(const Tensor& x) { return x; }
  } model;
  EXPECT_NE(error_of([&] {
              DistributedDataParallel(model, ProcessGroup::connect({}));
            }).find("Hidden has no parameter that requires a gradient, so there is nothing to average"),
            std::string::npos);
}

TEST(BucketPlan, OneProcessNeedsNoConnection) {
  nn::GPT2 model(kConfig, 1), alone(kConfig, 1);
  DistributedDataParallel ddp(model, ProcessGroup::connect({}));
  loss_of(model, 0, 2).backward();
  ddp.finish();
  loss_of(alone, 0, 2).backward();
  const std::vector<Tensor> a = model.parameters(), b = alone.parameters();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(test::same_bits(a[i].grad(), b[i].grad())) << i;
  ddp.check_parameters();
}

}  // namespace
}  // namespace rondo::dist
