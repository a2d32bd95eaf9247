// Escapes text for a page of HTML.
#pragma once

#include <string>
#include <string_view>

namespace rondo {

// Returns `text` with &, <, > and " escaped, for the content of an element or for a quoted attribute.
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
