#include "rondo/runtime/data/chat_template.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/io/utf8.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::data {
namespace {

constexpr std::string_view kContent = "{content}", kTrimmed = "{content|trim}";

struct Named {
  std::string_view name, text;
};
constexpr Named kNamed[] = {
    {"chatml", R"(system: <|im_start|>system\n{content}<|im_end|>\n
user: <|im_start|>user\n{content}<|im_end|>\n
assistant: <|im_start|>assistant\n{content}<|im_end|>\n
)"},
    {"llama3", R"(start: <|begin_of_text|>
system: <|start_header_id|>system<|end_header_id|>\n\n{content|trim}<|eot_id|>
user: <|start_header_id|>user<|end_header_id|>\n\n{content|trim}<|eot_id|>
assistant: <|start_header_id|>assistant<|end_header_id|>\n\n{content|trim}<|eot_id|>
)"},
    {"zephyr", R"(system: <|system|>\n{content}</s>\n
user: <|user|>\n{content}</s>\n
assistant: <|assistant|>\n{content}</s>\n
)"},
};

std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    const char kind = ++i < text.size() ? text[i] : '\0';
    switch (kind) {
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'r': out += '\r'; break;
      case '\\': out += '\\'; break;
      default: throw Error("a backslash stands before n, t, r or another backslash; write \\\\ for one in the text");
    }
  }
  return out;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    if (end > at) out.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

}  // namespace

ChatTemplate ChatTemplate::parse(std::string_view text) try {
  ChatTemplate out;
  bool has_generation = false;
  std::vector<std::string> seen;
  int line_number = 0;
  const auto read_line = [&](std::string_view line) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) throw Error("expected a role, a colon and the role's text");
    const std::string name(line.substr(0, colon));
    if (name.find_first_of(" \t{}<>") != std::string::npos)
      throw Error(absl::StrCat(io::shown(name), " is no name of a role; a line break in a text is written \\n"));
    if (std::find(seen.begin(), seen.end(), name) != seen.end())
      throw Error(absl::StrCat(io::shown(name), " appears twice"));
    seen.push_back(name);
    std::string_view rest = line.substr(colon + 1);
    if (rest.starts_with(' ')) rest.remove_prefix(1);
    const std::string value = unescape(rest);
    if (name == "start") out.start_ = value;
    else if (name == "end") out.end_ = value;
    else if (name == "no_system") out.no_system_ = value;
    else if (name == "trained") out.trained_ = words_of(value);
    else if (name == "generation") out.generation_ = value, has_generation = true;
    else {
      const bool trim = value.find(kTrimmed) != std::string::npos;
      const std::string_view mark = trim ? kTrimmed : kContent;
      const size_t at = value.find(mark);
      const std::string after = at == std::string::npos ? "" : value.substr(at + mark.size());
      if (at == std::string::npos || after.find(kContent) != std::string::npos ||
          after.find(kTrimmed) != std::string::npos || value.substr(0, at).find(kContent) != std::string::npos)
        throw Error(absl::StrCat("the text of the role ", io::shown(name), " needs {content} or {content|trim} once"));
      out.roles_[name] = {.before = value.substr(0, at), .after = after, .trim = trim};
    }
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    at = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t") == std::string_view::npos || line.starts_with('#')) continue;
    try {
      if (!io::is_valid_utf8(line)) throw Error("invalid UTF-8");
      read_line(line);
    } catch (const Error& error) {
      throw Error(absl::StrCat("chat template, line ", line_number, ": ", error.what()));
    }
  }
  if (out.roles_.empty()) throw Error("chat template: it has no role");
  if (out.trained_.empty()) out.trained_ = {"assistant"};
  for (const std::string& role : out.trained_)
    if (!out.has_role(role))
      throw Error(absl::StrCat("chat template: the trained role ", io::shown(role),
                               " has no line; name the model's role in a line \"trained: ...\""));
  if (!has_generation) out.generation_ = out.roles_.at(out.trained_[0]).before;
  return out;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatTemplate::parse");
}

ChatTemplate ChatTemplate::load(const std::string& path) try {
  constexpr uint64_t kLargest = 1 << 20;
  const std::string text = io::read_text(path, kLargest);
  try {
    return parse(text);
  } catch (const OutOfMemoryError&) {
    throw;
  } catch (const Error& error) {
    throw FileError(path, error.what());
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatTemplate::load");
}

ChatTemplate ChatTemplate::named(std::string_view name) try {
  std::string known;
  for (const Named& one : kNamed) {
    if (one.name == name) return parse(one.text);
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(one.name));
  }
  throw Error(absl::StrCat("there is no chat template ", io::shown(name), "; known are ", known,
                           ", and ChatTemplate::parse() and load() read others"));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatTemplate::named");
}

bool ChatTemplate::is_trained(std::string_view role) const {
  return std::find(trained_.begin(), trained_.end(), role) != trained_.end();
}

void ChatTemplate::check_messages(std::span<const Message> messages) const {
  if (messages.empty()) throw Error("the conversation has no messages");
  for (const Message& message : messages)
    if (!has_role(message.role)) {
      std::string known;
      for (const auto& [name, role] : roles_) absl::StrAppend(&known, known.empty() ? "" : ", ", name);
      throw Error(absl::StrCat("the chat template has no role ", io::shown(message.role), "; it has ", known));
    }
}

std::string ChatTemplate::words(const Role& role, const std::string& content) const {
  if (!role.trim) return content;
  size_t begin = 0, end = content.size();
  while (begin < end) {
    size_t next = begin;
    if (!text::is_white_space(text::next_point(content, next))) break;
    begin = next;
  }
  while (end > begin) {
    const size_t before = text::previous_point(content, end);
    size_t next = before;
    if (!text::is_white_space(text::next_point(content, next))) break;
    end = before;
  }
  return content.substr(begin, end - begin);
}

std::string ChatTemplate::render(std::span<const Message> messages, bool for_generation) const try {
  check_messages(messages);
  std::string out = start_;
  if (messages[0].role != "system") out += no_system_;
  for (const Message& message : messages) {
    const Role& role = roles_.at(message.role);
    absl::StrAppend(&out, role.before, words(role, message.content), role.after);
  }
  return out + (for_generation ? generation_ : end_);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatTemplate::render");
}

}  // namespace rondo::data
