#include "rondo/runtime/text/pre_tokenizer.h"

#include <optional>

#include "rondo/runtime/text/json_fields.h"
#include "rondo/runtime/text/split_pattern.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {
namespace {

using Word = absl::FunctionRef<void(const Piece&)>;

// The way in which matches of a pattern split a text.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Receives the matches and the parts between them, in order, and passes words on.
class Cutter {
 public:
  Cutter(const Piece& in, Behavior behavior, Word word) : in_(in), behavior_(behavior), word_(word) {}

  void add(size_t begin, size_t end, bool match) {
    switch (behavior_) {
      case Behavior::kRemoved:
        if (!match) emit(begin, end);
        break;
      case Behavior::kIsolated: emit(begin, end); break;
      case Behavior::kContiguous:
        if (pending_ && match == pending_match_) end_ = end;
        else hold(begin, end);
        break;
      case Behavior::kMergedWithPrevious:
        if (pending_ && match && !pending_match_) end_ = end;
        else hold(begin, end);
        break;
      case Behavior::kMergedWithNext:
        if (pending_ && pending_match_ && !match) end_ = end;
        else hold(begin, end);
        break;
    }
    pending_match_ = match;
  }
  void finish() {
    if (pending_) emit(begin_, end_);
  }

 private:
  void hold(size_t begin, size_t end) {
    finish();
    begin_ = begin, end_ = end, pending_ = true;
  }
  void emit(size_t begin, size_t end) {
    if (begin < end) word_(in_.part(begin, end));
  }

  const Piece& in_;
  Behavior behavior_;
  Word word_;
  size_t begin_ = 0, end_ = 0;
  bool pending_ = false, pending_match_ = false;
};

class Split : public PreTokenizer {
 public:
  Split(SplitPattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void cut(const Piece& in, Word word) const override {
    Cutter cutter(in, behavior_, word);
    for_each_match(pattern_, in.text,
                   [&](size_t begin, size_t end, bool match) { cutter.add(begin, end, match != invert_); });
    cutter.finish();
  }

 private:
  SplitPattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Splits like a pattern that matches each single code point for which kIs() is true.
template <bool (*kIs)(uint32_t)> class SplitPoints : public PreTokenizer {
 public:
  explicit SplitPoints(Behavior behavior) : behavior_(behavior) {}
  void cut(const Piece& in, Word word) const override {
    Cutter cutter(in, behavior_, word);
    size_t unmatched = 0;
    for (size_t at = 0; at < in.text.size();) {
      const size_t begin = at;
      if (!kIs(next_point(in.text, at))) continue;
      if (unmatched < begin) cutter.add(unmatched, begin, false);
      cutter.add(begin, at, true);
      unmatched = at;
    }
    if (unmatched < in.text.size()) cutter.add(unmatched, in.text.size(), false);
    cutter.finish();
  }

 private:
  Behavior behavior_;
};
bool is_number(uint32_t point) { return is(point, kNumber); }
using SplitSpaces = SplitPoints<is_white_space>;
using SplitPunctuation = SplitPoints<is_bert_punctuation>;
using Digits = SplitPoints<is_number>;

class BertPreTokenizer : public PreTokenizer {
 public:
  void cut(const Piece& in, Word word) const override {
    spaces_.cut(in, [&](const Piece& part) { punctuation_.cut(part, word); });
  }

 private:
  SplitSpaces spaces_{Behavior::kRemoved};
  SplitPunctuation punctuation_{Behavior::kIsolated};
};

// Splits like the pattern \w+|[^\w\s]+.
class Whitespace : public PreTokenizer {
 public:
  void cut(const Piece& in, Word word) const override {
    enum Kind { kSpace, kWord, kOther };
    size_t begin = 0;
    Kind last = kSpace;
    for (size_t at = 0; at < in.text.size();) {
      const size_t here = at;
      const uint32_t point = next_point(in.text, at);
      const Kind now = is_word(point) ? kWord : is_white_space(point) ? kSpace : kOther;
      if (now == last) continue;
      if (last != kSpace) word(in.part(begin, here));
      begin = here, last = now;
    }
    if (last != kSpace) word(in.part(begin, in.text.size()));
  }
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    if (use_regex) pattern_.emplace(kGpt2Pattern);
  }
  void cut(const Piece& in, Word word) const override {
    if (!add_prefix_space_ || in.text.starts_with(' ')) return words(in, word);
    AlignedText prefixed(in.tracked, longest_rewritten(in.text.size()));
    size_t first = 0;
    next_point(in.text, first);
    prefixed.push(' ', in.tracked ? in.source(0, first) : Span{});
    prefixed.push(in, 0, in.text.size());
    words(prefixed.piece(), word);
  }

 private:
  void words(const Piece& in, Word word) const {
    if (!pattern_) return word(in);
    for_each_match(*pattern_, in.text, [&](size_t begin, size_t end, bool) { word(in.part(begin, end)); });
  }
  bool add_prefix_space_;
  std::optional<SplitPattern> pattern_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(const Metaspace& options) : options_(options) {
    io::append_utf8(mark_, options.replacement);
  }
  void cut(const Piece& in, Word word) const override {
    AlignedText marked(in.tracked, longest_rewritten(in.text.size()));
    size_t first = 0;
    const uint32_t start = next_point(in.text, first);
    const bool prepends = options_.prepend == Metaspace::kAlways ||
                          (options_.prepend == Metaspace::kFirst && in.source(0, first).begin == 0);
    if (prepends && start != ' ' && start != options_.replacement)
      marked.push(options_.replacement, in.tracked ? in.source(0, first) : Span{});
    for (size_t at = 0; at < in.text.size();) {
      const size_t begin = at;
      const uint32_t point = next_point(in.text, at);
      if (point == ' ') marked.push(options_.replacement, in.tracked ? in.source(begin, at) : Span{});
      else marked.push(in, begin, at);
    }
    const Piece all = marked.piece();
    if (!options_.split) return word(all);
    Cutter cutter(all, Behavior::kMergedWithNext, word);
    size_t unmatched = 0;
    for (size_t at; (at = all.text.find(mark_, unmatched)) != all.text.npos; unmatched = at + mark_.size()) {
      if (unmatched < at) cutter.add(unmatched, at, false);
      cutter.add(at, at + mark_.size(), true);
    }
    if (unmatched < all.text.size()) cutter.add(unmatched, all.text.size(), false);
    cutter.finish();
  }

 private:
  Metaspace options_;
  std::string mark_;
};

Behavior read_behavior(io::JsonReader& json, const std::string& where) {
  const std::string name = json.string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  json.fail(absl::StrCat(where, ": behavior ", io::shown(name), " is not supported"));
}

void read_pre_tokenizer(io::JsonReader& json, PreTokenizers& out, int depth) {
  const std::string type = peek_type(json, "pre_tokenizer");
  const std::string where = "pre_tokenizer " + io::shown(type);
  if (depth == kMaxNesting) json.fail("pre_tokenizer: Sequences nest too deeply");
  if (out.steps.size() >= kMostSteps) json.fail("pre_tokenizer: a list of more than 64 steps");
  if (out.byte_level) json.fail("pre_tokenizer: a step after ByteLevel is not supported");
  const auto add = [&](auto step) { out.steps.push_back(std::move(step)); };
  if (type == "Sequence") {
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") return json.skip(), true;
      if (key != "pretokenizers") return false;
      json.array([&] { read_pre_tokenizer(json, out, depth + 1); });
      return true;
    });
  } else if (type == "ByteLevel") {
    bool prefix = true, regex = true;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "add_prefix_space") prefix = json.boolean();
      else if (key == "use_regex") regex = json.boolean();
      else if (key == "trim_offsets") json.boolean();  // only the ByteLevel post-processor trims
      else return false;
      return true;
    });
    add(byte_level_pre_tokenizer(prefix, regex));
    out.byte_level = true;
  } else if (type == "Metaspace") {
    const Metaspace options = read_metaspace(json, where);
    if (options.prepend == Metaspace::kFirst) out.needs_source = true;
    add(std::make_unique<MetaspacePreTokenizer>(options));
  } else if (type == "Split") {
    std::optional<SplitPattern> pattern;
    std::optional<Behavior> behavior;
    bool invert = false;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "pattern") pattern = read_pattern(json, where);
      else if (key == "behavior") behavior = read_behavior(json, where);
      else if (key == "invert") invert = json.boolean();
      else return false;
      return true;
    });
    if (!pattern || !behavior) json.fail(where + ": needs a pattern and a behavior");
    add(std::make_unique<Split>(std::move(*pattern), *behavior, invert));
  } else if (type == "Punctuation") {
    Behavior behavior = Behavior::kIsolated;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "behavior") behavior = read_behavior(json, where);
      else return false;
      return true;
    });
    add(std::make_unique<SplitPunctuation>(behavior));
  } else if (type == "Digits") {
    bool individual = false;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "individual_digits") individual = json.boolean();
      else return false;
      return true;
    });
    add(std::make_unique<Digits>(individual ? Behavior::kIsolated : Behavior::kContiguous));
  } else {
    if (type == "BertPreTokenizer") add(bert_pre_tokenizer());
    else if (type == "Whitespace") add(std::make_unique<Whitespace>());
    else if (type == "WhitespaceSplit") add(std::make_unique<SplitSpaces>(Behavior::kRemoved));
    else json.fail(where + " is not supported");
    read_fields(json, where, [&](const std::string& key) { return key == "type" && (json.skip(), true); });
  }
}

}  // namespace

PreTokenizers read_pre_tokenizers(io::JsonReader& json) {
  PreTokenizers out;
  if (!read_null(json)) read_pre_tokenizer(json, out, 0);
  return out;
}

std::unique_ptr<const PreTokenizer> bert_pre_tokenizer() { return std::make_unique<BertPreTokenizer>(); }
std::unique_ptr<const PreTokenizer> byte_level_pre_tokenizer(bool add_prefix_space, bool use_regex) {
  return std::make_unique<ByteLevel>(add_prefix_space, use_regex);
}
std::unique_ptr<const PreTokenizer> split_pre_tokenizer(std::string_view pattern) {
  return std::make_unique<Split>(SplitPattern(pattern), Behavior::kIsolated, false);
}

Metaspace read_metaspace(io::JsonReader& json, const std::string& where) {
  Metaspace out;
  std::optional<bool> prefix;
  std::optional<std::string> scheme;
  read_fields(json, where, [&](const std::string& key) {
    if (key == "type" || key == "str_rep") {
      json.string();
    } else if (key == "replacement") {
      const std::string text = json.string();
      const io::CodePoint point = text.empty() ? io::CodePoint{} : io::decode_utf8(text, 0);
      if (point.length == 0 || static_cast<size_t>(point.length) != text.size())
        json.fail(absl::StrCat(where, ": the replacement is not one character"));
      out.replacement = point.value;
    } else if (key == "add_prefix_space") {
      prefix = json.boolean();
    } else if (key == "prepend_scheme") {
      scheme = json.string();
    } else if (key == "split") {
      out.split = json.boolean();
    } else {
      return false;
    }
    return true;
  });
  if (!scheme) out.prepend = prefix.value_or(true) ? Metaspace::kAlways : Metaspace::kNever;
  else if (*scheme == "always") out.prepend = Metaspace::kAlways;
  else if (*scheme == "first") out.prepend = Metaspace::kFirst;
  else if (*scheme == "never") out.prepend = Metaspace::kNever;
  else json.fail(absl::StrCat(where, ": prepend_scheme ", io::shown(*scheme), " is not supported"));
  if (scheme && prefix == false && out.prepend != Metaspace::kNever)
    json.fail(absl::StrCat(where, ": add_prefix_space and prepend_scheme contradict each other"));
  return out;
}

}  // namespace rondo::text
