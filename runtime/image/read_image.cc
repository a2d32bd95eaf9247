// Makes images and masks from the rows that a codec reads.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/image/image_codec.h"

namespace rondo::io {
namespace {

constexpr size_t kBand = 1 << 18;  // bytes of rows that are converted together

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

// ---- Conversions of pixels, all in (H, W, C)

// Luma in fixed point with 16 fractional bits, as in Pillow.
uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((19595 * rgb[0] + 38470 * rgb[1] + 7471 * rgb[2] + 0x8000) >> 16);
}

// Returns the product of two fractions of 255, rounded to nearest.
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

// Ink absorbs light: red = (1 - cyan) (1 - black), in units of 255. Adobe's programs store 255 minus the ink.
void cmyk_to_rgb(const uint8_t* in, uint8_t* out, int64_t pixels, bool inverted) {
  for (int64_t i = 0; i < pixels; ++i, in += 4, out += 3)
    for (int c = 0; c < 3; ++c) out[c] = inverted ? scaled(in[c], in[3]) : scaled(255 - in[c], 255 - in[3]);
}

// Makes a tensor in host memory. Its bytes stay counted in the budget until the image is decoded.
Tensor host_tensor(const Dims& sizes, DType dtype, ImageBudget& budget) {
  size_t bytes = size_of(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  budget.take(bytes);
  return Tensor::empty(sizes, {dtype, kCPU});
}

// Calls take(rows, first pixel, number of pixels) for all pixels in order, in bands of whole rows.
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

}  // namespace

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
      // Works in place: a pixel's three output bytes end before the four input bytes of the next pixel.
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

}  // namespace rondo::io
