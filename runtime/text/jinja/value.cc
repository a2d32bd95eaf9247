#include "rondo/runtime/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/io/utf8.h"
#include "rondo/runtime/text/jinja/python_text.h"

namespace rondo::text::jinja {
namespace {

uint8_t nested(int depth) {
  if (depth >= kMaxNesting) throw Error(absl::StrCat("a value is nested more than ", kMaxNesting, " deep"));
  return static_cast<uint8_t>(depth + 1);
}

// Throws for a value that a template may not keep inside of others: the state of a loop is only its own.
void check_storable(const Value& value) {
  if (value.is(Kind::kLoop)) throw Error("the loop object inside another value is not supported");
}

}  // namespace

int64_t Value::Range::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

Value Value::undefined(std::string reason, bool unsafe) {
  Value out(Kind::kUndefined);
  out.object_ = std::make_shared<std::string>(std::move(reason));
  out.unsafe_ = unsafe;
  return out;
}
Value Value::boolean(bool b) {
  Value out(Kind::kBool);
  out.integer_ = b ? 1 : 0;
  return out;
}
Value Value::integer(int64_t i) {
  Value out(Kind::kInt);
  out.integer_ = i;
  return out;
}
Value Value::real(double d) {
  Value out(Kind::kFloat);
  out.real_ = d;
  return out;
}
Value Value::string(std::string text, bool markup) {
  Value out(Kind::kString);
  out.object_ = std::make_shared<std::string>(std::move(text));
  out.markup_ = markup;
  return out;
}

Value Value::sequence(Kind kind, Values items, const char* name) {
  Value out(kind);
  int depth = 0;
  for (const Value& item : items) {
    check_storable(item);
    depth = std::max<int>(depth, item.depth_);
  }
  out.depth_ = nested(depth);
  out.object_ = std::make_shared<Sequence>(Sequence{std::move(items), name});
  return out;
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  auto made = std::make_shared<Dict>();
  int depth = 0;
  made->items.reserve(items.size());
  for (auto& [key, value] : items) {
    check_storable(value);
    if (!is_hashable(key)) throw Error("unhashable type: '" + key.type_name() + "'");
    depth = std::max<int>({depth, key.depth_, value.depth_});
    if (const Value* old = made->find(key)) {
      *const_cast<Value*>(old) = std::move(value);
      continue;
    }
    made->items.emplace_back(std::move(key), std::move(value));
    const Value& kept = made->items.back().first;
    if (kept.is_string()) made->names.try_emplace(kept.text(), made->items.size() - 1);
  }
  Value out(Kind::kDict);
  out.depth_ = nested(depth);
  out.object_ = std::move(made);
  return out;
}

Value Value::range(int64_t start, int64_t stop, int64_t step) {
  Value out(Kind::kRange);
  out.object_ = std::make_shared<Range>(Range{start, stop, step});
  return out;
}

Value Value::iterator(std::function<bool(Value&)> next, const Values& held, const char* python_name) {
  Value out(Kind::kIterator);
  int64_t before = 0;
  int depth = 0;
  for (const Value& value : held) {
    if (value.is(Kind::kIterator)) before = std::max(before, value.integer_);
    depth = std::max<int>(depth, value.depth_);
  }
  if (before + 1 >= kMaxIterators)
    throw Error(absl::StrCat("more than ", kMaxIterators, " filters draw from one another; put |list between them"));
  out.integer_ = before + 1;
  out.depth_ = nested(depth);
  out.object_ = std::make_shared<Iterator>(Iterator{std::move(next), python_name});
  return out;
}

Value Value::name_space(NamespaceFields* fields) {
  Value out(Kind::kNamespace);
  out.object_ = std::shared_ptr<void>(std::shared_ptr<void>(), fields);
  return out;
}
Value Value::loop(std::shared_ptr<LoopState> state) {
  Value out(Kind::kLoop);
  out.object_ = std::move(state);
  return out;
}
Value Value::macro(const Macro* node) {
  Value out(Kind::kMacro);
  out.object_ = std::shared_ptr<void>(std::shared_ptr<void>(), const_cast<Macro*>(node));
  return out;
}
Value Value::function(std::string_view name) {
  Value out(Kind::kFunction);
  out.object_ = std::make_shared<std::string>(name);
  return out;
}
Value Value::method(Value self, std::string name) {
  Value out(Kind::kMethod);
  out.depth_ = nested(self.depth_);
  out.object_ = std::make_shared<Method>(Method{std::move(self), std::move(name)});
  return out;
}

Value Value::from_json(const std::string& path, std::string_view text) {
  io::JsonReader json(path, text);
  Value out = from_json(json);
  json.finish();
  return out;
}

Value Value::from_json(io::JsonReader& json, int depth) {
  if (depth >= kMaxNesting / 2) json.fail(absl::StrCat("a value is nested more than ", kMaxNesting / 2, " deep"));
  switch (json.peek()) {
    case '"': return string(json.string());
    case '{': {
      std::vector<std::pair<Value, Value>> items;
      json.object([&](std::string& key) {
        Value name = string(std::move(key));
        items.emplace_back(std::move(name), from_json(json, depth + 1));
      });
      return dict(std::move(items));
    }
    case '[': {
      Values items;
      json.array([&] { items.push_back(from_json(json, depth + 1)); });
      return list(std::move(items));
    }
    case 't':
    case 'f': return boolean(json.boolean());
    case 'n': json.skip(); return none();
    default: break;
  }
  const std::string_view digits = json.number();
  if (digits.find_first_of(".eE") == std::string_view::npos) {
    int64_t i = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), i);
    if (error != std::errc()) json.fail("an integer beyond 64 bits is not supported");
    return integer(i);
  }
  double d = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), d);
  if (error == std::errc::result_out_of_range) {  // too large or too small for a double, as Python reads it
    const bool tiny = digits.find_first_of("eE") != std::string_view::npos &&
                      digits[digits.find_first_of("eE") + 1] == '-';
    d = tiny ? 0 : HUGE_VAL;
    if (digits[0] == '-') d = -d;
  }
  return real(d);
}

bool Value::same_object(const Value& other) const {
  if (kind_ != other.kind_) return false;
  if (object_ != nullptr || other.object_ != nullptr) return object_ == other.object_;
  return kind_ == Kind::kFloat ? real_ == other.real_ : integer_ == other.integer_;
}

std::string Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return markup_ ? "Markup" : "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kView: return view_name();
    case Kind::kRange: return "range";
    case Kind::kIterator: return iterator().python_name;
    case Kind::kNamespace: return "Namespace";
    case Kind::kLoop: return "LoopContext";
    case Kind::kMacro: return "Macro";
    case Kind::kFunction: return "function";
    case Kind::kMethod: return "builtin_function_or_method";
  }
  return "";
}

std::string Value::reason() const { return object_ == nullptr ? "the value is undefined" : text(); }

const Value* Value::Dict::find(std::string_view name) const {
  const auto found = names.find(name);
  return found == names.end() ? nullptr : &items[found->second].second;
}

const Value* Value::Dict::find(const Value& key) const {
  if (key.is_string()) return find(key.text());
  if (names.size() == items.size()) return nullptr;
  for (const auto& [name, value] : items)
    if (equals(name, key)) return &value;
  return nullptr;
}

void Budget::fail() { throw Error("it takes too many steps: the limit that keeps templates from running forever"); }

// ---- Truth, equality, order

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return value.integral() != 0;
    case Kind::kFloat: return value.number() != 0;
    case Kind::kString: return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return !value.items().empty();
    case Kind::kDict: return !value.dict().items.empty();
    case Kind::kRange: return value.range().size() > 0;
    default: return true;
  }
}

namespace {

// Exact, also where a double cannot hold the integer.
int compare_numbers(const Value& a, const Value& b, bool& ordered) {
  ordered = true;
  if (a.is_integral() && b.is_integral()) return a.integral() < b.integral() ? -1 : a.integral() > b.integral() ? 1 : 0;
  const long double x = a.is(Kind::kFloat) ? static_cast<long double>(a.number())
                                           : static_cast<long double>(a.integral());
  const long double y = b.is(Kind::kFloat) ? static_cast<long double>(b.number())
                                           : static_cast<long double>(b.integral());
  ordered = !(std::isnan(x) || std::isnan(y));
  return x < y ? -1 : x > y ? 1 : 0;
}

bool is_sequence(const Value& value) { return value.is(Kind::kList) || value.is(Kind::kTuple); }

}  // namespace

bool equals(const Value& a, const Value& b) {
  Budget::spend(1);
  if (a.is_number() && b.is_number()) {
    bool ordered = true;
    const int order = compare_numbers(a, b, ordered);
    return ordered && order == 0;
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString: return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [](const Value& x, const Value& y) { return x.same_object(y) || equals(x, y); });
    case Kind::kDict: {
      const Value::Dict &x = a.dict(), &y = b.dict();
      return x.items.size() == y.items.size() && std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
               const Value* other = y.find(item.first);
               return other != nullptr && equals(item.second, *other);
             });
    }
    case Kind::kView: throw Error(absl::StrCat("comparing ", a.type_name(), " is not supported"));
    case Kind::kRange: {
      const Value::Range &x = a.range(), &y = b.range();
      return x.size() == y.size() && (x.size() == 0 || (x.start == y.start && (x.size() == 1 || x.step == y.step)));
    }
    default: return a.same_object(b);
  }
}

bool is_less(const Value& a, const Value& b) {
  Budget::spend(1);
  if (a.is_number() && b.is_number()) {
    bool ordered = true;
    return compare_numbers(a, b, ordered) < 0 && ordered;
  }
  if (a.is_string() && b.is_string()) return a.text() < b.text();  // UTF-8 keeps the order of code points
  if (is_sequence(a) && a.kind() == b.kind()) {
    const Values &x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equals(x[i], y[i])) return is_less(x[i], y[i]);
    return x.size() < y.size();
  }
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) throw Error(value->reason());
  throw Error(absl::StrCat("'<' not supported between instances of '", a.type_name(), "' and '", b.type_name(), "'"));
}

bool is_hashable(const Value& value) {
  Budget::spend(1);
  if (value.is(Kind::kTuple)) return std::all_of(value.items().begin(), value.items().end(), is_hashable);
  return value.kind() < Kind::kString || value.is_string() || value.is(Kind::kRange);
}

// ---- Text

namespace {

void check_size(const std::string& out, size_t most) {
  if (out.size() > most) throw Error(absl::StrCat("the text of a value is longer than ", most, " bytes"));
}

void append_items(std::string& out, const Values& items, size_t most) {
  bool first = true;
  for (const Value& item : items) {
    if (!std::exchange(first, false)) out += ", ";
    append_repr(out, item, most);
  }
}

}  // namespace

std::string str(const Value& value, size_t most) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) {
    if (value.is_unsafe()) throw Error(value.reason());
    return "";
  }
  std::string out;
  append_repr(out, value, most);
  return out;
}

void append_repr(std::string& out, const Value& value, size_t most) {
  Budget::spend(1);
  check_size(out, most);
  switch (value.kind()) {
    case Kind::kUndefined: out += "Undefined"; return;
    case Kind::kNone: out += "None"; return;
    case Kind::kBool: out += value.integral() != 0 ? "True" : "False"; return;
    case Kind::kInt: absl::StrAppend(&out, value.integral()); return;
    case Kind::kFloat: out += repr_float(value.number()); return;
    case Kind::kString:
      if (value.is_markup()) throw Error("printing a value that is marked safe inside another one is not supported");
      out += repr_text(value.text());
      return;
    case Kind::kList:
      out += '[';
      append_items(out, value.items(), most);
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(out, value.items(), most);
      if (value.items().size() == 1) out += ',';
      out += ')';
      return;
    case Kind::kView:
      absl::StrAppend(&out, value.view_name(), "([");
      append_items(out, value.items(), most);
      out += "])";
      return;
    case Kind::kDict: {
      out += '{';
      bool first = true;
      for (const auto& [key, item] : value.dict().items) {
        if (!std::exchange(first, false)) out += ", ";
        append_repr(out, key, most);
        out += ": ";
        append_repr(out, item, most);
      }
      out += '}';
      return;
    }
    case Kind::kRange: {
      const Value::Range& range = value.range();
      absl::StrAppend(&out, "range(", range.start, ", ", range.stop);
      if (range.step != 1) absl::StrAppend(&out, ", ", range.step);
      out += ')';
      return;
    }
    default:
      throw Error(absl::StrCat("printing a value of the type ", value.type_name(),
                               " is not supported: Python's text of it is an address",
                               value.is(Kind::kIterator) ? "; put |list behind it" : ""));
  }
}

// ---- JSON

namespace {

void append_json_text(std::string& out, std::string_view text, bool ensure_ascii) {
  static constexpr char kHex[] = "0123456789abcdef";
  const auto unit = [&](uint32_t value) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out.push_back(kHex[value >> shift & 0xF]);
  };
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const io::CodePoint point = io::decode_utf8(text, at);
    const std::string_view bytes = text.substr(at, static_cast<size_t>(point.length));
    at += bytes.size();
    switch (point.value) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\f': out += "\\f"; break;
      case '\b': out += "\\b"; break;
      default:
        if (point.value < 0x20 || (ensure_ascii && point.value >= 0x7F && point.value < 0x10000)) {
          unit(point.value);
        } else if (ensure_ascii && point.value >= 0x10000) {
          unit(0xD800 + ((point.value - 0x10000) >> 10));
          unit(0xDC00 + ((point.value - 0x10000) & 0x3FF));
        } else {
          out += bytes;
        }
    }
  }
  out += '"';
}

std::string json_number(const Value& value) {
  if (value.is(Kind::kBool)) return value.integral() != 0 ? "true" : "false";
  if (value.is(Kind::kInt)) return absl::StrCat(value.integral());
  if (std::isnan(value.number())) return "NaN";
  if (std::isinf(value.number())) return value.number() < 0 ? "-Infinity" : "Infinity";
  return repr_float(value.number());
}

std::string json_key(const Value& key) {
  if (key.is_string()) return key.text();
  if (key.is_none()) return "null";
  if (key.is_number()) return json_number(key);
  throw Error("keys must be str, int, float, bool or None, not " + key.type_name());
}

}  // namespace

void append_json(std::string& out, const Value& value, const JsonStyle& style, size_t most, int level) {
  Budget::spend(1);
  check_size(out, most);
  const auto line = [&](int deep) {
    if (!style.multiline) return;
    out += '\n';
    for (int i = 0; i < deep; ++i) out += style.indent, check_size(out, most);
  };
  // Both brackets, and a separator before each item but the first.
  const auto bracketed = [&](char open, char close, size_t count, auto item) {
    out += open;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out += style.item_separator;
      line(level + 1);
      item(i);
    }
    if (count > 0) line(level);
    out += close;
  };
  switch (value.kind()) {
    case Kind::kNone: out += "null"; return;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat: out += json_number(value); return;
    case Kind::kString: append_json_text(out, value.text(), style.ensure_ascii); return;
    case Kind::kList:
    case Kind::kTuple:
      bracketed('[', ']', value.items().size(),
                [&](size_t i) { append_json(out, value.items()[i], style, most, level + 1); });
      return;
    case Kind::kDict: {
      const auto& items = value.dict().items;
      std::vector<size_t> order(items.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      if (style.sort_keys)
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return is_less(items[a].first, items[b].first); });
      bracketed('{', '}', items.size(), [&](size_t i) {
        const auto& [key, item] = items[order[i]];
        append_json_text(out, json_key(key), style.ensure_ascii);
        out += style.key_separator;
        append_json(out, item, style, most, level + 1);
      });
      return;
    }
    default: throw Error(absl::StrCat("Object of type ", value.type_name(), " is not JSON serializable"));
  }
}

}  // namespace rondo::text::jinja
