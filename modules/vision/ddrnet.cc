#include "rondo/modules/vision/ddrnet.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"

namespace rondo::nn {
namespace {

DDRNetConfig checked_ddrnet(const DDRNetConfig& config) {
  if (config.width < 1 || config.pyramid < 1 || config.head < 1 || config.num_classes < 1)
    throw Error(absl::StrCat("DDRNet: width, pyramid, head and num_classes must be positive, got ", config.width, ", ",
                             config.pyramid, ", ", config.head, " and ", config.num_classes));
  return config;
}

// Adds `n` blocks. The first has the stride, the last has no ReLU.
void add_ddr_blocks(ModuleList<DDRBlock>& blocks, int64_t in, int64_t channels, int64_t n, int64_t stride) {
  for (int64_t i = 0; i < n; ++i)
    blocks.emplace_back(i == 0 ? in : channels, channels,
                        DDRBlockOptions{.stride = i == 0 ? stride : 1, .relu = i < n - 1});
}

template <class List> Tensor through(List& modules, Tensor x) {
  for (auto& module : modules) x = module(x);
  return x;
}

}  // namespace

DDRNetConfig ddrnet23_slim(int64_t num_classes) { return {.num_classes = num_classes}; }
DDRNetConfig ddrnet23(int64_t num_classes) { return {.width = 64, .head = 128, .num_classes = num_classes}; }

DDRBlock::DDRBlock(int64_t in, int64_t channels, DDRBlockOptions options) : relu(options.relu), convs(child("convs")) {
  const int64_t out = options.bottleneck ? 2 * channels : channels;
  if (options.bottleneck) {
    convs.emplace_back(in, channels, 1);
    convs.emplace_back(channels, channels, 3, ConvNormOptions{.stride = options.stride});
    convs.emplace_back(channels, out, 1, ConvNormOptions{.relu = false});
  } else {
    convs.emplace_back(in, channels, 3, ConvNormOptions{.stride = options.stride});
    convs.emplace_back(channels, out, 3, ConvNormOptions{.relu = false});
  }
  if (options.stride != 1 || in != out)
    shortcut =
        child("shortcut", in, out, 1, ConvNormOptions{.stride = options.stride, .relu = false}).make<ConvNormReLU>();
}
Tensor DDRBlock::forward(const Tensor& x) {
  const Tensor y = through(convs, x) + (shortcut ? (*shortcut)(x) : x);
  return relu ? ops::relu(y) : y;
}

NormReLUConv::NormReLUConv(int64_t in, int64_t out, int64_t kernel, bool bias)
    : bn(child("bn", in)), conv(child("conv", in, out, kernel, Conv2dOptions{.padding = kernel / 2, .bias = bias})) {}

DeepPyramidPooling::DeepPyramidPooling(int64_t in, int64_t branch, int64_t out)
    : scales(child("scales", 5, in, branch, 1)),
      processes(child("processes", 4, branch, branch, 3)),
      compression(child("compression", 5 * branch, out, 1)),
      shortcut(child("shortcut", in, out, 1)) {}
Tensor DeepPyramidPooling::forward(const Tensor& x) {
  std::vector<Tensor> parts = {scales[0](x)};
  for (int64_t i = 1; i < 5; ++i) {
    const int64_t stride = int64_t{1} << i;  // windows of 5, 9 and 17 pixels, and the whole
    const Tensor mean = i == 4 ? global_mean(x)
                               : ops::avg_pool2d(x, 2 * stride + 1, {.stride = stride, .padding = stride});
    parts.push_back(processes[i - 1](resize_like(scales[i](mean), x) + parts.back()));
  }
  return compression(ops::cat(parts, 1)) + shortcut(x);
}

DDRHead::DDRHead(int64_t in, int64_t inner, int64_t num_classes)
    : conv(child("conv", in, inner, 3)), classifier(child("classifier", inner, num_classes, 1, /*bias=*/true)) {}

DDRNet::DDRNet(DDRNetConfig given, uint64_t seed)
    : config(checked_ddrnet(given)),
      stem(child("stem")),
      layer1(child("layer1")),
      layer2(child("layer2")),
      layer3(child("layer3")),
      layer4(child("layer4")),
      layer5(child("layer5")),
      high3(child("high3")),
      high4(child("high4")),
      high5(child("high5")),
      compression3(child("compression3", 4 * config.width, 2 * config.width, 1, ConvNormOptions{.relu = false})),
      compression4(child("compression4", 8 * config.width, 2 * config.width, 1, ConvNormOptions{.relu = false})),
      down3(child("down3", 2 * config.width, 4 * config.width, 3, ConvNormOptions{.stride = 2, .relu = false})),
      down4a(child("down4a", 2 * config.width, 4 * config.width, 3, ConvNormOptions{.stride = 2})),
      down4b(child("down4b", 4 * config.width, 8 * config.width, 3, ConvNormOptions{.stride = 2, .relu = false})),
      pooling(child("pooling", 16 * config.width, config.pyramid, 4 * config.width)),
      head(child("head", 4 * config.width, config.head, config.num_classes)) {
  const int64_t w = config.width;
  stem.emplace_back(3, w, 3, ConvNormOptions{.stride = 2});
  stem.emplace_back(w, w, 3, ConvNormOptions{.stride = 2});
  add_ddr_blocks(layer1, w, w, 2, 1);
  add_ddr_blocks(layer2, w, 2 * w, 2, 2);
  add_ddr_blocks(layer3, 2 * w, 4 * w, 2, 2);
  add_ddr_blocks(layer4, 4 * w, 8 * w, 2, 2);
  layer5.emplace_back(8 * w, 8 * w, DDRBlockOptions{.stride = 2, .bottleneck = true, .relu = false});
  add_ddr_blocks(high3, 2 * w, 2 * w, 2, 1);
  add_ddr_blocks(high4, 2 * w, 2 * w, 2, 1);
  high5.emplace_back(2 * w, 2 * w, DDRBlockOptions{.bottleneck = true, .relu = false});
  if (config.extra_head) extra_head = child("extra_head", 2 * w, config.head, config.num_classes).make<DDRHead>();
  init_convolutions(*this, seed);
}
std::pair<Tensor, Tensor> DDRNet::features(const Tensor& images) {
  require_images("DDRNet", images, 32);
  using ops::relu;
  const Tensor at4 = through(layer1, through(stem, images));
  const Tensor at8 = through(layer2, relu(at4));
  const Tensor at16 = through(layer3, relu(at8));
  const Tensor high_a = through(high3, relu(at8));
  const Tensor low_a = at16 + down3(relu(high_a));
  const Tensor high_b = high_a + resize_like(compression3(relu(at16)), at8);
  const Tensor at32 = through(layer4, relu(low_a));
  const Tensor high_c = through(high4, relu(high_b));
  const Tensor low_b = at32 + down4b(down4a(relu(high_c)));
  const Tensor high_d = high_c + resize_like(compression4(relu(at32)), at8);
  const Tensor high = through(high5, relu(high_d));
  return {resize_like(pooling(through(layer5, relu(low_b))), at8) + high, high_b};
}
Tensor DDRNet::forward(const Tensor& images) { return head(features(images).first); }
Tensor DDRNet::forward(const Tensor& images, const Tensor& targets) {
  const auto [last, middle] = features(images);
  const Tensor main = segmentation_loss(head(last), targets, config.ignore_index);
  if (!extra_head) return main;
  return main + config.extra_weight * segmentation_loss((*extra_head)(middle), targets, config.ignore_index);
}
Tensor DDRNet::loss(const Tensor& images, const Tensor& targets, std::source_location where) {
  return (*this)({images, where}, targets);
}

}  // namespace rondo::nn
