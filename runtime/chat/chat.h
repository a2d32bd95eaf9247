// Renders conversations with the chat template of a model's folder: chat_template.jinja,
// additional_chat_templates/NAME.jinja, or the field chat_template of tokenizer_config.json.
//
//   const auto tokenizer = text::AutoTokenizer::from_pretrained("models/qwen");
//   const text::EncodedChat chat = text::apply_chat_template(
//       tokenizer, R"([{"role": "user", "content": "Hello!"}])", {.add_generation_prompt = true});
//   nn::generate(model, {chat.ids.begin(), chat.ids.end()}, ...);
//
// Text, ids and the assistant's mask equal those of transformers 5.23: apply_chat_template(..., return_dict=True,
// return_assistant_tokens_mask=True). Two differences are deliberate. A {% generation %} block that begins or ends in
// text which no token covers is an Error, because the reference then trains on the wrong tokens. A {% generation %}
// block that ends in the very first token carries loss on that token only. Templates are written in Jinja;
// jinja/template.h says which part of Jinja is supported. A template that needs more is a TemplateError.
//
// Templates are untrusted code. A render may use at most 20 million steps of work, 128 MiB of memory and 256 KiB of the
// calling thread's stack. If the thread has little stack left, the render may use less, so that 48 KiB stay free.
// Exceeding a limit is a TemplateError. Published templates use about 1% of the steps for 1 MB of text in 100 messages,
// and less than 25% for 1 MB in 10,000 messages.
//
// Each call parses the template, which takes 0.02 to 0.2 ms. data::ChatEncoder (data/chat_template.h) parses it once.
//
// A conversation is JSON: an array of messages, or an object with "messages" and, optionally, "tools" and "documents"
// (arrays) and "chat_template_kwargs" (an object: further variables of the template, such as enable_thinking). Other
// fields of the object are ignored. A message is an object; the template decides which fields it may have. As in
// transformers, fields that are null are left out, and the reasoning of a message may come in the field
// "reasoning_content", "thinking" or "reasoning": the template sees it as "reasoning_content" and "thinking".
//
// Thread safety: everything here may be called from several threads at once.
#pragma once

#include <stop_token>
#include <string>
#include <string_view>

#include "rondo/runtime/chat/encoded_chat.h"
#include "rondo/runtime/chat/template_error.h"
#include "rondo/runtime/text/tokenizer.h"

#pragma GCC visibility push(default)
namespace rondo::text {

struct ChatOptions {
  // Ends the text with the generation prompt, which begins the model's answer.
  bool add_generation_prompt = false;
  // True: text in messages that spells a special token is encoded as ordinary text. Outside of the assistant's messages
  // this also applies to every other added token that the template itself writes. So a message cannot forge a role.
  // False by default, as in the reference.
  bool split_special_tokens = false;
  // The name of one of the folder's templates, or a whole template. Empty: the folder's template "tool_use" if it has
  // one and the conversation has tools, else its "default".
  std::string chat_template = {};
  // When any thread requests a stop, the render ends at its next step with a TemplateCancelled. Encoding
  // is not stopped.
  std::stop_token stop = {};
};

// Renders the conversation and encodes the text. Throws TemplateError. Throws Error if there is no template, if the
// tokenizer refuses the text, or if `conversation` is not a conversation in JSON.
EncodedChat apply_chat_template(const PreTrainedTokenizer& tokenizer, std::string_view conversation,
                                const ChatOptions& options = {});
// Like apply_chat_template(), but returns only the text.
std::string render_chat(const PreTrainedTokenizer& tokenizer, std::string_view conversation,
                        const ChatOptions& options = {});

}  // namespace rondo::text
#pragma GCC visibility pop
