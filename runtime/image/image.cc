#include "rondo/runtime/image/image.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/image/image_codec.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::io {
namespace {

constexpr size_t kBand = 1 << 18;  // bytes of the rows that are converted at once

std::unique_ptr<ImageDecoder> open_image(ImageBytes& bytes, ImageBudget& budget) {
  const std::string_view front = bytes.front();
  if (front.starts_with("\x89PNG\r\n\x1a\n")) return open_png(bytes, budget);
  if (front.starts_with("\xff\xd8\xff")) return open_jpeg(bytes, budget);
  throw FileError(budget.name(),
                  front.empty() ? "the file is empty, not a PNG or JPEG image" : "not a PNG or JPEG image");
}

void check_size(const ImageInfo& info, const std::string& name, int64_t max_pixels) {
  max_pixels = std::min(max_pixels, int64_t{1} << 48);  // so that sizes in bytes do not overflow
  if (info.height <= max_pixels / std::max<int64_t>(info.width, 1)) return;
  throw FileError(name, absl::StrCat("the image has ", info.width, " x ", info.height,
                                     " pixels, more than max_pixels = ", max_pixels));
}

// ---- Pixels of one kind to those of another, all of (H, W, C)

// In 16 bits of fraction, as Pillow computes it.
uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 0x8000) >> 16);
}

// The product of two fractions of 255, rounded to nearest.
uint8_t scaled(int a, int b) { return static_cast<uint8_t>((a * b + 127) / 255); }

int channels_of(ImageMode mode, int stored) {
  switch (mode) {
    case ImageMode::kAsStored: return stored;
    case ImageMode::kGray: return 1;
    case ImageMode::kRgb: return 3;
    case ImageMode::kRgba: return 4;
  }
  return stored;
}

// Writes `pixels` pixels of `to` channels from those of `from` channels.
void convert(const uint8_t* in, int from, uint8_t* out, int to, int64_t pixels) {
  const bool gray = from <= 2;
  for (int64_t i = 0; i < pixels; ++i, in += from, out += to) {
    if (to == 1) {
      out[0] = gray ? in[0] : luma(in);
      continue;
    }
    for (int c = 0; c < 3; ++c) out[c] = gray ? in[0] : in[c];
    if (to == 4) out[3] = from == 2 ? in[1] : from == 4 ? in[3] : 255;
  }
}

// Ink absorbs: red is what cyan and black leave. Adobe's programs store the inverse of the ink.
void cmyk_to_rgb(const uint8_t* in, uint8_t* out, int64_t pixels, bool inverted) {
  for (int64_t i = 0; i < pixels; ++i, in += 4, out += 3)
    for (int c = 0; c < 3; ++c) out[c] = inverted ? scaled(in[c], in[3]) : scaled(255 - in[c], 255 - in[3]);
}

// Counted as long as the budget lives.
Tensor host_tensor(const Dims& sizes, DType dtype, ImageBudget& budget) {
  size_t bytes = size_of(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  budget.take(bytes);
  return Tensor::empty(sizes, {dtype, kCPU});
}

// take(rows, first pixel, number of pixels) for all pixels, from the first to the last, in bands of whole rows.
template <class Take> void for_bands(ImageDecoder& decoder, ImageBudget& budget, size_t row_bytes, const Take& take) {
  const int64_t height = decoder.info.height, width = decoder.info.width;
  const int64_t most = decoder.rows_together ? height
                                             : std::clamp(static_cast<int64_t>(kBand / row_bytes), int64_t{1}, height);
  Tensor band = host_tensor({most, static_cast<int64_t>(row_bytes)}, kU8, budget);
  uint8_t* const rows = band.mutable_data<uint8_t>();
  for (int64_t y = 0; y < height; y += most) {
    const int64_t count = std::min(most, height - y);
    decoder.read_rows(rows, count, row_bytes);
    take(rows, y * width, count * width);
  }
}

// ---- Writing

ImageFormat format_of(const std::string& path, std::source_location where) {
  const std::string lower = absl::AsciiStrToLower(path);
  if (absl::EndsWith(lower, ".png")) return ImageFormat::kPng;
  if (absl::EndsWith(lower, ".jpg") || absl::EndsWith(lower, ".jpeg")) return ImageFormat::kJpeg;
  throw_op_error("write_image", absl::StrCat("'", path, "' must end with .png, .jpg or .jpeg"), where);
}

// Dense rows of (H, W, C), kept by the tensor beside them.
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

ImageBudget::ImageBudget(std::string name, int64_t max_bytes)
    : name_(std::move(name)),
      max_bytes_(std::clamp<int64_t>(max_bytes, 0, std::numeric_limits<int64_t>::max() / 4)),
      max_work_(2 * max_bytes_) {}

void ImageBudget::take(size_t bytes) {
  if (bytes > static_cast<size_t>(max_bytes_ - bytes_))
    throw FileError(name_, absl::StrCat("decoding the image takes more memory than max_bytes = ", max_bytes_));
  bytes_ += static_cast<int64_t>(bytes);
  most_bytes_ = std::max(most_bytes_, bytes_);
}

void ImageBudget::work(uint64_t units) {
  if (units > static_cast<uint64_t>(max_work_ - work_))
    throw FileError(name_, absl::StrCat("decoding the image takes more work than max_bytes = ", max_bytes_,
                                        " allows (ReadImageOptions in image.h)"));
  work_ += static_cast<int64_t>(units);
}

// The size of a block lies before it: the libraries do not tell it when they free one.
void* ImageBudget::allocate(size_t bytes) {
  take(bytes);
  std::byte* block = nullptr;
  try {
    block = static_cast<std::byte*>(allocator::allocate(bytes + kAlignment));
  } catch (...) {
    bytes_ -= static_cast<int64_t>(bytes);
    throw;
  }
  std::memcpy(block, &bytes, sizeof(bytes));
  return block + kAlignment;
}

void ImageBudget::deallocate(void* data) noexcept {
  if (data == nullptr) return;
  std::byte* const block = static_cast<std::byte*>(data) - kAlignment;
  size_t bytes = 0;
  std::memcpy(&bytes, block, sizeof(bytes));
  allocator::deallocate(block, bytes + kAlignment);
  bytes_ -= static_cast<int64_t>(bytes);
}

std::string_view ImageBytes::front() {
  if (!front_.empty() || at_ == size_) return front_;
  const size_t count = static_cast<size_t>(std::min<uint64_t>(kPiece, size_ - at_));
  if (file_ != nullptr) {
    file_->read(at_, piece_.data(), count);
    front_ = {piece_.data(), count};
  } else {
    front_ = memory_.substr(static_cast<size_t>(at_), count);
  }
  at_ += count;
  return front_;
}

void ImageBytes::drop(size_t count) { front_.remove_prefix(count); }

void ImageDecoder::fail(const char* format, const char* text) const {
  if (thrown_) std::rethrow_exception(thrown_);
  throw FileError(budget_.name(), absl::StrCat("not a whole ", format, " file: ", text));
}

ImageInfo image_info(const std::string& path) try {
  const OpenFile file(path);
  ImageBytes bytes(file);
  ImageBudget budget(path, ReadImageOptions().max_bytes);
  return open_image(bytes, budget)->info;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("image_info");
}

Tensor read_image(const std::string& path, const ReadImageOptions& options) try {
  const OpenFile file(path);
  ImageBytes bytes(file);
  ImageBudget budget(path, options.max_bytes);
  return decode_image(bytes, options, budget);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("read_image");
}

Tensor decode_image(std::string_view bytes, const std::string& name, const ReadImageOptions& options) try {
  ImageBytes source(bytes);
  ImageBudget budget(name, options.max_bytes);
  return decode_image(source, options, budget);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("decode_image");
}

Tensor decode_image(ImageBytes& bytes, const ReadImageOptions& options, ImageBudget& budget) {
  const std::unique_ptr<ImageDecoder> decoder = open_image(bytes, budget);
  const ImageInfo& info = decoder->info;
  check_size(info, budget.name(), options.max_pixels);
  if (info.bits == 16 && !options.round_16_bits)
    throw FileError(budget.name(), "the image has 16 bits a channel; set round_16_bits to read it with 8");

  decoder->start(PixelForm::kChannels8);
  const bool cmyk = decoder->cmyk != ImageDecoder::Cmyk::kNo;
  const int stored = cmyk ? 4 : info.channels, wanted = channels_of(options.mode, info.channels);
  const auto row_bytes = static_cast<size_t>(info.width * stored);
  Tensor image = host_tensor({info.height, info.width, wanted}, kU8, budget);
  uint8_t* const out = image.mutable_data<uint8_t>();
  if (stored == wanted && !cmyk) {
    decoder->read_rows(out, info.height, row_bytes);
  } else {
    for_bands(*decoder, budget, row_bytes, [&](uint8_t* rows, int64_t first, int64_t count) {
      // In place: a pixel's three bytes do not reach the next pixel's four.
      if (cmyk) cmyk_to_rgb(rows, rows, count, decoder->cmyk == ImageDecoder::Cmyk::kInverted);
      convert(rows, info.channels, out + first * wanted, wanted, count);
    });
  }
  return image.permute({2, 0, 1});
}

Tensor read_mask(const std::string& path, int64_t max_pixels, int64_t max_bytes) try {
  const OpenFile file(path);
  ImageBytes bytes(file);
  ImageBudget budget(path, max_bytes);
  return decode_mask(bytes, max_pixels, budget);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("read_mask");
}

Tensor decode_mask(std::string_view bytes, const std::string& name, int64_t max_pixels, int64_t max_bytes) try {
  ImageBytes source(bytes);
  ImageBudget budget(name, max_bytes);
  return decode_mask(source, max_pixels, budget);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("decode_mask");
}

Tensor decode_mask(ImageBytes& bytes, int64_t max_pixels, ImageBudget& budget) {
  const std::unique_ptr<ImageDecoder> decoder = open_image(bytes, budget);
  const ImageInfo& info = decoder->info;
  check_size(info, budget.name(), max_pixels);
  if (info.format == ImageFormat::kJpeg)
    throw FileError(budget.name(), "a mask cannot be a JPEG file: it does not keep the numbers of classes; use PNG");
  if (!info.palette && info.channels != 1)
    throw FileError(budget.name(),
                    absl::StrCat("a mask stores one number a pixel: a PNG of gray or with a palette; this one has ",
                                 info.channels, " channels"));
  const bool wide = info.bits == 16;
  decoder->start(wide ? PixelForm::kNumbers16 : PixelForm::kNumbers8);
  Tensor mask = host_tensor({info.height, info.width}, kI32, budget);
  int32_t* const out = mask.mutable_data<int32_t>();
  const size_t row_bytes = static_cast<size_t>(info.width) * (wide ? sizeof(uint16_t) : sizeof(uint8_t));
  for_bands(*decoder, budget, row_bytes, [&](const uint8_t* rows, int64_t first, int64_t count) {
    if (wide) std::copy_n(reinterpret_cast<const uint16_t*>(rows), count, out + first);
    else std::copy_n(rows, count, out + first);
  });
  return mask;
}

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
  constexpr int64_t kMostJpeg = 65500;  // of libjpeg; the format ends at 65535
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
