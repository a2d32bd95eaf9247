#include "rondo/runtime/chat/chat.h"

#include <new>

#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/chat/chat_renderer.h"

namespace rondo::text {

EncodedChat apply_chat_template(const PreTrainedTokenizer& tokenizer, std::string_view text,
                                const ChatOptions& options) try {
  const Conversation conversation = parse_conversation(text);
  return ChatRenderer(tokenizer, options.chat_template)
      .encode(conversation, conversation.messages.size(), options.add_generation_prompt, options.split_special_tokens,
              options.stop);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("apply_chat_template");
}

std::string render_chat(const PreTrainedTokenizer& tokenizer, std::string_view text, const ChatOptions& options) try {
  const Conversation conversation = parse_conversation(text);
  return ChatRenderer(tokenizer, options.chat_template)
      .render(conversation, conversation.messages.size(), options.add_generation_prompt, options.split_special_tokens,
              options.stop)
      .text;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("render_chat");
}

}  // namespace rondo::text
