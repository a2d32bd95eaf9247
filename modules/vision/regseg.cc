#include "rondo/modules/vision/regseg.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/init.h"

namespace rondo::nn {
namespace {

constexpr int64_t kChannels4 = 48, kChannels8 = 128, kInner16 = 256, kChannels16 = 320;

RegSegConfig checked_regseg(const RegSegConfig& config) {
  if (config.dilations.empty()) throw Error("RegSeg: dilations are empty");
  if (config.group_width < 1 || config.num_classes < 1)
    throw Error(absl::StrCat("RegSeg: group_width and num_classes must be positive, got ", config.group_width, " and ",
                             config.num_classes));
  return config;
}

// Returns the channels of one of `parts` convolutions. Throws Error if they are not whole groups.
int64_t part_channels(int64_t channels, size_t parts, int64_t group_width) {
  const auto n = static_cast<int64_t>(parts);
  if (n == 0 || channels % (n * group_width) != 0)
    throw Error(absl::StrCat("RegSeg: ", channels, " channels cannot be split into ", n, " parts with groups of ",
                             group_width));
  return channels / n;
}

}  // namespace

SqueezeExcite::SqueezeExcite(int64_t channels, int64_t inner)
    : squeeze(child("squeeze", channels, inner, 1)), excite(child("excite", inner, channels, 1)) {}
Tensor SqueezeExcite::forward(const Tensor& x) { return x * ops::sigmoid(excite(ops::relu(squeeze(global_mean(x))))); }

RegSegBlock::RegSegBlock(int64_t in, int64_t out, std::vector<int64_t> dilations, int64_t group_width, int64_t stride)
    : stride(stride),
      conv1(child("conv1", in, out, 1)),
      conv2(child("conv2")),
      bn2(child("bn2", out)),
      se(child("se", out, in / 4)),
      conv3(child("conv3", out, out, 1, ConvNormOptions{.relu = false})) {
  const int64_t part = part_channels(out, dilations.size(), group_width);
  for (const int64_t d : dilations)
    conv2.emplace_back(
        part, part, 3,
        Conv2dOptions{.stride = stride, .padding = d, .dilation = d, .groups = part / group_width, .bias = false});
  if (stride != 1 || in != out)
    shortcut = child("shortcut", in, out, 1, ConvNormOptions{.relu = false}).make<ConvNormReLU>();
}
Tensor RegSegBlock::forward(const Tensor& x) {
  const Tensor y = conv1(x);
  std::vector<Tensor> parts = conv2.size() == 1 ? std::vector<Tensor>{y} : ops::chunk(y, conv2.size(), 1);
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = conv2[static_cast<int64_t>(i)](parts[i]);
  const Tensor middle = parts.size() == 1 ? parts[0] : ops::cat(parts, 1);
  const Tensor small = stride == 1 ? x : ops::avg_pool2d(x, 2, {.stride = 2, .ceil_mode = true});
  return ops::relu(conv3(se(ops::relu(bn2(middle)))) + (shortcut ? (*shortcut)(small) : small));
}

RegSeg::RegSeg(RegSegConfig given, uint64_t seed)
    : config(checked_regseg(given)),
      stem(child("stem", 3, 32, 3, ConvNormOptions{.stride = 2})),
      stage4(child("stage4")),
      stage8(child("stage8")),
      stage16(child("stage16")),
      head16(child("head16", kChannels16, 128, 1)),
      head8(child("head8", kChannels8, 128, 1)),
      head4(child("head4", kChannels4, 8, 1)),
      conv8(child("conv8", 128, 64, 3)),
      conv4(child("conv4", 64 + 8, 64, 3)),
      classifier(child("classifier", 64, config.num_classes, 1)) {
  using Dilations = std::vector<int64_t>;
  const int64_t g = config.group_width;
  stage4.emplace_back(32, kChannels4, Dilations{1}, g, 2);
  stage8.emplace_back(kChannels4, kChannels8, Dilations{1}, g, 2);
  for (int i = 0; i < 2; ++i) stage8.emplace_back(kChannels8, kChannels8, Dilations{1}, g, 1);
  stage16.emplace_back(kChannels8, kInner16, Dilations{1}, g, 2);
  for (size_t i = 0; i < config.dilations.size(); ++i)
    stage16.emplace_back(kInner16, i + 1 < config.dilations.size() ? kInner16 : kChannels16, config.dilations[i], g, 1);
  init_convolutions(*this, seed);
}
Tensor RegSeg::forward(const Tensor& images) {
  require_images("RegSeg", images, 16);
  const auto through = [](ModuleList<RegSegBlock>& stage, Tensor x) {
    for (RegSegBlock& block : stage) x = block(x);
    return x;
  };
  const Tensor at4 = through(stage4, stem(images)), at8 = through(stage8, at4), at16 = through(stage16, at8);
  const Tensor joined8 = conv8(head8(at8) + resize_like(head16(at16), at8));
  return classifier(conv4(ops::cat({resize_like(joined8, at4), head4(at4)}, 1)));
}
Tensor RegSeg::loss(const Tensor& images, const Tensor& targets, std::source_location where) {
  return segmentation_loss({(*this)({images, where}), where}, targets, config.ignore_index);
}

}  // namespace rondo::nn
