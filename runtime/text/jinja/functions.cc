// Arguments of calls, the globals of the language, and the methods of values.
#include <algorithm>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/jinja/evaluator.h"
#include "rondo/runtime/text/jinja/python_text.h"

namespace rondo::text::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

const std::string& need_text(const Value& value, const char* what) {
  if (value.is_undefined()) throw Error(value.reason());
  if (!value.is_string()) throw Error(absl::StrCat(what, " must be str, not ", value.type_name()));
  return value.text();
}

bool given(const std::optional<Value>& value) { return value && !value->is_none(); }

Values texts(const std::vector<std::string_view>& parts) {
  Budget::spend(1 + 2 * parts.size());
  Values out;
  for (const std::string_view part : parts) out.push_back(Value::string(std::string(part)));
  return out;
}

}  // namespace

std::vector<std::optional<Value>> bind(Given given, std::initializer_list<const char*> names, size_t required) {
  Bound out(names.size());
  if (given.positional.size() > names.size())
    throw Error(absl::StrCat("it takes at most ", names.size(), " arguments, and got ", given.positional.size()));
  std::move(given.positional.begin(), given.positional.end(), out.begin());
  for (auto& [name, value] : given.named) {
    const auto* found = std::find_if(names.begin(), names.end(), [&](const char* one) { return name == one; });
    if (found == names.end()) throw Error(absl::StrCat("it has no argument '", name, "'"));
    std::optional<Value>& slot = out[static_cast<size_t>(found - names.begin())];
    if (slot) throw Error(absl::StrCat("it got two values for the argument '", name, "'"));
    slot = std::move(value);
  }
  for (size_t i = 0; i < required; ++i)
    if (!out[i]) throw Error(absl::StrCat("the argument '", names.begin()[i], "' is missing"));
  return out;
}

// ---- Globals

bool is_global_function(std::string_view name) {
  constexpr std::string_view kNames[] = {"range",        "dict",   "namespace", "raise_exception",
                                         "strftime_now", "lipsum", "cycler",    "joiner"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Value Evaluator::call_function(const std::string& name, Given given) {
  if (name == "raise_exception") {
    const Bound at = bind(std::move(given), {"message"}, 1);
    throw Error(absl::StrCat("the template refuses this conversation: ", str(*at[0])));
  }
  if (name == "range") {
    const Bound at = bind(std::move(given), {"start", "stop", "step"}, 1);
    const int64_t first = to_integer(*at[0]);
    const int64_t start = at[1] ? first : 0, stop = at[1] ? to_integer(*at[1]) : first;
    const int64_t step = at[2] ? to_integer(*at[2]) : 1;
    constexpr int64_t kMost = 100'000, kFarthest = int64_t{1} << 62;  // kMost: the sandbox's
    if (step == 0) throw Error("range() arg 3 must not be zero");
    for (const int64_t bound : {start, stop, step})
      if (bound > kFarthest || bound < -kFarthest) throw Error("range() beyond 62 bits is not supported");
    const Value out = Value::range(start, stop, step);
    if (out.range().size() > kMost)
      throw Error(absl::StrCat("Range too big. The sandbox blocks ranges larger than ", kMost, "."));
    return out;
  }
  if (name == "namespace" || name == "dict") {
    std::vector<std::pair<Value, Value>> items;
    if (given.positional.size() > 1) throw Error(absl::StrCat(name, "() takes at most one positional argument"));
    for (const Value& value : given.positional) {
      if (value.is(Kind::kDict)) {
        items = value.dict().items;
        continue;
      }
      for (const Value& pair : to_items(value)) {
        const Values two = to_items(pair);
        if (two.size() != 2) throw Error(absl::StrCat(name, "(): an element has no two parts"));
        items.emplace_back(two[0], two[1]);
      }
    }
    for (auto& [key, value] : given.named) items.emplace_back(Value::string(key), std::move(value));
    const Value made = Value::dict(std::move(items));
    if (name == "dict") return made;
    Value::NamespaceFields& fields = namespaces_.emplace_back();
    for (const auto& [key, value] : made.dict().items) {
      if (!key.is_string()) throw Error("the name of a namespace's field must be str");
      if (key.text().starts_with('_')) throw Error("a namespace has no field that begins with \"_\"");
      fields.emplace_back(key.text(), value);
    }
    return Value::name_space(&fields);
  }
  if (name == "strftime_now") {
    const Bound at = bind(std::move(given), {"format"}, 1);
    const std::string& format = need_text(*at[0], "the format");
    if (format.size() > 1000) throw Error("a format of a date of more than 1000 bytes is not supported");
    for (size_t i = format.find('%'); i != std::string::npos; i = format.find('%', i + 2))
      if (i + 1 >= format.size() ||
          std::string_view("aAbBcdeHIjmMpSUwWxXyY%DFTRnthVGuC").find(format[i + 1]) == std::string_view::npos)
        throw Error("this conversion in a format of a date is not supported: " + io::shown(format.substr(i, 2)));
    std::tm now{};
    if (options_.now) {
      now = *options_.now;
    } else {
      const std::time_t seconds = std::time(nullptr);
      if (localtime_r(&seconds, &now) == nullptr) throw Error("the time of day is not known");
    }
    std::string out(format.size() * 32 + 64, '\0');
    out.resize(std::strftime(out.data(), out.size(), format.c_str(), &now));
    return made_text(std::move(out));
  }
  throw Error(absl::StrCat("the global \"", name, "\" is not supported"));
}

// ---- Methods

Value Evaluator::call_method(const Value::Method& method, Given given) {
  const Value& self = method.self;
  const std::string& name = method.name;
  if (self.is_string()) {
    if (self.is_markup())
      throw Error(absl::StrCat("the method \"", name, "\" of a value that is marked safe is not supported"));
    return call_text_method(self.text(), name, std::move(given));
  }
  if (self.is(Kind::kDict)) {
    const Value::Dict& dict = self.dict();
    if (name == "get") {
      if (!given.named.empty()) throw Error("dict.get() takes no keyword arguments");
      const Bound at = bind(std::move(given), {"key", "default"}, 1);
      if (!is_hashable(*at[0])) throw Error("unhashable type: '" + at[0]->type_name() + "'");
      const Value* found = dict.find(*at[0]);
      return found != nullptr ? *found : at[1].value_or(Value::none());
    }
    if (name == "items" || name == "keys" || name == "values" || name == "copy") bind(std::move(given), {});
    Budget::spend(1 + 2 * dict.items.size());
    Values out;
    if (name == "copy") return self;
    if (name == "items")
      for (const auto& [key, value] : dict.items) out.push_back(Value::tuple({key, value}));
    else if (name == "keys")
      for (const auto& [key, value] : dict.items) out.push_back(key);
    else if (name == "values")
      for (const auto& [key, value] : dict.items) out.push_back(value);
    else throw Error(absl::StrCat("the method \"", name, "\" of dict is not supported"));
    return Value::view(std::move(out), name == "items" ? "dict_items" : name == "keys" ? "dict_keys" : "dict_values");
  }
  if (self.is(Kind::kList) || self.is(Kind::kTuple)) {
    const Values& items = self.items();
    if (name == "copy") return bind(std::move(given), {}), self;
    const Bound at = bind(std::move(given), {"value", "start", "stop"}, 1);
    if (at[1]) throw Error(absl::StrCat("the method \"", name, "\" of a sequence with bounds is not supported"));
    const auto same = [&](const Value& item) { return item.same_object(*at[0]) || equals(item, *at[0]); };
    if (name == "count") return Value::integer(std::count_if(items.begin(), items.end(), same));
    const auto found = std::find_if(items.begin(), items.end(), same);
    if (found == items.end()) throw Error("the value is not in the sequence");
    return Value::integer(found - items.begin());
  }
  if (self.is(Kind::kLoop)) {
    LoopState& loop = self.loop();
    if (name == "cycle") {
      if (given.positional.empty()) throw Error("no items for cycling given");
      return given.positional[static_cast<size_t>(loop.index0) % given.positional.size()];
    }
    for (const Value& value : given.positional)
      if (value.kind() > Kind::kRange)
        throw Error(absl::StrCat("loop.changed() of ", value.type_name(), " is not supported"));
    Value now = Value::tuple(std::move(given.positional));
    if (loop.last_changed && equals(*loop.last_changed, now)) return Value::boolean(false);
    loop.last_changed = std::move(now);
    return Value::boolean(true);
  }
  throw Error(absl::StrCat("the attribute \"", name, "\" of ", self.type_name(), " is not supported"));
}

namespace {

// "{} {0} {name}" without conversions and formats.
std::string braces_format(const std::string& format, const Given& given,
                          const std::function<std::string(const Value&)>& str) {
  std::string out;
  size_t next = 0;
  bool automatic = false, numbered = false;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      out.push_back(c);
      continue;
    }
    if (i + 1 < format.size() && format[i + 1] == c) {
      out.push_back(c);
      ++i;
      continue;
    }
    if (c == '}') throw Error("Single '}' encountered in format string");
    const size_t end = format.find('}', i);
    if (end == std::string::npos) throw Error("Single '{' encountered in format string");
    const std::string field = format.substr(i + 1, end - i - 1);
    if (field.find_first_of(":!.[{") != std::string::npos)
      throw Error("str.format() with conversions, formats or attributes is not supported: " + io::shown(field));
    const Value* value = nullptr;
    if (field.empty() || is_class(field, TextClass::kDigit)) {
      size_t index = 0;
      if (field.size() > 6) throw Error("an index of str.format() is out of range");
      for (const char digit : field) index = index * 10 + static_cast<size_t>(digit - '0');
      (field.empty() ? automatic : numbered) = true;
      if (automatic && numbered) throw Error("str.format() mixes numbered fields and others");
      if (field.empty()) index = next++;
      if (index >= given.positional.size()) throw Error("an index of str.format() is out of range");
      value = &given.positional[index];
    } else {
      for (const auto& [name, one] : given.named)
        if (name == field) value = &one;
      if (value == nullptr) throw Error("str.format() has no value for " + io::shown(field));
    }
    out += str(*value);
    i = end;
  }
  return out;
}

// The part of a text that find(), count() ... look at.
struct Window {
  std::string_view text;
  int64_t begin = 0;  // in code points
};
std::optional<Window> window(const std::string& text, const std::optional<Value>& start,
                             const std::optional<Value>& stop) {
  const int64_t size = count_points(text);
  const auto place = [&](const std::optional<Value>& bound, int64_t unset) {
    if (!given(bound)) return unset;
    int64_t at = to_integer(*bound);
    if (at < 0) at = std::max<int64_t>(at + size, 0);
    return at;
  };
  const int64_t begin = place(start, 0), end = std::min(place(stop, size), size);
  if (begin > end) return std::nullopt;
  const size_t first = byte_of_point(text, begin);
  return Window{std::string_view(text).substr(first, byte_of_point(text, end) - first), begin};
}

std::optional<TextClass> class_of(std::string_view method) {
  constexpr std::pair<std::string_view, TextClass> kClasses[] = {
      {"isalpha", TextClass::kAlpha},     {"isalnum", TextClass::kAlnum}, {"isdigit", TextClass::kDigit},
      {"isdecimal", TextClass::kDecimal}, {"isspace", TextClass::kSpace}, {"islower", TextClass::kLower},
      {"isupper", TextClass::kUpper},     {"isascii", TextClass::kAscii}, {"isnumeric", TextClass::kNumeric},
      {"istitle", TextClass::kTitle}};
  for (const auto& [name, wanted] : kClasses)
    if (name == method) return wanted;
  return std::nullopt;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                     uint64_t limit) {
  if (most < 0) most = INT64_MAX;
  std::string out;
  const auto check = [&] {
    if (out.size() > limit) throw Error(absl::StrCat("a text is longer than the limit of ", limit, " bytes"));
  };
  if (from.empty()) {  // between all characters
    const std::vector<std::string_view> points = split_points(text);
    size_t at = 0;
    for (; at <= points.size() && most > 0; ++at, --most) {
      out += to;
      if (at < points.size()) out += points[at];
      check();
    }
    for (; at < points.size(); ++at) out += points[at];
    return out;
  }
  size_t at = 0;
  for (; most > 0; --most) {
    const size_t found = text.find(from, at);
    if (found == std::string::npos) break;
    out.append(text, at, found - at);
    out += to;
    at = found + from.size();
    check();
  }
  return out.append(text, at);
}

}  // namespace

std::string replace_text(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                         uint64_t limit) {
  return replaced(text, from, to, most, limit);
}

Value Evaluator::call_text_method(const std::string& text, const std::string& name, Given given_arguments) {
  Budget::spend_bytes(text.size());
  const auto none = [&] { bind(std::move(given_arguments), {}); };
  const auto number_or = [](const std::optional<Value>& value, int64_t unset) {
    return value ? to_integer(*value) : unset;
  };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound at = bind(std::move(given_arguments), {"chars"});
    const Ends ends = name == "strip" ? Ends::kBoth : name == "lstrip" ? Ends::kLeft : Ends::kRight;
    std::optional<std::string_view> chars;
    if (given(at[0])) chars = need_text(*at[0], "the characters to strip");
    return Value::string(std::string(strip_text(text, ends, chars)));
  }
  if (name == "upper") return none(), made_text(to_upper_text(text));
  if (name == "lower") return none(), made_text(to_lower_text(text));
  if (name == "title") return none(), made_text(to_title_text(text));
  if (name == "capitalize") return none(), made_text(capitalize_text(text));
  if (const auto wanted = class_of(name)) return none(), Value::boolean(is_class(text, *wanted));
  if (name == "split" || name == "rsplit") {
    const Bound at = bind(std::move(given_arguments), {"sep", "maxsplit"});
    std::optional<std::string_view> separator;
    if (given(at[0])) {
      separator = need_text(*at[0], "the separator");
      if (separator->empty()) throw Error("empty separator");
    }
    const int64_t most = number_or(at[1], -1);
    return Value::list(texts(name == "split" ? split_text(text, separator, most) : rsplit_text(text, separator, most)));
  }
  if (name == "splitlines") {
    const Bound at = bind(std::move(given_arguments), {"keepends"});
    return Value::list(texts(split_lines(text, at[0] && is_true(*at[0]))));
  }
  if (name == "startswith" || name == "endswith") {
    const Bound at = bind(std::move(given_arguments), {"prefix", "start", "stop"}, 1);
    const auto in = window(text, at[1], at[2]);
    const auto holds = [&](const Value& one) {
      const std::string& wanted = need_text(one, "what the text begins or ends with");
      return in && (name == "startswith" ? in->text.starts_with(wanted) : in->text.ends_with(wanted));
    };
    if (!at[0]->is(Kind::kTuple)) return Value::boolean(holds(*at[0]));
    return Value::boolean(std::any_of(at[0]->items().begin(), at[0]->items().end(), holds));
  }
  if (name == "replace") {
    const Bound at = bind(std::move(given_arguments), {"old", "new", "count"}, 2);
    return made_text(replaced(text, need_text(*at[0], "the old text"), need_text(*at[1], "the new text"),
                              number_or(at[2], -1), options_.limits.text));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    const Bound at = bind(std::move(given_arguments), {"sub", "start", "stop"}, 1);
    const std::string& wanted = need_text(*at[0], "what to look for");
    const auto in = window(text, at[1], at[2]);
    if (name == "count") {
      if (!in) return Value::integer(0);
      if (wanted.empty()) return Value::integer(count_points(in->text) + 1);
      int64_t count = 0;
      for (size_t i = in->text.find(wanted); i != std::string_view::npos; i = in->text.find(wanted, i + wanted.size()))
        ++count;
      return Value::integer(count);
    }
    const bool last = name[0] == 'r';
    const size_t found = !in ? std::string_view::npos : last ? in->text.rfind(wanted) : in->text.find(wanted);
    if (found != std::string_view::npos) return Value::integer(in->begin + count_points(in->text.substr(0, found)));
    if (name.ends_with("index")) throw Error("substring not found");
    return Value::integer(-1);
  }
  if (name == "join") {
    const Bound at = bind(std::move(given_arguments), {"iterable"}, 1);
    std::string out;
    bool first = true;
    for (const Value& item : to_items(*at[0])) {
      if (!std::exchange(first, false)) out += text;
      out += need_text(item, "an item to join");
      check_size(out.size());
    }
    return made_text(std::move(out));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const Bound at = bind(std::move(given_arguments), {"prefix"}, 1);
    const std::string& part = need_text(*at[0], "what to remove");
    const bool prefix = name == "removeprefix";
    if (!(prefix ? text.starts_with(part) : text.ends_with(part))) return Value::string(text);
    return Value::string(prefix ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
  }
  if (name == "partition" || name == "rpartition") {
    const Bound at = bind(std::move(given_arguments), {"sep"}, 1);
    const std::string& separator = need_text(*at[0], "the separator");
    if (separator.empty()) throw Error("empty separator");
    const size_t found = name == "partition" ? text.find(separator) : text.rfind(separator);
    const auto three = [](std::string a, std::string b, std::string c) {
      return Value::tuple({Value::string(std::move(a)), Value::string(std::move(b)), Value::string(std::move(c))});
    };
    if (found != std::string::npos)
      return three(text.substr(0, found), separator, text.substr(found + separator.size()));
    return name == "partition" ? three(text, "", "") : three("", "", text);
  }
  if (name == "center" || name == "ljust" || name == "rjust" || name == "zfill") {
    const Bound at = bind(std::move(given_arguments), {"width", "fillchar"}, 1);
    const int64_t width = to_integer(*at[0]), size = count_points(text);
    const std::string fill = name == "zfill" ? "0" : at[1] ? need_text(*at[1], "the character to fill with") : " ";
    if (count_points(fill) != 1) throw Error("The fill character must be exactly one character long");
    if (width <= size) return Value::string(text);
    const int64_t pad = width - size;
    check_size(static_cast<uint64_t>(pad) * fill.size() + text.size());
    const int64_t left = name == "center" ? pad / 2 + (pad & width & 1) : name == "ljust" ? 0 : pad;
    const bool sign = name == "zfill" && (text.starts_with('-') || text.starts_with('+'));
    std::string out = sign ? text.substr(0, 1) : "";
    for (int64_t i = 0; i < left; ++i) out += fill;
    out += sign ? text.substr(1) : text;
    for (int64_t i = left; i < pad; ++i) out += fill;
    return made_text(std::move(out));
  }
  if (name == "format") return made_text(braces_format(text, given_arguments, [&](const Value& v) { return str(v); }));
  throw Error(absl::StrCat("the method \"", name, "\" of str is not supported"));
}

}  // namespace rondo::text::jinja
