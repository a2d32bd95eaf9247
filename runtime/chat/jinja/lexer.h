// Cuts a template into tokens, by the rules of Jinja 3.1 with trim_blocks and lstrip_blocks, as transformers sets them.
#pragma once

#include <string>
#include <string_view>

#include "rondo/runtime/chat/jinja/value.h"

namespace rondo::text::jinja {

struct Token {
  enum Type { kText, kOutputBegin, kOutputEnd, kBlockBegin, kBlockEnd, kName, kString, kInteger, kFloat, kSign, kEnd };
  Type type = kEnd;
  int line = 1;
  std::string text{};  // kText, kName, kString, kSign ("==", "(", ...)
  Value number{};
};

// Returns the tokens of a template. Throws TemplateError, which names the line.
List<Token> tokenize(std::string_view source);

}  // namespace rondo::text::jinja
