#include "rondo/runtime/text/model.h"

#include <algorithm>
#include <cstring>

#include "absl/hash/hash.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/utf8.h"
#include "rondo/runtime/text/json_fields.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {

Vocabulary Vocabulary::read(io::JsonReader& json, size_t file_size) {
  Vocabulary out;
  json.object([&](std::string& token) {
    const uint64_t id = json.unsigned_integer();
    // A file of n bytes cannot define n ids; the bound keeps a hostile id from allocating memory.
    if (id >= file_size || id > INT32_MAX)
      json.fail(absl::StrCat("token id ", id, " is larger than the vocabulary can be"));
    if (id >= out.tokens_.size()) {
      out.tokens_.resize(id + 1);
      out.present_.resize(id + 1);
    }
    if (out.present_[id]) json.fail(absl::StrCat("two tokens have the id ", id));
    out.present_[id] = true;
    out.tokens_[id] = std::move(token);
  });
  out.index();
  if (out.ids_.size() != static_cast<size_t>(std::count(out.present_.begin(), out.present_.end(), true)))
    json.fail("a token appears twice in the vocabulary");
  return out;
}

Vocabulary Vocabulary::read_lines(std::string_view text, const std::string& path) {
  Vocabulary out;
  if (text.size() > INT32_MAX) throw FileError(path, "the vocabulary is larger than 2 GB");
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!io::is_valid_utf8(line))
      throw FileError(path, absl::StrCat("line ", out.tokens_.size() + 1, ": invalid UTF-8"));
    // Strips white space from the end of the line, as in the reference.
    while (!line.empty()) {
      const size_t before = previous_point(line, line.size());
      size_t at = before;
      if (!is_white_space(next_point(line, at))) break;
      line = line.substr(0, before);
    }
    out.tokens_.emplace_back(line);
    out.present_.push_back(true);
  }
  out.index();
  // If several lines are equal, the token has the id of the last one; the ids of the other lines name no token.
  for (size_t id = 0; id < out.tokens_.size(); ++id) out.ids_[out.tokens_[id]] = static_cast<int32_t>(id);
  for (size_t id = 0; id < out.tokens_.size(); ++id)
    out.present_[id] = out.ids_[out.tokens_[id]] == static_cast<int32_t>(id);
  return out;
}

void Vocabulary::index() {
  ids_.reserve(tokens_.size());
  for (size_t id = 0; id < tokens_.size(); ++id)
    if (present_[id]) ids_.try_emplace(tokens_[id], static_cast<int32_t>(id));
}

void Model::encode(std::string_view word, Scratch& scratch, std::vector<Token>& out) const {
  if (word.size() > WordCache::Slot::kLongest) return encode_anew(word, scratch, out);
  WordCache::Slot& slot = scratch.cache.slot(absl::HashOf(word));
  if (slot.count > 0 && slot.length == word.size() && std::memcmp(slot.word, word.data(), word.size()) == 0) {
    out.insert(out.end(), slot.tokens, slot.tokens + slot.count);
    return;
  }
  const size_t before = out.size();
  encode_anew(word, scratch, out);
  const size_t count = out.size() - before;
  if (count == 0 || count > WordCache::Slot::kMostTokens) return;
  slot.length = static_cast<uint8_t>(word.size());
  slot.count = static_cast<uint8_t>(count);
  std::memcpy(slot.word, word.data(), word.size());
  std::copy(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(), slot.tokens);
}

namespace {

class WordPiece : public Model {
 public:
  WordPiece(Vocabulary vocabulary, WordPieceOptions options, const std::string& path)
      : Model(std::move(vocabulary)), options_(std::move(options)), unk_(vocabulary_.id(options_.unk_token)) {
    if (unk_ < 0) throw FileError(path, "WordPiece: the unk_token " + io::shown(options_.unk_token) + " is no token");
    for (int64_t id = 0; id < vocabulary_.size(); ++id)
      if (const std::string* token = vocabulary_.token(id)) longest_ = std::max(longest_, token->size());
  }

 protected:
  void encode_anew(std::string_view word, Scratch& scratch, std::vector<Token>& out) const override {
    const size_t before = out.size();
    const auto points = std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xC0) != 0x80; });
    bool known = points <= options_.max_input_chars_per_word;
    std::string& token = scratch.spelled;
    for (size_t start = 0; known && start < word.size();) {
      token.assign(start > 0 ? options_.prefix : "");
      const size_t prefix = token.size();
      size_t end = std::min(word.size(), start + longest_);
      while (end > start && end < word.size() && (word[end] & 0xC0) == 0x80) --end;
      token.append(word.substr(start, end - start));
      int32_t id = -1;
      while (end > start && (id = vocabulary_.id(token)) < 0) {
        end = previous_point(word, end);
        token.resize(prefix + (end - start));
      }
      known = id >= 0 && end > start;
      if (known) out.push_back({id, static_cast<uint32_t>(end - start)});
      start = end;
    }
    if (known) return;
    out.resize(before);
    out.push_back({unk_, static_cast<uint32_t>(word.size())});
  }

 private:
  WordPieceOptions options_;
  int32_t unk_;
  size_t longest_ = 0;
};

MergeList read_merge_array(io::JsonReader& json) {
  MergeList out;
  json.array([&] {
    if (json.peek() == '[') {
      std::vector<std::string> parts;
      json.array([&] { parts.push_back(json.string()); });
      if (parts.size() != 2) json.fail("a merge is not two tokens");
      out.emplace_back(std::move(parts[0]), std::move(parts[1]));
      return;
    }
    const std::string line = json.string();
    if (line.starts_with("#version")) return;
    const size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos)
      json.fail("merge " + io::shown(line) + " is not two tokens and one space");
    out.emplace_back(line.substr(0, space), line.substr(space + 1));
  });
  return out;
}

}  // namespace

std::unique_ptr<const Model> make_word_piece(Vocabulary vocabulary, WordPieceOptions options, const std::string& path) {
  return std::make_unique<WordPiece>(std::move(vocabulary), std::move(options), path);
}

MergeList read_merges(std::string_view text, const std::string& path) {
  MergeList out;
  for (int line_number = 1; !text.empty(); ++line_number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    if (space == line.npos || line.find(' ', space + 1) != line.npos || !io::is_valid_utf8(line))
      throw FileError(path, absl::StrCat("line ", line_number, ": expected two tokens and one space"));
    out.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return out;
}

std::unique_ptr<const Model> read_model(io::JsonReader& json, size_t file_size, bool byte_level,
                                        const std::string& path) {
  std::string type = peek_type(json, "model");
  if (type.empty()) {  // files of 2019 have no type
    io::JsonReader ahead = json;
    ahead.object([&](std::string& key) {
      if (key == "merges") type = "BPE";
      if (key == "max_input_chars_per_word") type = "WordPiece";
      ahead.skip();
    });
  }
  const std::string where = "model " + io::shown(type);
  std::optional<Vocabulary> vocabulary;
  if (type == "BPE") {
    std::optional<MergeList> merges;
    BpeOptions options{.byte_level = byte_level};
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "vocab") vocabulary = Vocabulary::read(json, file_size);
      else if (key == "merges") merges = read_merge_array(json);
      else if (key == "unk_token") options.unk_token = read_optional_string(json);
      else if (key == "continuing_subword_prefix") options.prefix = read_optional_string(json).value_or("");
      else if (key == "end_of_word_suffix") options.suffix = read_optional_string(json).value_or("");
      else if (key == "fuse_unk") options.fuse_unk = json.boolean();
      else if (key == "byte_fallback") options.byte_fallback = json.boolean();
      else if (key == "ignore_merges") options.ignore_merges = json.boolean();
      else if (key == "dropout") {
        if (!read_null(json) && json.number().find_first_not_of("0.") != std::string_view::npos)
          json.fail(where + ": dropout is not supported");
      } else return false;
      return true;
    });
    if (!vocabulary || !merges) json.fail(where + ": needs vocab and merges");
    return make_bpe(std::move(*vocabulary), *merges, std::move(options), path);
  }
  if (type == "WordPiece") {
    if (byte_level) json.fail(where + " behind the pre_tokenizer ByteLevel is not supported");
    WordPieceOptions options;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "vocab") vocabulary = Vocabulary::read(json, file_size);
      else if (key == "unk_token") options.unk_token = json.string();
      else if (key == "continuing_subword_prefix") options.prefix = json.string();
      else if (key == "max_input_chars_per_word") options.max_input_chars_per_word = read_int32(json, key);
      else return false;
      return true;
    });
    if (!vocabulary) json.fail(where + ": needs vocab");
    return make_word_piece(std::move(*vocabulary), std::move(options), path);
  }
  json.fail(where + " is not supported: BPE and WordPiece are");
}

const std::array<std::string, 256>& byte_spelling() {
  static const auto& table = *new auto([] {
    std::array<std::string, 256> spelling;
    uint32_t next = 0x100;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      io::append_utf8(spelling[b], printable ? b : next++);
    }
    return spelling;
  }());
  return table;
}

bool append_bytes(std::string_view spelled, std::string& bytes) {
  static const auto table = [] {
    std::array<int, 0x144> back;
    back.fill(-1);
    for (int b = 0; b < 256; ++b) {
      size_t at = 0;
      back[next_point(byte_spelling()[static_cast<size_t>(b)], at)] = b;
    }
    return back;
  }();
  const size_t before = bytes.size();
  for (size_t at = 0; at < spelled.size();) {
    const uint32_t point = next_point(spelled, at);
    if (point >= table.size() || table[point] < 0) {
      bytes.resize(before);
      return false;
    }
    bytes.push_back(static_cast<char>(table[point]));
  }
  return true;
}

}  // namespace rondo::text
