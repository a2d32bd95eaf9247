// Buffers that forward writes (BatchNorm's running statistics) on several ranks: rank 0's, averaged, or left alone; the
// same evaluation on every rank, and in a run that is resumed.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>

#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/sharded_optimizer.h"
#include "rondo/dist/ddp/trainer_replicas.h"
#include "rondo/dist/transport/errors.h"
#include "rondo/modules/layers/channel_norm.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/sgd.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/dist/staged_group.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/optim/trainer_fixture.h"

namespace rondo::dist {
namespace {

using optim::test::Notes;
using test::kPatient;
using test::run_ranks;
using test::same_bits;

// The norm comes first, so that its statistics depend on the batches alone. `constant` is a buffer of another dtype
// that nobody writes.
struct Net : nn::Module<Net> {
  nn::BatchNorm1d norm = child("norm", 3);
  nn::Linear fc = child("fc", 3, 1);
  Tensor& constant = buffer("constant", Tensor::from<int64_t>({5, 7}, {2, 1}), /*persistent=*/false);
  Tensor forward(const Tensor& x) { return fc(norm(x)); }
};
Tensor batch_of(int rank, int step) {
  Generator generator(static_cast<uint64_t>(100 * rank + step));
  return Tensor::randn({4, 3}, {kF32}, &generator) * (1.0 + rank) + static_cast<double>(rank);
}
std::unique_ptr<Net> make_net() {
  manual_seed(1);
  return std::make_unique<Net>();
}
std::shared_ptr<ProcessGroup> connect(const Environment& environment) {
  return ProcessGroup::connect(environment, {.timeout = kPatient});
}
// The statistics after each step of a process that has the batches of `rank`.
std::vector<nn::StateDict> alone(int rank, int steps) {
  const std::unique_ptr<Net> net = make_net();
  std::vector<nn::StateDict> states;
  for (int step = 0; step < steps; ++step) {
    (*net)(batch_of(rank, step));
    nn::StateDict& state = states.emplace_back();
    for (const nn::NamedTensor& b : net->named_buffers()) state[b.name] = b.tensor.clone();
  }
  return states;
}
void expect_no_errors(const std::vector<std::string>& errors) {
  for (size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

class BuffersOfRanks : public testing::Test {
 protected:
};

TEST_F(BuffersOfRanks, AreThoseOfRank0AfterEachStep) {
  const std::vector<nn::StateDict> expected = alone(0, 4);
  expect_no_errors(run_ranks(3, [&](const Environment& e) {
    const std::unique_ptr<Net> net = make_net();
    DistributedDataParallel ddp(*net, connect(e));
    const auto expect_shared = [&](size_t step) {
      for (const nn::NamedTensor& b : net->named_buffers())
        EXPECT_TRUE(same_bits(b.tensor, expected[step].at(b.name))) << b.name << " of step " << step;
    };
    for (int step = 0; step < 2; ++step) {
      ops::sum((*net)(batch_of(e.rank, step))).backward();
      ddp.finish();
      expect_shared(static_cast<size_t>(step));
      net->zero_grad();
    }
    // Rank 1 has no batch in this step.
    if (e.rank == 1) {
      ddp.finish_with_zeros();
    } else {
      ops::sum((*net)(batch_of(e.rank, 2))).backward();
      ddp.finish();
    }
    expect_shared(2);
    net->zero_grad();
    // Evaluation changes nothing, and a rank that lost its place gets it back.
    net->eval();
    (*net)(batch_of(e.rank, 9));
    if (e.rank == 2) no_grad([&] { net->norm.running_mean.fill_(100); });
    net->train();
    ops::sum((*net)(batch_of(e.rank, 3))).backward();
    ddp.finish();
    expect_shared(3);
  }));
}

TEST_F(BuffersOfRanks, AreAveragedOnRequest) {
  std::vector<std::vector<nn::StateDict>> own;
  for (int rank = 0; rank < 2; ++rank) own.push_back(alone(rank, 2));
  std::mutex mutex;
  std::vector<nn::StateDict> all;
  expect_no_errors(run_ranks(2, [&](const Environment& e) {
    const std::unique_ptr<Net> net = make_net();
    DistributedDataParallel ddp(*net, connect(e), {.buffers = BufferSync::kAverage});
    // The average of what is linear in the batches' statistics is that of the ranks that go alone.
    for (int step = 0; step < 2; ++step) {
      ops::sum((*net)(batch_of(e.rank, step))).backward();
      ddp.finish();
      net->zero_grad();
    }
    for (const char* name : {"norm.running_mean", "norm.running_var"}) {
      const Tensor mean = (own[0][1].at(name) + own[1][1].at(name)) * 0.5;
      EXPECT_TRUE(test::is_close(net->state_dict().at(name), mean, test::of_largest_above_1(1e-6))) << name;
    }
    EXPECT_EQ(net->norm.num_batches_tracked.item<int64_t>(), 2);
    EXPECT_EQ(net->constant.to_vector<int64_t>(), (std::vector<int64_t>{5, 7}));
    const std::lock_guard lock(mutex);
    all.push_back(net->state_dict());
  }));
  for (const auto& [name, tensor] : all.at(0)) EXPECT_TRUE(same_bits(tensor, all.at(1).at(name))) << name;
}

TEST_F(BuffersOfRanks, AreLeftAloneOnRequest) {
  expect_no_errors(run_ranks(2, [&](const Environment& e) {
    const std::unique_ptr<Net> net = make_net();
    DistributedDataParallel ddp(*net, connect(e), {.buffers = BufferSync::kLeave});
    ops::sum((*net)(batch_of(e.rank, 0))).backward();
    ddp.finish();
    const std::vector<nn::StateDict> own = alone(e.rank, 1);
    for (const nn::NamedTensor& b : net->named_buffers()) EXPECT_TRUE(same_bits(b.tensor, own[0].at(b.name))) << b.name;
  }));
}

TEST_F(BuffersOfRanks, RanksThatChooseDifferentlyAreNamed) {
  const std::vector<std::string> errors = run_ranks(2, [&](const Environment& e) {
    const std::unique_ptr<Net> net = make_net();
    DistributedDataParallel ddp(*net, connect(e),
                                {.buffers = e.rank == 0 ? BufferSync::kBroadcast : BufferSync::kAverage});
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 1 has another plan"), std::string::npos) << error;
    EXPECT_NE(error.find("\"buffers are averaged\" there, and \"buffers are rank 0's\" on rank 0"), std::string::npos)
        << error;
  }
}

// With shards of the optimizer's states, and with updates at seams: both end their steps by the same finish().
TEST_F(BuffersOfRanks, AreSharedWithShardsAndAtSeams) {
  const std::vector<nn::StateDict> expected = alone(0, 3);
  for (const bool at_seams : {false, true})
    expect_no_errors(run_ranks(2, [&](const Environment& e) {
      const std::unique_ptr<Net> net = make_net();
      DistributedDataParallel ddp(*net, connect(e));
      optim::SGD optimizer(net->parameters(), {.lr = 0.1, .momentum = 0.9});
      ShardedOptimizer shards(ddp, optimizer);
      std::optional<optim::UpdateAtSeams> updates;
      if (at_seams) updates.emplace(ddp, optimizer);
      for (int step = 0; step < 3; ++step) {
        ops::sum(ops::square((*net)(batch_of(e.rank, step)))).backward();
        ddp.finish();
        if (updates) updates->finish();
        else optimizer.step();
        optimizer.zero_grad();
      }
      for (const nn::NamedTensor& b : net->named_buffers())
        EXPECT_TRUE(same_bits(b.tensor, expected[2].at(b.name))) << b.name;
      ddp.check_parameters();
    }));
}

// A device that runs late: the bits of host memory.
TEST_F(BuffersOfRanks, OnADeviceToo) {
  const auto train = [](const std::shared_ptr<ProcessGroup>& group, Device device, BufferSync how) {
    const std::unique_ptr<Net> net = make_net();
    net->to(device);
    DistributedDataParallel ddp(*net, group, {.buffers = how});
    for (int step = 0; step < 2; ++step) {
      ops::sum((*net)(batch_of(group->rank(), step).to(device))).backward();
      ddp.finish();
      net->zero_grad();
    }
    net->to(kCPU);
    std::vector<Tensor> buffers;
    for (const nn::NamedTensor& b : net->named_buffers()) buffers.push_back(b.tensor);
    return buffers;
  };
  for (const BufferSync how : {BufferSync::kBroadcast, BufferSync::kAverage}) {
    const test::FakeDevice fake({.seed = 1, .devices = 2});
    expect_no_errors(run_ranks(2, [&](const Environment& e) {
      const std::shared_ptr<ProcessGroup> host = connect(e);
      const std::vector<Tensor> expected = train(host, kCPU, how);
      const Device device = fake.device(e.rank);
      const std::vector<Tensor> got = train(std::make_shared<test::StagedGroup>(host, device), device, how);
      ASSERT_EQ(got.size(), 4u);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bits(got[i], expected[i])) << i;
    }));
  }
}

// Numbers whose distribution differs from row to row.
class Points : public data::Dataset {
 public:
  explicit Points(uint64_t seed) : seed_(seed) {}
  int64_t size() const override { return 24; }
  std::vector<Tensor> get(int64_t index) const override {
    Generator generator(seed_ * 1000 + static_cast<uint64_t>(index));
    const Tensor x = Tensor::randn({3}, {kF64}, &generator) * (1.0 + static_cast<double>(index % 5));
    return {x, ops::sum(x).reshape({1})};
  }

 private:
  const uint64_t seed_;
};

// A job of Trainers.
struct Job {
  Job(const std::shared_ptr<ProcessGroup>& group, optim::TrainerOptions options)
      : net(make_net()),
        train_data(std::make_shared<Points>(1), {.batch_size = 4, .shuffle = true, .seed = 3}),
        eval_data(std::make_shared<Points>(2), {.batch_size = 4}) {
    net->to(kF64);
    optimizer.emplace(net->parameters(), optim::SGDOptions{.lr = 1e-3});
    if (group != nullptr) {
      ddp.emplace(*net, group);
      options.replicas = &replicas.emplace(*ddp, TrainerReplicasOptions{.check_parameters = true});
    }
    trainer.emplace(
        *net, *optimizer,
        [this](const data::Batch& batch) { return ops::mean(ops::square((*net)(batch[0]) - batch[1])); }, train_data,
        eval_data, options);
    trainer->add_callback(notes);
  }
  std::unique_ptr<Net> net;
  data::DataLoader train_data, eval_data;
  std::optional<optim::SGD> optimizer;
  std::optional<DistributedDataParallel> ddp;
  std::optional<TrainerReplicas> replicas;
  std::optional<optim::Trainer> trainer;
  Notes notes;
};

TEST_F(BuffersOfRanks, EvaluationIsThatOfEveryRankAndOfAResumedRun) {
  const test::TempFolder folder;
  const optim::TrainerOptions options{.num_train_epochs = 3, .logging_steps = 1, .output_dir = folder.path()};
  std::mutex mutex;
  std::map<int, double> at_end;
  std::map<int, nn::StateDict> states;
  expect_no_errors(run_ranks(2, [&](const Environment& e) {
    Job job(connect(e), options);
    job.trainer->train();
    const double loss = job.trainer->evaluate();
    EXPECT_EQ(loss, job.notes.evals.rbegin()->second);
    const std::lock_guard lock(mutex);
    at_end[e.rank] = loss;
    states[e.rank] = job.net->state_dict();
  }));
  ASSERT_EQ(states.size(), 2u);
  for (const auto& [name, tensor] : states[0]) EXPECT_TRUE(same_bits(tensor, states[1].at(name))) << name;
  EXPECT_EQ(at_end[0], at_end[1]);
  // In one process, and on two ranks.
  Job one(nullptr, options);
  ASSERT_TRUE(one.trainer->resume_from_checkpoint().has_value());
  EXPECT_NEAR(one.trainer->evaluate(), at_end[0], 1e-12 * std::abs(at_end[0]));
  expect_no_errors(run_ranks(2, [&](const Environment& e) {
    Job job(connect(e), options);
    ASSERT_TRUE(job.trainer->resume_from_checkpoint().has_value());
    EXPECT_EQ(job.trainer->evaluate(), at_end[0]);
  }));
}

}  // namespace
}  // namespace rondo::dist
