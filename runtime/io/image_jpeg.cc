// jpeglib.h needs size_t and FILE to be declared before it.
#include <cstddef>
#include <cstdio>
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/io/image_codec.h"

namespace rondo::io {
namespace {

// libjpeg hands its `err` back to the handlers, so the public part comes first.
struct JpegErrors {
  jpeg_error_mgr manager;
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX] = "";
};

[[noreturn]] void on_jpeg_error(j_common_ptr codec) {
  auto* errors = reinterpret_cast<JpegErrors*>(codec->err);
  codec->err->format_message(codec, errors->text);
  std::longjmp(errors->jump, 1);
}

// A warning means that the decoder goes on with pixels of its own making. Two kinds leave the pixels alone.
void on_jpeg_message(j_common_ptr codec, int level) {
  const int code = codec->err->msg_code;
  if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_JFIF_MAJOR) on_jpeg_error(codec);
}

// A progressive file of a few kilobytes can ask for thousands of passes over a large image.
constexpr int kMaxScans = 500;
void on_jpeg_progress(j_common_ptr codec) {
  if (reinterpret_cast<j_decompress_ptr>(codec)->input_scan_number > kMaxScans) {
    codec->err->msg_code = JERR_BAD_PROGRESSION;
    on_jpeg_error(codec);
  }
}

void install(JpegErrors& errors) {
  jpeg_std_error(&errors.manager);
  errors.manager.error_exit = on_jpeg_error;
  errors.manager.emit_message = on_jpeg_message;
}

class JpegDecoder final : public ImageDecoder {
 public:
  JpegDecoder(std::string_view bytes, const std::string& name) : name_(name) {
    install(errors_);
    codec_.err = &errors_.manager;
    if (!read_header(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size())) {
      jpeg_destroy_decompress(&codec_);
      fail();
    }
    info.format = ImageFormat::kJpeg;
    info.height = codec_.image_height;
    info.width = codec_.image_width;
    info.bits = codec_.data_precision;
    info.channels = codec_.out_color_space == JCS_GRAYSCALE ? 1 : 3;
    if (codec_.out_color_space == JCS_CMYK) cmyk = codec_.saw_Adobe_marker != 0 ? Cmyk::kInverted : Cmyk::kInk;
  }
  ~JpegDecoder() override { jpeg_destroy_decompress(&codec_); }

  void read(PixelForm form, uint8_t* pixels, size_t row_bytes) override {
    invariant(form == PixelForm::kChannels8, "a JPEG file is no mask");
    if (!read_rows(pixels, row_bytes)) fail();
  }

 private:
  [[noreturn]] void fail() const { throw FileError(name_, absl::StrCat("not a whole JPEG file: ", errors_.text)); }

  bool read_header(const unsigned char* bytes, size_t count) {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&codec_);
    progress_.progress_monitor = on_jpeg_progress;
    codec_.progress = &progress_;
    jpeg_mem_src(&codec_, bytes, count);
    jpeg_read_header(&codec_, TRUE);
    const bool ink = codec_.jpeg_color_space == JCS_CMYK || codec_.jpeg_color_space == JCS_YCCK;
    codec_.out_color_space = ink ? JCS_CMYK : codec_.jpeg_color_space == JCS_GRAYSCALE ? JCS_GRAYSCALE : JCS_RGB;
    codec_.dct_method = JDCT_ISLOW;
    return true;
  }

  bool read_rows(uint8_t* pixels, size_t row_bytes) {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_start_decompress(&codec_);
    while (codec_.output_scanline < codec_.output_height) {
      JSAMPROW row = pixels + codec_.output_scanline * row_bytes;
      jpeg_read_scanlines(&codec_, &row, 1);
    }
    jpeg_finish_decompress(&codec_);
    return true;
  }

  const std::string name_;
  JpegErrors errors_;
  jpeg_progress_mgr progress_ = {};
  jpeg_decompress_struct codec_ = {};
};

// Writing: all that a jump may cross is plain data.
struct JpegEncoder {
  JpegErrors errors;
  jpeg_compress_struct codec = {};
  unsigned char* out = nullptr;  // libjpeg allocates it by malloc()
  unsigned long bytes = 0;       // NOLINT: libjpeg's type
};

bool write_jpeg(JpegEncoder& encoder, const Pixels& pixels, int quality) {
  if (setjmp(encoder.errors.jump) != 0) return false;
  jpeg_compress_struct& codec = encoder.codec;
  jpeg_create_compress(&codec);
  jpeg_mem_dest(&codec, &encoder.out, &encoder.bytes);
  codec.image_width = static_cast<JDIMENSION>(pixels.width);
  codec.image_height = static_cast<JDIMENSION>(pixels.height);
  codec.input_components = pixels.channels;
  codec.in_color_space = pixels.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, quality, TRUE);
  codec.dct_method = JDCT_ISLOW;
  jpeg_start_compress(&codec, TRUE);
  const size_t row_bytes = static_cast<size_t>(pixels.width) * static_cast<size_t>(pixels.channels);
  while (codec.next_scanline < codec.image_height) {
    JSAMPROW row = const_cast<uint8_t*>(pixels.data) + codec.next_scanline * row_bytes;  // it only reads
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  return true;
}

}  // namespace

std::unique_ptr<ImageDecoder> open_jpeg(std::string_view bytes, const std::string& name) {
  return std::make_unique<JpegDecoder>(bytes, name);
}

std::string encode_jpeg(const Pixels& pixels, int quality) {
  JpegEncoder encoder;
  install(encoder.errors);
  encoder.codec.err = &encoder.errors.manager;
  const bool encoded = write_jpeg(encoder, pixels, quality);
  jpeg_destroy_compress(&encoder.codec);
  const std::unique_ptr<unsigned char, void (*)(void*)> bytes(encoder.out, std::free);
  if (!encoded) throw Error(absl::StrCat("libjpeg cannot write this image: ", encoder.errors.text));
  return std::string(reinterpret_cast<const char*>(bytes.get()), encoder.bytes);
}

}  // namespace rondo::io
