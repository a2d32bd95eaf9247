#include "rondo/modules/vision/resnet.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"

namespace rondo::nn {
namespace {

Conv2dOptions conv3x3(int64_t stride, int64_t groups = 1) {
  return {.stride = stride, .padding = 1, .groups = groups, .bias = false};
}
Conv2dOptions conv1x1(int64_t stride = 1) { return {.stride = stride, .bias = false}; }

// Adds a 1x1 convolution if x and the result differ in size; otherwise `downsample` stays empty.
void add_shortcut(Sequential& downsample, int64_t in, int64_t out, int64_t stride) {
  if (in == out && stride == 1) return;
  downsample.add<Conv2d>(in, out, ops::Spatial<2>(1), conv1x1(stride));
  downsample.add<BatchNorm2d>(out);
}

// Returns the channels of a bottleneck's 3x3 convolution.
int64_t inner_channels(const ResNetConfig& config, int64_t planes) {
  return planes * config.width_per_group / 64 * config.groups;
}

ResNetConfig checked_resnet(const ResNetConfig& config) {
  if (config.layers.size() != 4)
    throw Error(absl::StrCat("ResNet: layers must have the blocks of 4 stages, got ", config.layers.size()));
  for (int64_t n : config.layers)
    if (n < 1) throw Error(absl::StrCat("ResNet: a stage must have at least 1 block, got ", n));
  if (config.width < 1 || config.num_classes < 1 || config.in_channels < 1)
    throw Error(absl::StrCat("ResNet: width, num_classes and in_channels must be positive, got ", config.width, ", ",
                             config.num_classes, " and ", config.in_channels));
  if (!config.bottleneck && (config.groups != 1 || config.width_per_group != 64))
    throw Error(absl::StrCat("ResNet: groups and width_per_group are for bottlenecks, got ", config.groups, " and ",
                             config.width_per_group));
  if (config.bottleneck && (config.groups < 1 || inner_channels(config, config.width) < 1))
    throw Error(absl::StrCat("ResNet: groups ", config.groups, " and width_per_group ", config.width_per_group,
                             " give a convolution without channels"));
  return config;
}

template <class Block> void add_blocks(ResNetStage& stage, const ResNetConfig& config, int number) {
  const int64_t planes = config.width << number;
  int64_t in = number == 0 ? config.width : planes / 2 * Block::kExpansion;
  for (int64_t i = 0; i < config.layers[static_cast<size_t>(number)]; ++i) {
    stage.add<Block>(config, in, planes, i == 0 && number > 0 ? 2 : 1);
    in = planes * Block::kExpansion;
  }
}

}  // namespace

ResNetConfig resnet18() { return {}; }
ResNetConfig resnet34() { return {.layers = {3, 4, 6, 3}}; }
ResNetConfig resnet50() { return {.layers = {3, 4, 6, 3}, .bottleneck = true}; }
ResNetConfig resnet101() { return {.layers = {3, 4, 23, 3}, .bottleneck = true}; }

BasicBlock::BasicBlock(const ResNetConfig&, int64_t in, int64_t planes, int64_t stride)
    : conv1(child("conv1", in, planes, 3, conv3x3(stride))),
      bn1(child("bn1", planes)),
      conv2(child("conv2", planes, planes, 3, conv3x3(1))),
      bn2(child("bn2", planes)),
      downsample(child("downsample")) {
  add_shortcut(downsample, in, planes, stride);
}
Tensor BasicBlock::forward(const Tensor& x) {
  const Tensor y = ops::relu(bn1(conv1(x)));
  return ops::relu(bn2(conv2(y)) + downsample(x));
}

Bottleneck::Bottleneck(const ResNetConfig& config, int64_t in, int64_t planes, int64_t stride)
    : conv1(child("conv1", in, inner_channels(config, planes), 1, conv1x1())),
      bn1(child("bn1", inner_channels(config, planes))),
      conv2(child("conv2", inner_channels(config, planes), inner_channels(config, planes), 3,
                  conv3x3(stride, config.groups))),
      bn2(child("bn2", inner_channels(config, planes))),
      conv3(child("conv3", inner_channels(config, planes), planes * kExpansion, 1, conv1x1())),
      bn3(child("bn3", planes * kExpansion)),
      downsample(child("downsample")) {
  add_shortcut(downsample, in, planes * kExpansion, stride);
}
Tensor Bottleneck::forward(const Tensor& x) {
  const Tensor y = ops::relu(bn1(conv1(x))), z = ops::relu(bn2(conv2(y)));
  return ops::relu(bn3(conv3(z)) + downsample(x));
}

ResNet::ResNet(ResNetConfig given, uint64_t seed)
    : config(checked_resnet(given)),
      conv1(
          child("conv1", config.in_channels, config.width, 7, Conv2dOptions{.stride = 2, .padding = 3, .bias = false})),
      bn1(child("bn1", config.width)),
      layer1(child("layer1")),
      layer2(child("layer2")),
      layer3(child("layer3")),
      layer4(child("layer4")),
      fc(child("fc", config.width * 8 * (config.bottleneck ? Bottleneck::kExpansion : BasicBlock::kExpansion),
               config.num_classes)) {
  int number = 0;
  for (ResNetStage* stage : {&layer1, &layer2, &layer3, &layer4}) {
    if (config.bottleneck) add_blocks<Bottleneck>(*stage, config, number++);
    else add_blocks<BasicBlock>(*stage, config, number++);
  }
  init_convolutions(*this, seed);
}

Tensor ResNet::forward(const Tensor& images) {
  const Tensor stem = ops::relu(bn1(conv1(images)));  // (B, width, H / 2, W / 2)
  const Tensor x = layer4(layer3(layer2(layer1(ops::max_pool2d(stem, 3, {.stride = 2, .padding = 1})))));
  return fc(x.mean({2, 3}));
}

Tensor ResNet::loss(const Tensor& images, const Tensor& targets, std::source_location where) {
  return classification_loss({(*this)({images, where}), where}, targets, config.problem_type);
}

}  // namespace rondo::nn
