// Converts images and masks to the rows that a codec writes.
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/image/image_codec.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::io {
namespace {

ImageFormat format_of(const std::string& path, std::source_location where) {
  const std::string lower = absl::AsciiStrToLower(path);
  if (absl::EndsWith(lower, ".png")) return ImageFormat::kPng;
  if (absl::EndsWith(lower, ".jpg") || absl::EndsWith(lower, ".jpeg")) return ImageFormat::kJpeg;
  throw_op_error("write_image", absl::StrCat("'", path, "' must end with .png, .jpg or .jpeg"), where);
}

// Returns the image as dense rows of (H, W, C), and the tensor that holds their memory.
std::pair<Pixels, Tensor> dense_pixels(const Tensor& image, std::source_location where) {
  if (image.dtype(where) != kU8)
    throw_op_error("write_image",
                   absl::StrCat("the image must be u8, not ", std::string(name_of(image.dtype())),
                                "; for values in [0, 1]: (image * 255 + 0.5).to(kU8)"),
                   where);
  const int rank = image.rank();
  if (rank != 2 && (rank != 3 || image.size(0) < 1 || image.size(0) > 4))
    throw_op_error(
        "write_image",
        absl::StrCat("the image must be (C, H, W) with 1 to 4 channels or (H, W), not ", to_string(image.sizes())),
        where);
  if (image.numel() == 0)
    throw_op_error("write_image", absl::StrCat("the image has no pixels: ", to_string(image.sizes())), where);
  const NoGrad no_grad;
  const Tensor on_host = image.to(kCPU);
  const Tensor rows = rank == 2 ? on_host.contiguous() : on_host.permute({1, 2, 0}).contiguous();
  return {Pixels{rows.data<uint8_t>(), rows.size(0), rows.size(1), rank == 2 ? 1 : static_cast<int>(rows.size(2))},
          rows};
}

}  // namespace

std::string encode_image(const Tensor& image, ImageFormat format, const WriteImageOptions& options,
                         std::source_location where) try {
  if (options.jpeg_quality < 1 || options.jpeg_quality > 100)
    throw_op_error("write_image", absl::StrCat("jpeg_quality must be in [1, 100], not ", options.jpeg_quality), where);
  if (options.png_compression < 0 || options.png_compression > 9)
    throw_op_error("write_image", absl::StrCat("png_compression must be in [0, 9], not ", options.png_compression),
                   where);
  const auto [pixels, rows] = dense_pixels(image, where);
  if (format == ImageFormat::kPng) return encode_png(pixels, options.png_compression, {});
  if (pixels.channels == 2 || pixels.channels == 4)
    throw_op_error("write_image", absl::StrCat("JPEG has no alpha; the image has ", pixels.channels, " channels"),
                   where);
  constexpr int64_t kMostJpeg = 65500;  // libjpeg's limit; that of the format is 65535
  if (pixels.height > kMostJpeg || pixels.width > kMostJpeg)
    throw_op_error("write_image",
                   absl::StrCat("JPEG has at most ", kMostJpeg, " rows and columns; the image is ",
                                to_string(image.sizes()), ": write a PNG"),
                   where);
  return encode_jpeg(pixels, options.jpeg_quality);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("encode_image");
}

void write_image(const std::string& path, const Tensor& image, const WriteImageOptions& options,
                 std::source_location where) try {
  write_file_atomic(path, encode_image(image, format_of(path, where), options, where));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("write_image");
}

void write_mask(const std::string& path, const Tensor& mask, std::span<const Color> palette,
                std::source_location where) try {
  if (format_of(path, where) != ImageFormat::kPng)
    throw_op_error("write_mask", absl::StrCat("'", path, "' must end with .png: JPEG does not keep numbers"), where);
  if (is_floating(mask.dtype(where)) || mask.rank() != 2 || mask.numel() == 0)
    throw_op_error("write_mask",
                   absl::StrCat("the mask must be (H, W) of integers, not ", to_string(mask.sizes()), " of ",
                                std::string(name_of(mask.dtype()))),
                   where);
  if (palette.size() > 256)
    throw_op_error("write_mask", absl::StrCat("a palette has at most 256 colours, not ", palette.size()), where);
  const std::vector<int64_t> numbers = mask.to_vector<int64_t>(where);
  const int64_t limit = palette.empty() ? 256 : static_cast<int64_t>(palette.size());
  std::vector<uint8_t> bytes(numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0 || numbers[i] >= limit)
      throw_op_error("write_mask", absl::StrCat("the value ", numbers[i], " is outside of [0, ", limit - 1, "]"),
                     where);
    bytes[i] = static_cast<uint8_t>(numbers[i]);
  }
  write_file_atomic(
      path, encode_png({bytes.data(), mask.size(0), mask.size(1), 1}, WriteImageOptions().png_compression, palette));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("write_mask");
}

}  // namespace rondo::io
