#include "rondo/runtime/chat/conversation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::text {
namespace {

using jinja::Kind;
using jinja::Value;

const Value* field(const Value& object, std::string_view name) {
  return object.is(Kind::kDict) ? object.dict().find(name) : nullptr;
}

// Returns a message as the reference hands it to a template: without fields that are null, and with reasoning as both
// "thinking" and "reasoning_content".
Value normalized(const Value& message, const ConversationFields& names) {
  Value::Items items;
  const Value* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    if (const Value* found = field(message, name); reasoning == nullptr && found != nullptr && !found->is_none())
      reasoning = found;
  if (reasoning != nullptr) items.emplace_back(Value::string("thinking"), *reasoning);
  for (const auto& [key, value] : message.dict().items) {
    if (value.is_none()) continue;
    const bool role = key.text() == names.role, content = key.text() == names.content;
    items.emplace_back(role ? Value::string("role") : content ? Value::string("content") : key, value);
  }
  if (reasoning != nullptr) items.emplace_back(Value::string("reasoning_content"), *reasoning);
  return Value::dict(std::move(items));
}

}  // namespace

Conversation read_conversation(io::JsonReader& json, const ConversationFields& fields) {
  Conversation out;
  bool has_messages = false;
  const auto read_messages = [&] {
    has_messages = true;
    if (json.peek() != '[')
      json.fail(absl::StrCat("field ", io::shown(fields.messages), " must be an array of messages"));
    json.array([&] {
      if (json.peek() != '{') json.fail("a message must be an object");
      out.messages.push_back(normalized(Value::from_json(json), fields));
    });
  };
  if (json.peek() == '[') {
    read_messages();
  } else {
    if (json.peek() != '{') json.fail("expected an array of messages, or an object with the field \"messages\"");
    std::vector<std::string> seen;
    json.object([&](std::string& key) {
      const bool known = key == fields.messages || key == "tools" || key == "documents" ||
                         key == "chat_template_kwargs";
      if (!known) return json.skip();
      if (std::find(seen.begin(), seen.end(), key) != seen.end())
        json.fail(absl::StrCat("field ", io::shown(key), " appears twice"));
      seen.push_back(key);
      if (key == fields.messages) return read_messages();
      const Value value = Value::from_json(json);
      if (value.is_none()) return;
      if (key == "chat_template_kwargs") {
        if (!value.is(Kind::kDict)) json.fail("field \"chat_template_kwargs\" must be an object");
        for (const auto& [name, one] : value.dict().items) out.variables.emplace_back(name.text(), one);
        return;
      }
      if (!value.is(Kind::kList)) json.fail(absl::StrCat("field ", io::shown(key), " must be an array"));
      (key == "tools" ? out.tools : out.documents) = value;
    });
  }
  if (!has_messages) json.fail(absl::StrCat("field ", io::shown(fields.messages), " is missing"));
  return out;
}

Conversation parse_conversation(std::string_view text) {
  static const std::string& kName = *new std::string("conversation");
  Conversation out;
  try {
    io::JsonReader json(kName, text);
    out = read_conversation(json);
    json.finish();
  } catch (const FileError& error) {  // the text is not from a file
    throw Error(error.what());
  }
  if (out.messages.empty()) throw Error("the conversation has no messages");
  return out;
}

Conversation conversation_of(const std::vector<std::pair<std::string, std::string>>& messages) {
  Conversation out;
  for (const auto& [role, content] : messages)
    out.messages.push_back(Value::dict(
        {{Value::string("role"), Value::string(role)}, {Value::string("content"), Value::string(content)}}));
  return out;
}

}  // namespace rondo::text
