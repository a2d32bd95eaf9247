#include "rondo/runtime/text/normalizer.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/text/json_fields.h"
#include "rondo/runtime/text/split_pattern.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {

void AlignedText::push(uint32_t point, Span source) {
  const size_t before = text_.size();
  io::append_utf8(text_, point);
  check_length();
  if (tracked_) origin_.insert(origin_.end(), text_.size() - before, source);
}

void AlignedText::push(const Piece& piece, size_t begin, size_t end) {
  text_.append(piece.text.substr(begin, end - begin));
  check_length();
  if (!tracked_) return;
  if (piece.origin != nullptr) {
    origin_.insert(origin_.end(), piece.origin + begin, piece.origin + end);
    return;
  }
  while (begin < end) {
    size_t next = begin;
    next_point(piece.text, next);
    origin_.insert(origin_.end(), next - begin, piece.source(begin, next));
    begin = next;
  }
}

void AlignedText::check_length() const {
  if (text_.size() > longest_)
    throw Error(absl::StrCat("encode: the tokenizer's normalizers make a text longer than ", longest_, " bytes"));
}

namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

// Calls visit(point, its source) for each code point.
template <class Visit> void for_each_point(const Piece& in, Visit&& visit) {
  for (size_t at = 0; at < in.text.size();) {
    const size_t begin = at;
    const uint32_t point = next_point(in.text, at);
    visit(point, in.tracked ? in.source(begin, at) : Span{});
  }
}

class Lowercase : public Normalizer {
 public:
  bool keeps(std::string_view text) const override {
    return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0 && !(c >= 'A' && c <= 'Z'); });
  }
  void rewrite(const Piece& in, AlignedText& out) const override {
    for_each_point(in, [&](uint32_t point, Span source) {
      const Lower lower = to_lower(point);
      out.push(lower.first, source);
      if (lower.second != 0) out.push(lower.second, source);
    });
  }
};

// Removes the code points for which kRemoves() is true.
template <bool (*kRemoves)(uint32_t)> class Remove : public Normalizer {
 public:
  bool keeps(std::string_view text) const override { return is_ascii(text); }
  void rewrite(const Piece& in, AlignedText& out) const override {
    for_each_point(in, [&](uint32_t point, Span source) {
      if (!kRemoves(point)) out.push(point, source);
    });
  }
};
using StripAccents = Remove<is_stripped>;
using BertStripAccents = Remove<is_bert_accent>;

// NFD, NFC, NFKD, NFKC (UAX 15). The source of each result point is found as in the reference: result and original are
// walked in parallel, and each result point advances by as many original points as it replaces (Point::extra).
class NormalForm : public Normalizer {
 public:
  NormalForm(bool compose, bool compatibility) : compose_(compose), compatibility_(compatibility) {}
  bool keeps(std::string_view text) const override { return is_ascii(text); }
  void rewrite(const Piece& in, AlignedText& out) const override {
    std::vector<Point> points;
    for (size_t at = 0; at < in.text.size();) decompose(next_point(in.text, at), points);
    // Canonical ordering: sorts each run of marks by combining class, stably.
    for (auto begin = points.begin(); begin != points.end();) {
      if (begin->combining == 0) {
        ++begin;
        continue;
      }
      auto end = begin;
      while (end != points.end() && end->combining != 0) ++end;
      std::stable_sort(begin, end, [](const Point& a, const Point& b) { return a.combining < b.combining; });
      begin = end;
    }
    if (compose_) compose_points(points);
    size_t at = 0;
    Span last{};
    if (in.tracked && !in.text.empty()) last = {in.source(0, 1).begin, in.source(0, 1).begin};
    for (const Point& point : points) {
      if (point.extra > 0 || at >= in.text.size()) {  // no original point left for it: same source as the point before
        out.push(point.value, last);
        continue;
      }
      const size_t begin = at;
      next_point(in.text, at);
      const Span first = in.tracked ? in.source(begin, at) : Span{};
      size_t tail = begin;
      for (int i = 0; i < -point.extra && at < in.text.size(); ++i) tail = at, next_point(in.text, at);
      if (in.tracked) last = in.source(tail, at);
      out.push(point.value, first);
    }
  }

 private:
  struct Point {
    uint32_t value;
    uint8_t combining;
    int extra;  // 1: not the first point of a decomposition; -n: also replaces the next n points
  };

  void decompose(uint32_t point, std::vector<Point>& out) const {
    constexpr uint32_t kS = 0xAC00, kCount = 11172;
    if (point - kS < kCount) {
      const uint32_t s = point - kS;
      out.push_back({0x1100 + s / 588, 0, 0});
      out.push_back({0x1161 + s % 588 / 28, 0, 1});
      if (s % 28 != 0) out.push_back({0x11A7 + s % 28, 0, 1});
      return;
    }
    const auto parts = point < 0x80 ? std::span<const uint32_t>{} : decomposition(point, compatibility_);
    if (parts.empty()) return out.push_back({point, combining_class(point), 0});
    for (size_t i = 0; i < parts.size(); ++i) out.push_back({parts[i], combining_class(parts[i]), i > 0 ? 1 : 0});
  }

  static void compose_points(std::vector<Point>& points) {
    size_t kept = 0, starter = SIZE_MAX;
    int last_class = -1;  // class of the last point kept after the starter; -1: none
    for (size_t i = 0; i < points.size(); ++i) {
      const Point now = points[i];
      if (starter != SIZE_MAX && last_class < static_cast<int>(now.combining)) {
        if (const uint32_t composed = rondo::text::compose(points[starter].value, now.value); composed != 0) {
          points[starter].value = composed;
          points[starter].extra += now.extra - 1;
          continue;
        }
      }
      if (now.combining == 0) starter = kept, last_class = -1;
      else last_class = now.combining;
      points[kept++] = now;
    }
    points.resize(kept);
  }

  bool compose_, compatibility_;
};

// The first of BERT's steps: removes control characters, and replaces white space by a space.
class BertClean : public Normalizer {
 public:
  bool keeps(std::string_view text) const override {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7F; });
  }
  void rewrite(const Piece& in, AlignedText& out) const override {
    for_each_point(in, [&](uint32_t point, Span source) {
      if (is_white_space(point)) {
        if (point == '\t' || point == '\n' || point == '\r' || !is_bert_control(point)) out.push(' ', source);
      } else if (point != 0 && point != 0xFFFD && !is_bert_control(point)) {
        out.push(point, source);
      }
    });
  }
};

class BertChinese : public Normalizer {
 public:
  bool keeps(std::string_view text) const override {
    return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xE3; });
  }
  void rewrite(const Piece& in, AlignedText& out) const override {
    for_each_point(in, [&](uint32_t point, Span source) {
      const bool chinese = is_bert_chinese(point);
      if (chinese) out.push(' ', source);
      out.push(point, source);
      if (chinese) out.push(' ', source);
    });
  }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool keeps(std::string_view text) const override { return range(text) == std::pair<size_t, size_t>{0, text.size()}; }
  void rewrite(const Piece& in, AlignedText& out) const override {
    const auto [begin, end] = range(in.text);
    out.push(in, begin, end);
  }

 private:
  std::pair<size_t, size_t> range(std::string_view text) const {
    size_t begin = 0, end = text.size();
    for (size_t next = 0; left_ && begin < end && is_white_space(next_point(text, next)); begin = next) {
    }
    while (right_ && end > begin) {
      const size_t before = previous_point(text, end);
      size_t at = before;
      if (!is_white_space(next_point(text, at))) break;
      end = before;
    }
    return {begin, end};
  }
  bool left_, right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  bool keeps(std::string_view text) const override { return text.empty() || prefix_.empty(); }
  void rewrite(const Piece& in, AlignedText& out) const override {
    if (in.text.empty()) return;
    size_t first = 0;
    next_point(in.text, first);
    const Span source = in.tracked ? in.source(0, first) : Span{};
    for (size_t at = 0; at < prefix_.size();) out.push(next_point(prefix_, at), source);
    out.push(in, 0, in.text.size());
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  explicit Replace(Replacement with) : with_(std::move(with)) {}
  bool keeps(std::string_view) const override { return false; }
  void rewrite(const Piece& in, AlignedText& out) const override {
    for (size_t at = 0; at < in.text.size();) {
      const size_t end = with_.pattern.match(in.text, at);
      if (end == SplitPattern::npos) {
        const size_t begin = at;
        next_point(in.text, at);
        out.push(in, begin, at);
        continue;
      }
      // As in the reference, the source of the whole replacement is the last code point of the match.
      const Span source = in.tracked ? in.source(previous_point(in.text, end), end) : Span{};
      for (size_t i = 0; i < with_.content.size();) out.push(next_point(with_.content, i), source);
      at = end;
    }
  }

 private:
  Replacement with_;
};

void read_normalizer(io::JsonReader& json, Normalizers& out, int depth) {
  const std::string type = peek_type(json, "normalizer");
  const std::string where = "normalizer " + io::shown(type);
  if (depth == kMaxNesting) json.fail("normalizer: Sequences nest too deeply");
  if (out.size() >= kMostSteps) json.fail("normalizer: a list of more than 64 steps");
  if (type == "Sequence") {
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") return json.skip(), true;
      if (key != "normalizers") return false;
      json.array([&] { read_normalizer(json, out, depth + 1); });
      return true;
    });
  } else if (type == "BertNormalizer") {
    bool clean = true, chinese = true, lower = true;
    std::optional<bool> accents;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "clean_text") clean = json.boolean();
      else if (key == "handle_chinese_chars") chinese = json.boolean();
      else if (key == "lowercase") lower = json.boolean();
      else if (key == "strip_accents") {
        if (!read_null(json)) accents = json.boolean();
      } else return false;
      return true;
    });
    append_bert_normalizer(out, clean, chinese, accents.value_or(lower), lower);
  } else if (type == "Strip") {
    bool left = true, right = true;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "strip_left") left = json.boolean();
      else if (key == "strip_right") right = json.boolean();
      else return false;
      return true;
    });
    out.push_back(std::make_unique<Strip>(left, right));
  } else if (type == "Prepend") {
    std::string prefix;
    read_fields(json, where, [&](const std::string& key) {
      if (key == "type") json.skip();
      else if (key == "prepend") prefix = json.string();
      else return false;
      return true;
    });
    out.push_back(std::make_unique<Prepend>(prefix));
  } else if (type == "Replace") {
    out.push_back(std::make_unique<Replace>(read_replacement(json, where)));
  } else {
    if (type == "Lowercase") out.push_back(std::make_unique<Lowercase>());
    else if (type == "StripAccents") out.push_back(std::make_unique<StripAccents>());
    else if (type == "NFC") out.push_back(std::make_unique<NormalForm>(true, false));
    else if (type == "NFD") out.push_back(std::make_unique<NormalForm>(false, false));
    else if (type == "NFKC") out.push_back(std::make_unique<NormalForm>(true, true));
    else if (type == "NFKD") out.push_back(std::make_unique<NormalForm>(false, true));
    else json.fail(where + " is not supported");
    read_fields(json, where, [&](const std::string& key) { return key == "type" && (json.skip(), true); });
  }
}

}  // namespace

Normalizers read_normalizers(io::JsonReader& json) {
  Normalizers out;
  if (!read_null(json)) read_normalizer(json, out, 0);
  return out;
}

std::unique_ptr<const Normalizer> nfc_normalizer() { return std::make_unique<NormalForm>(true, false); }

void append_bert_normalizer(Normalizers& out, bool clean_text, bool handle_chinese_chars, bool strip_accents,
                            bool lowercase) {
  if (clean_text) out.push_back(std::make_unique<BertClean>());
  if (handle_chinese_chars) out.push_back(std::make_unique<BertChinese>());
  if (strip_accents) {
    out.push_back(std::make_unique<NormalForm>(false, false));
    out.push_back(std::make_unique<BertStripAccents>());
  }
  if (lowercase) out.push_back(std::make_unique<Lowercase>());
}

}  // namespace rondo::text
