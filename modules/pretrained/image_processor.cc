#include "rondo/modules/pretrained/image_processor.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/modules/pretrained/config_fields.h"
#include "rondo/modules/pretrained/image_resize.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/ops/interpolation.h"

namespace rondo::nn {
namespace fs = std::filesystem;
using ops::InterpolateMode;
namespace {

constexpr int64_t kWarped = 384;  // ConvNextImageProcessor: from this shortest edge on nothing is cut off

// One class of processors in transformers.
struct ProcessorType {
  const char* name;            // without "ImageProcessor" at its end
  const char* model_types;     // the model_types in config.json that use it
  bool square;                 // a size of one number is height and width, not the shortest edge
  bool crops;                  // the class reads do_center_crop
  ImageProcessorConfig fresh;  // the values of fields that a file leaves out
};
const std::array<ProcessorType, 6>& processor_types() {
  static const auto& clip = *new ImageProcessorConfig{.size = {.shortest_edge = 224},
                                                      .resample = InterpolateMode::kBicubic,
                                                      .do_center_crop = true,
                                                      .crop_size = {.height = 224, .width = 224},
                                                      .image_mean = {0.48145466, 0.4578275, 0.40821073},
                                                      .image_std = {0.26862954, 0.26130258, 0.27577711},
                                                      .do_convert_rgb = true};
  static const auto& types = *new std::array<ProcessorType, 6>{
      {{"ViT", "vit swin swinv2", true, true, {}},
       {"DeiT",
        "deit",
        true,
        true,
        {.size = {.height = 256, .width = 256},
         .resample = InterpolateMode::kBicubic,
         .do_center_crop = true,
         .crop_size = {.height = 224, .width = 224}}},
       {"Segformer",
        "segformer",
        true,
        false,
        {.size = {.height = 512, .width = 512},
         .image_mean = {0.485, 0.456, 0.406},
         .image_std = {0.229, 0.224, 0.225}}},
       {"ConvNext",
        "convnext resnet regnet",
        false,
        true,
        {.size = {.shortest_edge = 384}, .resample = InterpolateMode::kBicubic}},
       {"Bit", "bit dinov2", false, true, clip},
       {"CLIP", "clip", false, true, clip}}};
  return types;
}

// Finds a type by its name in a file, such as ViTImageProcessorFast or ViTFeatureExtractor; null if there is none.
const ProcessorType* find_type(std::string_view name) {
  for (const ProcessorType& type : processor_types())
    for (const char* end : {"ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor"})
      if (name == absl::StrCat(type.name, end)) return &type;
  return nullptr;
}
const ProcessorType* type_of_model(const std::string& folder) {
  const std::string path = (fs::path(folder) / "config.json").string();
  std::error_code error;
  if (!fs::exists(path, error)) return nullptr;
  const std::string model = ConfigFields(path, io::read_text(path, ConfigFields::kMostBytes)).word("model_type", "");
  for (const ProcessorType& type : processor_types())
    for (const absl::string_view name : absl::StrSplit(type.model_types, ' '))
      if (name == model) return &type;
  return nullptr;
}

// Reads the field `name`: size or crop_size.
ImageSize read_size(ConfigFields& config, std::string_view name, const ImageSize& otherwise, bool square) {
  if (!config.has(name)) {
    if (otherwise.height == 0 && otherwise.shortest_edge == 0) config.missing(name);
    return otherwise;
  }
  const auto field = std::find_if(config.fields().begin(), config.fields().end(),
                                  [&](const ConfigField& f) { return f.name == name; });
  constexpr int64_t kMost = ImageProcessor::kMostEdge;
  ImageSize size;
  if (field->json.starts_with('{')) {
    const auto inside = config.object(name);
    for (const char* other : {"max_height", "max_width", "min_pixels", "max_pixels"})
      if (inside->has(other)) {
        inside->unsupported(other);
        return otherwise;
      }
    if (inside->has("shortest_edge")) {
      size.shortest_edge = inside->size("shortest_edge", {}, kMost);
      if (inside->has("longest_edge")) size.longest_edge = inside->size("longest_edge", {}, kMost);
    } else if (inside->has("longest_edge")) {
      inside->unsupported("longest_edge");
      return otherwise;
    } else {
      size.height = inside->size("height", {}, kMost);
      size.width = inside->size("width", {}, kMost);
    }
    inside->note_unknown();
  } else if (field->json.starts_with('[')) {
    const std::vector<int64_t> sides = config.sizes(name, {}, 2, kMost);
    size = {.height = sides[0], .width = sides[1]};
  } else {
    const int64_t side = config.size(name, {}, kMost);
    if (square) size = {.height = side, .width = side};
    else size = {.shortest_edge = side};
  }
  return size;
}

std::array<double, 3> read_channels(ConfigFields& config, std::string_view name,
                                    const std::array<double, 3>& otherwise) {
  const std::vector<double> values = config.numbers(name, {otherwise.begin(), otherwise.end()}, 3);
  return {values[0], values[1], values[2]};
}

ImageProcessorConfig read_config(ConfigFields& config, const ProcessorType& type) {
  // null does not mean the class's default: it turns a step off. Values that a step needs must not be null.
  const auto flag = [&](std::string_view name, bool otherwise) {
    return config.flag(name, otherwise && !config.is_null(name));
  };
  const auto needs = [&](bool step, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names)
      if (step && config.is_null(name)) config.invalid(name, "a value");
  };
  ImageProcessorConfig c = type.fresh;
  c.type = absl::StrCat(type.name, "ImageProcessor");
  c.do_resize = flag("do_resize", c.do_resize);
  c.size = read_size(config, "size", c.size, flag("default_to_square", type.square));
  if (const std::optional<int64_t> code = config.count("resample", 5)) {
    if (*code == 0) c.resample = InterpolateMode::kNearest;
    else if (*code == 2) c.resample = InterpolateMode::kBilinear;
    else if (*code == 3) c.resample = InterpolateMode::kBicubic;
    else config.unsupported("resample");
  }
  needs(c.do_resize, {"resample"});
  if (type.name == std::string_view("ConvNext")) {
    c.crop_pct = config.positive("crop_pct", c.crop_pct);
    needs(c.do_resize && c.size.shortest_edge < kWarped, {"crop_pct"});
    if (c.do_resize && c.size.shortest_edge == 0) config.invalid("size", "a shortest_edge");
  }
  if (type.crops && flag("do_center_crop", c.do_center_crop)) {
    needs(true, {"crop_size"});
    c.do_center_crop = true;
    c.crop_size = read_size(config, "crop_size", c.crop_size, true);
    if (c.crop_size.shortest_edge > 0) config.invalid("crop_size", "height and width");
  } else {
    c.do_center_crop = false;
    c.crop_size = {};
  }
  c.do_rescale = flag("do_rescale", c.do_rescale);
  c.rescale_factor = config.positive("rescale_factor", c.rescale_factor);
  needs(c.do_rescale, {"rescale_factor"});
  c.do_normalize = flag("do_normalize", c.do_normalize);
  c.image_mean = read_channels(config, "image_mean", c.image_mean);
  c.image_std = read_channels(config, "image_std", c.image_std);
  needs(c.do_normalize, {"image_mean", "image_std"});
  if (std::any_of(c.image_std.begin(), c.image_std.end(), [](double s) { return !(s > 0); }))
    config.invalid("image_std", "numbers above 0");
  c.do_convert_rgb = flag("do_convert_rgb", c.do_convert_rgb);
  if (type.name == std::string_view("Segformer")) {
    const bool older = flag("reduce_labels", false);
    c.do_reduce_labels = flag("do_reduce_labels", older);
  }
  return c;
}

// (height, width) of a picture after resizing, as transformers computes it: in Python's floats and integers.
using Edges = std::array<double, 2>;
Edges by_shortest(double size, double height, double width) {
  const double longer = std::trunc(size * std::max(height, width) / std::min(height, width));
  return width <= height ? Edges{longer, size} : Edges{size, longer};
}
Edges within_longest(double size, double longest, double height, double width) {
  const double shorter = std::min(height, width), longer = std::max(height, width);
  double exact = size;
  if (longer / shorter * size > longest) {
    exact = longest * shorter / longer;
    size = std::nearbyint(exact);  // rounds a half to the even number, as Python does
  }
  if (shorter == size) return {height, width};
  if (width < height) return {std::trunc(exact * height / width), size};
  return {size, std::trunc(exact * width / height)};
}
Edges edges_after(const ImageProcessorConfig& c, double height, double width) {
  const auto shortest = static_cast<double>(c.size.shortest_edge);
  if (c.type == "ConvNextImageProcessor") {
    if (c.size.shortest_edge >= kWarped) return {shortest, shortest};
    return by_shortest(std::trunc(shortest / c.crop_pct), height, width);
  }
  if (shortest > 0 && c.size.longest_edge > 0)
    return within_longest(shortest, static_cast<double>(c.size.longest_edge), height, width);
  if (shortest > 0) return by_shortest(shortest, height, width);
  return {static_cast<double>(c.size.height), static_cast<double>(c.size.width)};
}

[[noreturn]] void fail(const ImageProcessorConfig& c, const std::string& what) {
  throw Error(absl::StrCat(c.type, ": ", what));
}

// Converts u8 (C, H, W) to u8 (H, W, 3), dense.
Tensor rgb_bytes(const Tensor& image) {
  const Tensor pixels = image.permute({1, 2, 0}).contiguous();
  const int64_t channels = pixels.size(2), n = pixels.size(0) * pixels.size(1);
  if (channels == 3) return pixels;
  Tensor out = Tensor::empty({pixels.size(0), pixels.size(1), 3}, {kU8, kCPU});
  const uint8_t* in = pixels.data<uint8_t>();
  uint8_t* to = out.mutable_data<uint8_t>();
  for (int64_t i = 0; i < n; ++i, in += channels)
    for (int64_t k = 0; k < 3; ++k) {
      const uint8_t value = in[channels < 3 ? 0 : k];
      if (channels == 1) {
        *to++ = value;
        continue;
      }
      const double alpha = in[channels - 1] / 255.0;
      *to++ = static_cast<uint8_t>(std::nearbyint(alpha * value + (1 - alpha) * 255));
    }
  return out;
}

// Returns the result for each value of a byte, computed in f32 where transformers uses f32.
std::array<float, 256> table_of(const ImageProcessorConfig& c, size_t channel) {
  std::array<float, 256> table;
  for (size_t i = 0; i < table.size(); ++i) {
    const auto byte = static_cast<double>(i);
    table[i] = static_cast<float>(c.do_rescale ? byte * c.rescale_factor : byte);
    if (c.do_normalize)
      table[i] = (table[i] - static_cast<float>(c.image_mean[channel])) / static_cast<float>(c.image_std[channel]);
  }
  return table;
}

}  // namespace

ImageProcessor::ImageProcessor(ImageProcessorConfig config, const ImageProcessorOptions& options)
    : config_(std::move(config)), options_(options) {
  const ProcessorType* type = find_type(config_.type);
  if (type == nullptr) fail(config_, "there is no such image processor");
  config_.type = absl::StrCat(type->name, "ImageProcessor");
  const auto edge = [&](int64_t n) { return n >= 1 && n <= kMostEdge; };
  const ImageSize& size = config_.size;
  const bool exact = edge(size.height) && edge(size.width) && size.shortest_edge == 0 && size.longest_edge == 0;
  const bool keeps = edge(size.shortest_edge) && size.height == 0 && size.width == 0 &&
                     (size.longest_edge == 0 || edge(size.longest_edge));
  const bool none = size.height == 0 && size.width == 0 && size.shortest_edge == 0 && size.longest_edge == 0;
  const bool by_edge = type->name == std::string_view("ConvNext");
  if (config_.do_resize ? !(keeps || (exact && !by_edge)) : !(keeps || exact || none))
    fail(config_, absl::StrCat("size must be ", by_edge ? "" : "height and width, or ", "a shortest_edge, from 1 to ",
                               kMostEdge));
  const ImageSize& crop = config_.crop_size;
  if (config_.do_center_crop && !type->crops) fail(config_, "does not crop pictures");
  if (config_.do_center_crop &&
      !(edge(crop.height) && edge(crop.width) && crop.shortest_edge == 0 && crop.longest_edge == 0))
    fail(config_, absl::StrCat("crop_size must be a height and a width from 1 to ", kMostEdge));
  // Only values that a file can hold: numbers in JSON are finite.
  const auto positive = [&](double value, const char* name) {
    if (!(value > 0 && std::isfinite(value))) fail(config_, absl::StrCat(name, " must be a number above 0"));
  };
  positive(config_.crop_pct, "crop_pct");
  positive(config_.rescale_factor, "rescale_factor");
  for (const double s : config_.image_std) positive(s, "image_std");
  for (const double m : config_.image_mean)
    if (!std::isfinite(m)) fail(config_, "image_mean must be numbers");
}
ImageProcessor::ImageProcessor(const ImageProcessor&) = default;
ImageProcessor::ImageProcessor(ImageProcessor&&) noexcept = default;
ImageProcessor& ImageProcessor::operator=(const ImageProcessor&) = default;
ImageProcessor& ImageProcessor::operator=(ImageProcessor&&) noexcept = default;
ImageProcessor::~ImageProcessor() = default;

ImageProcessor ImageProcessor::from_pretrained(const std::string& folder, const ImageProcessorOptions& options) {
  return within_memory("ImageProcessor::from_pretrained", [&] {
    const std::string path = (fs::path(folder) / kFile).string();
    ConfigFields config(path, io::read_text(path, ConfigFields::kMostBytes), ConfigFields::kImageProcessor);
    const std::string older = config.word("feature_extractor_type", ""),
                      name = config.word("image_processor_type", older);
    const ProcessorType* type = name.empty() ? type_of_model(folder) : find_type(name);
    if (type == nullptr) {
      if (name.empty()) config.missing("image_processor_type");
      else config.unsupported(config.has("image_processor_type") ? "image_processor_type" : "feature_extractor_type");
      config.check(/*allow_unknown=*/true);
    }
    ImageProcessorConfig read = read_config(config, *type);
    config.check(options.allow_unknown_fields);
    ImageProcessor processor(std::move(read), options);
    processor.others_ = config.fields();
    return processor;
  });
}

void ImageProcessor::check_memory(const Tensor& image, double bytes) const {
  if (bytes > static_cast<double>(options_.max_bytes))
    fail(config_, absl::StrCat("a picture ", to_string(image.sizes()), " would take ", std::ceil(bytes / (1 << 20)),
                               " MiB, more than max_bytes = ", options_.max_bytes, " (ImageProcessorOptions)"));
}

std::array<int64_t, 2> ImageProcessor::resized_edges(const Tensor& image, int64_t height, int64_t width) const {
  if (!config_.do_resize) return {height, width};
  const Edges edges = edges_after(config_, static_cast<double>(height), static_cast<double>(width));
  if (edges[0] < 1 || edges[1] < 1)
    fail(config_, absl::StrCat("a picture ", to_string(image.sizes()), " would be resized to nothing"));
  constexpr auto kMost = static_cast<double>(ops::kMostPixels);
  check_memory(image, edges[0] > kMost || edges[1] > kMost ? HUGE_VAL : edges[0] * edges[1]);
  return {static_cast<int64_t>(edges[0]), static_cast<int64_t>(edges[1])};
}

Tensor ImageProcessor::resized(const Tensor& image, const Tensor& pixels) const {
  const int64_t from_height = pixels.size(0), from_width = pixels.size(1);
  const auto [height, width] = resized_edges(image, from_height, from_width);
  check_memory(image, resize_memory(from_height, from_width, height, width, pixels.size(2)));
  Tensor y = resize_bytes(pixels, height, width, config_.resample);
  const auto crop = [&](const ImageSize& size) {
    check_memory(image, 3.0 * static_cast<double>(size.height) * static_cast<double>(size.width));
    y = crop_bytes(y, size.height, size.width);
  };
  const int64_t square = config_.size.shortest_edge;
  if (config_.do_resize && config_.type == "ConvNextImageProcessor" && square < kWarped)
    crop({.height = square, .width = square});
  if (config_.do_center_crop) crop(config_.crop_size);
  return y;
}

Tensor ImageProcessor::operator()(std::span<const Tensor> images) const {
  return within_memory("ImageProcessor", [&] {
    const NoGrad off;
    const FloatingPointScope floating_point;
    if (images.empty()) fail(config_, "needs a picture");
    std::array<std::array<float, 256>, 3> tables;
    for (size_t k = 0; k < 3; ++k) tables[k] = table_of(config_, k);
    Tensor batch;
    for (size_t i = 0; i < images.size(); ++i) {
      const Tensor& image = images[i];
      if (!image.defined() || image.dtype() != kU8 || image.rank() != 3 || image.numel() == 0)
        fail(config_, absl::StrCat("a picture must be u8 (C, H, W), got ",
                                   !image.defined() ? "an undefined tensor"
                                                    : absl::StrCat(std::string(name_of(image.dtype())), " ",
                                                                   to_string(image.sizes()))));
      const int64_t channels = image.size(0);
      if (channels != 3 && (!config_.do_convert_rgb || channels > 4))
        fail(config_, absl::StrCat("a picture must have 3 channels (io::ImageMode::kRgb), got ",
                                   to_string(image.sizes()), config_.do_convert_rgb ? "" : "; do_convert_rgb is off"));
      const Tensor pixels = resized(image, rgb_bytes(image.to(kCPU)));
      const int64_t height = pixels.size(0), width = pixels.size(1), n = height * width;
      if (i == 0) {
        check_memory(image, 12.0 * static_cast<double>(n));
        batch = Tensor::empty({static_cast<int64_t>(images.size()), 3, height, width}, {kF32, kCPU});
      }
      if (batch.size(2) != height || batch.size(3) != width)
        fail(config_, absl::StrCat("pictures of one batch must come out in one size, got ", batch.size(2), " x ",
                                   batch.size(3), " and ", height, " x ", width));
      const uint8_t* const bytes = pixels.data<uint8_t>();
      float* to = batch.mutable_data<float>() + static_cast<int64_t>(i) * 3 * n;
      for (size_t k = 0; k < 3; ++k)
        for (int64_t at = 0; at < n; ++at) *to++ = tables[k][bytes[at * 3 + static_cast<int64_t>(k)]];
    }
    return batch;
  });
}

Tensor ImageProcessor::masks(std::span<const Tensor> masks) const {
  return within_memory("ImageProcessor::masks", [&] {
    const NoGrad off;
    if (config_.type != "SegformerImageProcessor") fail(config_, "has no masks; SegformerImageProcessor has");
    if (masks.empty()) fail(config_, "needs a mask");
    std::vector<Tensor> parts;
    for (const Tensor& mask : masks) {
      if (!mask.defined() || is_floating(mask.dtype()) || mask.dtype() == kBool || mask.rank() != 2 ||
          mask.numel() == 0)
        fail(config_, absl::StrCat("a mask must be (H, W) of integers, got ",
                                   !mask.defined() ? "an undefined tensor"
                                                   : absl::StrCat(std::string(name_of(mask.dtype())), " ",
                                                                  to_string(mask.sizes()))));
      const Tensor numbers = mask.to(kCPU).to(kI64).contiguous();
      const int64_t from_height = numbers.size(0), from_width = numbers.size(1);
      const auto [height, width] = resized_edges(mask, from_height, from_width);
      check_memory(mask, 8.0 * static_cast<double>(height) * static_cast<double>(width));
      Tensor y = Tensor::empty({height, width}, {kI64, kCPU});
      int64_t* to = y.mutable_data<int64_t>();
      const std::vector<int64_t> columns = nearest_pixels(from_width, width);
      for (const int64_t row : nearest_pixels(from_height, height))
        for (const int64_t column : columns) {
          const int64_t c = numbers.data<int64_t>()[row * from_width + column];
          // Class 0 and 255 become 255, which does not count; the others become one less.
          *to++ = !config_.do_reduce_labels ? c : c == 0 || c == 255 ? 255 : c - 1;
        }
      if (!parts.empty() && !(parts[0].sizes() == y.sizes()))
        fail(config_, absl::StrCat("masks of one batch must come out in one size, got ", to_string(parts[0].sizes()),
                                   " and ", to_string(y.sizes())));
      parts.push_back(y);
    }
    return ops::stack(parts);
  });
}

void ImageProcessor::save_pretrained(const std::string& folder) const {
  within_memory("ImageProcessor::save_pretrained", [&] {
    const ImageProcessorConfig& c = config_;
    const auto size_text = [](const ImageSize& size) {
      std::vector<std::string> edges;
      const auto add = [&](const char* name, int64_t n) {
        if (n > 0) edges.push_back(absl::StrCat("\n    ", json_text(name), ": ", n));
      };
      add("height", size.height);
      add("width", size.width);
      add("shortest_edge", size.shortest_edge);
      add("longest_edge", size.longest_edge);
      return absl::StrCat("{", absl::StrJoin(edges, ","), "\n  }");
    };
    const auto numbers = [](const std::array<double, 3>& values) {
      return absl::StrCat("[\n    ", json_text(values[0]), ",\n    ", json_text(values[1]), ",\n    ",
                          json_text(values[2]), "\n  ]");
    };
    const int64_t resample = c.resample == InterpolateMode::kNearest    ? 0
                             : c.resample == InterpolateMode::kBilinear ? 2
                                                                        : 3;
    std::vector<ConfigField> fields = {{"do_center_crop", json_text(c.do_center_crop)},
                                       {"do_convert_rgb", json_text(c.do_convert_rgb)},
                                       {"do_normalize", json_text(c.do_normalize)},
                                       {"do_rescale", json_text(c.do_rescale)},
                                       {"do_resize", json_text(c.do_resize)},
                                       {"image_mean", numbers(c.image_mean)},
                                       {"image_processor_type", json_text(c.type)},
                                       {"image_std", numbers(c.image_std)},
                                       {"resample", json_text(resample)},
                                       {"rescale_factor", json_text(c.rescale_factor)}};
    if (c.size.height > 0 || c.size.shortest_edge > 0) fields.push_back({"size", size_text(c.size)});
    if (c.do_center_crop) fields.push_back({"crop_size", size_text(c.crop_size)});
    if (c.type == "ConvNextImageProcessor") fields.push_back({"crop_pct", json_text(c.crop_pct)});
    if (c.type == "SegformerImageProcessor") fields.push_back({"do_reduce_labels", json_text(c.do_reduce_labels)});
    const auto named = [&](std::string_view name) {
      return std::any_of(fields.begin(), fields.end(), [&](const ConfigField& f) { return f.name == name; });
    };
    for (const ConfigField& field : others_)
      if (!named(field.name) && field.name != "feature_extractor_type" && field.name != "reduce_labels" &&
          field.name != "default_to_square")
        fields.push_back(field);
    io::make_folders(folder);
    write_fields((fs::path(folder) / kFile).string(), fields);
  });
}

}  // namespace rondo::nn
