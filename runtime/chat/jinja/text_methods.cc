// Methods of str.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/chat/jinja/evaluator.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text::jinja {
namespace {

Values texts(const Parts& parts) {
  Values out;
  out.reserve(parts.size());
  for (const std::string_view part : parts) out.push_back(Value::string(part));
  return out;
}

// As Python's format.format(...), for fields such as {}, {0} and {name}, without conversions and format specifications.
Text braces_format(std::string_view format, const Given& given) {
  Budget::convert(format.size());
  Text out;
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
    if (end == std::string_view::npos) throw Error("Single '{' encountered in format string");
    const std::string_view field = format.substr(i + 1, end - i - 1);
    if (field.find_first_of(":!.[{") != std::string_view::npos)
      throw Error("str.format() with conversions, formats or attributes is not supported: " + io::shown(field));
    Budget::steps(1);
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
      value = given.named.find(field);
      if (value == nullptr) throw Error("str.format() has no value for " + io::shown(field));
    }
    out += str(*value);
    i = end;
  }
  return out;
}

// The part of a text that find(), count() ... search.
struct Window {
  std::string_view text;
  int64_t begin = 0;  // where the part begins in the whole text, in code points
};
std::optional<Window> window(std::string_view text, const std::optional<Value>& start,
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
  return Window{text.substr(first, byte_of_point(text, end) - first), begin};
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

}  // namespace

std::string_view need_text(const Value& value, const char* what) {
  if (value.is_undefined()) throw Error(value.reason());
  if (!value.is_string()) throw Error(absl::StrCat(what, " must be str, not ", value.type_name()));
  return value.text();
}

Text replace_text(std::string_view text, std::string_view from, std::string_view to, int64_t most) {
  if (most < 0) most = INT64_MAX;
  Text out;
  if (from.empty()) {  // inserts `to` before each character and at the end
    Budget::convert(text.size());
    for (size_t at = 0;; --most) {
      if (most == 0) {
        out += text.substr(at);
        return out;
      }
      out += to;
      if (at == text.size()) return out;
      const size_t begin = at;
      next_point(text, at);
      out += text.substr(begin, at - begin);
    }
  }
  if (from.size() > text.size()) return Text(text);
  const Finder finder(from);
  for (; most > 0; --most) {
    const size_t found = finder.find(text);
    if (found == std::string_view::npos) break;
    out.append(text.substr(0, found)).append(to);
    text.remove_prefix(found + from.size());
  }
  out += text;
  return out;
}

// Runs methods that look for a part of a text.
std::optional<Value> Evaluator::search_text(std::string_view text, std::string_view name, Given& given_arguments) {
  const auto number_or = [](const std::optional<Value>& value, int64_t unset) {
    return value ? to_integer(*value) : unset;
  };
  if (name == "startswith" || name == "endswith") {
    const Bound at = bind(std::move(given_arguments), {"prefix", "start", "stop"}, 1);
    const auto in = window(text, at[1], at[2]);
    const auto holds = [&](const Value& one) {
      const std::string_view wanted = need_text(one, "what the text begins or ends with");
      Budget::steps(1);
      Budget::read(wanted.size());
      return in && (name == "startswith" ? in->text.starts_with(wanted) : in->text.ends_with(wanted));
    };
    if (!at[0]->is(Kind::kTuple)) return Value::boolean(holds(*at[0]));
    return Value::boolean(std::any_of(at[0]->items().begin(), at[0]->items().end(), holds));
  }
  if (name == "replace") {
    const Bound at = bind(std::move(given_arguments), {"old", "new", "count"}, 2);
    return Value::string(
        replace_text(text, need_text(*at[0], "the old text"), need_text(*at[1], "the new text"), number_or(at[2], -1)));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    const Bound at = bind(std::move(given_arguments), {"sub", "start", "stop"}, 1);
    const std::string_view wanted = need_text(*at[0], "what to look for");
    const auto in = window(text, at[1], at[2]);
    if (name == "count") {
      if (!in) return Value::integer(0);
      if (wanted.empty()) return Value::integer(count_points(in->text) + 1);
      const Finder finder(wanted);
      int64_t count = 0;
      for (std::string_view rest = in->text;; ++count) {
        const size_t place = finder.find(rest);
        if (place == std::string_view::npos) return Value::integer(count);
        rest.remove_prefix(place + wanted.size());
      }
    }
    const auto direction = name[0] == 'r' ? Finder::kBackwards : Finder::kForwards;
    const size_t found = in ? find_text(in->text, wanted, direction) : std::string_view::npos;
    if (found != std::string_view::npos) return Value::integer(in->begin + count_points(in->text.substr(0, found)));
    if (name.ends_with("index")) throw Error("substring not found");
    return Value::integer(-1);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const Bound at = bind(std::move(given_arguments), {"prefix"}, 1);
    const std::string_view part = need_text(*at[0], "what to remove");
    const bool prefix = name == "removeprefix";
    Budget::read(part.size());
    if (!(prefix ? text.starts_with(part) : text.ends_with(part))) return Value::string(text);
    return Value::string(prefix ? text.substr(part.size()) : text.substr(0, text.size() - part.size()));
  }
  if (name == "partition" || name == "rpartition") {
    const Bound at = bind(std::move(given_arguments), {"sep"}, 1);
    const std::string_view separator = need_text(*at[0], "the separator");
    if (separator.empty()) throw Error("empty separator");
    const size_t found = find_text(text, separator, name == "partition" ? Finder::kForwards : Finder::kBackwards);
    const auto three = [](std::string_view a, std::string_view b, std::string_view c) {
      return Value::tuple({Value::string(a), Value::string(b), Value::string(c)});
    };
    if (found != std::string_view::npos)
      return three(text.substr(0, found), separator, text.substr(found + separator.size()));
    return name == "partition" ? three(text, "", "") : three("", "", text);
  }
  return std::nullopt;
}

std::optional<Value> Evaluator::pad_text(std::string_view text, std::string_view name, Given& given_arguments) {
  if (name == "center" || name == "ljust" || name == "rjust" || name == "zfill") {
    if (name == "zfill" && given_arguments.positional.size() > 1) throw Error("str.zfill() takes one argument");
    const Bound at = bind(std::move(given_arguments), {"width", "fillchar"}, 1);
    const int64_t width = to_integer(*at[0]), size = count_points(text);
    const std::string_view fill = name == "zfill" ? "0" : at[1] ? need_text(*at[1], "the character to fill with") : " ";
    if (count_points(fill) != 1) throw Error("The fill character must be exactly one character long");
    if (width <= size) return Value::string(text);
    const int64_t pad = width - size;
    Budget::expect(static_cast<uint64_t>(pad), fill.size());
    const int64_t left = name == "center" ? pad / 2 + (pad & width & 1) : name == "ljust" ? 0 : pad;
    const bool sign = name == "zfill" && (text.starts_with('-') || text.starts_with('+'));
    Text out(text.substr(0, sign ? 1 : 0));
    out.append(repeat_text(fill, left)).append(text.substr(sign ? 1 : 0)).append(repeat_text(fill, pad - left));
    return Value::string(std::move(out));
  }
  return std::nullopt;
}

Value Evaluator::call_text_method(std::string_view text, std::string_view name, Given given_arguments) {
  // Only these methods have named arguments in Python; since 3.13 replace() has one, too: count.
  if (name != "split" && name != "rsplit" && name != "splitlines" && name != "format" &&
      !(name == "replace" && given_arguments.named.find("count") != nullptr))
    refuse_named(name, given_arguments);
  const auto none = [&] { bind(std::move(given_arguments), {}); };
  const auto number_or = [](const std::optional<Value>& value, int64_t unset) {
    return value ? to_integer(*value) : unset;
  };
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const Bound at = bind(std::move(given_arguments), {"chars"});
    const Ends ends = name == "strip" ? Ends::kBoth : name == "lstrip" ? Ends::kLeft : Ends::kRight;
    std::optional<std::string_view> chars;
    if (given(at[0])) chars = need_text(*at[0], "the characters to strip");
    return Value::string(strip_text(text, ends, chars));
  }
  if (name == "upper") return none(), Value::string(to_upper_text(text));
  if (name == "lower") return none(), Value::string(to_lower_text(text));
  if (name == "title") return none(), Value::string(to_title_text(text));
  if (name == "capitalize") return none(), Value::string(capitalize_text(text));
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
  if (name == "join") {
    const Bound at = bind(std::move(given_arguments), {"iterable"}, 1);
    Text out;
    bool first = true;
    for (const Value& item : to_items(*at[0])) {
      if (!std::exchange(first, false)) out += text;
      out += need_text(item, "an item to join");
    }
    return Value::string(std::move(out));
  }
  if (name == "format") return Value::string(braces_format(text, given_arguments));
  if (auto out = search_text(text, name, given_arguments)) return *std::move(out);
  if (auto out = pad_text(text, name, given_arguments)) return *std::move(out);
  throw Error(absl::StrCat("the method ", io::shown(name), " of str is not supported"));
}

}  // namespace rondo::text::jinja
