// Trainings that DistributedDataParallel's tests run in several places: in host memory, on a device that runs late, on
// CUDA devices over NCCL.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/sharded_optimizer.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"

namespace rondo::test {

inline const nn::GPT2Config kDdpConfig{.vocab_size = 31, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16};

// What a training does; all of it must be possible on a device.
struct DdpCase {
  const char* name;
  dist::BucketOptions buckets = {.min_bytes = 1};
  int accumulate = 1;
  bool at_seams = false, lora = false, autocast = false, zeros = false, sharded = false, half = false;
  double max_norm = std::numeric_limits<double>::infinity();
  // A larger one has room for the rows of all ranks: Note [Two parts] in row_gather.h.
  int64_t vocab_size = kDdpConfig.vocab_size;
};

inline void PrintTo(const DdpCase& c, std::ostream* out) { *out << c.name; }

inline const DdpCase kDdpCases[] = {
    {.name = "BucketPerBlock"},
    {.name = "OneBucket", .buckets = {}},
    {.name = "Pieces", .buckets = {.min_bytes = 1, .max_bytes = 1024}},
    {.name = "HalfBuckets", .buckets = {.min_bytes = 1, .dtype = kBF16}},
    {.name = "HalfPieces", .buckets = {.min_bytes = 1, .max_bytes = 1024, .dtype = kF16}},
    {.name = "Accumulated", .accumulate = 3},
    {.name = "AccumulatedPieces", .buckets = {.min_bytes = 1, .max_bytes = 1024}, .accumulate = 2},
    {.name = "Clipped", .max_norm = 0.1},
    {.name = "GradientsKeptAsZeros", .zeros = true},
    {.name = "PiecesKeptAsZeros", .buckets = {.min_bytes = 1, .max_bytes = 1024}, .zeros = true},
    {.name = "AtSeams", .at_seams = true},
    {.name = "PiecesAtSeams", .buckets = {.min_bytes = 1, .max_bytes = 1024}, .at_seams = true},
    {.name = "Autocast", .autocast = true},
    {.name = "Adapter", .lora = true},
    {.name = "Sharded", .sharded = true},
    {.name = "ShardedPieces", .buckets = {.min_bytes = 1, .max_bytes = 1024}, .accumulate = 2, .sharded = true},
    {.name = "ShardedClipped", .sharded = true, .max_norm = 0.1},
    {.name = "ShardedAdapter", .lora = true, .sharded = true},
    {.name = "ShardedHalfBuckets", .buckets = {.min_bytes = 1, .dtype = kBF16}, .sharded = true},
    {.name = "ShardedMasters", .sharded = true, .half = true},
    {.name = "ShardedUnused", .buckets = {.min_bytes = 1, .allow_unused = true}, .zeros = true, .sharded = true},
    {.name = "Unused", .buckets = {.min_bytes = 1, .allow_unused = true}, .at_seams = true},
    {.name = "Rows", .vocab_size = 101},
    {.name = "RowsAndPieces", .buckets = {.min_bytes = 1, .max_bytes = 1024}, .accumulate = 2, .vocab_size = 101},
    {.name = "RowsInHalfBuckets", .buckets = {.min_bytes = 1, .dtype = kBF16}, .vocab_size = 101},
    {.name = "RowsOfHalves",
     .buckets = {.min_bytes = 1, .max_bytes = 1024},
     .half = true,
     .max_norm = 0.1,
     .vocab_size = 101},
    {.name = "RowsAtSeams", .at_seams = true, .vocab_size = 101},
    {.name = "RowsUnused", .buckets = {.min_bytes = 1, .allow_unused = true}, .autocast = true, .vocab_size = 101},
    {.name = "RowsKeptAsZeros", .zeros = true, .vocab_size = 101},
};

inline std::unique_ptr<nn::GPT2> make_model(const DdpCase& c, int rank) {
  nn::GPT2Config config = kDdpConfig;
  config.vocab_size = c.vocab_size;
  auto model = std::make_unique<nn::GPT2>(config, 1 + rank);  // rank 0's counts
  if (c.lora) nn::add_lora(*model, {.rank = 2, .targets = {"c_attn"}});
  if (c.half) model->to(kBF16);
  return model;
}

inline Tensor loss_of(nn::GPT2& model, int64_t rank, int64_t step, Device device) {
  std::vector<int64_t> tokens;
  for (int64_t i = 16 * rank; i < 16 * (rank + 1); ++i) tokens.push_back((i * i + 7 * i + 3 * step) % 31);
  const Tensor batch = Tensor::from(tokens, {2, 8}, device);
  return model.loss(batch, batch);
}

// How the model runs; null: eagerly.
using CompileModel = void (*)(nn::ModuleBase& model);
inline void in_regions(nn::ModuleBase& model) { compile::compile_regions(model); }
inline void in_exact_regions(nn::ModuleBase& model) { compile::compile_regions(model, {.exact = true}); }
inline void as_exact_whole(nn::ModuleBase& model) { compile::compile_module(model, {.exact = true}); }

// Some steps; the hash of the parameters. `losses` gets those of this rank.
inline uint64_t train(const DdpCase& c, std::shared_ptr<dist::ProcessGroup> group, Device device,
                      CompileModel compile_model, std::vector<Tensor>* losses = nullptr) {
  manual_seed(3);
  const std::unique_ptr<nn::GPT2> model = make_model(c, group->rank());
  model->to(device);
  dist::DistributedDataParallel ddp(*model, group, c.buckets);
  optim::AdamW optimizer(model->parameters(), {.lr = 1e-2});
  if (compile_model != nullptr) compile_model(*model), optim::compile(optimizer);
  std::optional<dist::ShardedOptimizer> shards;
  if (c.sharded) shards.emplace(ddp, optimizer);
  std::optional<optim::UpdateAtSeams> updates;
  if (c.at_seams) updates.emplace(ddp, optimizer);
  for (int64_t step = 0; step < 5; ++step) {
    for (int k = 0; k < c.accumulate; ++k) {
      std::optional<dist::DistributedDataParallel::NoSync> local;
      if (k + 1 < c.accumulate) local.emplace(ddp);
      const amp::Autocast lower(c.autocast ? std::optional(kBF16) : std::nullopt);
      const Tensor loss = loss_of(*model, group->rank(), step * c.accumulate + k, device);
      if (losses != nullptr) losses->push_back(loss.detach());
      loss.backward();
    }
    ddp.finish();
    if (updates) updates->finish();
    else optimizer.step({.max_norm = c.max_norm});
    if (!updates) optimizer.zero_grad(!c.zeros);
  }
  return ddp.check_parameters();
}

}  // namespace rondo::test
