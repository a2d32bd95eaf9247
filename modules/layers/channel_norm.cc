#include "rondo/modules/layers/channel_norm.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"

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
      running_mean(
          this->running_statistic("running_mean", parameter_of(given.track_running_stats, {num_features}, 0.0))),
      running_var(this->running_statistic("running_var", parameter_of(given.track_running_stats, {num_features}, 1.0))),
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
  if (trains && communicator_ != nullptr) return normalise_over_ranks(x);
  const int64_t values = sizes.numel() / channels_;
  if (values == 1)
    fail(absl::StrCat("the statistics of a batch need more than 1 value for each of the ", channels_,
                      " channels: take a larger batch, or evaluate with running statistics"));
  const ops::BatchNormed batch = ops::batch_norm(x, weight, bias, options.eps);
  if (!trains || !running_mean.defined()) return batch.y;
  const NoGrad off;
  num_batches_tracked.add_(1);
  const FloatingPointScope floating_point;
  const auto n = static_cast<double>(floating_point.here(values));
  if (values > 0) update(batch.mean, batch.var * (n / (n - 1)));
  return batch.y;
}

template <int kSpatial> void BatchNorm<kSpatial>::synchronise(std::shared_ptr<Communicator> communicator) {
  if (communicator_ != communicator) this->note_change();
  communicator_ = std::move(communicator);
}

// Adds up the sums of values and of their squares over the ranks. Each rank makes its sums from its mean and variance,
// which are accurate, and sends them in f64. The variance over all ranks is then a difference of two f64 numbers, whose
// relative error is that of f64 times mean^2 / var.
template <int kSpatial> Tensor BatchNorm<kSpatial>::normalise_over_ranks(const Tensor& x) {
  Dims others = {0};
  for (int d = 2; d < x.rank(); ++d) others.push_back(d);
  const auto n = static_cast<double>(x.sizes().numel() / channels_);
  Tensor sum, squares;
  if (n == 0) {  // there is no mean; the zero sums have a history, so this rank takes part in backward
    sum = ops::sum(x, others).to(kF64);
    squares = ops::sum(x * x, others).to(kF64);
  } else {
    const ops::VarAndMean own = ops::var_mean(x.to(compute_dtype(x.dtype())), others, 0.0);
    const Tensor mean = own.mean.to(kF64);
    sum = mean * n;
    squares = (own.var.to(kF64) + mean * mean) * n;
  }
  const Tensor count = Tensor::full({1}, n, {kF64, x.device()});
  const Tensor all = ops::all_reduce_sum(ops::cat({sum, squares, count}, 0), *communicator_);
  const int64_t C = channels_;
  const Tensor total = all.slice(0, {2 * C, 2 * C + 1}).detach();
  const Tensor values = ops::maximum(total, 1.0);  // 1 if no rank has any values
  const Tensor mean = all.slice(0, {0, C}) / values;
  const Tensor var = ops::maximum(all.slice(0, {C, 2 * C}) / values - mean * mean, 0.0);
  const Tensor y = ops::batch_norm_with({mean, var}, x, weight, bias, options.eps);
  if (running_mean.defined()) {
    const NoGrad off;
    num_batches_tracked.add_(1);
    update(mean, var * (total / ops::maximum(total - 1.0, 1.0)), ops::greater(total, 0.0));
  }
  return y;
}

template <int kSpatial>
void BatchNorm<kSpatial>::update(const Tensor& mean, const Tensor& unbiased, const Tensor& any) {
  const NoGrad off;
  const FloatingPointScope floating_point;
  const DType wide = compute_dtype(running_mean.dtype());
  const auto replace_part = [&](Tensor& running, const Tensor& now) {
    const Tensor before = running.to(wide), value = now.to(wide);
    // Without momentum the divisor is a tensor, so that a region records the division and reads nothing on the host.
    const Tensor next = options.momentum ? before * (1 - *options.momentum) + value * *options.momentum
                                         : before + (value - before) / num_batches_tracked.to(wide);
    running.copy_(any.defined() ? ops::where(any, next, before) : next);
  };
  replace_part(running_mean, mean);
  replace_part(running_var, unbiased);
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
