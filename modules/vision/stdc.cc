#include "rondo/modules/vision/stdc.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::nn {
namespace {

STDCConfig checked_stdc(const STDCConfig& config) {
  if (config.layers.size() != 3)
    throw Error(absl::StrCat("STDC: layers must have the blocks of 3 stages, got ", config.layers.size()));
  for (const int64_t n : config.layers)
    if (n < 1) throw Error(absl::StrCat("STDC: a stage must have at least 1 block, got ", n));
  if (config.width < 2 || config.width % 2 != 0)
    throw Error(absl::StrCat("STDC: width must be positive and even, got ", config.width));
  return config;
}

Tensor nearest_like(const Tensor& x, const Tensor& like) { return ops::interpolate(x, {like.size(2), like.size(3)}); }

}  // namespace

STDCConfig stdc1() { return {}; }
STDCConfig stdc2() { return {.layers = {4, 5, 3}}; }

STDCBlock::STDCBlock(int64_t in, int64_t out, int64_t stride) : stride(stride), convs(child("convs")) {
  convs.emplace_back(in, out / 2, 1);
  convs.emplace_back(out / 2, out / 4, 3);
  convs.emplace_back(out / 4, out / 8, 3);
  convs.emplace_back(out / 8, out / 8, 3);
  if (stride > 1)
    down = child("down", out / 2, out / 2, 3, ConvNormOptions{.stride = stride, .groups = out / 2, .relu = false})
               .make<ConvNormReLU>();
}
Tensor STDCBlock::forward(const Tensor& x) {
  const Tensor first = convs[0](x);
  const Tensor second = convs[1](down ? (*down)(first) : first);
  const Tensor third = convs[2](second), fourth = convs[3](third);
  const Tensor kept = down ? ops::avg_pool2d(first, 3, {.stride = stride, .padding = 1}) : first;
  return ops::cat({kept, second, third, fourth}, 1);
}

STDCBackbone::STDCBackbone(const STDCConfig& given)
    : stem1(child("stem1", 3, checked_stdc(given).width / 2, 3, ConvNormOptions{.stride = 2})),
      stem2(child("stem2", given.width / 2, given.width, 3, ConvNormOptions{.stride = 2})),
      stage8(child("stage8")),
      stage16(child("stage16")),
      stage32(child("stage32")) {
  int64_t in = given.width, out = 4 * given.width;
  size_t number = 0;
  for (ModuleList<STDCBlock>* stage : {&stage8, &stage16, &stage32}) {
    for (int64_t i = 0; i < given.layers[number]; ++i) {
      stage->emplace_back(in, out, i == 0 ? 2 : 1);
      in = out;
    }
    out *= 2;
    ++number;
  }
}
std::array<Tensor, 3> STDCBackbone::forward(const Tensor& images) {
  require_images("STDC", images, 32);
  std::array<Tensor, 3> features;
  Tensor x = stem2(stem1(images));
  size_t number = 0;
  for (ModuleList<STDCBlock>* stage : {&stage8, &stage16, &stage32}) {
    for (STDCBlock& block : *stage) x = block(x);
    features[number++] = x;
  }
  return features;
}

STDCForClassification::STDCForClassification(STDCConfig config, int64_t num_classes, uint64_t seed)
    : backbone(child("backbone", config)),
      conv_last(child("conv_last", 16 * config.width, 1024, 1)),
      fc(child("fc", 1024, 1024, LinearOptions{.bias = false})),
      bn(child("bn", 1024)),
      dropout(child("dropout", 0.2)),
      linear(child("linear", 1024, num_classes, LinearOptions{.bias = false})) {
  init_convolutions(*this, seed);
}
Tensor STDCForClassification::forward(const Tensor& images) {
  const Tensor pooled = ops::square(conv_last(backbone(images)[2])).mean({2, 3});  // the paper's code squares, too
  return linear(dropout(ops::relu(bn(fc(pooled)))));
}

STDCRefinement::STDCRefinement(int64_t in, int64_t out)
    : conv(child("conv", in, out, 3)), gate(child("gate", out, out, 1, ConvNormOptions{.relu = false})) {}
Tensor STDCRefinement::forward(const Tensor& x) {
  const Tensor y = conv(x);
  return y * ops::sigmoid(gate(global_mean(y)));
}

STDCFusion::STDCFusion(int64_t in, int64_t out)
    : conv(child("conv", in, out, 1)),
      squeeze(child("squeeze", out, out / 4, 1, Conv2dOptions{.bias = false})),
      excite(child("excite", out / 4, out, 1, Conv2dOptions{.bias = false})) {}
Tensor STDCFusion::forward(const Tensor& x) {
  const Tensor y = conv(x);
  return y + y * ops::sigmoid(excite(ops::relu(squeeze(global_mean(y)))));
}

STDCSeg::STDCSeg(STDCSegConfig given, uint64_t seed)
    : config(given),
      backbone(child("backbone", config.encoder)),
      arm16(child("arm16", 8 * config.encoder.width, 128)),
      arm32(child("arm32", 16 * config.encoder.width, 128)),
      conv_avg(child("conv_avg", 16 * config.encoder.width, 128, 1)),
      conv_head32(child("conv_head32", 128, 128, 3)),
      conv_head16(child("conv_head16", 128, 128, 3)),
      ffm(child("ffm", 4 * config.encoder.width + 128, 256)),
      conv_out(child("conv_out", 256, 256, config.num_classes)),
      conv_out16(child("conv_out16", 128, 64, config.num_classes)),
      conv_out32(child("conv_out32", 128, 64, config.num_classes)),
      detail(child("detail", 4 * config.encoder.width, 64, 1)) {
  init_convolutions(*this, seed);
}
STDCSeg::Features STDCSeg::features(const Tensor& images) {
  const auto [at8, at16, at32] = backbone(images);
  const Tensor context32 = arm32(at32) + nearest_like(conv_avg(global_mean(at32)), at32);
  const Tensor context16 = conv_head32(nearest_like(context32, at16));
  const Tensor context8 = conv_head16(nearest_like(arm16(at16) + context16, at8));
  return {at8, ffm(ops::cat({at8, context8}, 1)), context8, context16};
}
Tensor STDCSeg::forward(const Tensor& images) { return conv_out(features(images).fused); }
Tensor STDCSeg::forward(const Tensor& images, const Tensor& targets) {
  const Features f = features(images);
  const auto of = [&](const Tensor& logits) { return segmentation_loss(logits, targets, config.ignore_index); };
  return of(conv_out(f.fused)) + of(conv_out16(f.context8)) + of(conv_out32(f.context16)) +
         detail_loss(detail(f.at8), detail_targets(targets));
}
Tensor STDCSeg::loss(const Tensor& images, const Tensor& targets, std::source_location where) {
  return (*this)({images, where}, targets);
}

Tensor detail_targets(const Tensor& targets) {
  const NoGrad off;
  const int64_t B = targets.size(0), H = targets.size(1), W = targets.size(2);
  const Tensor classes = targets.to(kF32).reshape({B, 1, H, W});
  const Tensor laplacian = Tensor::from(std::vector<float>{-1, -1, -1, -1, 8, -1, -1, -1, -1}, {1, 1, 3, 3},
                                        targets.device());
  Tensor sum;
  double weight = 0.6;  // the weights of strides 1, 2, 4: 0.6, 0.3, 0.1
  for (const int64_t stride : {1, 2, 4}) {
    const Tensor edges = ops::conv2d(classes, laplacian, {}, {.stride = stride, .padding = 1});
    const Tensor is_edge = ops::greater(edges, 0.1).to(kF32);  // negative edges do not count
    const Tensor part = ops::interpolate(is_edge, {H, W}) * weight;
    sum = sum.defined() ? sum + part : part;
    weight = stride == 1 ? 0.3 : 0.1;
  }
  return ops::greater(sum, 0.1).to(kF32);
}

Tensor detail_loss(const Tensor& logits, const Tensor& targets) {
  const Tensor full = resize_like(logits, targets), want = targets.to(full.dtype());
  const Tensor p = ops::sigmoid(full).flatten(1), t = want.flatten(1);  // (B, H W)
  const Tensor dice = 1.0 - (2.0 * (p * t).sum(1) + 1.0) / (p.sum(1) + t.sum(1) + 1.0);
  return ops::bce_with_logits(full, want) + dice.mean();
}

}  // namespace rondo::nn
