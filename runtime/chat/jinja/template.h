// The subset of Jinja that chat templates use. A render gives the same bytes as transformers with jinja2 3.1.6.
//
//   const auto chat = jinja::Template::parse("{% for m in messages %}{{ m.content }}{% endfor %}", "chat.jinja");
//   std::string text = chat.render({{"messages", jinja::Value::from_json("messages", json)}}).text;
//
// A template is untrusted code: it reads only the variables that it is given, and its use of work, memory and the
// thread's stack is bounded (Limits in budget.h). A construct that this subset lacks is a TemplateError that names the
// line and the construct; no template renders a different text than in jinja2. Thread safety: a Template is immutable
// and may render on several threads at once.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/runtime/chat/jinja/budget.h"
#include "rondo/runtime/chat/jinja/value.h"
#include "rondo/runtime/chat/template_error.h"

namespace rondo::text::jinja {

struct RenderOptions {
  // True: notes which parts of the text {% generation %} blocks render (Rendered::generation).
  bool track_generation = false;
  // The time that strftime_now() formats; unset: now, in local time.
  std::optional<std::tm> now = std::nullopt;
  Limits limits = {};
  // Ends the render at its next step, with a TemplateCancelled. Any thread may request the stop.
  std::stop_token stop = {};
  // Filled in, even if the render throws.
  Used* used = nullptr;
};

struct Rendered {
  std::string text;
  std::vector<std::pair<size_t, size_t>> generation;  // [begin, end) in bytes, in order
};

class Template {
 public:
  // Parses a template. `name` appears in errors. Throws TemplateError.
  static Template parse(std::string_view source, std::string name, const Limits& limits = {});
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // Throws TemplateError, and TemplateCancelled.
  Rendered render(const std::vector<std::pair<std::string, Value>>& variables, const RenderOptions& options = {}) const;
  // True if the template has a {% generation %} block.
  bool has_generation() const;
  // Returns the texts that the template itself writes, in quotes or between tags, separated by NULs.
  const std::string& literal_text() const;

 private:
  struct Impl;
  explicit Template(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace rondo::text::jinja
