// Norms of channels, with PyTorch's names and state: BatchNorm1d, BatchNorm2d, GroupNorm. What they compute: ops/ops.h.
//
//   nn::BatchNorm2d bn1 = child("bn1", 64);
//   nn::GroupNorm norm = child("norm", 32, 256);
#pragma once

#include <memory>
#include <optional>

#include "rondo/modules/module.h"
#include "rondo/runtime/op/communicator.h"
#include "rondo/runtime/ops/ops.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct BatchNormOptions {
  double eps = 1e-5;
  // How much of the running statistics a training step replaces. nullopt: they are the mean over all steps so far.
  std::optional<double> momentum = 0.1;
  bool affine = true;               // the layer has a weight and a bias
  bool track_running_stats = true;  // false: evaluation takes the statistics of its batch, too
};

// Ioffe and Szegedy, "Batch normalization" (2015). Training takes the statistics of the batch and updates the running
// ones; evaluation takes the running ones. Throws Error for one value per channel in training, which has no variance.
// An empty batch leaves the running statistics alone, but counts as a step, as in PyTorch.
template <int kSpatial> class BatchNorm : public Module<BatchNorm<kSpatial>> {
 public:
  explicit BatchNorm(int64_t num_features, BatchNormOptions options = {});
  const BatchNormOptions options;
  Tensor& weight;  // (C), starts at 1; undefined unless affine
  Tensor& bias;    // (C), starts at 0
  // Buffers; undefined unless track_running_stats. The variance divides by n - 1. Both stay in f32 when the model is
  // converted to 16 bits (ModuleBase::running_statistic).
  Tensor& running_mean;         // (C), starts at 0
  Tensor& running_var;          // (C), starts at 1
  Tensor& num_batches_tracked;  // i64 scalar
  Tensor forward(const Tensor& x);

  // Freezes the layer, or with on = false ends that. A frozen layer uses its running statistics in training, too, and
  // does not update them. Its parameters are not frozen by this: see requires_grad_(). Throws Error without running
  // statistics.
  void freeze(bool on = true);
  bool is_frozen() const { return frozen_; }

  // From now on training takes its statistics from the batches of all ranks: one sum over the ranks forward, and one
  // backward, of 2 C + 1 numbers in f64. Every rank calls the layer, also with an empty batch; the ranks together need
  // more than one value per channel. Null: from this process's batch again. dist::convert_sync_batchnorm() calls this
  // for a whole model.
  void synchronise(std::shared_ptr<Communicator> communicator);
  bool is_synchronised() const { return communicator_ != nullptr; }

 private:
  Tensor normalise_over_ranks(const Tensor& x);
  // Updates the running statistics with those of a batch. `unbiased`: the variance that divides by n - 1. `any`: bool
  // scalar, whether the batch had values; undefined: true.
  void update(const Tensor& mean, const Tensor& unbiased, const Tensor& any = Tensor());

  const int64_t channels_;
  bool frozen_ = false;
  std::shared_ptr<Communicator> communicator_;
};
using BatchNorm1d = BatchNorm<1>;  // x (B, C) or (B, C, L)
using BatchNorm2d = BatchNorm<2>;  // x (B, C, H, W)

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;
};
// Wu and He, "Group normalization" (2018). weight (C) starts at 1, bias (C) at 0; both undefined unless affine.
struct GroupNorm : Module<GroupNorm> {
  GroupNorm(int64_t num_groups, int64_t num_channels, GroupNormOptions options = {});
  int64_t num_groups;
  GroupNormOptions options;
  Tensor& weight;
  Tensor& bias;
  Tensor forward(const Tensor& x) {  // (B, C, ...) -> (B, C, ...)
    return ops::group_norm(x, num_groups, weight, bias, options.eps);
  }
};

}  // namespace rondo::nn
#pragma GCC visibility pop
