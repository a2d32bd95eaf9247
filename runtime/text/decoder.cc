#include "rondo/runtime/text/decoder.h"

#include <charconv>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/utf8.h"
#include "rondo/runtime/text/aligned_text.h"
#include "rondo/runtime/text/json_fields.h"
#include "rondo/runtime/text/model.h"
#include "rondo/runtime/text/pre_tokenizer.h"
#include "rondo/runtime/text/split_pattern.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {
namespace {

void check_length(size_t bytes, size_t longest) {
  if (bytes > longest)
    throw Error(absl::StrCat("decode: the tokenizer's decoders make a text longer than ", longest, " bytes"));
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

class ByteLevelDecoder : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens)
      if (!append_bytes(token, bytes)) bytes += token;  // an added token: its text unchanged
    tokens.assign(1, std::move(bytes));
  }
};

class WordPieceDecoder : public Decoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup) : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0) {
        if (token.starts_with(prefix_)) token.erase(0, prefix_.size());
        else token.insert(0, " ");
      }
      if (cleanup_) clean_up(token, /*do_not=*/true);
    }
  }

 private:
  std::string prefix_;
  bool cleanup_;
};

class MetaspaceDecoder : public Decoder {
 public:
  explicit MetaspaceDecoder(const Metaspace& options) : options_(options) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string out;
      for (size_t at = 0; at < tokens[i].size();) {
        const uint32_t point = next_point(tokens[i], at);
        if (point != options_.replacement) io::append_utf8(out, point);
        else if (i > 0 || options_.prepend == Metaspace::kNever) out += ' ';
      }
      tokens[i] = std::move(out);
    }
  }

 private:
  Metaspace options_;
};

// A run of <0xNN> tokens becomes the text of its bytes, or one U+FFFD for each byte if they are invalid UTF-8.
class ByteFallback : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (io::is_valid_utf8(bytes)) {
        if (!bytes.empty()) out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), std::string(kReplacement));
      }
      bytes.clear();
    };
    for (std::string& token : tokens) {
      uint8_t byte = 0;
      if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
          std::from_chars(&token[3], &token[5], byte, 16).ptr == &token[5]) {
        bytes.push_back(static_cast<char>(byte));
        continue;
      }
      flush();
      out.push_back(std::move(token));
    }
    flush();
    tokens = std::move(out);
  }
};

class Fuse : public Decoder {
 public:
  void apply(std::vector<std::string>& tokens) const override { tokens.assign(1, absl::StrJoin(tokens, "")); }
};

// Removes up to `start` copies of a character from the front of each token, and up to `stop` copies from its end.
class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, int32_t start, int32_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int32_t i = 0; i < start_ && rest.starts_with(content_); ++i) rest.remove_prefix(content_.size());
      for (int32_t i = 0; i < stop_ && rest.ends_with(content_); ++i) rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  int32_t start_, stop_;
};

class ReplaceDecoder : public Decoder {
 public:
  explicit ReplaceDecoder(Replacement with) : with_(std::move(with)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string out;
      for_each_match(with_.pattern, token, [&](size_t begin, size_t end, bool match) {
        out += match ? std::string_view(with_.content) : std::string_view(token).substr(begin, end - begin);
        check_length(out.size(), longest_rewritten(token.size()));
      });
      token = std::move(out);
    }
  }

 private:
  Replacement with_;
};

class BpeDecoder : public Decoder {
 public:
  explicit BpeDecoder(std::string suffix) : suffix_(std::move(suffix)) {}
  void apply(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = absl::StrReplaceAll(tokens[i], {{suffix_, i + 1 < tokens.size() ? " " : ""}});
  }

 private:
  std::string suffix_;
};

void read_decoder(io::JsonReader& json, Decoders& out, int depth) {
  const std::string type = peek_type(json, "decoder");
  const std::string where = "decoder " + io::shown(type);
  if (depth == kMaxNesting) json.fail("decoder: Sequences nest too deeply");
  if (out.steps.size() >= kMostSteps) json.fail("decoder: a list of more than 64 steps");
  const auto add = [&](auto step) { out.steps.push_back(std::move(step)); };
  if (type == "Sequence") {
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") return json.skip(), true;
      if (key != "decoders") return false;
      json.array([&] { read_decoder(json, out, depth + 1); });
      return true;
    });
  } else if (type == "ByteLevel") {
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      // Options of the ByteLevel pre-tokenizer. Files also give them for the decoder, where they have no effect.
      else if (key == "add_prefix_space" || key == "trim_offsets" || key == "use_regex") json.boolean();
      else return false;
      return true;
    });
    add(byte_level_decoder());
  } else if (type == "WordPiece") {
    std::string prefix = "##";
    bool cleanup = true;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "prefix") prefix = json.string();
      else if (key == "cleanup") cleanup = json.boolean();
      else return false;
      return true;
    });
    add(word_piece_decoder(prefix, cleanup));
  } else if (type == "Metaspace") {
    add(std::make_unique<MetaspaceDecoder>(read_metaspace(json, where)));
  } else if (type == "Strip") {
    std::string content;
    int32_t start = 0, stop = 0;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "content") content = json.string();
      else if (key == "start") start = read_int32(json, key);
      else if (key == "stop") stop = read_int32(json, key);
      else return false;
      return true;
    });
    if (content.empty() || static_cast<size_t>(io::decode_utf8(content, 0).length) != content.size())
      json.fail(where + ": the content is not one character");
    add(std::make_unique<StripDecoder>(content, start, stop));
  } else if (type == "Replace") {
    add(std::make_unique<ReplaceDecoder>(read_replacement(json, where)));
  } else if (type == "BPEDecoder") {
    std::string suffix = "</w>";
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "suffix") suffix = json.string();
      else return false;
      return true;
    });
    if (suffix.empty()) json.fail(where + ": the suffix is empty");
    add(std::make_unique<BpeDecoder>(suffix));
  } else {
    if (type == "ByteFallback") add(std::make_unique<ByteFallback>());
    else if (type == "Fuse") add(std::make_unique<Fuse>());
    else json.fail(where + " is not supported");
    read_fields(json, where, [&](const std::string& key) { return key == "type" && (json.skip(), true); });
  }
}

}  // namespace

std::string Decoders::join(std::vector<std::string> tokens) const {
  if (!present) return absl::StrJoin(tokens, " ");
  const auto length = [&tokens] {
    size_t bytes = 0;
    for (const std::string& token : tokens) bytes += token.size();
    return bytes;
  };
  const size_t longest = longest_rewritten(length());
  for (const auto& step : steps) {
    step->apply(tokens);
    check_length(length(), longest);
  }
  return absl::StrJoin(tokens, "");
}

Decoders read_decoders(io::JsonReader& json) {
  Decoders out;
  if (read_null(json)) return out;
  out.present = true;
  read_decoder(json, out, 0);
  return out;
}

void clean_up(std::string& text, bool do_not) {
  constexpr std::string_view kDoNot = " do not";
  // The order matters: a later rule sees the result of an earlier one.
  static constexpr std::pair<const char*, const char*> kRules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
  };
  for (const auto& rule : kRules)
    if ((do_not || rule.first != kDoNot) && text.find(rule.first) != text.npos)
      text = absl::StrReplaceAll(text, {rule});
}

std::unique_ptr<const Decoder> byte_level_decoder() { return std::make_unique<ByteLevelDecoder>(); }
std::unique_ptr<const Decoder> word_piece_decoder(std::string prefix, bool cleanup) {
  return std::make_unique<WordPieceDecoder>(std::move(prefix), cleanup);
}

std::string replace_invalid_utf8(std::string text) {
  size_t at = io::valid_utf8_prefix(text);
  if (at == text.size()) return text;
  std::string out(text, 0, at);
  while (at < text.size()) {
    out += kReplacement;
    // Counts the bytes that could be the beginning of a code point. The range of the second byte depends on the first.
    const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0; };
    const int lead = byte(0);
    const size_t length = lead >= 0xF0 && lead <= 0xF4 ? 4 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xC2 ? 2 : 1;
    const int least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const int most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    size_t good = 1;
    if (lead <= 0xF4 && length > 1 && byte(1) >= least && byte(1) <= most) good = 2;
    while (good >= 2 && good < length && (byte(good) & 0xC0) == 0x80) ++good;
    at += good;
    const size_t valid = io::valid_utf8_prefix(text, at);
    out.append(text, at, valid);
    at += valid;
  }
  return out;
}

}  // namespace rondo::text
