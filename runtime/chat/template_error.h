// An error in a chat template, or an error that the template raises for a conversation.
#pragma once

#include <string>
#include <string_view>

#include "rondo/runtime/base/error.h"

#pragma GCC visibility push(default)
namespace rondo::text {

// "models/x/chat_template.jinja, line 12: the filter "urlize" is not supported".
class TemplateError : public Error {
 public:
  TemplateError(const std::string& name, int line, const std::string& reason)
      : Error(name + ", line " + std::to_string(line) + ": " + reason), line_(line), reason_(reason) {}
  TemplateError(int line, const std::string& reason) : TemplateError("template", line, reason) {}
  int line() const { return line_; }
  // Returns the reason without the name and the line.
  const std::string& reason() const { return reason_; }

 private:
  int line_;
  std::string reason_;
};

// Thrown by a render that was asked to stop (ChatOptions::stop).
class TemplateCancelled : public TemplateError {
 public:
  using TemplateError::TemplateError;
};

}  // namespace rondo::text
#pragma GCC visibility pop
