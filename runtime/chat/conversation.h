// Conversations, as templates take them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/runtime/chat/jinja/value.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text {

struct Conversation {
  jinja::Values messages;
  jinja::Value tools = jinja::Value::none(), documents = jinja::Value::none();
  std::vector<std::pair<std::string, jinja::Value>> variables{};
};
// Names of fields.
struct ConversationFields {
  std::string messages = "messages", role = "role", content = "content";
};
// An array of messages, or an object. Throws FileError by json.fail().
Conversation read_conversation(io::JsonReader& json, const ConversationFields& fields = {});
// The same of a text; throws Error.
Conversation parse_conversation(std::string_view text);
Conversation conversation_of(const std::vector<std::pair<std::string, std::string>>& roles_and_contents);

}  // namespace rondo::text
