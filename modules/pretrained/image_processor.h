// ImageProcessor: turns pictures into the inputs of a published vision model, as preprocessor_config.json says.
//
//   const auto processor = nn::ImageProcessor::from_pretrained("models/vit");
//   const Tensor picture = io::read_image("cat.jpg", {.mode = io::ImageMode::kRgb});   // (3, H, W) u8
//   const Tensor logits = model(processor(picture));                                   // of (1, 3, 224, 224) f32
//   processor.save_pretrained("tuned");                                                // what transformers reads
//
// A picture is resized, its middle is cut out, and its bytes become (byte * rescale_factor - mean) / std. The results
// are those of transformers' processors with Pillow 13: the same bytes after resizing, the same floats after
// normalising. Transformers' processors with torchvision, or with an older Pillow, may round some pixels differently.
//
// Classes: ViTImageProcessor, DeiTImageProcessor, SegformerImageProcessor, ConvNextImageProcessor (ResNet and RegNet,
// too), BitImageProcessor, CLIPImageProcessor; also under their older names (ViTFeatureExtractor). ConfigError lists
// fields that would change pictures in a way that is not supported, as for config.json (auto_model.h).
//
// Thread safety: all calls of one processor may run at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rondo/modules/pretrained/config_error.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct ConfigField;

// Either height and width, or shortest_edge, which keeps the picture's proportions. longest_edge, if not 0, limits the
// longer edge then.
struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;
  int64_t shortest_edge = 0;
  int64_t longest_edge = 0;
};

// The fields of the file; the defaults are those of ViTImageProcessor.
struct ImageProcessorConfig {
  std::string type = "ViTImageProcessor";  // the field image_processor_type
  bool do_resize = true;
  ImageSize size = {.height = 224, .width = 224};
  ops::InterpolateMode resample = ops::InterpolateMode::kBilinear;  // with antialias, as in Pillow
  // ConvNextImageProcessor. If size.shortest_edge is below 384, the shorter edge is resized to size.shortest_edge /
  // crop_pct, and the middle, a square with edges of size.shortest_edge, is cut out. From 384 on, the whole picture is
  // resized to the square.
  double crop_pct = 224.0 / 256.0;
  bool do_center_crop = false;  // cuts out the middle; smaller pictures get zeros around them
  ImageSize crop_size = {};     // height and width
  bool do_rescale = true;
  double rescale_factor = 1.0 / 255.0;
  bool do_normalize = true;
  std::array<double, 3> image_mean = {0.5, 0.5, 0.5};
  std::array<double, 3> image_std = {0.5, 0.5, 0.5};
  bool do_convert_rgb = false;    // gray pictures are accepted, and pictures with alpha, which are laid over white
  bool do_reduce_labels = false;  // SegformerImageProcessor: masks() turns class 0 into 255, and class n into n - 1
};

struct ImageProcessorOptions {
  // True: ignores fields that this version does not know. False: they are an error, because they may change the
  // pictures.
  bool allow_unknown_fields = false;
  // The most bytes that one step of processing a picture, or its result, may take. A small file may need much memory.
  int64_t max_bytes = int64_t{1} << 28;
};

class ImageProcessor {
 public:
  static constexpr const char* kFile = "preprocessor_config.json";
  // The largest edge: of sizes in the file, and of pictures after resizing.
  static constexpr int64_t kMostEdge = 1 << 16;

  // Throws Error if the config contradicts itself, or if from_pretrained() would refuse it in a file.
  explicit ImageProcessor(ImageProcessorConfig config, const ImageProcessorOptions& options = {});
  // Reads a folder's preprocessor_config.json. If it does not name its class, the class belongs to the model_type in
  // config.json. Throws FileError, ConfigError.
  static ImageProcessor from_pretrained(const std::string& folder, const ImageProcessorOptions& options = {});
  ImageProcessor(const ImageProcessor&);
  ImageProcessor(ImageProcessor&&) noexcept;
  ImageProcessor& operator=(const ImageProcessor&);
  ImageProcessor& operator=(ImageProcessor&&) noexcept;
  ~ImageProcessor();

  const ImageProcessorConfig& config() const { return config_; }

  // Pictures u8 (C, H, W) of any size, as io::read_image() makes them, -> f32 (B, 3, h, w) in host memory. Throws Error
  // if a picture is of another dtype or shape, has other than 3 channels (unless do_convert_rgb), or would take more
  // than max_bytes. Throws Error if two results differ in size, which cannot happen with `size` as height and width, or
  // with a crop.
  Tensor operator()(std::span<const Tensor> images) const;
  Tensor operator()(const Tensor& image) const { return (*this)({&image, 1}); }
  // SegformerImageProcessor only: masks (H, W) of an integer dtype, as io::read_mask() makes them, -> i64 (B, h, w),
  // each pixel with the class of the nearest one. Throws Error as above, and for other processors.
  Tensor masks(std::span<const Tensor> masks) const;
  Tensor masks(const Tensor& mask) const { return masks({&mask, 1}); }

  // Writes preprocessor_config.json, whole or not at all. Fields of the original file that are not in config() stay.
  // Throws FileError.
  void save_pretrained(const std::string& folder) const;

 private:
  // `image`: the picture that the caller passed, for error messages.
  Tensor resized(const Tensor& image, const Tensor& pixels) const;  // u8 (H, W, 3) -> (h, w, 3)
  std::array<int64_t, 2> resized_edges(const Tensor& image, int64_t height, int64_t width) const;
  void check_memory(const Tensor& image, double bytes) const;

  ImageProcessorConfig config_;
  ImageProcessorOptions options_;
  std::vector<ConfigField> others_;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
