// Text on its way through normalisers, which remembers where in the original each byte comes from.
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

// Part of a text: of the original (origin == null; then it starts there at byte `base`), or of a rewritten one
// (origin[i] is where its byte i comes from). Where a rewritten text does not track its origin, `tracked` is false.
struct Piece {
  std::string_view text;
  const Span* origin = nullptr;
  uint32_t base = 0;
  bool tracked = true;

  Piece part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), origin == nullptr ? nullptr : origin + begin,
            base + static_cast<uint32_t>(begin), tracked};
  }
  // Where bytes [begin, end) come from, in whole code points of the original. REQUIRES: tracked, begin < end.
  Span source(size_t begin, size_t end) const {
    if (origin != nullptr) return {origin[begin].begin, origin[end - 1].end};
    const auto continues = [&](size_t i) { return (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80; };
    while (begin > 0 && continues(begin)) --begin;
    while (end < text.size() && continues(end)) ++end;
    return {base + static_cast<uint32_t>(begin), base + static_cast<uint32_t>(end)};
  }
};

// How long rewriting may make a text of `bytes` bytes. Nothing that is meant comes near: the longest decomposition of
// Unicode makes 33 bytes of 3. Without it a file's list of 40 replacements of "a" by "aa" makes a terabyte.
inline size_t longest_rewritten(size_t bytes) { return (size_t{64} << 10) + 64 * bytes; }

// A rewritten text that owns its bytes.
class AlignedText {
 public:
  // `longest`: beyond, push() throws Error.
  AlignedText(bool tracked, size_t longest) : tracked_(tracked), longest_(longest) {}

  void push(uint32_t point, Span source);
  void push(const Piece& piece, size_t begin, size_t end);  // as it is
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
