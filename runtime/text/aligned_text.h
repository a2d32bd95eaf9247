// Text that normalisers rewrite. It records, for each byte, the position in the original text that the byte comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::text {

// Bytes [begin, end) of the original text.
struct Span {
  uint32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

// A part of the original text or of a rewritten text. In a part of the original text, `origin` is null, and the part
// begins at byte `base`. In a part of a rewritten text, origin[i] is the source of byte i. `tracked` is false if the
// rewritten text does not record its origin.
struct Piece {
  std::string_view text;
  const Span* origin = nullptr;
  uint32_t base = 0;
  bool tracked = true;

  Piece part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), origin == nullptr ? nullptr : origin + begin,
            base + static_cast<uint32_t>(begin), tracked};
  }
  // Returns the source of bytes [begin, end), in whole code points of the original text.
  // REQUIRES: tracked, begin < end.
  Span source(size_t begin, size_t end) const {
    if (origin != nullptr) return {origin[begin].begin, origin[end - 1].end};
    const auto continues = [&](size_t i) { return (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80; };
    while (begin > 0 && continues(begin)) --begin;
    while (end < text.size() && continues(end)) ++end;
    return {base + static_cast<uint32_t>(begin), base + static_cast<uint32_t>(end)};
  }
};

// Returns the largest length to which rewriting may extend a text of `bytes` bytes. Real tokenizers stay far below: the
// longest decomposition of Unicode makes 33 bytes from 3. Without this limit, a file with 40 replacements of "a" by
// "aa" would make a terabyte.
inline size_t longest_rewritten(size_t bytes) { return (size_t{64} << 10) + 64 * bytes; }

// A rewritten text that owns its bytes.
class AlignedText {
 public:
  // `longest`: the largest length in bytes. push() throws Error beyond it.
  AlignedText(bool tracked, size_t longest) : tracked_(tracked), longest_(longest) {}

  void push(uint32_t point, Span source);
  void push(const Piece& piece, size_t begin, size_t end);  // copies bytes of `piece` unchanged
  void reserve(size_t bytes) { text_.reserve(bytes); }
  Piece piece() const { return {text_, tracked_ ? origin_.data() : nullptr, 0, tracked_}; }
  bool tracked() const { return tracked_; }

 private:
  void check_length() const;

  bool tracked_;
  size_t longest_;
  std::string text_;
  std::vector<Span> origin_;  // one per byte, if tracked
};

}  // namespace rondo::text
