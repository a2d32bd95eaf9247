// ResNet from torchvision's tensors. There is no config.json: names and shapes of the tensors say what the model is.
#include "rondo/modules/vision/resnet.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/modules/pretrained/weight_files.h"

namespace rondo::nn {
namespace {

class TorchvisionShapes {
 public:
  TorchvisionShapes(const std::string& path, const WeightFiles& files) : path_(path), files_(files) {}

  bool has(const std::string& name) const { return files_.places().contains(name); }
  // Returns size `dim` of a tensor, which must have this rank.
  int64_t size(const std::string& name, int rank, int dim) const {
    const auto at = files_.places().find(name);
    if (at == files_.places().end()) throw FileError(path_, absl::StrCat("is no ResNet of torchvision: no ", name));
    const Dims& shape = at->second.entry->shape;
    if (shape.rank() != rank || shape[dim] < 1 || shape[dim] > kMostWidth)
      throw FileError(path_, absl::StrCat("is no ResNet of torchvision: ", name, " is ", to_string(shape)));
    return shape[dim];
  }

  ResNetConfig config(const PretrainedOptions& options) const {
    ResNetConfig config{.num_classes = classes(options),
                        .in_channels = size("conv1.weight", 4, 1),
                        .width = size("conv1.weight", 4, 0)};
    config.bottleneck = has("layer1.0.conv3.weight");
    config.layers.clear();
    for (int stage = 1; stage <= 4; ++stage) {
      int64_t blocks = 0;
      while (blocks < kMostLayers && has(absl::StrCat("layer", stage, ".", blocks, ".conv1.weight"))) ++blocks;
      if (blocks == 0) throw FileError(path_, absl::StrCat("is no ResNet of torchvision: no layer", stage, ".0"));
      config.layers.push_back(blocks);
    }
    if (!config.bottleneck) return config;
    const int64_t inner = size("layer1.0.conv2.weight", 4, 0), of_group = size("layer1.0.conv2.weight", 4, 1);
    config.groups = inner / of_group;
    config.width_per_group = of_group * 64 / config.width;
    return config;
  }

 private:
  // Returns the number of classes of the file's head; without one, of the new head that the caller asks for.
  int64_t classes(const PretrainedOptions& options) const {
    const std::string head = "fc.weight";
    const std::optional<int64_t> wanted = wanted_labels(options);
    if (has(head)) return wanted.value_or(size(head, 2, 0));
    const bool starts_fresh = std::any_of(options.fresh.begin(), options.fresh.end(),
                                          [&](const std::string& prefix) { return head.starts_with(prefix); });
    if (!starts_fresh || !wanted)
      throw FileError(path_,
                      "has no fc.weight: PretrainedOptions' num_labels and fresh = {\"fc.\"} give it a new head");
    return *wanted;
  }

  const std::string& path_;
  const WeightFiles& files_;
};

}  // namespace

std::unique_ptr<ResNet> ResNet::from_pretrained(const std::string& path, const PretrainedOptions& options) {
  if (options.dtype && !is_floating(*options.dtype))
    throw Error(
        absl::StrCat("ResNet::from_pretrained: dtype must be floating, got ", std::string(name_of(*options.dtype))));
  const WeightFiles files(path, options.map ? io::Reading::kMap : io::Reading::kCopy);
  ResNetConfig config = TorchvisionShapes(path, files).config(options);
  if (config.bottleneck && (config.groups < 1 || config.width_per_group < 1))
    throw FileError(path, absl::StrCat("is no ResNet of torchvision: its first bottleneck has ", config.groups,
                                       " groups of ", config.width_per_group, " channels"));
  config.problem_type = options.problem_type;
  std::unique_ptr<ResNet> model;
  {
    const SkipInit skip(SkipInit::Memory::kNone);
    model = std::make_unique<ResNet>(config);
  }
  Published published;
  published.architecture = "ResNet";
  published.tensors = same_names(*model);
  load_weights(*model, published, files, options);
  model->eval();
  return model;
}

std::unique_ptr<ResNet> ResNet::from_pretrained(const std::string& path) {
  return from_pretrained(path, PretrainedOptions());
}

}  // namespace rondo::nn
