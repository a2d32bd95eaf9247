// A small training with DistributedDataParallel, with and without a ShardedOptimizer.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/sharded_optimizer.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/optimizers.h"
#include "rondo/tests/dist/ranks.h"

namespace rondo::test {

inline const nn::GPT2Config kShardedConfig{.vocab_size = 31, .block_size = 8, .n_layer = 3, .n_head = 2, .n_embd = 16};
// A bucket per block, small as they are.
inline constexpr dist::BucketOptions kBucketPerBlock{.min_bytes = 1};

// The loss of one rank's rows in a step; `rows` for each rank.
inline Tensor sharded_loss(nn::GPT2& model, int rank, int64_t rows, int64_t step) {
  std::vector<int64_t> tokens;
  for (int64_t i = rank * rows * 8; i < (rank + 1) * rows * 8; ++i) tokens.push_back((i * i + 7 * i + 3 * step) % 31);
  const Tensor batch = Tensor::from(tokens, {rows, 8});
  return model.loss(batch, batch);
}

inline std::shared_ptr<dist::ProcessGroup> borrowed(dist::ProcessGroup& group) {
  return {&group, [](auto*) {}};
}

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const nn::GPT2&)>;

inline std::unique_ptr<optim::Optimizer> make_adamw(const nn::GPT2& model) {
  return std::make_unique<optim::AdamW>(model.parameters(), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
}

// One rank's model, optimizer and what belongs to them.
struct ShardedRun {
  struct Options {
    bool sharded = true;
    bool compiled = false;
    dist::BucketOptions buckets = kBucketPerBlock;
    optim::StepOptions step = {};
    std::function<void(nn::GPT2&)> prepare = [](nn::GPT2&) {};  // the model, before it is wrapped
    MakeOptimizer make = make_adamw;
  };

  ShardedRun(dist::ProcessGroup& group, Options o) : group(group), options(std::move(o)) {
    options.prepare(model);
    ddp.emplace(model, borrowed(group), options.buckets);
    optimizer = options.make(model);
    if (options.compiled) compile::compile_regions(model), optim::compile(*optimizer);
    if (options.sharded) shards.emplace(*ddp, *optimizer);
  }
  // The mean loss of all ranks.
  double step(int64_t number, int64_t rows = 2) {
    const Tensor loss = sharded_loss(model, group.rank(), rows, number);
    loss.backward();
    ddp->finish();
    report = optimizer->step(options.step);
    optimizer->zero_grad();
    Tensor mean = Tensor::scalar<double>(loss.item());
    group.all_reduce(mean, dist::ReduceOp::kAverage, "loss").wait();
    return mean.item();
  }
  nn::StateDict state() { return shards ? shards->state_dict() : optimizer->state_dict(); }

  dist::ProcessGroup& group;
  const Options options;
  nn::GPT2 model{kShardedConfig, 1};
  std::optional<dist::DistributedDataParallel> ddp;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::optional<dist::ShardedOptimizer> shards;
  optim::StepReport report;
};

}  // namespace rondo::test
