// What reading and writing ask of the two libraries. Only image_png.cc and image_jpeg.cc include their headers.
//
// Both libraries report an error by a jump over the frames above. So no frame that a jump crosses has an object with a
// destructor: a codec is opened and closed by its caller, and each step is a function of plain data. No exception
// crosses the libraries' frames either: their callbacks keep it (ImageDecoder::guarded).
//
// Note [Image budgets]
// A small file can ask for much: hundreds of scans over a large image, 2^27 rows of one pixel, a stream that unpacks to
// a thousand times its size. What decoding takes is counted, never timed, so a file that is read once is read always.
//
// Bytes: the image, what it is converted from, and all memory of the libraries that grows with the image. It comes from
// the allocator of tensors, so that memory::set_limit() sees it. At most max_bytes. (What libjpeg allocates itself, a
// few rows, is not counted: some MB at its greatest width.)
//
// Work, in units of about 2 ns at worst. At most twice max_bytes:
// | a byte that libpng unpacks; in an interlaced image | 1; 4                    |
// | a row of a PNG, in each pass                       | 64                      |
// | a byte of the file; a call that reads it           | 4; 32                   |
// | a byte of a PNG's stream behind the last pixel     | 512, as it may be 1032  |
// | 8 x 8 samples of a JPEG                            | 64                      |
// | the same in each scan, where there are several     | 16                      |
// | both with arithmetic coding                        | 256                     |
// | the start of a scan; a row of blocks in it         | 4096; 64                |
// Of the 300 files of hostile_images_test.cc the worst takes 0.6 s of CPU time and 199 MB. What may take longer is
// large itself: a file of 100 MB that is made of empty deflate blocks, say.
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

// What a pixel holds after the codec has unpacked it.
enum class PixelForm {
  kChannels8,  // u8 channels: gray, gray and alpha, RGB, RGBA, or CMYK
  kNumbers8,   // u8: an index of a palette or a level of gray, as stored
  kNumbers16,  // u16, of this machine's byte order: levels of gray, as stored
};

// What one image may cost, and what it has cost: Note [Image budgets].
class ImageBudget {
 public:
  // `name` is the file's, for errors.
  ImageBudget(std::string name, int64_t max_bytes);
  ImageBudget(const ImageBudget&) = delete;
  ImageBudget& operator=(const ImageBudget&) = delete;

  const std::string& name() const { return name_; }
  // Both throw FileError if the sum is more than the image may cost.
  void take(size_t bytes);
  void work(uint64_t units);
  // Memory of the tensors' allocator, aligned for any type and counted until deallocate(). Throws FileError or
  // OutOfMemoryError.
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

// The bytes of a file, from the first to the last, in pieces. A file is not held in memory.
class ImageBytes {
 public:
  // What is passed must live as long.
  explicit ImageBytes(std::string_view bytes) : memory_(bytes), size_(bytes.size()) {}
  explicit ImageBytes(const OpenFile& file) : file_(&file), size_(file.size()) {}
  ImageBytes(const ImageBytes&) = delete;
  ImageBytes& operator=(const ImageBytes&) = delete;

  // Bytes that follow, at least one unless the file has ended. Valid until the next call. Throws FileError.
  std::string_view front();
  void drop(size_t count);  // at most front().size()

 private:
  static constexpr size_t kPiece = 1 << 14;
  const std::string_view memory_;
  const OpenFile* const file_ = nullptr;
  const uint64_t size_;
  uint64_t at_ = 0;  // where front_ ends in the file
  std::string_view front_;
  std::array<char, kPiece> piece_;  // of file_
};

// One image being read.
class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  // What the header says; open_png() and open_jpeg() have read it.
  ImageInfo info;
  // 4 channels are cyan, magenta, yellow and black instead of RGBA.
  enum class Cmyk { kNo, kInk, kInverted } cmyk = Cmyk::kNo;
  // An interlaced image: one call of read_rows() reads all rows.
  bool rows_together = false;

  // Once, before the first row. Counts the work of all rows that the header announces. Throws FileError.
  virtual void start(PixelForm form) = 0;
  // Writes the next `count` rows of `row_bytes` each. With the last row it checks the rest of the file. Throws
  // FileError.
  virtual void read_rows(uint8_t* rows, int64_t count, size_t row_bytes) = 0;

 protected:
  ImageDecoder(ImageBytes& bytes, ImageBudget& budget) : bytes_(bytes), budget_(budget) {}

  // Runs a callback's work. False if it threw: the callback reports any error to its library, and fail() throws what
  // was thrown here.
  template <class Run> bool guarded(const Run& run) noexcept {
    try {
      run();
      return true;
    } catch (...) {
      thrown_ = std::current_exception();
      return false;
    }
  }
  // `text`: what the library said.
  [[noreturn]] void fail(const char* format, const char* text) const;

  ImageBytes& bytes_;
  ImageBudget& budget_;

 private:
  std::exception_ptr thrown_;
};

// What is passed must outlive the decoder. Throws FileError.
std::unique_ptr<ImageDecoder> open_png(ImageBytes& bytes, ImageBudget& budget);
std::unique_ptr<ImageDecoder> open_jpeg(ImageBytes& bytes, ImageBudget& budget);

// decode_image() and decode_mask() of image.h with a budget whose counts the caller reads; options.max_bytes is not
// used.
Tensor decode_image(ImageBytes& bytes, const ReadImageOptions& options, ImageBudget& budget);
Tensor decode_mask(ImageBytes& bytes, int64_t max_pixels, ImageBudget& budget);

// Rows of (H, W, C) u8, dense. Throws Error.
struct Pixels {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0;
  int channels = 0;
};
std::string encode_png(const Pixels& pixels, int compression, std::span<const Color> palette);
std::string encode_jpeg(const Pixels& pixels, int quality);

}  // namespace rondo::io
