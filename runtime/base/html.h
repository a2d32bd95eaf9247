// Text in a page of HTML.
#pragma once

#include <string>
#include <string_view>

namespace rondo {

// `text` as an element or a quoted attribute shows it.
inline std::string html_escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace rondo
