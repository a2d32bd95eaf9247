// The text of values: str(), repr() and JSON.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/chat/jinja/value.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::text::jinja {

namespace {

void append_items(Text& out, const Values& items) {
  bool first = true;
  for (const Value& item : items) {
    if (!std::exchange(first, false)) out += ", ";
    append_repr(out, item);
  }
}

}  // namespace

Text str(const Value& value) {
  if (value.is_string()) return Text(value.text());
  if (value.is_undefined()) {
    if (value.is_unsafe()) throw Error(value.reason());
    return {};
  }
  Text out;
  append_repr(out, value);
  return out;
}

std::string abbreviated(std::string_view text) {
  constexpr size_t kShown = 1000;
  if (text.size() <= kShown) return std::string(text);
  size_t end = kShown;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

void append_repr(Text& out, const Value& value) {
  Budget::step();
  switch (value.kind()) {
    case Kind::kUndefined: out += "Undefined"; return;
    case Kind::kNone: out += "None"; return;
    case Kind::kBool: out += value.integral() != 0 ? "True" : "False"; return;
    case Kind::kInt: out += absl::StrCat(value.integral()); return;
    case Kind::kFloat: out += repr_float(value.number()); return;
    case Kind::kString:
      if (value.is_markup()) throw Error("printing a value that is marked safe inside another one is not supported");
      out += repr_text(value.text());
      return;
    case Kind::kList:
      out += '[';
      append_items(out, value.items());
      out += ']';
      return;
    case Kind::kTuple:
      out += '(';
      append_items(out, value.items());
      if (value.items().size() == 1) out += ',';
      out += ')';
      return;
    case Kind::kView:
      out += absl::StrCat(value.view_name(), "([");
      append_items(out, value.items());
      out += "])";
      return;
    case Kind::kDict: {
      out += '{';
      bool first = true;
      for (const auto& [key, item] : value.dict().items) {
        if (!std::exchange(first, false)) out += ", ";
        append_repr(out, key);
        out += ": ";
        append_repr(out, item);
      }
      out += '}';
      return;
    }
    case Kind::kRange: {
      const Value::Range& range = value.range();
      out += absl::StrCat("range(", range.start, ", ", range.stop);
      if (range.step != 1) out += absl::StrCat(", ", range.step);
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

void append_json_text(Text& out, std::string_view text, bool ensure_ascii) {
  Budget::convert(text.size());
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

Text json_key(const Value& key) {
  if (key.is_string()) return Text(key.text());
  if (key.is_none()) return "null";
  if (key.is_number()) return Text(json_number(key));
  throw Error("keys must be str, int, float, bool or None, not " + key.type_name());
}

}  // namespace

void append_json(Text& out, const Value& value, const JsonStyle& style, int level) {
  Budget::step();
  const auto line = [&](int deep) {
    if (!style.multiline) return;
    out += '\n';
    for (int i = 0; i < deep; ++i) out += style.indent;
  };
  // Appends both brackets, and the items between them with a separator before each item but the first.
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
                [&](size_t i) { append_json(out, value.items()[i], style, level + 1); });
      return;
    case Kind::kDict: {
      const auto& items = value.dict().items;
      List<size_t> order(items.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      if (style.sort_keys)
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return is_less(items[a].first, items[b].first); });
      bracketed('{', '}', items.size(), [&](size_t i) {
        const auto& [key, item] = items[order[i]];
        append_json_text(out, json_key(key), style.ensure_ascii);
        out += style.key_separator;
        append_json(out, item, style, level + 1);
      });
      return;
    }
    default: throw Error(absl::StrCat("Object of type ", value.type_name(), " is not JSON serializable"));
  }
}

}  // namespace rondo::text::jinja
