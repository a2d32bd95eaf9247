// Residual networks (He et al., "Deep residual learning for image recognition", 2016) as torchvision has them: the
// stride is on the 3x3 convolution of a bottleneck. Parameter names are torchvision's.
//
//   nn::ResNet model(nn::resnet50());
//   model.loss(images, targets).backward();
//   auto published = nn::ResNet::from_pretrained("resnet18.safetensors");   // torchvision's state_dict, by safetensors
//
// Sizes: ResNet-18 has 11,689,512 parameters, ResNet-50 25,557,032, with 1000 classes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rondo/modules/layers/channel_norm.h"
#include "rondo/modules/layers/classification_loss.h"
#include "rondo/modules/layers/convolution.h"
#include "rondo/modules/layers/layers.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct PretrainedOptions;

// The defaults are ResNet-18.
struct ResNetConfig {
  std::vector<int64_t> layers = {2, 2, 2, 2};  // blocks of each stage
  bool bottleneck = false;                     // blocks of three convolutions; otherwise of two
  int64_t num_classes = 1000;
  int64_t in_channels = 3;
  int64_t width = 64;  // channels of the stem and planes of the first stage; doubled from stage to stage
  // For the 3x3 convolution of a bottleneck, which has planes * width_per_group / 64 channels in each group. ResNeXt
  // (Xie et al., 2017) has several groups; wide networks (Zagoruyko and Komodakis, 2016) have more channels.
  int64_t groups = 1;
  int64_t width_per_group = 64;
  std::optional<ProblemType> problem_type = std::nullopt;  // chooses the loss
};
ResNetConfig resnet18();
ResNetConfig resnet34();
ResNetConfig resnet50();
ResNetConfig resnet101();

// relu(f(x) + shortcut(x)); the shortcut is the identity where sizes allow it, otherwise a 1x1 convolution.
struct BasicBlock : Module<BasicBlock> {
  BasicBlock(const ResNetConfig& config, int64_t in_channels, int64_t planes, int64_t stride);
  static constexpr int64_t kExpansion = 1;  // channels of the result for each plane
  Conv2d conv1;
  BatchNorm2d bn1;
  Conv2d conv2;
  BatchNorm2d bn2;
  Sequential downsample;
  Tensor forward(const Tensor& x);  // (B, in, H, W) -> (B, planes, H / stride, W / stride)
};

struct Bottleneck : Module<Bottleneck> {
  Bottleneck(const ResNetConfig& config, int64_t in_channels, int64_t planes, int64_t stride);
  static constexpr int64_t kExpansion = 4;
  Conv2d conv1;
  BatchNorm2d bn1;
  Conv2d conv2;
  BatchNorm2d bn2;
  Conv2d conv3;
  BatchNorm2d bn3;
  Sequential downsample;
  Tensor forward(const Tensor& x);  // (B, in, H, W) -> (B, 4 planes, H / stride, W / stride)
};

// The blocks of one stage in a chain.
struct ResNetStage : Sequential {
  bool is_block_list() const override { return true; }
};

struct ResNet : Module<ResNet> {
  // Convolutions start as torchvision's (init_convolutions()), the same for the same seed on any machine.
  explicit ResNet(ResNetConfig config = {}, uint64_t seed = 0);

  // Reads a safetensors file, or a folder with model.safetensors or its shards, with torchvision's names. Sizes, groups
  // and classes are those of the tensors. The model comes back in evaluation mode. The options `num_labels` and `fresh`
  // {"fc."} give it a new head, also if the file has none. The other options are as for AutoModel
  // (pretrained/auto_model.h). Throws FileError if the tensors are not a ResNet's, and StateDictError if some are
  // missing, unexpected or of other shapes.
  //
  // What the tensors do not show is assumed to be as in torchvision's resnet functions. So if the network of a file
  // differs in one of the following, the file loads, but the model computes something else: dilation instead of stride
  // (replace_stride_with_dilation, output_stride 8 or 16), blur pooling before the strides, the stride on the first
  // convolution of a bottleneck (the paper's, and Caffe's), another activation than ReLU, another eps than BatchNorm's
  // 1e-5, and how images were normalised.
  static std::unique_ptr<ResNet> from_pretrained(const std::string& path, const PretrainedOptions& options);
  static std::unique_ptr<ResNet> from_pretrained(const std::string& path);

  ResNetConfig config;
  Conv2d conv1;
  BatchNorm2d bn1;
  ResNetStage layer1, layer2, layer3, layer4;
  Linear fc;

  Tensor forward(const Tensor& images);  // (B, channels, H, W) -> logits (B, num_classes)
  // Returns the mean loss of the targets; config.problem_type chooses the loss (classification_loss.h).
  Tensor loss(const Tensor& images, const Tensor& targets,
              std::source_location where = std::source_location::current());
};

}  // namespace rondo::nn
#pragma GCC visibility pop
