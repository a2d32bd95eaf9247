// Tokens to a tree. See syntax.h.
#pragma once

#include <string>
#include <string_view>

#include "rondo/runtime/text/jinja/syntax.h"

namespace rondo::text::jinja {

struct Parsed {
  Body body;
  bool has_generation = false;
  std::string literals;  // divided by NULs
  Values unset;          // as Statement::unset, of the whole template
};

// Throws TemplateError, which names the line.
Parsed parse_template(std::string_view source);
// Fills in every `unset`. Throws Error of the budget.
void find_unset_names(Parsed& parsed);

}  // namespace rondo::text::jinja
