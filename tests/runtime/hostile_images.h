// Images that mean harm, built byte by byte: PNGs whose rows, chunks and streams are what an encoder would not write,
// and JPEGs of many scans. Each is a valid file up to the place where it asks for too much.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace rondo::test {

// Big-endian numbers, as both formats have them.
inline std::string be16(uint32_t v) { return {static_cast<char>(v >> 8), static_cast<char>(v)}; }
inline std::string be32(uint32_t v) { return be16(v >> 16) + be16(v & 0xFFFF); }

inline uint32_t png_checksum(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = (c & 1) != 0 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t c = 0xFFFFFFFFu;
  for (const char byte : bytes) c = table[(c ^ static_cast<uint8_t>(byte)) & 0xFF] ^ (c >> 8);
  return ~c;
}
inline std::string png_chunk(const std::string& name, const std::string& data) {
  const std::string body = name + data;
  return be32(static_cast<uint32_t>(data.size())) + body + be32(png_checksum(body));
}

// A zlib stream of `count` > 0 zeros, about a 160th of their size (RFC 1951, fixed codes): a zero, then copies of 258.
inline std::string zlib_zeros(uint64_t count) {
  std::string out = "\x78\x01";
  uint64_t held = 0;
  int bits = 0;
  const auto put = [&](uint64_t code, int length) {  // the least significant bit first
    held |= code << bits;
    for (bits += length; bits >= 8; bits -= 8, held >>= 8) out.push_back(static_cast<char>(held));
  };
  put(0b011, 3);  // the last block, fixed codes
  put(0x0C, 8);   // the byte 0
  for (uint64_t i = 0; i < (count - 1) / 258; ++i) put(0xA3, 13);
  for (uint64_t i = 0; i < (count - 1) % 258; ++i) put(0x0C, 8);
  put(0, 7);  // the end
  if (bits > 0) put(0, 8 - bits);
  return out + be32(static_cast<uint32_t>(count % 65521) << 16 | 1);  // Adler-32 of zeros
}

struct HostilePng {
  uint32_t width = 1, height = 1;
  uint32_t bits = 8, color = 0;  // 0 gray, 2 RGB, 3 palette, 4 gray and alpha, 6 RGBA
  bool interlaced = false;
  std::string before = {}, behind = {};  // chunks before and behind the pixels
  uint64_t more_zeros = 0;               // behind the last pixel, in the same stream

  uint64_t bytes_of(uint64_t w, uint64_t h) const {
    constexpr uint64_t kChannels[] = {1, 0, 3, 1, 2, 0, 4};
    return w == 0 ? 0 : h * (1 + (w * bits * kChannels[color] + 7) / 8);
  }
  // Unpacked, with a byte for each row's filter.
  uint64_t pixel_bytes() const {
    if (!interlaced) return bytes_of(width, height);
    constexpr uint64_t kFirstX[] = {0, 4, 0, 2, 0, 1, 0}, kFirstY[] = {0, 0, 4, 0, 2, 0, 1};
    constexpr uint64_t kStepX[] = {8, 8, 4, 4, 2, 2, 1}, kStepY[] = {8, 8, 8, 4, 4, 2, 2};
    uint64_t sum = 0;
    for (int p = 0; p < 7; ++p)
      sum += bytes_of((width + kStepX[p] - 1 - kFirstX[p]) / kStepX[p],
                      (height + kStepY[p] - 1 - kFirstY[p]) / kStepY[p]);
    return sum;
  }
  std::string header() const {
    return "\x89PNG\r\n\x1a\n" +
           png_chunk("IHDR", be32(width) + be32(height) +
                                 std::string{static_cast<char>(bits), static_cast<char>(color), 0, 0,
                                             static_cast<char>(interlaced)}) +
           (color == 3 ? png_chunk("PLTE", std::string(6, 'x')) : "");
  }
  std::string file() const {
    return header() + before + png_chunk("IDAT", zlib_zeros(pixel_bytes() + more_zeros)) + behind +
           png_chunk("IEND", "");
  }
};

// A gray JPEG of `scans` scans that is black, progressive: the first scan has the means, each of the others has one
// more bit of one coefficient.
struct HostileJpeg {
  uint32_t width = 8, height = 8;
  int scans = 1;            // at most 883
  bool arithmetic = false;  // else Huffman codes

  static std::string segment(int marker, const std::string& data) {
    return std::string{'\xff', static_cast<char>(marker)} + be16(static_cast<uint32_t>(data.size() + 2)) + data;
  }
  std::string file() const {
    const uint64_t blocks = uint64_t{(width + 7) / 8} * ((height + 7) / 8);
    std::string out = "\xff\xd8";
    out += segment(0xDB, std::string(1, 0) + std::string(64, 1));
    out += segment(arithmetic ? 0xCA : 0xC2,
                   std::string(1, 8) + be16(height) + be16(width) + std::string{1, 1, 0x11, 0});
    // Tables of one symbol, whose code is the bit 0: no difference to the block before; an end of 2^14 blocks.
    const auto table = [](char place, char symbol) { return std::string{place, 1} + std::string(15, 0) + symbol; };
    out += segment(0xC4, table(0x00, 0) + table(0x10, '\xe0'));
    const auto scan = [&](int first, int above, int below, uint64_t bits) {
      out += segment(0xDA, std::string{1, 1, 0, static_cast<char>(first), static_cast<char>(first),
                                       static_cast<char>(above << 4 | below)});
      // Arithmetic decoding takes zeros where a file has no more.
      out += std::string(arithmetic ? 0 : (bits + 7) / 8, 0);
    };
    scan(0, 0, 0, blocks);
    int done = 1;
    for (int k = 1; k < 64; ++k)
      for (int bit = 13; bit >= 0 && done < scans; --bit, ++done)
        scan(k, bit == 13 ? 0 : bit + 1, bit, (blocks + 16383) / 16384 * 15);
    return out + "\xff\xd9";
  }
};

}  // namespace rondo::test
