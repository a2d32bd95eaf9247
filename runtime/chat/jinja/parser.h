// Parses the text of a template to a tree (syntax.h).
#pragma once

#include <string_view>

#include "rondo/runtime/chat/jinja/syntax.h"

namespace rondo::text::jinja {

// Returns the tree of a template. Throws TemplateError, which names the line.
Parsed parse_template(std::string_view source);

}  // namespace rondo::text::jinja
