#include <png.h>

#include <algorithm>
#include <bit>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/image/image_codec.h"

namespace rondo::io {
namespace {

struct Message {
  char text[160] = "";
};

// libpng's error function: stores the text and jumps to the setjmp() of the current step.
[[noreturn]] void on_png_error(png_structp png, png_const_charp text) {
  auto* message = static_cast<Message*>(png_get_error_ptr(png));
  std::snprintf(message->text, sizeof(message->text), "%s", text);
  png_longjmp(png, 1);
}

void on_png_warning(png_structp, png_const_charp) {}

// Chunks that do not affect the result. They are skipped, because compressed ones in a small file may be huge.
constexpr png_byte kIgnored[] =
    "bKGD\0cHRM\0eXIf\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0sTER\0tEXt\0tIME\0zTXt";

class PngDecoder final : public ImageDecoder {
 public:
  PngDecoder(ImageBytes& bytes, ImageBudget& budget) : ImageDecoder(bytes, budget) {
    png_ = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &message_, on_png_error, on_warning, this, take_memory,
                                    give_memory_back);
    if (png_ != nullptr) png_info_ = png_create_info_struct(png_);
    if (png_info_ == nullptr) fail_to_open();
    png_set_read_fn(png_, this, read_bytes);
    if (!read_header()) fail_to_open();
    describe();
  }
  ~PngDecoder() override { png_destroy_read_struct(&png_, &png_info_, nullptr); }

  void start(PixelForm form) override {
    if (!transform(form)) fail("PNG", message_.text);
    const auto rows = static_cast<uint64_t>(info.height), passes = static_cast<uint64_t>(passes_);
    const uint64_t row_bytes = std::max(stored_row_bytes_, png_get_rowbytes(png_, png_info_)) + 1;
    budget_.work(rows * passes * 64);
    budget_.work(rows * row_bytes * (passes > 1 ? 4 : 1));
  }

  void read_rows(uint8_t* rows, int64_t count, size_t row_bytes) override {
    invariant(png_get_rowbytes(png_, png_info_) == row_bytes, "libpng unpacks rows of the expected size");
    invariant(!rows_together || count == info.height, "an interlaced image is read at once");
    if (!unpack(rows, count, row_bytes)) fail("PNG", message_.text);
    rows_read_ += count;
    if (rows_read_ == info.height && !read_end()) fail("PNG", message_.text);
  }

 private:
  static PngDecoder* of(void* self) { return static_cast<PngDecoder*>(self); }

  // No destructor runs after a constructor that throws.
  [[noreturn]] void fail_to_open() {
    png_destroy_read_struct(&png_, &png_info_, nullptr);
    fail("PNG", message_.text);
  }

  static png_voidp take_memory(png_structp png, png_alloc_size_t bytes) {
    PngDecoder* const self = of(png_get_mem_ptr(png));
    void* block = nullptr;
    self->guarded([&] { block = self->budget_.allocate(bytes); });
    return block;  // libpng reports an error if it is null
  }
  static void give_memory_back(png_structp png, png_voidp block) {
    of(png_get_mem_ptr(png))->budget_.deallocate(block);
  }

  static void read_bytes(png_structp png, png_bytep out, size_t count) {
    PngDecoder* const self = of(png_get_io_ptr(png));
    constexpr png_uint_32 kPixels = 0x49444154;  // IDAT
    const bool dropped = self->all_unpacked_ && png_get_io_chunk_type(png) == kPixels;
    bool whole = false;
    self->guarded([&] { whole = self->copy(out, count, dropped ? 512 : 4); });
    if (!whole) png_error(png, "it ends too early");
  }
  // Returns false if the file has fewer bytes. Throws FileError.
  bool copy(png_bytep out, size_t count, uint64_t units_of_a_byte) {
    budget_.work(32 + count * units_of_a_byte);
    while (count > 0) {
      const std::string_view front = bytes_.front();
      if (front.empty()) return false;
      const size_t part = std::min(count, front.size());
      std::memcpy(out, front.data(), part);
      bytes_.drop(part);
      out += part;
      count -= part;
    }
    return true;
  }

  // libpng calls this function after a row is unpacked. After the last row, libpng reads the rest of the stream,
  // however long that is.
  static void on_row(png_structp png, png_row_infop, png_bytep) {
    PngDecoder* const self = of(png_get_mem_ptr(png));
    self->all_unpacked_ = png_get_current_row_number(png) + 1 == png_get_image_height(png, self->png_info_) &&
                          png_get_current_pass_number(png) + 1 == self->passes_;
  }

  // libpng warns about a chunk that it ignores: one of wrong length, at a wrong place, or a duplicate. If transparency
  // or palette colours are lost that way, the image would be wrong, so the warning becomes an error.
  static void on_warning(png_structp png, png_const_charp text) {
    const int color = png_get_color_type(png, of(png_get_mem_ptr(png))->png_info_);
    const bool palette = color == PNG_COLOR_TYPE_PALETTE, alpha = (color & PNG_COLOR_MASK_ALPHA) != 0;
    const bool lost_alpha = !alpha && std::strncmp(text, "tRNS: ", 6) == 0;
    const bool lost_colors = palette && std::strncmp(text, "PLTE: ", 6) == 0;
    if (lost_alpha || lost_colors) on_png_error(png, text);
  }

  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    // read_image.cc limits the number of pixels, with a better message.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, kIgnored, static_cast<int>(sizeof(kIgnored) / 5));
    // A wrong checksum is an error in every chunk: the damaged bit may be in the chunk's name, and then a tRNS would be
    // ignored as an unknown chunk.
    png_set_crc_action(png_, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
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
    stored_row_bytes_ = png_get_rowbytes(png_, png_info_);
    rows_together = png_get_interlace_type(png_, png_info_) != PNG_INTERLACE_NONE;
  }

  bool transform(PixelForm form) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    if (form == PixelForm::kChannels8) {
      png_set_expand(png_);    // palettes to colours, gray to 8 bits, tRNS to alpha
      png_set_scale_16(png_);  // rounds to nearest
    } else {
      png_set_packing(png_);  // one byte for each number, also if it has fewer bits
      if (std::endian::native == std::endian::little) png_set_swap(png_);
    }
    png_set_read_user_transform_fn(png_, on_row);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, png_info_);
    return true;
  }

  bool unpack(uint8_t* rows, int64_t count, size_t row_bytes) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    unpack_passes(rows, count, row_bytes);
    return true;
  }
  // A separate function, so that the frame of setjmp() has no variable that changes before a possible longjmp().
  [[gnu::noinline]] void unpack_passes(uint8_t* rows, int64_t count, size_t row_bytes) {
    for (int pass = 0; pass < passes_; ++pass)
      for (int64_t y = 0; y < count; ++y) {
        // The last pass of an interlaced image has only odd rows. If the last row is even, it needs no unpacking.
        if (pass == 6 && y + 1 == count && y % 2 == 0) all_unpacked_ = true;
        png_read_row(png_, rows + static_cast<size_t>(y) * row_bytes, nullptr);
      }
  }
  bool read_end() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_end(png_, png_info_);  // without png_info_ it would ignore chunks without a warning
    return true;
  }

  Message message_;
  png_structp png_ = nullptr;
  png_infop png_info_ = nullptr;
  size_t stored_row_bytes_ = 0;
  int passes_ = 1;
  int64_t rows_read_ = 0;
  bool all_unpacked_ = false;
};

// The state while a PNG is written. It is plain data, because longjmp() may skip destructors.
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

std::unique_ptr<ImageDecoder> open_png(ImageBytes& bytes, ImageBudget& budget) {
  return std::make_unique<PngDecoder>(bytes, budget);
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
