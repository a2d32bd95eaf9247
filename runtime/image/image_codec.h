// The interface to libpng and libjpeg. Only image_png.cc and image_jpeg.cc include the headers of these libraries.
//
// Both libraries report an error by longjmp() through the frames of their callers. So no frame that a jump crosses has
// an object with a destructor: a codec is opened and closed by its caller, and each step is a function of plain data.
// No exception crosses the libraries' frames either: their callbacks keep it (ImageDecoder::guarded).
//
// Note [Image budgets]
// A small file can require much work: hundreds of scans over a large image, 2^27 rows of one pixel, a stream that
// unpacks to a thousand times its size. Costs are counted, not timed, so a file is always accepted or always refused.
//
// Bytes: at most max_bytes. They include the image, the data that it is converted from, and all memory of the libraries
// that grows with the image. They come from the allocator of tensors, so that memory::set_limit() applies. (A few rows
// that libjpeg allocates itself are not counted: some MB at the greatest width.)
//
// Work: at most twice max_bytes, in units of about 2 ns at worst:
// | a byte that libpng unpacks; in an interlaced image | 1; 4                    |
// | a row of a PNG, in each pass                       | 64                      |
// | a byte of the file; a call that reads it           | 4; 32                   |
// | a byte of a PNG's stream after the last pixel      | 512: may unpack to 1032 |
// | 8 x 8 samples of a JPEG                            | 64                      |
// | 8 x 8 samples in each scan, if it has several      | 16                      |
// | these two, with arithmetic coding: each            | 256                     |
// | the start of a scan; a row of blocks in it         | 4096; 64                |
// The worst of the 300 files of hostile_images_test.cc takes 0.6 s of CPU time and 199 MB. Only a large file may take
// longer: 100 MB of empty deflate blocks, for example.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "rondo/runtime/image/image.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::io {

// The form of a pixel after the codec has unpacked it.
enum class PixelForm {
  kChannels8,  // u8 channels: gray, gray and alpha, RGB, RGBA, or CMYK
  kNumbers8,   // u8: a palette index or a level of gray, as stored
  kNumbers16,  // u16 in this machine's byte order: a level of gray, as stored
};

// The limits for decoding one image, and its costs so far: Note [Image budgets].
class ImageBudget {
 public:
  // `name`: the name of the file, for errors.
  ImageBudget(std::string name, int64_t max_bytes);
  ImageBudget(const ImageBudget&) = delete;
  ImageBudget& operator=(const ImageBudget&) = delete;

  const std::string& name() const { return name_; }
  // Add to the costs. Both throw FileError if the sum exceeds the limit.
  void take(size_t bytes);
  void work(uint64_t units);
  // Allocates memory from the allocator of tensors, aligned for any type and counted until deallocate(). Throws
  // FileError if the budget is exceeded, or OutOfMemoryError.
  void* allocate(size_t bytes);
  void deallocate(void* block) noexcept;

  int64_t bytes() const { return bytes_; }
  int64_t most_bytes() const { return most_bytes_; }
  int64_t work_done() const { return work_; }
  int64_t max_bytes() const { return max_bytes_; }
  int64_t max_work() const { return max_work_; }

 private:
  const std::string name_;
  const int64_t max_bytes_, max_work_;
  int64_t bytes_ = 0, most_bytes_ = 0, work_ = 0;
};

// Reads the bytes of a file in order, in pieces. The file as a whole is not held in memory.
class ImageBytes {
 public:
  // The argument must outlive this object.
  explicit ImageBytes(std::string_view bytes) : memory_(bytes), size_(bytes.size()) {}
  explicit ImageBytes(const OpenFile& file) : file_(&file), size_(file.size()) {}
  ImageBytes(const ImageBytes&) = delete;
  ImageBytes& operator=(const ImageBytes&) = delete;

  // Returns the next bytes; empty only at the end of the file. Valid until the next call. Throws FileError.
  std::string_view front();
  void drop(size_t count);  // at most front().size()

 private:
  static constexpr size_t kPiece = 1 << 14;
  const std::string_view memory_;
  const OpenFile* const file_ = nullptr;
  const uint64_t size_;
  uint64_t at_ = 0;  // the position in the file where front_ ends
  std::string_view front_;
  std::array<char, kPiece> piece_;  // the current piece of file_
};

// Decodes one image.
class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  // The information in the header, which open_png() and open_jpeg() read.
  ImageInfo info;
  // kInk, kInverted: the 4 channels are cyan, magenta, yellow and black instead of RGBA.
  enum class Cmyk { kNo, kInk, kInverted } cmyk = Cmyk::kNo;
  // True for an interlaced image: one call of read_rows() must read all rows.
  bool rows_together = false;

  // Call once before the first row. Counts the work of all rows that the header announces. Throws FileError.
  virtual void start(PixelForm form) = 0;
  // Writes the next `count` rows of `row_bytes` each. Checks the rest of the file after the last row. Throws FileError.
  virtual void read_rows(uint8_t* rows, int64_t count, size_t row_bytes) = 0;

 protected:
  ImageDecoder(ImageBytes& bytes, ImageBudget& budget) : bytes_(bytes), budget_(budget) {}

  // Runs the work of a callback. Returns false if it threw: then the callback reports some error to the library, and
  // fail() rethrows the exception.
  template <class Run> bool guarded(const Run& run) noexcept {
    try {
      run();
      return true;
    } catch (...) {
      thrown_ = std::current_exception();
      return false;
    }
  }
  // `text`: the library's message.
  [[noreturn]] void fail(const char* format, const char* text) const;

  ImageBytes& bytes_;
  ImageBudget& budget_;

 private:
  std::exception_ptr thrown_;
};

// Open a decoder and read the header of the file. The arguments must outlive the decoder. Throw FileError.
std::unique_ptr<ImageDecoder> open_png(ImageBytes& bytes, ImageBudget& budget);
std::unique_ptr<ImageDecoder> open_jpeg(ImageBytes& bytes, ImageBudget& budget);

// Like decode_image() and decode_mask() of image.h, with a budget that the caller can inspect, not options.max_bytes.
Tensor decode_image(ImageBytes& bytes, const ReadImageOptions& options, ImageBudget& budget);
Tensor decode_mask(ImageBytes& bytes, int64_t max_pixels, ImageBudget& budget);

// A dense image (H, W, C) u8.
struct Pixels {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0;
  int channels = 0;
};
std::string encode_png(const Pixels& pixels, int compression, std::span<const Color> palette);
std::string encode_jpeg(const Pixels& pixels, int quality);

}  // namespace rondo::io
