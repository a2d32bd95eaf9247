// Gradients that travel in two parts (Note [Two parts] in dist/ddp/row_gather.h), and those whose uses lie in
// checkpoints: averages over processes against one process with the whole batch. The cases of ddp_cases.h that have
// rows run on devices, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::run_ranks;
using test::with_groups;

constexpr int64_t kVocab = 300, kWidth = 8;

// Passes on what is asked, and notes it; may lose one all_gather.
class Spy final : public ProcessGroup {
 public:
  explicit Spy(ProcessGroup& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int world_size() const override { return real_.world_size(); }
  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    issued.emplace_back(name);
    return real_.all_reduce(tensor, op, name);
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    return real_.broadcast(tensor, root, name);
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    return real_.reduce_scatter(out, in, op, name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    issued.emplace_back(name);
    return name == lost ? Work() : real_.all_gather(out, in, name);
  }
  Work barrier(std::string_view name) override { return real_.barrier(name); }
  bool has_issued(std::string_view start) const {
    return std::any_of(issued.begin(), issued.end(), [&](const auto& name) { return name.starts_with(start); });
  }
  // Before the first collective of that name.
  size_t position(std::string_view start) const {
    const auto at = std::find_if(issued.begin(), issued.end(), [&](const auto& n) { return n.starts_with(start); });
    return static_cast<size_t>(at - issued.begin());
  }
  std::vector<std::string> issued;
  std::string lost;

 private:
  ProcessGroup& real_;
};

// How a step uses the table.
struct Step {
  int64_t tokens = 6;  // of each row of a rank's batch
  int heads = 1, encoders = 1;
  bool rows_first = true;  // else a product reads the table again, below the embedding
};

// A table that is the embedding and the output layer.
struct Tied : nn::Module<Tied> {
  nn::Embedding table = child("table", kVocab, kWidth);
  nn::Linear inner = child("inner", kWidth, kWidth);
  Tensor forward(const Tensor& ids, const Step& step) {
    Tensor y, before;  // backward comes to `before` last
    if (!step.rows_first) before = ops::sum(table.weight * table.weight) * 1e-2;
    for (int i = 0; i < step.encoders; ++i) {
      const Tensor part = ops::tanh(table(ids) * (1.0 + i));
      y = y.defined() ? y + part : part;
    }
    if (before.defined()) y = y + before;
    y = inner(y);
    Tensor loss;
    for (int i = 0; i < step.heads; ++i) {
      const Tensor logits = ops::linear(y * (1.0 + i), table.weight, Tensor());
      const Tensor part = ops::cross_entropy(logits.view({ids.numel(), kVocab}), ids.view({ids.numel()}));
      loss = loss.defined() ? loss + part : part;
    }
    return loss;
  }
};

// Row `rank` of a batch; ids repeat within and across ranks.
Tensor ids_of(int64_t rank, int64_t step, int64_t tokens) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back((17 * rank + i * i + 3 * step) % 23 + (i % 3 == 0 ? 250 : 0));
  return Tensor::from(ids, {1, tokens});
}

std::unique_ptr<Tied> tied(uint64_t seed = 5) {
  manual_seed(seed);
  return std::make_unique<Tied>();
}

// The mean over ranks of their gradients, made in this process.
std::map<std::string, Tensor> expected_of(int ranks, const std::function<void(Tied&, int64_t rank)>& backward) {
  std::map<std::string, Tensor> sums;
  for (int64_t r = 0; r < ranks; ++r) {
    const auto model = tied();
    backward(*model, r);
    const NoGrad off;
    for (const nn::NamedTensor& p : model->named_parameters()) {
      Tensor& sum = sums[p.name];
      const Tensor grad = p.tensor.grad().defined() ? p.tensor.grad() : Tensor::zeros(p.tensor.sizes());
      sum = (sum.defined() ? sum : Tensor::zeros(p.tensor.sizes())) + grad * (1.0 / ranks);
    }
  }
  return sums;
}

void expect_averages(nn::ModuleBase& model, const std::map<std::string, Tensor>& expected, ProcessGroup& group,
                     const std::string& what, double tolerance = 1e-6) {
  for (const nn::NamedTensor& p : model.named_parameters()) {
    ASSERT_TRUE(p.tensor.grad().defined()) << p.name << " " << what;
    EXPECT_TRUE(test::is_close(p.tensor.grad(), expected.at(p.name), test::of_largest_above_1(tolerance)))
        << p.name << " " << what;
    const Tensor mine = p.tensor.grad().contiguous();
    Dims sizes = {group.world_size()};
    for (int d = 0; d < mine.rank(); ++d) sizes.push_back(mine.sizes()[d]);
    const Tensor all = Tensor::zeros(sizes);
    group.all_gather(all, mine, "gradients").wait();
    for (int64_t r = 0; r < group.world_size(); ++r)
      EXPECT_TRUE(test::same_bits(all.select(0, r), mine)) << p.name << " of rank " << r << " " << what;
  }
}

class DdpParts : public testing::Test {
 protected:
};

// Steps of these kinds: step_of(rank, step). `sends_rows`: by step, whether rows or a rest must travel.
struct Traffic {
  bool rows, rest;
};
void expect_steps(int ranks, const std::function<Step(int64_t rank, int64_t step)>& step_of,
                  const std::vector<Traffic>& traffic, BucketOptions buckets = {.min_bytes = 1},
                  double tolerance = 1e-6) {
  with_groups(ranks, [&](ProcessGroup& group) {
    const auto model = tied();
    const auto spy = std::make_shared<Spy>(group);
    DistributedDataParallel ddp(*model, spy, buckets);
    for (int64_t step = 0; step < std::ssize(traffic); ++step) {
      spy->issued.clear();
      const auto backward = [&](Tied& m, int64_t rank) {
        const Step s = step_of(rank, step);
        m(ids_of(rank, step, s.tokens), s).backward();
      };
      backward(*model, group.rank());
      ddp.finish();
      const std::string what = absl::StrCat("step ", step);
      EXPECT_EQ(spy->has_issued("rows of table.weight"), traffic[step].rows) << what;
      EXPECT_EQ(spy->has_issued("rest of table.weight"), traffic[step].rest) << what;
      expect_averages(*model, expected_of(ranks, backward), group, what, tolerance);
      model->zero_grad(step % 2 == 0);
    }
  });
}

constexpr Traffic kDense = {false, false}, kRows = {true, false}, kRest = {true, true};

TEST_F(DdpParts, ATiedEmbedding) {
  for (const int ranks : {2, 3}) expect_steps(ranks, [](auto, auto) { return Step{}; }, {kRows, kRows, kRows});
}

TEST_F(DdpParts, SeveralOutputLayersAndEmbeddings) {
  expect_steps(2, [](auto, auto) { return Step{.heads = 3, .encoders = 2}; }, {kRows, kRows, kRows});
}

TEST_F(DdpParts, PiecesAndHalfBuckets) {
  const auto plain = [](auto, auto) { return Step{}; };
  expect_steps(2, plain, {kRows, kRows}, {.min_bytes = 1, .max_bytes = 1 << 10});
  expect_steps(3, plain, {kRows, kRows}, {.min_bytes = 1, .max_bytes = 1 << 10, .dtype = kBF16}, 1e-2);
  expect_steps(2, plain, {kRows, kRows}, {.allow_unused = true});
}

// A product reads the table below the embedding as well: its gradient is dense, and comes after the rows.
TEST_F(DdpParts, WhatEndsInADenseUseTravelsWhole) {
  expect_steps(2, [](auto, auto) { return Step{.rows_first = false}; }, {kDense, kDense});
}

// Too many rows: less would be gained than a second collective costs.
TEST_F(DdpParts, ManyRowsTravelWhole) {
  expect_steps(2, [](auto, auto) { return Step{.tokens = kVocab / 2 + 1}; }, {kDense, kDense});
}

TEST_F(DdpParts, RanksThatUseItInOtherWaysSendItWhole) {
  expect_steps(2, [](int64_t rank, auto) { return Step{.heads = rank == 1 ? 2 : 1}; }, {kDense, kDense});
}

// Rank 1 has a longer batch from the third step on. There is no room for its rows at first.
TEST_F(DdpParts, LongerBatches) {
  expect_steps(2, [](int64_t rank, int64_t step) { return Step{.tokens = rank == 1 && step >= 2 ? 40 : 6}; },
               {kRows, kRows, kRest, kRows, kRows});
  // So many that there never is.
  expect_steps(2, [](auto, int64_t step) { return Step{.tokens = step == 0 ? 6 : kVocab}; }, {kRows, kRest, kRest});
}

TEST_F(DdpParts, ShorterBatches) {
  expect_steps(3, [](int64_t rank, int64_t step) { return Step{.tokens = 8 - rank - 2 * (step % 2)}; },
               {kRows, kRows, kRows, kRows});
}

// Later steps need not be as the first was.
TEST_F(DdpParts, OtherUsesInLaterSteps) {
  const auto step_of = [](int64_t rank, int64_t step) {
    if (step == 1) return Step{.heads = 2};                  // more dense ones on every rank: a rest
    if (step == 2) return Step{.heads = rank == 0 ? 1 : 2};  // on one rank
    if (step == 3) return Step{.encoders = 2};               // more rows: no room yet
    if (step == 5) return Step{.rows_first = rank == 1};     // a dense one at the end
    return Step{};
  };
  expect_steps(2, step_of, {kRows, kRest, kRest, kRest, kRows, kRest, kRows});
}

// The first part is on its way when the backward of the layers below begins, and the rows leave before finish().
TEST_F(DdpParts, BothPartsLeaveDuringBackward) {
  with_groups(2, [](ProcessGroup& group) {
    const auto model = tied();
    const auto spy = std::make_shared<Spy>(group);
    DistributedDataParallel ddp(*model, spy, {.min_bytes = 1});
    const Step step;
    for (int i = 0; i < 2; ++i) {
      spy->issued.clear();
      size_t before = 0;
      const int64_t id = autograd::on_accumulated(model->inner.weight,
                                                  [&] { before = spy->has_issued("bucket 0 of step 2"); });
      (*model)(ids_of(group.rank(), i, step.tokens), step).backward();
      autograd::remove_on_accumulated(model->inner.weight, id);
      EXPECT_EQ(before, i == 1);
      EXPECT_EQ(spy->has_issued("rows of table.weight"), i == 1);
      EXPECT_FALSE(i == 1 && model->table.weight.grad().defined());
      ddp.finish();
      model->zero_grad();
    }
    EXPECT_EQ(ddp.plan().buckets[0].slots[0].name, "table.weight");
    EXPECT_LT(spy->position("bucket"), spy->position("rows"));
  });
}

TEST_F(DdpParts, AccumulatesBeforeBothParts) {
  with_groups(2, [](ProcessGroup& group) {
    const auto model = tied();
    DistributedDataParallel ddp(*model, std::make_shared<Spy>(group), {.min_bytes = 1});
    for (int64_t step = 0; step < 3; ++step) {
      const auto backward = [&](Tied& m, int64_t rank, int64_t k) {
        m(ids_of(rank, 3 * step + k, 6 + k), Step{}).backward();
      };
      {
        const auto local = ddp.no_sync();
        for (int k = 2; k > 0; --k) backward(*model, group.rank(), k);
      }
      backward(*model, group.rank(), 0);
      ddp.finish();
      expect_averages(*model,
                      expected_of(2,
                                  [&](Tied& m, int64_t r) {
                                    for (int k = 2; k >= 0; --k) backward(m, r, k);
                                  }),
                      group, absl::StrCat("step ", step));
      model->zero_grad();
    }
  });
}

// A hook sees the whole gradient, so on that rank it travels whole.
TEST_F(DdpParts, AHookOfOneRank) {
  with_groups(2, [](ProcessGroup& group) {
    const auto model = tied();
    DistributedDataParallel ddp(*model, std::make_shared<Spy>(group), {.min_bytes = 1});
    for (int64_t step = 0; step < 3; ++step) {
      std::optional<int64_t> hook;
      if (step == 1 && group.rank() == 0)
        hook = model->table.weight.register_hook([](const Tensor& grad) { return grad * 2.0; });
      const auto backward = [&](Tied& m, int64_t rank) { m(ids_of(rank, step, 6), Step{}).backward(); };
      backward(*model, group.rank());
      ddp.finish();
      if (hook) model->table.weight.remove_hook(*hook);
      const auto doubled = [&](Tied& m, int64_t rank) {
        backward(m, rank);
        if (step == 1 && rank == 0) m.table.weight.set_grad(m.table.weight.grad() * 2.0);
      };
      expect_averages(*model, expected_of(2, doubled), group, absl::StrCat("step ", step));
      model->zero_grad();
    }
  });
}

// Parameters that a rank does not use: its output layer, its embedding, or both; in the end, no rank uses them.
TEST_F(DdpParts, PartsThatAreUnused) {
  with_groups(2, [](ProcessGroup& group) {
    const auto model = tied();
    DistributedDataParallel ddp(*model, std::make_shared<Spy>(group), {.min_bytes = 1, .allow_unused = true});
    for (int64_t step = 0; step < 6; ++step) {
      const auto backward = [&](Tied& m, int64_t rank) {
        const Tensor x = Tensor::ones({1, kWidth});
        if (step == 1 && rank == 0) ops::sum(ops::linear(m.inner(x), m.table.weight, Tensor())).backward();
        else if (step == 2 && rank == 1) ops::sum(m.inner(m.table(ids_of(rank, step, 6)))).backward();
        else if ((step == 3 && rank == 1) || step == 4) ops::sum(m.inner(x)).backward();
        else m(ids_of(rank, step, 6), Step{}).backward();
      };
      backward(*model, group.rank());
      ddp.finish();
      const std::vector<std::string> table = {"table.weight"};
      EXPECT_EQ(ddp.unused_parameters() == table, (step == 3 && group.rank() == 1) || step == 4) << step;
      if (step == 4) {
        EXPECT_FALSE(model->table.weight.grad().defined());
        model->table.weight.set_grad(Tensor::zeros(model->table.weight.sizes()));
      }
      expect_averages(*model, expected_of(2, backward), group, absl::StrCat("step ", step));
      model->zero_grad();
    }
  });
}

TEST_F(DdpParts, ASecondBackwardIsStillAnError) {
  with_groups(2, [](ProcessGroup& group) {
    const auto model = tied();
    DistributedDataParallel ddp(*model, std::make_shared<Spy>(group), {.min_bytes = 1});
    const auto backward = [&] { (*model)(ids_of(group.rank(), 0, 6), Step{}).backward(); };
    backward();
    ddp.finish();
    model->zero_grad();
    backward();
    EXPECT_NE(error_of([&] { backward(); }).find("changed after it was sent"), std::string::npos);
    ddp.finish();
  });
}

TEST_F(DdpParts, ALostAllGatherIsCaught) {
  const auto errors = run_ranks(2, [](const Environment& e) {
    const auto group = ProcessGroup::connect(e, {.timeout = test::kPatient});
    const auto model = tied();
    const auto spy = std::make_shared<Spy>(*group);
    DistributedDataParallel ddp(*model, spy, {.min_bytes = 1});
    spy->lost = "indices of table.weight of step 2";
    std::string error;
    for (int64_t step = 1; step <= 3; ++step) {
      (*model)(ids_of(e.rank, step, 6), Step{}).backward();
      if (step == 2) error = error_of<MismatchError>([&] { ddp.finish(); });
      else ddp.finish();
      model->zero_grad();
    }
    throw Error(error);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("step 2, rank 0: the all-gather of rows of table.weight did not happen"), std::string::npos)
        << error;
}

// One block that runs several times, each time in a checkpoint; and a stack of them. Eager and compiled.
struct Repeated : nn::Module<Repeated> {
  struct Block : nn::Module<Block> {
    nn::Linear up = child("up", kWidth, 4 * kWidth);
    nn::Linear down = child("down", 4 * kWidth, kWidth);
    Tensor forward(const Tensor& x) { return x + down(ops::gelu(up(x))); }
  };
  nn::Embedding table = child("table", kVocab, kWidth);
  nn::ModuleList<Block> h = child("h", 2);
  int times = 3;
  bool checkpoints = true;
  Tensor forward(const Tensor& ids) {
    Tensor y = table(ids);
    for (int i = 0; i < times; ++i)
      for (Block& block : h) y = run(block, y);
    return ops::mean(ops::linear(y, table.weight, Tensor()) * y.slice(2, {0, 1}));
  }
  Tensor run(Block& block, const Tensor& x) const {
    if (!checkpoints) return block(x);
    const Tensor in[] = {x};
    return autograd::checkpoint(
        [&block](std::span<const Tensor> inputs) { return std::vector<Tensor>{block(inputs[0])}; }, in)[0];
  }
};

class DdpCheckpoints : public testing::TestWithParam<std::optional<compile::Capture>> {
 protected:
  void SetUp() override {
    if (GetParam() && !compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  }
  std::unique_ptr<Repeated> make(bool checkpoints) const {
    manual_seed(9);
    auto model = std::make_unique<Repeated>();
    model->checkpoints = checkpoints;
    if (GetParam()) compile::compile_regions(*model, {.capture = *GetParam()});
    return model;
  }
};

TEST_P(DdpCheckpoints, OneBlockSeveralTimes) {
  with_groups(2, [&](ProcessGroup& group) {
    const auto model = make(true), plain = make(false);
    DistributedDataParallel ddp(*model, std::make_shared<Spy>(group), {.min_bytes = 1});
    optim::AdamW optimizer(model->parameters(), {.lr = 1e-2});
    for (int64_t step = 0; step < 4; ++step) {
      model->times = plain->times = step == 2 ? 4 : 3;  // one more use is nothing special
      plain->load_state_dict(model->state_dict());
      std::vector<Tensor> expected;
      for (int64_t r = 0; r < 2; ++r) {
        (*plain)(ids_of(r, step, 6)).backward();
        for (const Tensor& p : plain->parameters()) expected.push_back(p.grad() * 0.5);
        plain->zero_grad();
      }
      (*model)(ids_of(group.rank(), step, 6)).backward();
      ddp.finish();
      const std::vector<nn::NamedTensor> parameters = model->named_parameters();
      for (size_t i = 0; i < parameters.size(); ++i)
        EXPECT_TRUE(test::is_close(parameters[i].tensor.grad(), expected[i] + expected[parameters.size() + i],
                                   test::of_largest_above_1(1e-5)))
            << parameters[i].name << " of step " << step;
      optimizer.step();
      optimizer.zero_grad();
      ddp.check_parameters();
    }
  });
}

TEST_P(DdpCheckpoints, UpdatedAtSeams) {
  std::vector<uint64_t> hashes;
  for (const bool at_seams : {false, true}) {
    uint64_t hash = 0;
    with_groups(2, [&](ProcessGroup& group) {
      const auto model = make(true);
      DistributedDataParallel ddp(*model, std::make_shared<Spy>(group), {.min_bytes = 1});
      optim::AdamW optimizer(model->parameters(), {.lr = 1e-2});
      std::optional<optim::UpdateAtSeams> updates;
      if (at_seams) updates.emplace(ddp, optimizer);
      for (int64_t step = 0; step < 4; ++step) {
        (*model)(ids_of(group.rank(), step, 6)).backward();
        ddp.finish();
        if (updates) updates->finish();
        else optimizer.step(), optimizer.zero_grad();
      }
      const uint64_t mine = ddp.check_parameters();
      if (group.rank() == 0) hash = mine;
    });
    hashes.push_back(hash);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

INSTANTIATE_TEST_SUITE_P(Modes, DdpCheckpoints,
                         testing::Values(std::nullopt, compile::Capture::kRecord, compile::Capture::kReplay),
                         [](const auto& info) {
                           return !info.param                                ? "eager"
                                  : *info.param == compile::Capture::kReplay ? "replayed"
                                                                             : "compiled";
                         });

}  // namespace
}  // namespace rondo::dist
