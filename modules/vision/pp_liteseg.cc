#include "rondo/modules/vision/pp_liteseg.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"

namespace rondo::nn {
namespace {

PPLiteSegConfig checked_pp_liteseg(const PPLiteSegConfig& config) {
  if (config.decoder.size() != 3)
    throw Error(absl::StrCat("PPLiteSeg: decoder must have the channels of 3 stages, got ", config.decoder.size()));
  for (const int64_t bin : config.bins)
    if (bin < 1) throw Error(absl::StrCat("PPLiteSeg: bins must be positive, got ", bin));
  if (config.bins.empty()) throw Error("PPLiteSeg: bins are empty");
  return config;
}

}  // namespace

PPLiteSegConfig pp_liteseg_t(int64_t num_classes) { return {.num_classes = num_classes}; }
PPLiteSegConfig pp_liteseg_b(int64_t num_classes) {
  return {.encoder = stdc2(), .decoder = {64, 96, 128}, .num_classes = num_classes};
}

SimplePyramidPooling::SimplePyramidPooling(int64_t in, int64_t out, std::vector<int64_t> given)
    : bins(std::move(given)), stages(child("stages")), conv_out(child("conv_out", out, out, 3)) {
  for (size_t i = 0; i < bins.size(); ++i) stages.emplace_back(in, out, 1);
}
Tensor SimplePyramidPooling::forward(const Tensor& x) {
  Tensor sum;
  for (int64_t i = 0; i < stages.size(); ++i) {
    const Tensor part = resize_like(stages[i](ops::adaptive_avg_pool2d(x, bins[static_cast<size_t>(i)])), x);
    sum = sum.defined() ? sum + part : part;
  }
  return conv_out(sum);
}

UnifiedAttentionFusion::UnifiedAttentionFusion(int64_t low, int64_t high, int64_t out)
    : conv_low(child("conv_low", low, high, 3)),
      attention1(child("attention1", 4, 2, 3)),
      attention2(child("attention2", 2, 1, 3, ConvNormOptions{.relu = false})),
      conv_out(child("conv_out", high, out, 3)) {}
Tensor UnifiedAttentionFusion::forward(const Tensor& low_, const Tensor& high_) {
  const Tensor low = conv_low(low_), high = resize_like(high_, low_);
  const auto mean = [](const Tensor& t) { return ops::mean(t, 1, /*keepdim=*/true); };
  const auto most = [](const Tensor& t) { return ops::max(t, 1, /*keepdim=*/true); };
  const Tensor a = ops::sigmoid(attention2(attention1(ops::cat({mean(low), most(low), mean(high), most(high)}, 1))));
  return conv_out(low * a + high * (1.0 - a));
}

PPLiteSeg::PPLiteSeg(PPLiteSegConfig given, uint64_t seed)
    : config(checked_pp_liteseg(given)),
      encoder(child("encoder", config.encoder)),
      pooling(child("pooling", 16 * config.encoder.width, config.pyramid, config.bins)),
      fusions(child("fusions")),
      heads(child("heads")) {
  for (size_t i = 0; i < 3; ++i) {
    const int64_t high = i == 2 ? config.pyramid : config.decoder[i + 1];
    fusions.emplace_back((4 * config.encoder.width) << i, high, config.decoder[i]);
    heads.emplace_back(config.decoder[i], config.head, config.num_classes);
  }
  init_convolutions(*this, seed);
}
std::array<Tensor, 3> PPLiteSeg::features(const Tensor& images) {
  std::array<Tensor, 3> x = encoder(images);
  Tensor high = pooling(x[2]);
  for (size_t i = 3; i-- > 0;) x[i] = high = fusions[static_cast<int64_t>(i)](x[i], high);
  return x;
}
Tensor PPLiteSeg::forward(const Tensor& images) { return heads[0](features(images)[0]); }
Tensor PPLiteSeg::forward(const Tensor& images, const Tensor& targets) {
  const std::array<Tensor, 3> x = features(images);
  const auto of = [&](int64_t i) {
    return segmentation_loss(heads[i](x[static_cast<size_t>(i)]), targets, config.ignore_index);
  };
  return of(0) + of(1) + of(2);
}
Tensor PPLiteSeg::loss(const Tensor& images, const Tensor& targets, std::source_location where) {
  return (*this)({images, where}, targets);
}

}  // namespace rondo::nn
