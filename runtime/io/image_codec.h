// What image.cc asks of the two libraries. Only image_png.cc and image_jpeg.cc include their headers.
//
// Both libraries report an error by a jump over the frames above. So no frame that a jump crosses has an object with a
// destructor: a codec is opened and closed by its caller, and each step is a function of plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "rondo/runtime/io/image.h"

namespace rondo::io {

// What is stored in a pixel after the codec has unpacked it.
enum class PixelForm {
  kChannels8,  // u8 channels: gray, gray and alpha, RGB, RGBA, or CMYK
  kNumbers8,   // u8: an index of a palette or a level of gray, as stored
  kNumbers16,  // u16, of this machine's byte order: levels of gray, as stored
};

// One image being read.
class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;
  // What the header says; open_png() and open_jpeg() have read it.
  ImageInfo info;
  // 4 channels are cyan, magenta, yellow and black instead of RGBA.
  enum class Cmyk { kNo, kInk, kInverted } cmyk = Cmyk::kNo;

  // Writes info.height rows of `row_bytes` each. Throws FileError.
  virtual void read(PixelForm form, uint8_t* pixels, size_t row_bytes) = 0;
};

// `bytes` must outlive the decoder. Throws FileError.
std::unique_ptr<ImageDecoder> open_png(std::string_view bytes, const std::string& name);
std::unique_ptr<ImageDecoder> open_jpeg(std::string_view bytes, const std::string& name);

// Rows of (H, W, C) u8, dense. Throws Error.
struct Pixels {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0;
  int channels = 0;
};
std::string encode_png(const Pixels& pixels, int compression, std::span<const Color> palette);
std::string encode_jpeg(const Pixels& pixels, int quality);

}  // namespace rondo::io
