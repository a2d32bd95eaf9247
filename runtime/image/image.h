// Images and masks as tensors: PNG by libpng, JPEG by libjpeg-turbo.
//
//   Tensor picture = io::read_image("street.jpg", {.mode = io::ImageMode::kRgb});   // (3, H, W) u8
//   Tensor classes = io::read_mask("street_labelIds.png");                          // (H, W) i32
//   io::write_image("out.png", picture);
//   io::write_mask("prediction.png", classes, palette);
//
// Every failure is a FileError with the file's name: a file that is damaged, cut off, of another format, or larger than
// `max_pixels` and `max_bytes` allow. A damaged file is never half an image, and a PNG whose checksums do not hold is
// damaged. Colour profiles, gamma and the orientation in EXIF data are not applied. Tensors are in host memory; the
// default device does not matter. Thread safety: all functions may run at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::io {

enum class ImageFormat { kPng, kJpeg };

enum class ImageMode {
  // As many channels as the file has: 1 gray, 2 gray and alpha, 3 RGB, 4 RGBA. A palette becomes RGB, or RGBA if it has
  // transparent colours; CMYK becomes RGB.
  kAsStored,
  kGray,  // 0.299 R + 0.587 G + 0.114 B, rounded (ITU-R BT.601); alpha is dropped
  kRgb,   // gray is repeated; alpha is dropped
  kRgba,  // alpha is 255 where the file has none
};

struct ImageInfo {
  ImageFormat format = ImageFormat::kPng;
  int64_t height = 0;
  int64_t width = 0;
  int channels = 0;  // those of kAsStored
  int bits = 8;      // of a channel; of an index if the image has a palette
  bool palette = false;
};

struct ReadImageOptions {
  ImageMode mode = ImageMode::kAsStored;
  // Channels of 16 bits become the nearest value of 8 bits. Otherwise such a file is an error.
  bool round_16_bits = false;
  int64_t max_pixels = int64_t{1} << 27;  // width times height
  // The most memory that decoding may take, the image included. It bounds the work, too: an image of unusual form, such
  // as 2^27 rows of one pixel or a JPEG of 500 scans, may need more than its size. It is the same for every run.
  int64_t max_bytes = int64_t{1} << 28;
};

struct WriteImageOptions {
  int jpeg_quality = 90;    // 1 to 100
  int png_compression = 6;  // 0 (none) to 9, as in zlib
};

using Color = std::array<uint8_t, 3>;  // red, green, blue

// What the header says. The file is read up to its first pixel.
ImageInfo image_info(const std::string& path);

// (C, H, W) u8. The memory is that of (H, W, C), i.e. the tensor is laid out channels-last.
Tensor read_image(const std::string& path, const ReadImageOptions& options = {});
// The same, from the bytes of a file. `name` stands for the path in errors.
Tensor decode_image(std::string_view bytes, const std::string& name, const ReadImageOptions& options = {});

// (H, W) i32, contiguous: what a PNG with a palette or of gray stores for each pixel, unchanged, in 1 to 16 bits.
// Colours, alpha and JPEG, which does not keep numbers, are errors. The limits are those of ReadImageOptions.
Tensor read_mask(const std::string& path, int64_t max_pixels = ReadImageOptions().max_pixels,
                 int64_t max_bytes = ReadImageOptions().max_bytes);
Tensor decode_mask(std::string_view bytes, const std::string& name, int64_t max_pixels = ReadImageOptions().max_pixels,
                   int64_t max_bytes = ReadImageOptions().max_bytes);

// `image` is u8, (C, H, W) with 1 to 4 channels or (H, W), in any layout and on any device; JPEG takes 1 or 3 channels.
// The suffix chooses the format: .png, .jpg or .jpeg. The file appears whole or not at all (atomic_file.h).
void write_image(const std::string& path, const Tensor& image, const WriteImageOptions& options = {},
                 std::source_location where = std::source_location::current());
// The bytes of such a file.
std::string encode_image(const Tensor& image, ImageFormat format, const WriteImageOptions& options = {},
                         std::source_location where = std::source_location::current());

// A PNG of 8 bits. `mask` is (H, W) of an integer dtype; its values lie in [0, 255], and below palette.size() if there
// is a palette, which is stored with the mask: viewers show its colours, read_mask() returns the numbers.
void write_mask(const std::string& path, const Tensor& mask, std::span<const Color> palette = {},
                std::source_location where = std::source_location::current());

}  // namespace rondo::io
#pragma GCC visibility pop
