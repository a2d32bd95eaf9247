// Attributes, items and iteration, as jinja2's immutable sandbox allows them.
#include <algorithm>
#include <charconv>
#include <span>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/chat/jinja/evaluator.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text::jinja {
namespace {

// The public attributes of Python's types (3.11). `value.name` with one of these names is the method, even if `value`
// is a dict with this key.
constexpr std::string_view kTextMethods[] = {
    "capitalize",   "casefold",   "center",    "count",       "encode",    "endswith",     "expandtabs",   "find",
    "format",       "format_map", "index",     "isalnum",     "isalpha",   "isascii",      "isdecimal",    "isdigit",
    "isidentifier", "islower",    "isnumeric", "isprintable", "isspace",   "istitle",      "isupper",      "join",
    "ljust",        "lower",      "lstrip",    "maketrans",   "partition", "removeprefix", "removesuffix", "replace",
    "rfind",        "rindex",     "rjust",     "rpartition",  "rsplit",    "rstrip",       "split",        "splitlines",
    "startswith",   "strip",      "swapcase",  "title",       "translate", "upper",        "zfill"};
constexpr std::string_view kDictMethods[] = {"copy", "fromkeys", "get", "items", "keys", "values"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kListChanges[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kViewMethods[] = {"isdisjoint", "mapping"};
constexpr std::string_view kRangeMethods[] = {"count", "index", "start", "step", "stop"};
constexpr std::string_view kIntMethods[] = {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
                                            "from_bytes",       "imag",      "numerator",  "real",      "to_bytes"};
constexpr std::string_view kFloatMethods[] = {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag",
                                              "is_integer",       "real"};
constexpr std::string_view kMacroMethods[] = {"arguments", "caller", "catch_kwargs", "catch_varargs", "name"};
constexpr std::string_view kGeneratorMethods[] = {"close",        "gi_code",      "gi_frame", "gi_running",
                                                  "gi_suspended", "gi_yieldfrom", "send",     "throw"};

std::span<const std::string_view> methods_of(Kind kind) {
  switch (kind) {
    case Kind::kString: return kTextMethods;
    case Kind::kDict: return kDictMethods;
    case Kind::kList: return kListMethods;
    case Kind::kTuple: return kTupleMethods;
    case Kind::kView: return kViewMethods;
    case Kind::kRange: return kRangeMethods;
    case Kind::kBool:
    case Kind::kInt: return kIntMethods;
    case Kind::kFloat: return kFloatMethods;
    case Kind::kMacro: return kMacroMethods;
    case Kind::kIterator: return kGeneratorMethods;
    default: return {};
  }
}

bool has(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string described(const Value& value) {
  if (value.is_none()) return "None";
  return absl::StrCat("'", value.type_name(), " object'");
}

}  // namespace

std::optional<Value> Evaluator::python_attribute(const Value& value, std::string_view name) {
  if (value.is_undefined()) throw Error(value.reason());
  if (name.starts_with("__") && name.ends_with("__") && name.size() > 4)
    return Value::undefined(
        absl::StrCat("access to attribute '", abbreviated(name), "' of '", value.type_name(), "' object is unsafe."),
        true);
  if (value.is(Kind::kNamespace)) {
    const Value* found = value.fields().find(name);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  if (value.is(Kind::kLoop)) {
    LoopState& loop = value.loop();
    const auto number = [](int64_t i) { return Value::integer(i); };
    if (name == "index") return number(loop.index0 + 1);
    if (name == "index0") return number(loop.index0);
    if (name == "first") return Value::boolean(loop.index0 == 0);
    if (name == "last") return Value::boolean(!loop.peek());
    if (name == "length") return number(loop.count());
    if (name == "revindex") return number(loop.count() - loop.index0);
    if (name == "revindex0") return number(loop.count() - loop.index0 - 1);
    if (name == "depth") return number(1);
    if (name == "depth0") return number(0);
    if (name == "previtem") return loop.before ? *loop.before : Value::undefined("there is no previous item");
    if (name == "nextitem") return loop.peek() ? *loop.peek() : Value::undefined("there is no next item");
    if (name == "cycle" || name == "changed") return Value::method(value, name);
    return std::nullopt;
  }
  if ((value.is(Kind::kDict) && has(kDictChanges, name)) || (value.is(Kind::kList) && has(kListChanges, name)))
    return Value::undefined(
        absl::StrCat("access to attribute '", abbreviated(name), "' of '", value.type_name(), "' object is unsafe."),
        true);
  if (has(methods_of(value.kind()), name)) return Value::method(value, name);
  return std::nullopt;
}

std::optional<Value> Evaluator::subscript(const Value& value, const Value& key) {
  switch (value.kind()) {
    case Kind::kUndefined: throw Error(value.reason());
    case Kind::kDict: {
      if (!is_hashable(key)) return std::nullopt;
      const Value* found = value.dict().find(key);
      return found == nullptr ? std::nullopt : std::optional<Value>(*found);
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kString: {
      if (!key.is_integral()) return std::nullopt;
      const int64_t size = length(value);
      int64_t index = key.integral();
      if (index < 0) index += size;
      if (index < 0 || index >= size) return std::nullopt;
      if (value.is(Kind::kRange)) return Value::integer(value.range().start + index * value.range().step);
      if (!value.is_string()) return value.items()[static_cast<size_t>(index)];
      const std::string_view rest = value.text().substr(byte_of_point(value.text(), index));
      return Value::string(rest.substr(0, byte_of_point(rest, 1)), value.is_markup());
    }
    default: return std::nullopt;
  }
}

Value Evaluator::attribute(const Value& value, std::string_view name) {
  if (auto found = python_attribute(value, name)) return *std::move(found);
  if (value.is(Kind::kDict))
    if (const Value* found = value.dict().find(name)) return *found;
  return Value::undefined(absl::StrCat(described(value), " has no attribute '", abbreviated(name), "'"));
}

Value Evaluator::item(const Value& value, const Value& key) {
  if (key.is_undefined() && value.is_undefined()) throw Error(value.reason());
  if (auto found = subscript(value, key)) return *std::move(found);
  if (key.is_string()) {
    if (auto found = python_attribute(value, key.text())) return *std::move(found);
    return Value::undefined(absl::StrCat(described(value), " has no attribute '", abbreviated(key.text()), "'"));
  }
  // Prints the key only if its text is certainly short.
  const std::string shown = key.is_number() ? std::string(str(key)) : absl::StrCat("of type ", key.type_name());
  return Value::undefined(absl::StrCat(described(value), " has no element ", shown));
}

Value Evaluator::path(const Value& value, const Value& names) {
  if (names.is_none()) return value;
  if (!names.is_string()) return item(value, names);
  Value at = value;
  for (const std::string_view part : split_text(names.text(), ".", -1)) {
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = is_class(part, TextClass::kDigit);
    if (number && (error != std::errc() || end != part.data() + part.size()))
      throw Error("the index " + io::shown(part) + " in the path of an attribute is not supported");
    at = item(at, number ? Value::integer(index) : Value::string(part));
  }
  return at;
}

// ---- Iteration

Value Evaluator::iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      if (value.is_unsafe()) throw Error(value.reason());
      return Value::iterator([](Value&) { return false; });
    case Kind::kIterator: return value;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return Value::iterator(
          [value, at = size_t{0}](Value& out) mutable {
            if (at >= value.items().size()) return false;
            out = value.items()[at++];
            return true;
          },
          {value});
    case Kind::kDict:
      return Value::iterator(
          [value, at = size_t{0}](Value& out) mutable {
            if (at >= value.dict().items.size()) return false;
            out = value.dict().items[at++].first;
            return true;
          },
          {value});
    case Kind::kRange:
      return Value::iterator([range = value.range(), at = int64_t{0}](Value& out) mutable {
        if (at >= range.size()) return false;
        out = Value::integer(range.start + at++ * range.step);
        return true;
      });
    case Kind::kString:
      return Value::iterator([value, at = size_t{0}](Value& out) mutable {
        const std::string_view rest = value.text().substr(at);
        if (rest.empty()) return false;
        const size_t size = byte_of_point(rest, 1);
        out = Value::string(rest.substr(0, size));
        at += size;
        return true;
      });
    case Kind::kLoop: throw Error("iterating over the loop object is not supported");
    default: throw Error(absl::StrCat("'", value.type_name(), "' object is not iterable"));
  }
}

Values Evaluator::to_items(const Value& value) {
  if (value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kView)) return value.items();
  Values out;
  const Value source = iterate(value);
  for (Value drawn; source.iterator().next(drawn);) out.push_back(std::move(drawn));
  return out;
}

int64_t Evaluator::length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      if (value.is_unsafe()) throw Error(value.reason());
      return 0;
    case Kind::kString: return count_points(value.text());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return static_cast<int64_t>(value.items().size());
    case Kind::kDict: return static_cast<int64_t>(value.dict().items.size());
    case Kind::kRange: return value.range().size();
    case Kind::kLoop: return value.loop().count();
    default: throw Error(absl::StrCat("object of type '", value.type_name(), "' has no len()"));
  }
}

}  // namespace rondo::text::jinja
