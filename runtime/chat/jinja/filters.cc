// Filters on text and numbers, and the function that finds any filter by its name. The filters on sequences are in
// sequence_filters.cc.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/chat/jinja/evaluator.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text::jinja {

namespace {

// Prepares the text of a number for std::from_chars(), by Python's rules: removes the white space around it, one plus
// sign, and single underscores between digits. Returns nullopt if the text has other underscores or signs, or is not
// ASCII.
std::optional<Text> number_text(std::string_view text) {
  Budget::convert(text.size());
  const std::string_view stripped = strip_text(text, Ends::kBoth);
  Text out;
  for (size_t at = 0; at < stripped.size();) {
    const size_t begin = at;
    const uint32_t point = next_point(stripped, at);
    if (point >= 0x80) {
      if (is(point, bit(kNd))) throw Error("digits that are not ASCII in a number are not supported");
      return std::nullopt;
    }
    if (point != '_') {
      out.push_back(stripped[begin]);
      continue;
    }
    const auto digit = [&](size_t i) { return i < stripped.size() && stripped[i] >= '0' && stripped[i] <= '9'; };
    if (begin == 0 || !digit(begin - 1) || !digit(begin + 1)) return std::nullopt;
  }
  if (out.starts_with('+')) {
    out.erase(0, 1);
    if (out.starts_with('+') || out.starts_with('-')) return std::nullopt;
  }
  return out;
}

std::optional<int64_t> parse_int(std::string_view text) {
  const auto digits = number_text(text);
  if (!digits || digits->empty()) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), value);
  if (error == std::errc::result_out_of_range && end == digits->data() + digits->size())
    throw Error("an integer beyond 64 bits is not supported");
  if (error != std::errc() || end != digits->data() + digits->size()) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const auto digits = number_text(text);
  if (!digits || digits->empty()) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(digits->data(), digits->data() + digits->size(), value);
  const Text word = to_lower_text(*digits);
  if (word.find("nan(") != Text::npos || end != digits->data() + digits->size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    const bool tiny = word.find("e-") != Text::npos || (word.find('e') == Text::npos && word[word[0] == '-'] == '0');
    value = tiny ? 0 : HUGE_VAL;
    return word[0] == '-' ? -value : value;
  }
  return error == std::errc() ? std::optional<double>(value) : std::nullopt;
}

int64_t truncated(double value) {
  if (!(std::abs(value) < 0x1p63)) throw Error("a float without an integer of 64 bits is not supported");
  return static_cast<int64_t>(value);
}

Value to_int(const Value& value, const Value& unset) {
  if (value.is_undefined()) throw Error(value.reason());
  if (value.is_integral()) return Value::integer(value.integral());
  if (value.is(Kind::kFloat)) {
    if (std::isnan(value.number())) return unset;
    if (std::isinf(value.number())) throw Error("cannot convert float infinity to integer");
    return Value::integer(truncated(value.number()));
  }
  if (!value.is_string()) return unset;
  if (const auto whole = parse_int(value.text())) return Value::integer(*whole);
  const auto real = parse_float(value.text());
  if (!real || !std::isfinite(*real)) return unset;
  return Value::integer(truncated(*real));
}

Value to_float(const Value& value, const Value& unset) {
  if (value.is_undefined()) throw Error(value.reason());
  if (value.is_number()) return Value::real(value.number());
  if (!value.is_string()) return unset;
  const auto real = parse_float(value.text());
  return real ? Value::real(*real) : unset;
}

Value rounded(const Value& value, int64_t precision, std::string_view method) {
  if (value.is_undefined()) throw Error(value.reason());
  if (!value.is_number()) throw Error(absl::StrCat("type ", value.type_name(), " doesn't define __round__ method"));
  if (precision < 0 || precision > 300) throw Error("round() to a precision below 0 or above 300 is not supported");
  if (method == "common") {
    if (value.is_integral()) return Value::integer(value.integral());
    if (!std::isfinite(value.number())) return value;
    // Rounds the exact decimal digits, half to even, as Python does.
    Budget::convert(static_cast<size_t>(precision) + 64);
    const std::string digits = formatted("%.*f", static_cast<int>(precision), value.number());
    double out = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), out);
    return Value::real(out);
  }
  if (method != "ceil" && method != "floor") throw Error("method must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value.number() * scale;
  if (!std::isfinite(scaled)) throw Error("round() of a number that is not finite is not supported");
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Text escaped(std::string_view text) {
  Budget::convert(text.size());
  Text out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out.push_back(c);
    }
  return out;
}

JsonStyle json_style(const Bound& at) {
  JsonStyle style{.ensure_ascii = is_true(at[0], false), .sort_keys = is_true(at[3], false)};
  if (given(at[1])) {
    style.multiline = true;
    style.item_separator = ",";
    if (at[1]->is_string()) style.indent = at[1]->text();
    else style.indent = repeat_text(" ", to_integer(*at[1]));
  }
  if (given(at[2])) {
    const Value& pair = *at[2];
    if (!(pair.is(Kind::kTuple) || pair.is(Kind::kList)) || pair.items().size() != 2 || !pair.items()[0].is_string() ||
        !pair.items()[1].is_string())
      throw Error("the separators of tojson must be two texts");
    style.item_separator = pair.items()[0].text();
    style.key_separator = pair.items()[1].text();
  }
  return style;
}

}  // namespace

std::optional<Value> Evaluator::text_filter(std::string_view name, const Value& value, Given& arguments) {
  const auto none = [&] { bind(std::move(arguments), {}); };
  if (name == "upper") return none(), Value::string(to_upper_text(str(value)), value.is_markup());
  if (name == "lower") return none(), Value::string(to_lower_text(str(value)), value.is_markup());
  if (name == "title") return none(), Value::string(title_words(str(value)));
  if (name == "capitalize") return none(), Value::string(capitalize_text(str(value)), value.is_markup());
  if (name == "string") return none(), value.is_string() ? value : Value::string(str(value));
  if (name == "safe") return none(), Value::string(str(value), true);
  if (name == "escape" || name == "e" || name == "forceescape") {
    none();
    if (value.is_markup() && name != "forceescape") return value;
    return Value::string(escaped(str(value)), true);
  }
  if (name == "trim") {
    const auto at = bind(std::move(arguments), {"chars"});
    const Text text = str(value);
    if (!given(at[0])) return Value::string(strip_text(text, Ends::kBoth), value.is_markup());
    return Value::string(strip_text(text, Ends::kBoth, str(*at[0])), value.is_markup());
  }
  if (name == "replace") {
    const auto at = bind(std::move(arguments), {"old", "new", "count"}, 2);
    return Value::string(replace_text(str(value), str(*at[0]), str(*at[1]), given(at[2]) ? to_integer(*at[2]) : -1));
  }
  if (name == "indent") {
    const auto at = bind(std::move(arguments), {"width", "first", "blank"});
    if (value.is_undefined()) throw Error(value.reason());
    if (!value.is_string() || value.is_markup())
      throw Error(absl::StrCat("indent of ", value.type_name(), " is not supported"));
    Text pad = "    ";
    if (at[0]) pad = at[0]->is_string() ? Text(at[0]->text()) : repeat_text(" ", to_integer(*at[0]));
    const bool first = is_true(at[1], false), blank = is_true(at[2], false);
    const Text with_end = Text(value.text()) + "\n";
    Text out = first ? pad : Text();
    bool at_first = true;
    for (const std::string_view line : split_lines(with_end, false)) {
      if (!std::exchange(at_first, false)) {
        out += '\n';
        if (blank || !line.empty()) out += pad;
      }
      out += line;
    }
    return Value::string(std::move(out));
  }
  if (name == "center") {
    const auto at = bind(std::move(arguments), {"width"});
    const Value out = call_text_method(str(value), "center", {.positional = {at[0].value_or(Value::integer(80))}});
    return value.is_markup() ? Value::string(out.text(), true) : out;
  }
  if (name == "format") {
    if (!arguments.named.items.empty()) throw Error("the filter \"format\" with named arguments is not supported");
    if (value.is_markup()) throw Error("format of Markup is not supported");
    return percent_format(Value::string(str(value)), Value::tuple(std::move(arguments.positional)));
  }
  if (name == "truncate") {
    const auto at = bind(std::move(arguments), {"length", "killwords", "end", "leeway"});
    const Text text = str(value), end = at[2] ? str(*at[2]) : Text("...");
    const int64_t most = at[0] ? to_integer(*at[0]) : 255, leeway = given(at[3]) ? to_integer(*at[3]) : 5;
    if (most < count_points(end) || leeway < 0)
      throw Error("the length of truncate is shorter than its end, or its leeway is negative");
    if (!value.is_string()) throw Error(absl::StrCat("truncate of ", value.type_name(), " is not supported"));
    if (count_points(text) - most <= leeway) return value;
    if (value.is_markup() || (at[2] && at[2]->is_markup())) throw Error("truncate of Markup is not supported");
    std::string_view head = std::string_view(text).substr(0, byte_of_point(text, most - count_points(end)));
    if (!is_true(at[1], false)) head = rsplit_text(head, " ", 1)[0];
    return Value::string(std::move(Text(head) += end));
  }
  if (name == "tojson") {
    const auto at = bind(std::move(arguments), {"ensure_ascii", "indent", "separators", "sort_keys"});
    Text out;
    append_json(out, value, json_style(at));
    return Value::string(std::move(out));
  }
  return std::nullopt;
}

std::optional<Value> Evaluator::number_filter(std::string_view name, const Value& value, Given& arguments) {
  if (name == "abs") {
    bind(std::move(arguments), {});
    if (value.is_undefined()) throw Error(value.reason());
    if (!value.is_number()) throw Error(absl::StrCat("bad operand type for abs(): '", value.type_name(), "'"));
    if (value.is(Kind::kFloat)) return Value::real(std::abs(value.number()));
    return value.integral() < 0 ? arithmetic(Expression::kSub, Value::integer(0), value)
                                : Value::integer(value.integral());
  }
  if (name == "int") {
    const auto at = bind(std::move(arguments), {"default", "base"});
    if (at[1] && !equals(*at[1], Value::integer(10)))
      throw Error("the filter \"int\" with another base than 10 is not supported");
    return to_int(value, at[0].value_or(Value::integer(0)));
  }
  if (name == "float") {
    const auto at = bind(std::move(arguments), {"default"});
    return to_float(value, at[0].value_or(Value::real(0)));
  }
  if (name == "round") {
    const auto at = bind(std::move(arguments), {"precision", "method"});
    return rounded(value, at[0] ? to_integer(*at[0]) : 0, at[1] ? str(*at[1]) : Text("common"));
  }
  return std::nullopt;
}

Value Evaluator::filter(std::string_view name, const Value& value, Given given_arguments) {
  Budget::step();
  try {
    if (auto out = text_filter(name, value, given_arguments)) return *std::move(out);
    if (auto out = number_filter(name, value, given_arguments)) return *std::move(out);
    if (auto out = sequence_filter(name, value, given_arguments)) return *std::move(out);
  } catch (const Error& error) {
    if (value.is_undefined() && error.what() == value.reason()) throw;
    const std::string_view what = error.what();
    if (what.starts_with("the filter ") || what.starts_with("filter ")) throw;
    throw Error(absl::StrCat("filter \"", abbreviated(name), "\": ", error.what()));
  }
  for (const char* known : {"filesizeformat", "groupby", "pprint", "random", "striptags", "urlencode", "urlize",
                            "wordcount", "wordwrap", "xmlattr"})
    if (name == known) throw Error(absl::StrCat("the filter \"", known, "\" is not supported"));
  throw Error("there is no filter " + io::shown(name));
}

}  // namespace rondo::text::jinja
