// Reads and writes images and masks as tensors: PNG with libpng, JPEG with libjpeg-turbo.
//
//   Tensor picture = io::read_image("street.jpg", {.mode = io::ImageMode::kRgb});   // (3, H, W) u8
//   Tensor classes = io::read_mask("street_labelIds.png");                          // (H, W) i32
//   io::write_image("out.png", picture);
//   io::write_mask("prediction.png", classes, palette);
//
// Every failure is a FileError with the file's name: the file is damaged, truncated, of another format, or larger than
// `max_pixels` and `max_bytes` allow. A damaged file never gives a partial image, and a PNG with a wrong checksum is
// damaged. Colour profiles, gamma and the orientation in EXIF data are not applied. Tensors are in host memory,
// regardless of the default device. Thread safety: all functions may run at the same time.
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
  // The channels of the file: 1 gray, 2 gray and alpha, 3 RGB, 4 RGBA. A palette becomes RGB, or RGBA if it has
  // transparent colours; CMYK becomes RGB.
  kAsStored,
  kGray,  // 0.299 R + 0.587 G + 0.114 B, rounded (ITU-R BT.601); alpha is dropped
  kRgb,   // gray is repeated; alpha is dropped
  kRgba,  // alpha is 255 if the file has none
};

struct ImageInfo {
  ImageFormat format = ImageFormat::kPng;
  int64_t height = 0;
  int64_t width = 0;
  int channels = 0;  // of the tensor that kAsStored gives
  int bits = 8;      // per channel, or per index if the image has a palette
  bool palette = false;
};

struct ReadImageOptions {
  ImageMode mode = ImageMode::kAsStored;
  // True: channels of 16 bits are rounded to 8 bits. False: such a file is an error.
  bool round_16_bits = false;
  int64_t max_pixels = int64_t{1} << 27;  // width times height
  // The limit of memory for decoding, including the image. It also limits the work: an unusual image, such as 2^27 rows
  // of one pixel or a JPEG of 500 scans, may need a limit above its size. The result is the same in every run.
  int64_t max_bytes = int64_t{1} << 28;
};

struct WriteImageOptions {
  int jpeg_quality = 90;    // 1 to 100
  int png_compression = 6;  // 0 (none) to 9, as in zlib
};

using Color = std::array<uint8_t, 3>;  // red, green, blue

// Returns the information in the header. Reads the file only up to its first pixel.
ImageInfo image_info(const std::string& path);

// Returns (C, H, W) u8 in channels-last memory layout, i.e. a view of a dense (H, W, C).
Tensor read_image(const std::string& path, const ReadImageOptions& options = {});
// Like read_image(), from the bytes of a file. `name` replaces the path in errors.
Tensor decode_image(std::string_view bytes, const std::string& name, const ReadImageOptions& options = {});

// Returns (H, W) i32, contiguous: the number of 1 to 16 bits that a PNG stores for each pixel, unchanged. This is the
// palette index, or the level of gray. Images with RGB or alpha channels are errors, and so is every JPEG, because JPEG
// does not keep exact numbers. Limits: see ReadImageOptions.
Tensor read_mask(const std::string& path, int64_t max_pixels = ReadImageOptions().max_pixels,
                 int64_t max_bytes = ReadImageOptions().max_bytes);
Tensor decode_mask(std::string_view bytes, const std::string& name, int64_t max_pixels = ReadImageOptions().max_pixels,
                   int64_t max_bytes = ReadImageOptions().max_bytes);

// Writes an image file. `image` is u8, (C, H, W) with 1 to 4 channels or (H, W), in any layout and on any device; JPEG
// takes 1 or 3 channels. The suffix selects the format: .png, .jpg or .jpeg. The file is written atomically
// (atomic_file.h).
void write_image(const std::string& path, const Tensor& image, const WriteImageOptions& options = {},
                 std::source_location where = std::source_location::current());
// Returns the bytes of the file that write_image() would write.
std::string encode_image(const Tensor& image, ImageFormat format, const WriteImageOptions& options = {},
                         std::source_location where = std::source_location::current());

// Writes a PNG of 8 bits. `mask` is (H, W) of an integer dtype with values in [0, 255], and below palette.size() if
// there is a palette. The palette is stored with the mask: viewers show its colours, read_mask() returns the numbers.
void write_mask(const std::string& path, const Tensor& mask, std::span<const Color> palette = {},
                std::source_location where = std::source_location::current());

}  // namespace rondo::io
#pragma GCC visibility pop
