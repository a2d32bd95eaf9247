// ChatRenderer: a tokenizer with one of its chat templates. See chat.h.
#pragma once

#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/chat.h"
#include "rondo/runtime/text/jinja/template.h"

namespace rondo::text {

// A template of a folder. One that this library cannot run is an error when it is first needed, and no sooner.
struct FolderTemplate {
  std::optional<jinja::Template> parsed;
  std::optional<TemplateError> error;
  const jinja::Template& get() const;
};
using FolderTemplates = std::map<std::string, FolderTemplate>;
FolderTemplate parse_folder_template(std::string_view source, const std::string& name);

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

class ChatRenderer {
 public:
  // Keeps a reference. `chat_template` as in ChatOptions. Throws Error, TemplateError.
  explicit ChatRenderer(const PreTrainedTokenizer& tokenizer, std::string_view chat_template = "");

  struct Text {
    std::string text;
    std::vector<std::pair<size_t, size_t>> generation;  // bytes
    // In order: parts that are never special tokens, even if they spell one, and places where the text is cut.
    std::vector<std::pair<size_t, size_t>> ordinary;
  };
  // The first `count` messages.
  Text render(const Conversation& conversation, size_t count, bool add_generation_prompt, bool split_special,
              const std::stop_token& stop = {}) const;
  struct Chat : EncodedChat {
    std::vector<Encoding::Offset> offsets;  // code points
  };
  Chat encode(const Conversation& conversation, size_t count, bool add_generation_prompt, bool split_special,
              const std::stop_token& stop = {}) const;
  bool has_generation(const Conversation& conversation) const { return choose(conversation).has_generation(); }
  const PreTrainedTokenizer& tokenizer() const { return tokenizer_; }

 private:
  const jinja::Template& choose(const Conversation& conversation) const;

  const PreTrainedTokenizer& tokenizer_;
  std::optional<jinja::Template> own_;
  const jinja::Template* fixed_ = nullptr;  // null: by the conversation
};

}  // namespace rondo::text
