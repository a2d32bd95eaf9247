// jpeglib.h needs size_t and FILE to be declared before it.
#include <cstddef>
#include <cstdio>
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <csetjmp>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/image/image_codec.h"

namespace rondo::io {
namespace {

// libjpeg passes a pointer to `manager` back to the handlers, which cast it to this struct, so it is the first member.
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

// After a warning, libjpeg continues with invented pixels, so a warning is an error here. Two kinds of warnings do not
// affect the pixels.
void on_jpeg_message(j_common_ptr codec, int level) {
  const int code = codec->err->msg_code;
  if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_JFIF_MAJOR) on_jpeg_error(codec);
}

void install(JpegErrors& errors) {
  jpeg_std_error(&errors.manager);
  errors.manager.error_exit = on_jpeg_error;
  errors.manager.emit_message = on_jpeg_message;
}

class JpegDecoder final : public ImageDecoder {
 public:
  JpegDecoder(ImageBytes& bytes, ImageBudget& budget) : ImageDecoder(bytes, budget) {
    install(errors_);
    codec_.err = &errors_.manager;
    if (!read_header()) {
      close();  // no destructor runs after a constructor that throws
      fail("JPEG", errors_.text);
    }
    info.format = ImageFormat::kJpeg;
    info.height = codec_.image_height;
    info.width = codec_.image_width;
    info.bits = codec_.data_precision;
    info.channels = codec_.out_color_space == JCS_GRAYSCALE ? 1 : 3;
    if (codec_.out_color_space == JCS_CMYK) cmyk = codec_.saw_Adobe_marker != 0 ? Cmyk::kInverted : Cmyk::kInk;
  }
  ~JpegDecoder() override { close(); }

  void start(PixelForm form) override {
    invariant(form == PixelForm::kChannels8, "a JPEG file is no mask");
    uint64_t blocks = 0;
    for (int c = 0; c < codec_.num_components; ++c)
      blocks += uint64_t{codec_.comp_info[c].width_in_blocks} * codec_.comp_info[c].height_in_blocks;
    budget_.work(blocks * (codec_.arith_code != 0 ? 256 : 64));
    if (!read_scans()) fail("JPEG", errors_.text);
  }

  void read_rows(uint8_t* rows, int64_t count, size_t row_bytes) override {
    if (!read_some(rows, count, row_bytes)) fail("JPEG", errors_.text);
  }

 private:
  // The coefficients of one component of a file with several scans. It replaces libjpeg's own "virtual array" of blocks
  // and takes its memory from the budget.
  struct Coefficients {
    JDIMENSION blocks = 0, rows = 0;  // blocks in each row, number of rows
    void* memory = nullptr;
    JBLOCKARRAY row = nullptr;  // the blocks of each row
  };
  static JpegDecoder* of(j_common_ptr codec) { return static_cast<JpegDecoder*>(codec->client_data); }
  [[noreturn]] static void stop(j_common_ptr codec, int code) {
    codec->err->msg_code = code;
    on_jpeg_error(codec);
  }

  // ---- Callbacks of libjpeg

  static void ignore(j_decompress_ptr) {}
  static boolean next_piece(j_decompress_ptr codec) {
    JpegDecoder* const self = of(reinterpret_cast<j_common_ptr>(codec));
    if (!self->guarded([self] { self->take_piece(); }) || self->source_.bytes_in_buffer == 0)
      stop(reinterpret_cast<j_common_ptr>(codec), JERR_INPUT_EOF);
    return TRUE;
  }
  static void skip(j_decompress_ptr codec, long count) {  // NOLINT: libjpeg's type
    jpeg_source_mgr* const source = codec->src;
    if (count <= 0) return;
    auto left = static_cast<size_t>(count);
    for (; left > source->bytes_in_buffer; next_piece(codec)) left -= source->bytes_in_buffer;
    source->next_input_byte += left;
    source->bytes_in_buffer -= left;
  }
  // libjpeg calls this function before each row of blocks of each scan.
  static void before_row(j_common_ptr codec) {
    JpegDecoder* const self = of(codec);
    if (!self->guarded([self] { self->count_row(); })) stop(codec, JERR_BAD_PROGRESSION);
  }
  static jvirt_barray_ptr request_blocks(j_common_ptr codec, int, boolean, JDIMENSION blocks, JDIMENSION rows,
                                         JDIMENSION) {
    JpegDecoder* const self = of(codec);
    if (self->n_coefficients_ == MAX_COMPONENTS) stop(codec, JERR_COMPONENT_COUNT);
    Coefficients& made = self->coefficients_[self->n_coefficients_++];
    made.blocks = blocks;
    made.rows = rows;
    return reinterpret_cast<jvirt_barray_ptr>(&made);  // opaque to libjpeg, except to its memory manager
  }
  static void make_blocks(j_common_ptr codec) {
    JpegDecoder* const self = of(codec);
    self->realize_others_(codec);
    if (!self->guarded([self] { self->allocate_coefficients(); })) stop(codec, JERR_OUT_OF_MEMORY);
  }
  static JBLOCKARRAY blocks_at(j_common_ptr codec, jvirt_barray_ptr array, JDIMENSION row, JDIMENSION count, boolean) {
    const Coefficients& c = *reinterpret_cast<const Coefficients*>(array);
    if (c.row == nullptr || row > c.rows || count > c.rows - row) stop(codec, JERR_BAD_VIRTUAL_ACCESS);
    return c.row + row;
  }

  // ---- The work of the callbacks, which may throw

  void take_piece() {
    bytes_.drop(piece_bytes_);
    const std::string_view piece = bytes_.front();
    piece_bytes_ = piece.size();
    source_.next_input_byte = reinterpret_cast<const JOCTET*>(piece.data());
    source_.bytes_in_buffer = piece.size();
    budget_.work(32 + 4 * piece.size());
  }
  void count_row() {
    if (!in_scans_ || jpeg_has_multiple_scans(&codec_) == 0) return;
    if (codec_.input_scan_number != scan_) budget_.work(4096);
    scan_ = codec_.input_scan_number;
    // In a scan of one component an MCU is one block; in a scan of several components it is a group of blocks.
    const auto rows = codec_.comps_in_scan == 1 ? codec_.cur_comp_info[0]->v_samp_factor : 1;
    const uint64_t blocks = uint64_t{codec_.MCUs_per_row} * static_cast<uint64_t>(codec_.blocks_in_MCU * rows);
    budget_.work(64 + blocks * (codec_.arith_code != 0 ? 256 : 16));
  }
  void allocate_coefficients() {
    for (int i = 0; i < n_coefficients_; ++i) {
      Coefficients& c = coefficients_[i];
      if (c.memory != nullptr) continue;
      const size_t row_bytes = size_t{c.blocks} * sizeof(JBLOCK), bytes = size_t{c.rows} * row_bytes;
      c.memory = budget_.allocate(bytes + size_t{c.rows} * sizeof(JBLOCKROW));
      std::memset(c.memory, 0, bytes);
      auto* const first = static_cast<std::byte*>(c.memory);
      c.row = reinterpret_cast<JBLOCKARRAY>(first + bytes);
      for (size_t y = 0; y < c.rows; ++y) c.row[y] = reinterpret_cast<JBLOCKROW>(first + y * row_bytes);
    }
  }
  void close() {
    jpeg_destroy_decompress(&codec_);
    for (Coefficients& c : coefficients_) budget_.deallocate(c.memory);
  }

  // ---- Steps that an error leaves by longjmp()

  bool read_header() {
    if (setjmp(errors_.jump) != 0) return false;
    jpeg_create_decompress(&codec_);
    codec_.client_data = this;
    progress_.progress_monitor = before_row;
    codec_.progress = &progress_;
    realize_others_ = codec_.mem->realize_virt_arrays;
    codec_.mem->request_virt_barray = request_blocks;
    codec_.mem->realize_virt_arrays = make_blocks;
    codec_.mem->access_virt_barray = blocks_at;
    source_.init_source = ignore;
    source_.fill_input_buffer = next_piece;
    source_.skip_input_data = skip;
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.term_source = ignore;
    codec_.src = &source_;
    jpeg_read_header(&codec_, TRUE);
    const bool ink = codec_.jpeg_color_space == JCS_CMYK || codec_.jpeg_color_space == JCS_YCCK;
    codec_.out_color_space = ink ? JCS_CMYK : codec_.jpeg_color_space == JCS_GRAYSCALE ? JCS_GRAYSCALE : JCS_RGB;
    codec_.dct_method = JDCT_ISLOW;
    return true;
  }

  bool read_scans() {
    if (setjmp(errors_.jump) != 0) return false;
    in_scans_ = true;
    jpeg_start_decompress(&codec_);
    in_scans_ = false;
    return true;
  }

  bool read_some(uint8_t* rows, int64_t count, size_t row_bytes) {
    if (setjmp(errors_.jump) != 0) return false;
    unpack(rows, count, row_bytes);
    if (codec_.output_scanline == codec_.output_height) jpeg_finish_decompress(&codec_);
    return true;
  }
  // A separate function, so that the frame of setjmp() has no variable that changes before a possible longjmp().
  [[gnu::noinline]] void unpack(uint8_t* rows, int64_t count, size_t row_bytes) {
    for (int64_t y = 0; y < count; ++y) {
      JSAMPROW row = rows + static_cast<size_t>(y) * row_bytes;
      jpeg_read_scanlines(&codec_, &row, 1);
    }
  }

  JpegErrors errors_;
  jpeg_progress_mgr progress_ = {};
  jpeg_source_mgr source_ = {};
  jpeg_decompress_struct codec_ = {};
  void (*realize_others_)(j_common_ptr) = nullptr;
  Coefficients coefficients_[MAX_COMPONENTS];
  int n_coefficients_ = 0;
  size_t piece_bytes_ = 0;
  bool in_scans_ = false;
  int scan_ = 0;
};

// The state while a JPEG is written. It is plain data, because longjmp() may skip destructors.
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
    JSAMPROW row = const_cast<uint8_t*>(pixels.data) + codec.next_scanline * row_bytes;  // libjpeg only reads it
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  return true;
}

}  // namespace

std::unique_ptr<ImageDecoder> open_jpeg(ImageBytes& bytes, ImageBudget& budget) {
  return std::make_unique<JpegDecoder>(bytes, budget);
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
