// XXH64 (Yann Collet; specification https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): a fast 64-bit
// checksum against accidental damage. Not cryptographic.
//
//   Checksum sum;
//   sum.update(data, bytes);   // any number of times; only the concatenation matters
//   uint64_t digest = sum.digest();
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace rondo::io {

class Checksum {
 public:
  void update(const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    total_ += bytes;
    if (pending_ > 0 || bytes < kBlock) {
      const size_t taken = bytes < kBlock - pending_ ? bytes : kBlock - pending_;
      if (taken > 0) std::memcpy(block_ + pending_, from, taken);
      pending_ += taken;
      from += taken;
      bytes -= taken;
      if (pending_ < kBlock) return;
      consume(block_);
      pending_ = 0;
    }
    for (; bytes >= kBlock; from += kBlock, bytes -= kBlock) consume(from);
    if (bytes > 0) std::memcpy(block_, from, bytes);
    pending_ = bytes;
  }
  void update(std::string_view text) { update(text.data(), text.size()); }

  uint64_t digest() const {
    uint64_t h = kP5;
    if (total_ >= kBlock) {
      h = std::rotl(lane_[0], 1) + std::rotl(lane_[1], 7) + std::rotl(lane_[2], 12) + std::rotl(lane_[3], 18);
      for (const uint64_t lane : lane_) h = (h ^ round(0, lane)) * kP1 + kP4;
    }
    h += total_;
    const std::byte* at = block_;
    size_t left = pending_;
    for (; left >= 8; at += 8, left -= 8) h = std::rotl(h ^ round(0, load<uint64_t>(at)), 27) * kP1 + kP4;
    for (; left >= 4; at += 4, left -= 4) h = std::rotl(h ^ (load<uint32_t>(at) * kP1), 23) * kP2 + kP3;
    for (; left > 0; ++at, --left) h = std::rotl(h ^ (static_cast<uint64_t>(*at) * kP5), 11) * kP1;
    h = (h ^ h >> 33) * kP2;
    h = (h ^ h >> 29) * kP3;
    return h ^ h >> 32;
  }

 private:
  static constexpr size_t kBlock = 32;
  static constexpr uint64_t kP1 = 0x9E3779B185EBCA87u, kP2 = 0xC2B2AE3D27D4EB4Fu, kP3 = 0x165667B19E3779F9u,
                            kP4 = 0x85EBCA77C2B2AE63u, kP5 = 0x27D4EB2F165667C5u;

  template <class T> static T load(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
  }
  static uint64_t round(uint64_t lane, uint64_t input) { return std::rotl(lane + input * kP2, 31) * kP1; }
  void consume(const std::byte* block) {
    for (int i = 0; i < 4; ++i) lane_[i] = round(lane_[i], load<uint64_t>(block + 8 * i));
  }

  uint64_t lane_[4] = {kP1 + kP2, kP2, 0, 0 - kP1};
  uint64_t total_ = 0;
  std::byte block_[kBlock] = {};
  size_t pending_ = 0;
};

}  // namespace rondo::io
