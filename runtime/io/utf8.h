// UTF-8, one code point at a time (RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rondo::io {

struct CodePoint {
  uint32_t value = 0;
  int length = 0;  // in bytes; 0 if the bytes are not valid UTF-8
};

// Decodes the code point at text[at]. REQUIRES: at < text.size().
inline CodePoint decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - at < static_cast<size_t>(length)) return {};
  uint32_t value = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return {};
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  constexpr uint32_t kSmallest[5] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[length] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return {};
  return {value, length};
}

// Returns the number of bytes from `at` on up to the first that is not valid UTF-8.
inline size_t valid_utf8_prefix(std::string_view text, size_t at = 0) {
  const size_t start = at;
  while (at < text.size()) {
    const int length = decode_utf8(text, at).length;
    if (length == 0) break;
    at += static_cast<size_t>(length);
  }
  return at - start;
}
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// Appends a code point as UTF-8. REQUIRES: `value` is a Unicode scalar value.
inline void append_utf8(std::string& out, uint32_t value) {
  const auto push = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (value < 0x80) return push(value);
  if (value < 0x800) {
    push(0xC0 | value >> 6);
  } else {
    if (value < 0x10000) {
      push(0xE0 | value >> 12);
    } else {
      push(0xF0 | value >> 18);
      push(0x80 | (value >> 12 & 0x3F));
    }
    push(0x80 | (value >> 6 & 0x3F));
  }
  push(0x80 | (value & 0x3F));
}

}  // namespace rondo::io
