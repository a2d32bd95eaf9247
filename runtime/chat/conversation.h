// Conversation: the messages and variables that a chat template gets.
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
// Names of the JSON fields of a conversation and its messages.
struct ConversationFields {
  std::string messages = "messages", role = "role", content = "content";
};
// Reads an array of messages, or an object (see chat.h). Throws FileError by json.fail().
Conversation read_conversation(io::JsonReader& json, const ConversationFields& fields = {});
// As read_conversation(), from a JSON text. Throws Error.
Conversation parse_conversation(std::string_view text);
Conversation conversation_of(const std::vector<std::pair<std::string, std::string>>& roles_and_contents);

}  // namespace rondo::text
