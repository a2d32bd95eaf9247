#include "rondo/runtime/text/simple_tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::io {
namespace {

// Calls visit(point, position) for each code point. Throws Error for invalid UTF-8.
template <class Visit> void for_each_code_point(std::string_view text, Visit&& visit) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    if (point.length == 0) throw Error(absl::StrCat("CharTokenizer: the text is not valid UTF-8 at byte ", at));
    visit(point.value, at);
    at += static_cast<size_t>(point.length);
  }
}

void check_id(int64_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size)
    throw Error(absl::StrCat("decode: token ", id, " is outside the vocabulary of ", vocab_size));
}

}  // namespace

std::string Tokenizer::decode(std::span<const int64_t> ids) const try {
  std::vector<int32_t> narrow;
  narrow.reserve(ids.size());
  for (const int64_t id : ids) {
    check_id(id, vocab_size());
    narrow.push_back(static_cast<int32_t>(id));
  }
  return decode(narrow);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("decode");
}

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const try {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  return std::vector<int32_t>(bytes, bytes + text.size());
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ByteTokenizer::encode");
}

std::string ByteTokenizer::decode(std::span<const int32_t> ids) const try {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    check_id(id, vocab_size());
    text.push_back(static_cast<char>(id));
  }
  return text;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ByteTokenizer::decode");
}

CharTokenizer::CharTokenizer(std::vector<uint32_t> points) : points_(std::move(points)), low_ids_(256, -1) {
  for (size_t id = 0; id < points_.size() && points_[id] < low_ids_.size(); ++id)
    low_ids_[points_[id]] = static_cast<int32_t>(id);
}

CharTokenizer CharTokenizer::from_text(std::string_view text) try {
  std::vector<bool> seen(0x110000);
  for_each_code_point(text, [&](uint32_t point, size_t) { seen[point] = true; });
  std::vector<uint32_t> points;
  for (uint32_t point = 0; point < seen.size(); ++point)
    if (seen[point]) points.push_back(point);
  return CharTokenizer(std::move(points));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("CharTokenizer::from_text");
}

std::vector<int32_t> CharTokenizer::encode(std::string_view text) const try {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for_each_code_point(text, [&](uint32_t point, size_t at) {
    int32_t id = -1;
    if (point < low_ids_.size()) {
      id = low_ids_[point];
    } else {
      const auto found = std::lower_bound(points_.begin(), points_.end(), point);
      if (found != points_.end() && *found == point) id = static_cast<int32_t>(found - points_.begin());
    }
    if (id < 0)
      throw Error(
          formatted("CharTokenizer: U+%04X at byte %d is not in the vocabulary of %d", point, at, points_.size()));
    ids.push_back(id);
  });
  return ids;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("CharTokenizer::encode");
}

std::string CharTokenizer::decode(std::span<const int32_t> ids) const try {
  std::string text;
  text.reserve(ids.size());
  for (const int32_t id : ids) {
    check_id(id, vocab_size());
    append_utf8(text, points_[static_cast<size_t>(id)]);
  }
  return text;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("CharTokenizer::decode");
}

std::string CharTokenizer::to_json() const try {
  std::string out = "{\"type\":\"char\",\"vocabulary\":[";
  for (size_t id = 0; id < points_.size(); ++id) {
    if (id > 0) out += ',';
    std::string text;
    append_utf8(text, points_[id]);
    append_json_string(out, text);
  }
  return out + "]}\n";
} catch (const std::bad_alloc&) {
  throw_out_of_memory("CharTokenizer::to_json");
}

CharTokenizer CharTokenizer::from_json(std::string_view text, const std::string& path) try {
  JsonReader json(path, text);
  std::vector<uint32_t> points;
  bool is_char = false, has_vocabulary = false;
  json.object([&](std::string& key) {
    if (key == "type") {
      is_char = json.string() == "char";
    } else if (key == "vocabulary" && !std::exchange(has_vocabulary, true)) {
      json.array([&] {
        const std::string one = json.string();
        const CodePoint point = one.empty() ? CodePoint{} : decode_utf8(one, 0);
        if (static_cast<size_t>(point.length) != one.size() || one.empty())
          json.fail("a vocabulary entry is not one character");
        if (!points.empty() && point.value <= points.back()) json.fail("the vocabulary is not in ascending order");
        points.push_back(point.value);
      });
    } else {
      json.fail("unexpected field " + shown(key));
    }
  });
  json.finish();
  if (!is_char || !has_vocabulary) throw FileError(path, "not a character vocabulary");
  return CharTokenizer(std::move(points));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("CharTokenizer::from_json");
}

CharTokenizer CharTokenizer::load(const std::string& path) try {
  return from_json(MappedFile::open(path)->text(), path);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("CharTokenizer::load");
}
void CharTokenizer::save(const std::string& path) const try {
  write_file_atomic(path, to_json());
} catch (const std::bad_alloc&) {
  throw_out_of_memory("CharTokenizer::save");
}

}  // namespace rondo::io
