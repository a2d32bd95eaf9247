// Parses the text of a pattern into the steps of a SplitPattern.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/text/split_pattern.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {
namespace {

constexpr uint32_t kUnbounded = UINT32_MAX;
constexpr int kMaxDepth = 32;
// A counted repetition of a group is expanded into copies. This limit bounds the size of a hostile pattern.
constexpr size_t kMaxSteps = 4096;

struct CategoryName {
  std::string_view name;
  uint32_t bits;
};
constexpr CategoryName kCategoryNames[] = {
    {"L", kLetter},      {"M", kMark},        {"N", kNumber},
    {"P", kPunctuation}, {"S", kSymbol},      {"Z", kSeparator},
    {"C", kOther},       {"Lu", bit(kLu)},    {"Ll", bit(kLl)},
    {"Lt", bit(kLt)},    {"Lm", bit(kLm)},    {"Lo", bit(kLo)},
    {"Mn", bit(kMn)},    {"Mc", bit(kMc)},    {"Me", bit(kMe)},
    {"Nd", bit(kNd)},    {"Nl", bit(kNl)},    {"No", bit(kNo)},
    {"Pc", bit(kPc)},    {"Pd", bit(kPd)},    {"Ps", bit(kPs)},
    {"Pe", bit(kPe)},    {"Pi", bit(kPi)},    {"Pf", bit(kPf)},
    {"Po", bit(kPo)},    {"Sm", bit(kSm)},    {"Sc", bit(kSc)},
    {"Sk", bit(kSk)},    {"So", bit(kSo)},    {"Zs", bit(kZs)},
    {"Zl", bit(kZl)},    {"Zp", bit(kZp)},    {"Cc", bit(kCc)},
    {"Cf", bit(kCf)},    {"Co", bit(kCo)},    {"Cn", bit(kCn)},
    {"Letter", kLetter}, {"Number", kNumber}, {"Punctuation", kPunctuation},
};

// A node of the syntax tree of a pattern.
struct Node {
  enum Kind { kSet, kSequence, kAlternatives, kLook, kRepeat } kind = kSequence;
  uint32_t set = 0;              // kSet
  std::vector<Node> children{};  // kLook and kRepeat have one child
  uint32_t min = 1, max = 1;     // kRepeat
  bool possessive = false;       // kRepeat
  bool negative = false;         // kLook
};

bool can_be_empty(const Node& node) {
  switch (node.kind) {
    case Node::kSet: return false;
    case Node::kLook: return true;
    case Node::kRepeat: return node.min == 0 || can_be_empty(node.children[0]);
    case Node::kSequence: return std::all_of(node.children.begin(), node.children.end(), can_be_empty);
    case Node::kAlternatives: return std::any_of(node.children.begin(), node.children.end(), can_be_empty);
  }
  return true;
}

}  // namespace

// Parses a pattern into a tree of nodes, then emits the steps.
class PatternParser {
 public:
  PatternParser(std::string_view pattern, SplitPattern& out) : pattern_(pattern), out_(out) {}

  void parse() {
    if (!io::is_valid_utf8(pattern_)) fail("is not valid UTF-8");
    const Node root = alternatives(0);
    if (at_ < pattern_.size()) fail("has a ')' too many");
    out_.matches_empty_ = can_be_empty(root);
    // Each top-level alternative ends in its own kMatch, so that match() can skip alternatives that cannot start with
    // the next byte.
    const auto add = [&](const Node& node) {
      const size_t index = out_.alternatives_.size();
      if (index == 64) fail("has more than 64 alternatives");
      out_.alternatives_.push_back(here());
      emit(node);
      out_.steps_.push_back({.code = SplitPattern::Code::kMatch});
      std::array<bool, 256> first{};
      if (first_bytes(node, first)) first.fill(true);
      for (size_t b = 0; b < 256; ++b)
        if (first[b]) out_.candidates_[b] |= uint64_t{1} << index;
    };
    if (root.kind == Node::kAlternatives)
      for (const Node& child : root.children) add(child);
    else add(root);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(absl::StrCat("pattern ", io::shown(pattern_), ": ", what, " (at byte ", at_, ")"));
  }
  bool more() const { return at_ < pattern_.size(); }
  bool accept(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t here() const { return static_cast<uint32_t>(out_.steps_.size()); }

  Node alternatives(int depth) {
    if (depth == kMaxDepth) fail("nests too deeply");
    Node node{.kind = Node::kAlternatives};
    do node.children.push_back(sequence(depth));
    while (accept("|"));
    if (node.children.size() > 1) return node;
    return Node(std::move(node.children[0]));
  }

  Node sequence(int depth) {
    Node node{.kind = Node::kSequence};
    while (more() && pattern_[at_] != '|' && pattern_[at_] != ')') node.children.push_back(quantified(depth));
    return node;
  }

  Node quantified(int depth) {
    Node inner = atom(depth);
    if (!more()) return inner;
    uint32_t min = 0, max = 0;
    bool counted = false;
    if (accept("*")) max = kUnbounded;
    else if (accept("+")) min = 1, max = kUnbounded;
    else if (accept("?")) max = 1;
    else if (pattern_[at_] == '{') {
      ++at_;
      counted = true;
      min = accept(",") ? 0 : count();
      const bool open = pattern_[at_ - 1] == ',' || accept(",");
      max = !open ? min : more() && pattern_[at_] != '}' ? count() : kUnbounded;
      if (!accept("}")) fail("has a '{' that is no {m,n}; write \\{ for the character");
      if (max < min || max == 0) fail("has a count that repeats nothing");
    } else {
      return inner;
    }
    if (more() && pattern_[at_] == '?') fail("has a lazy quantifier, which is not supported");
    bool possessive = false;
    if (more() && pattern_[at_] == '+') {
      if (counted) fail("has {m,n}+, which engines read differently, and is not supported");
      if (inner.kind != Node::kSet) fail("has a possessive group, which is not supported");
      ++at_;
      possessive = true;
    }
    if (more() && (pattern_[at_] == '*' || pattern_[at_] == '+' || pattern_[at_] == '?' || pattern_[at_] == '{'))
      fail("has two quantifiers in a row, which is not supported");
    if (inner.kind == Node::kLook) fail("repeats a lookahead, which is not supported");
    if (max == kUnbounded && can_be_empty(inner)) fail("repeats without end what can be empty");
    Node node{.kind = Node::kRepeat};
    node.children.push_back(std::move(inner));
    node.min = min, node.max = max, node.possessive = possessive;
    return node;
  }

  uint32_t count() {
    uint32_t value = 0;
    const size_t start = at_;
    for (; more() && pattern_[at_] >= '0' && pattern_[at_] <= '9'; ++at_) {
      value = value * 10 + static_cast<uint32_t>(pattern_[at_] - '0');
      if (value > 1000) fail("has a count above 1000");
    }
    if (at_ == start) fail("has a '{' that is no {m,n}; write \\{ for the character");
    return value;
  }

  Node atom(int depth) {
    const char c = pattern_[at_];
    if (c == '(') return group(depth);
    if (c == '*' || c == '+' || c == '?' || c == '{') fail("has a quantifier with nothing before it");
    if (c == '^' || c == '$') fail(std::string("has the anchor ") + c + ", which is not supported");
    PointSet set;
    if (c == '[') {
      ++at_;
      set = char_class(depth);
    } else if (c == '.') {
      ++at_;
      add_ranges(set, {{'\n', '\n'}});
      negate(set);
    } else if (c == '\\') {
      escape(set, false);
    } else {
      add_literal(set, next_point(pattern_, at_));
    }
    return set_node(std::move(set));
  }

  Node set_node(PointSet set) {
    Node node{.kind = Node::kSet};
    node.set = static_cast<uint32_t>(out_.sets_.size());
    out_.sets_.push_back(std::move(set));
    return node;
  }

  Node group(int depth) {
    ++at_;
    const bool outer = ignore_case_;
    Node node;
    if (accept("?")) {
      if (accept("=") || accept("!")) {
        node.kind = Node::kLook;
        node.negative = pattern_[at_ - 1] == '!';
        node.children.push_back(alternatives(depth + 1));
      } else {
        if (accept("i:")) ignore_case_ = true;
        else if (!accept(":")) fail("has a group (?.. that is not supported");
        node = alternatives(depth + 1);
      }
    } else {
      node = alternatives(depth + 1);
    }
    if (!accept(")")) fail("has a '(' without its ')'");
    if (ignore_case_) check_folds(node);
    ignore_case_ = outer;
    return node;
  }

  // If case is ignored, one code point may equal two letters (U+FB06 equals "st"). Patterns with such pairs are
  // refused, so that a match always compares one code point with one.
  void check_folds(const Node& node) const {
    const auto pairs = [&](const Node& a, const Node& b) {
      const auto ends = [&](char c) { return touches(a, c, true); };
      const auto starts = [&](char c) { return touches(b, c, false); };
      if ((ends('s') && (starts('s') || starts('t'))) || (ends('f') && (starts('f') || starts('i') || starts('l'))))
        fail("ignores case in ss, st, ff, fi or fl, which is not supported");
    };
    if (node.kind == Node::kRepeat && node.max > 1) pairs(node.children[0], node.children[0]);
    if (node.kind == Node::kSequence)
      for (size_t i = 0; i + 1 < node.children.size(); ++i) pairs(node.children[i], node.children[i + 1]);
    for (const Node& child : node.children) check_folds(child);
  }
  // True if a match of the node can start (if at_end: end) with the letter. Also true if the node can be empty.
  bool touches(const Node& node, char letter, bool at_end) const {
    if (node.kind == Node::kSet) return out_.sets_[node.set].ascii[static_cast<size_t>(letter)];
    if (can_be_empty(node)) return true;
    if (node.kind == Node::kSequence)
      return touches(at_end ? node.children.back() : node.children.front(), letter, at_end);
    return std::any_of(node.children.begin(), node.children.end(),
                       [&](const Node& child) { return touches(child, letter, at_end); });
  }

  void add_ranges(PointSet& set, std::initializer_list<std::pair<uint32_t, uint32_t>> ranges) const {
    for (const auto& [first, last] : ranges) {
      for (uint32_t point = first; point <= last && point < 128; ++point) set.ascii[point] = true;
      if (last >= 128) set.ranges.emplace_back(std::max(first, 128u), last);
    }
  }
  void add_literal(PointSet& set, uint32_t point) { add_range(set, point, point); }
  void add_range(PointSet& set, uint32_t first, uint32_t last) {
    add_ranges(set, {{first, last}});
    if (!ignore_case_) return;
    if (last >= 128) fail("ignores the case of characters beyond ASCII, which is not supported");
    for (uint32_t point = first; point <= last; ++point) {
      const uint32_t low = point | 32;
      if (low < 'a' || low > 'z') continue;
      add_ranges(set, {{low, low}, {low - 32, low - 32}});
      if (low == 's') add_ranges(set, {{0x17F, 0x17F}});    // long s
      if (low == 'k') add_ranges(set, {{0x212A, 0x212A}});  // Kelvin
    }
  }
  template <class Has> static void add_ascii(PointSet& set, Has has) {
    for (uint32_t point = 0; point < 128; ++point)
      if (has(point)) set.ascii[point] = true;
  }
  static void negate(PointSet& set) {
    for (bool& has : set.ascii) has = !has;
    set.negated = !set.negated;
  }

  // Reads the escape at `at_` into `set`. Returns {true, point} if the escape is a single code point. In a class the
  // point is not added to `set` yet, because it may start a range.
  std::pair<bool, uint32_t> escape(PointSet& set, bool in_class) {
    ++at_;
    if (!more()) fail("ends in a backslash");
    const char c = pattern_[at_++];
    const auto single = [&](uint32_t point) {
      if (!in_class) add_literal(set, point);
      return std::pair{true, point};
    };
    switch (c) {
      case 's': add_ascii(set, is_white_space), set.spaces = true; break;
      case 'S': add_ascii(set, [](uint32_t p) { return !is_white_space(p); }), set.not_spaces = true; break;
      case 'w':
      case 'W':
        if (in_class && c == 'W') {
          add_ascii(set, [](uint32_t p) { return !is_word(p, WordRule::kOniguruma); });
          set.not_words = true;
          break;
        }
        add_ascii(set, [](uint32_t p) { return is_word(p, WordRule::kOniguruma); });
        set.words = true;
        // Outside of classes, Oniguruma also counts the other numbers of Latin-1 as word characters.
        if (!in_class) add_ranges(set, {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}});
        if (c == 'W') negate(set);
        break;
      case 'd': add_categories(set, bit(kNd)); break;
      case 'D': add_categories(set, ~bit(kNd)); break;
      case 'p':
      case 'P': {
        if (!accept("{")) fail("has \\p without {..}");
        const size_t end = pattern_.find('}', at_);
        if (end == pattern_.npos) fail("has \\p{ without its }");
        std::string_view name = pattern_.substr(at_, end - at_);
        bool negative = c == 'P';
        if (name.starts_with('^')) negative = !negative, name.remove_prefix(1);
        const auto found = std::find_if(std::begin(kCategoryNames), std::end(kCategoryNames),
                                        [&](const CategoryName& category) { return category.name == name; });
        if (found == std::end(kCategoryNames)) fail("has the property " + io::shown(name) + ", which is not supported");
        at_ = end + 1;
        add_categories(set, negative ? ~found->bits : found->bits);
        break;
      }
      case 'n': return single('\n');
      case 'r': return single('\r');
      case 't': return single('\t');
      case 'f': return single('\f');
      case 'v': return single('\v');
      case 'x': return single(hex(accept("{")));
      case 'u': {
        uint32_t point = 0;
        for (int i = 0; i < 4; ++i) point = point * 16 + digit();
        return single(checked(point));
      }
      default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c & 0x80) != 0)
          fail(std::string("has the escape \\") + ((c & 0x80) != 0 ? '?' : c) + ", which is not supported");
        return single(static_cast<uint32_t>(c));
    }
    return {false, 0};
  }
  static void add_categories(PointSet& set, uint32_t categories) {
    add_ascii(set, [&](uint32_t p) { return is(p, categories); });
    set.categories |= categories;
  }
  uint32_t digit() {
    if (!more()) fail("ends in an escape");
    const char c = pattern_[at_++];
    if (c >= '0' && c <= '9') return static_cast<uint32_t>(c - '0');
    if ((c | 32) >= 'a' && (c | 32) <= 'f') return static_cast<uint32_t>((c | 32) - 'a' + 10);
    fail("has an escape that is not hexadecimal");
  }
  uint32_t checked(uint32_t point) const {
    if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) fail("has an escape that is no code point");
    return point;
  }
  uint32_t hex(bool braces) {
    uint32_t point = 0;
    if (!braces) {
      point = digit();
      point = point * 16 + digit();
      if (point >= 0x80) fail("has \\x80 or above without braces, which is a byte and not supported");
      return point;
    }
    while (!accept("}")) {
      point = point * 16 + digit();
      checked(point > 0x10FFFF ? point : 0);
    }
    return checked(point);
  }

  // Reads a character class after its '['.
  PointSet char_class(int depth) {
    if (depth == kMaxDepth) fail("nests too deeply");
    PointSet set;
    const bool negative = accept("^");
    bool first = true;
    for (;; first = false) {
      if (!more()) fail("has a '[' without its ']'");
      if (pattern_[at_] == ']') {
        if (first) fail("has an empty class");
        ++at_;
        break;
      }
      if (pattern_[at_] == '[') fail("has a class in a class, which is not supported: write \\[ for the character");
      if (pattern_.substr(at_).starts_with("&&")) fail("has && in a class, which is not supported");
      bool is_point = true;
      uint32_t point = 0;
      if (pattern_[at_] == '\\') std::tie(is_point, point) = escape(set, true);
      else point = next_point(pattern_, at_);
      if (!is_point) continue;
      uint32_t last = point;
      if (at_ + 1 < pattern_.size() && pattern_[at_] == '-' && pattern_[at_ + 1] != ']') {
        ++at_;
        if (pattern_[at_] == '[') fail("has a class in a class, which is not supported: write \\[ for the character");
        bool ends = true;
        if (pattern_[at_] == '\\') std::tie(ends, last) = escape(set, true);
        else last = next_point(pattern_, at_);
        if (!ends || last < point) fail("has a range that ends before it starts");
      }
      add_range(set, point, last);
    }
    if (negative) negate(set);
    return set;
  }

  void emit(const Node& node) {
    using Code = SplitPattern::Code;
    if (out_.steps_.size() > kMaxSteps) fail("is too large");
    switch (node.kind) {
      case Node::kSet: out_.steps_.push_back({.code = Code::kSet, .set = node.set}); break;
      case Node::kSequence:
        for (const Node& child : node.children) emit(child);
        break;
      case Node::kAlternatives: {
        std::vector<uint32_t> ends;
        for (size_t i = 0; i < node.children.size(); ++i) {
          const bool last = i + 1 == node.children.size();
          const uint32_t split = here();
          if (!last) out_.steps_.push_back({.code = Code::kSplit});
          emit(node.children[i]);
          if (last) break;
          ends.push_back(here());
          out_.steps_.push_back({.code = Code::kJump});
          out_.steps_[split].to = here();
        }
        for (const uint32_t end : ends) out_.steps_[end].to = here();
        break;
      }
      case Node::kLook: {
        const uint32_t look = here();
        out_.steps_.push_back({.code = Code::kLook, .negative = node.negative});
        emit(node.children[0]);
        out_.steps_.push_back({.code = Code::kMatch});
        out_.steps_[look].to = here();
        break;
      }
      case Node::kRepeat: emit_repeat(node); break;
    }
  }

  void emit_repeat(const Node& node) {
    using Code = SplitPattern::Code;
    const Node& inner = node.children[0];
    if (inner.kind == Node::kSet) {
      out_.steps_.push_back(
          {.code = Code::kLoop, .possessive = node.possessive, .set = inner.set, .min = node.min, .max = node.max});
      return;
    }
    for (uint32_t i = 0; i < node.min; ++i) emit(inner);
    if (node.max == kUnbounded) {
      const uint32_t split = here();
      out_.steps_.push_back({.code = Code::kSplit});
      emit(inner);
      out_.steps_.push_back({.code = Code::kJump, .to = split});
      out_.steps_[split].to = here();
      return;
    }
    std::vector<uint32_t> splits;
    for (uint32_t i = node.min; i < node.max; ++i) {
      splits.push_back(here());
      out_.steps_.push_back({.code = Code::kSplit});
      emit(inner);
    }
    for (const uint32_t split : splits) out_.steps_[split].to = here();
  }

  // Adds the bytes with which a match can start. Returns true if the node can be empty: then the caller also adds the
  // bytes of the next node.
  bool first_bytes(const Node& node, std::array<bool, 256>& first) const {
    switch (node.kind) {
      case Node::kSet: {
        const PointSet& set = out_.sets_[node.set];
        for (size_t b = 0; b < 128; ++b) first[b] |= set.ascii[b];
        const bool beyond = set.negated || !set.ranges.empty() || set.categories != 0 || set.spaces || set.words ||
                            set.not_spaces || set.not_words;
        for (size_t b = 128; b < 256; ++b) first[b] |= beyond;
        return false;
      }
      case Node::kLook: return true;
      case Node::kRepeat: return first_bytes(node.children[0], first) || node.min == 0;
      case Node::kSequence:
        for (const Node& child : node.children)
          if (!first_bytes(child, first)) return false;
        return true;
      case Node::kAlternatives: {
        bool empty = false;
        for (const Node& child : node.children) empty |= first_bytes(child, first);
        return empty;
      }
    }
    return true;
  }

  std::string_view pattern_;
  SplitPattern& out_;
  size_t at_ = 0;
  bool ignore_case_ = false;
};

SplitPattern::SplitPattern(std::string_view pattern) { PatternParser(pattern, *this).parse(); }

}  // namespace rondo::text
