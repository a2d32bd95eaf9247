#include <png.h>

#include <algorithm>
#include <bit>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/io/image_codec.h"

namespace rondo::io {
namespace {

struct Message {
  char text[160] = "";
};

// libpng's error function: keeps the text and jumps to the step's setjmp().
[[noreturn]] void on_png_error(png_structp png, png_const_charp text) {
  auto* message = static_cast<Message*>(png_get_error_ptr(png));
  std::snprintf(message->text, sizeof(message->text), "%s", text);
  png_longjmp(png, 1);
}

void on_png_warning(png_structp, png_const_charp) {}

// Chunks that change nothing of what this reader returns. Some are compressed: a small file could make them huge.
constexpr png_byte kIgnored[] =
    "bKGD\0cHRM\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0sTER\0tEXt\0tIME\0zTXt";

class PngDecoder final : public ImageDecoder {
 public:
  PngDecoder(std::string_view bytes, const std::string& name) : name_(name), left_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &message_, on_png_error, on_png_warning);
    if (png_ != nullptr) png_info_ = png_create_info_struct(png_);
    if (png_info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::bad_alloc();
    }
    png_set_read_fn(png_, this, read_bytes);
    if (!read_header()) {
      png_destroy_read_struct(&png_, &png_info_, nullptr);
      fail();
    }
    describe();
  }
  ~PngDecoder() override { png_destroy_read_struct(&png_, &png_info_, nullptr); }

  void read(PixelForm form, uint8_t* pixels, size_t row_bytes) override {
    if (!transform(form)) fail();
    invariant(png_get_rowbytes(png_, png_info_) == row_bytes, "libpng unpacks rows of the expected size");
    std::vector<png_bytep> rows(static_cast<size_t>(info.height));
    for (size_t y = 0; y < rows.size(); ++y) rows[y] = pixels + y * row_bytes;
    if (!read_rows(rows.data())) fail();
  }

 private:
  [[noreturn]] void fail() const { throw FileError(name_, absl::StrCat("not a whole PNG file: ", message_.text)); }

  static void read_bytes(png_structp png, png_bytep out, size_t count) {
    auto* self = static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (count > self->left_.size()) png_error(png, "it ends too early");
    std::memcpy(out, self->left_.data(), count);
    self->left_.remove_prefix(count);
  }

  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    // image.cc limits the number of pixels, with a better message.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, kIgnored, static_cast<int>(sizeof(kIgnored) / 5));
    png_read_info(png_, png_info_);
    return true;
  }

  void describe() {
    const int color = png_get_color_type(png_, png_info_);
    const bool alpha = (color & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png_, png_info_, PNG_INFO_tRNS) != 0;
    info.format = ImageFormat::kPng;
    info.height = png_get_image_height(png_, png_info_);
    info.width = png_get_image_width(png_, png_info_);
    info.bits = png_get_bit_depth(png_, png_info_);
    info.palette = color == PNG_COLOR_TYPE_PALETTE;
    info.channels = ((color & PNG_COLOR_MASK_COLOR) != 0 ? 3 : 1) + (alpha ? 1 : 0);
  }

  bool transform(PixelForm form) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    if (form == PixelForm::kChannels8) {
      png_set_expand(png_);    // palettes to colours, gray to 8 bits, tRNS to alpha
      png_set_scale_16(png_);  // rounds to nearest
    } else {
      png_set_packing(png_);  // a byte for each number of fewer bits
      if (std::endian::native == std::endian::little) png_set_swap(png_);
    }
    png_set_interlace_handling(png_);
    png_read_update_info(png_, png_info_);
    return true;
  }

  bool read_rows(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  const std::string name_;
  std::string_view left_;
  Message message_;
  png_structp png_ = nullptr;
  png_infop png_info_ = nullptr;
};

// Writing: all that a jump may cross is plain data.
struct PngEncoder {
  Message message;
  std::string* out = nullptr;
  png_structp png = nullptr;
  png_infop info = nullptr;
  bool out_of_memory = false;  // no exception may cross libpng's frames
};

void append_png(png_structp png, png_bytep bytes, size_t count) {
  auto* encoder = static_cast<PngEncoder*>(png_get_io_ptr(png));
  try {
    encoder->out->append(reinterpret_cast<const char*>(bytes), count);
  } catch (const std::bad_alloc&) {
    encoder->out_of_memory = true;
  }
  if (encoder->out_of_memory) png_error(png, "out of memory");
}

void flush_png(png_structp) {}

bool write_png(PngEncoder& encoder, const Pixels& pixels, int compression, const png_color* palette, int colors) {
  if (setjmp(png_jmpbuf(encoder.png)) != 0) return false;
  constexpr int kTypes[] = {0, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGBA};
  png_set_write_fn(encoder.png, &encoder, append_png, flush_png);
  png_set_user_limits(encoder.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_IHDR(encoder.png, encoder.info, static_cast<png_uint_32>(pixels.width),
               static_cast<png_uint_32>(pixels.height), 8,
               colors > 0 ? PNG_COLOR_TYPE_PALETTE : kTypes[pixels.channels], PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (colors > 0) png_set_PLTE(encoder.png, encoder.info, palette, colors);
  png_set_compression_level(encoder.png, compression);
  png_write_info(encoder.png, encoder.info);
  const size_t row_bytes = static_cast<size_t>(pixels.width) * static_cast<size_t>(pixels.channels);
  for (int64_t y = 0; y < pixels.height; ++y)
    png_write_row(encoder.png, pixels.data + static_cast<size_t>(y) * row_bytes);
  png_write_end(encoder.png, encoder.info);
  return true;
}

}  // namespace

std::unique_ptr<ImageDecoder> open_png(std::string_view bytes, const std::string& name) {
  return std::make_unique<PngDecoder>(bytes, name);
}

std::string encode_png(const Pixels& pixels, int compression, std::span<const Color> palette) {
  std::vector<png_color> colors;
  for (const Color& color : palette) colors.push_back({color[0], color[1], color[2]});
  std::string out;
  PngEncoder encoder;
  encoder.out = &out;
  encoder.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &encoder.message, on_png_error, on_png_warning);
  if (encoder.png != nullptr) encoder.info = png_create_info_struct(encoder.png);
  encoder.out_of_memory = encoder.info == nullptr;
  const bool encoded = !encoder.out_of_memory &&
                       write_png(encoder, pixels, compression, colors.data(), static_cast<int>(colors.size()));
  png_destroy_write_struct(&encoder.png, &encoder.info);
  if (encoder.out_of_memory) throw std::bad_alloc();
  if (!encoded) throw Error(absl::StrCat("libpng cannot write this image: ", encoder.message.text));
  return out;
}

}  // namespace rondo::io
