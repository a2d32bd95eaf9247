// ChatRenderer: a tokenizer with one of its chat templates. See chat.h.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/runtime/chat/conversation.h"
#include "rondo/runtime/chat/encoded_chat.h"
#include "rondo/runtime/chat/jinja/template.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::text {

class ChatRenderer {
 public:
  // Keeps a reference to `tokenizer`. `chat_template` as in ChatOptions. Throws Error, TemplateError.
  explicit ChatRenderer(const PreTrainedTokenizer& tokenizer, std::string_view chat_template = "");

  struct Text {
    std::string text;
    std::vector<std::pair<size_t, size_t>> generation;  // [begin, end) in bytes
    // [begin, end) in bytes, in order: text that must not become special tokens even if it spells one. An empty range
    // only splits the text at its position.
    std::vector<std::pair<size_t, size_t>> ordinary;
  };
  // Renders the first `count` messages.
  Text render(const Conversation& conversation, size_t count, bool add_generation_prompt, bool split_special,
              const std::stop_token& stop = {}) const;
  struct Chat : EncodedChat {
    std::vector<Encoding::Offset> offsets;  // the tokens' positions, in code points
  };
  Chat encode(const Conversation& conversation, size_t count, bool add_generation_prompt, bool split_special,
              const std::stop_token& stop = {}) const;
  bool has_generation(const Conversation& conversation) const { return choose(conversation).has_generation(); }
  const PreTrainedTokenizer& tokenizer() const { return tokenizer_; }

 private:
  // A template of the tokenizer's folder. If this library cannot run the template, get() throws.
  struct FolderTemplate {
    std::optional<jinja::Template> parsed{};
    std::optional<TemplateError> error{};
    const jinja::Template& get() const;
  };
  // Returns the folder's template of this name, or nullopt if there is none.
  static std::optional<FolderTemplate> folder_template(const PreTrainedTokenizer& tokenizer, const std::string& name);
  const jinja::Template& choose(const Conversation& conversation) const;

  const PreTrainedTokenizer& tokenizer_;
  std::optional<jinja::Template> fixed_;               // the template that the caller named or passed as text
  std::optional<FolderTemplate> default_, for_tools_;  // if `fixed_` is unset: choose() takes one per conversation
};

}  // namespace rondo::text
