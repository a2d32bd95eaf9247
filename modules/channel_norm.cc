#include "rondo/modules/channel_norm.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers.h"
#include "rondo/runtime/autograd.h"

namespace rondo::nn {
namespace {

Dims channel_sizes(const std::string& layer, int64_t channels) {
  if (channels <= 0) throw Error(absl::StrCat(layer, ": the number of channels must be positive, got ", channels));
  return {channels};
}
Tensor parameter_of(bool wanted, const Dims& sizes, double value) {
  return wanted ? constant_parameter(sizes, value) : Tensor();
}

}  // namespace

template <int kSpatial>
BatchNorm<kSpatial>::BatchNorm(int64_t num_features, BatchNormOptions given)
    : options(given),
      weight(this->parameter("weight", parameter_of(given.affine, channel_sizes("BatchNorm", num_features), 1.0))),
      bias(this->parameter("bias", parameter_of(given.affine, {num_features}, 0.0))),
      running_mean(this->buffer("running_mean", parameter_of(given.track_running_stats, {num_features}, 0.0))),
      running_var(this->buffer("running_var", parameter_of(given.track_running_stats, {num_features}, 1.0))),
      num_batches_tracked(
          this->buffer("num_batches_tracked", given.track_running_stats ? Tensor::zeros({}, kI64) : Tensor())),
      channels_(num_features) {
  if (const std::optional<double> momentum = given.momentum; momentum && !(*momentum >= 0 && *momentum <= 1))
    throw Error(absl::StrCat("BatchNorm: momentum must be in [0, 1] or none, got ", *momentum));
}

template <int kSpatial> void BatchNorm<kSpatial>::freeze(bool on) {
  if (on && !running_mean.defined()) throw Error("BatchNorm: without running statistics a layer cannot be frozen");
  if (frozen_ != on) this->note_change();
  frozen_ = on;
}

template <int kSpatial> Tensor BatchNorm<kSpatial>::forward(const Tensor& x) {
  const Dims& sizes = x.sizes();
  const auto fail = [&](const std::string& what) {
    throw_op_error(absl::StrCat("BatchNorm", kSpatial, "d"), absl::StrCat(what, "; got x ", to_string(sizes)),
                   std::source_location::current());
  };
  if (kSpatial == 2 && sizes.rank() != 4) fail("needs x (B, C, H, W)");
  if (kSpatial == 1 && sizes.rank() != 2 && sizes.rank() != 3) fail("needs x (B, C) or (B, C, L)");
  if (sizes[1] != channels_) fail(absl::StrCat("x has ", sizes[1], " channels, and the layer ", channels_));
  const bool trains = this->is_training() && !frozen_;
  if (!trains && running_mean.defined())
    return ops::batch_norm_with({running_mean, running_var}, x, weight, bias, options.eps);
  const int64_t values = sizes.numel() / channels_;
  if (values == 1)
    fail(absl::StrCat("the statistics of a batch need more than 1 value for each of the ", channels_,
                      " channels: take a larger batch, or evaluate with running statistics"));
  const ops::BatchNormed batch = ops::batch_norm(x, weight, bias, options.eps);
  if (trains && running_mean.defined()) update(batch, values);
  return batch.y;
}

template <int kSpatial> void BatchNorm<kSpatial>::update(const ops::BatchNormed& batch, int64_t values) {
  const NoGrad off;
  num_batches_tracked.add_(1);
  if (values == 0) return;
  const DType wide = compute_dtype(running_mean.dtype());
  const auto n = static_cast<double>(values);
  const auto replace_part = [&](Tensor& running, const Tensor& now) {
    const Tensor before = running.to(wide), value = now.to(wide);
    if (options.momentum) {
      running.copy_(before * (1 - *options.momentum) + value * *options.momentum);
    } else {
      // A tensor, so that a region records it and reads nothing.
      running.copy_(before + (value - before) / num_batches_tracked.to(wide));
    }
  };
  replace_part(running_mean, batch.mean);
  replace_part(running_var, batch.var * (n / (n - 1)));
}

template class BatchNorm<1>;
template class BatchNorm<2>;

GroupNorm::GroupNorm(int64_t num_groups, int64_t num_channels, GroupNormOptions options)
    : num_groups(num_groups),
      options(options),
      weight(parameter("weight", parameter_of(options.affine, channel_sizes("GroupNorm", num_channels), 1.0))),
      bias(parameter("bias", parameter_of(options.affine, {num_channels}, 0.0))) {
  if (num_groups <= 0 || num_channels % num_groups != 0)
    throw Error(absl::StrCat("GroupNorm: the number of groups must divide the number of channels, got ", num_groups,
                             " groups of ", num_channels, " channels"));
}

}  // namespace rondo::nn
