// ChatTemplate: how the messages of a conversation become one text, written as plain text with role markers.
//
//   start: <|begin_of_text|>
//   system: <|start_header_id|>system<|end_header_id|>\n\n{content|trim}<|eot_id|>
//   user: <|start_header_id|>user<|end_header_id|>\n\n{content|trim}<|eot_id|>
//   assistant: <|start_header_id|>assistant<|end_header_id|>\n\n{content|trim}<|eot_id|>
//
// Each role has one line: its name, a colon, a space, and its text. In the text, {content} stands for the content of
// the message and {content|trim} for the content without white space at both ends; \n, \t, \r and \\ are escapes; no
// other character is special. Empty lines and lines that begin with # are skipped. These optional names are not roles:
//   start, end    text before the first message, and after the last message of a finished conversation
//   no_system     text after `start` if the first message does not have the role `system`
//   trained       the roles whose content carries loss, separated by spaces; default: assistant
//   generation    text that prompts the model to answer; default: the text of the first trained role before {content}
//
// Markers: a special token of the tokenizer in the template's own text becomes that one token. The same text inside a
// message never does, so a message cannot forge a role. If the tokenizer cannot distinguish the two, it is an Error.
//
// Loss: on the content of trained roles and on the end marker after it. The end marker is the text after {content} up
// to and including the first special token, or the whole text if it has no special token. Spaces right before
// {content} belong to the content, because tokenizers join a space to the next word. A prompt ends before these spaces.
//
// The format has no logic, so it cannot express templates that merge messages (Llama 2's <<SYS>> inside the first
// [INST]). For these, and for a model's own template, use Jinja: ChatEncoder::of_jinja().
//
// Thread safety: immutable.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/data/example_set.h"
#include "rondo/runtime/text/simple_tokenizer.h"
#include "rondo/runtime/text/tokenizer.h"

#pragma GCC visibility push(default)
namespace rondo::text {
struct Conversation;
}

namespace rondo::data {

struct Message {
  std::string role, content;
};

class ChatTemplate {
 public:
  // Parses the lines of a template, as described above. Throws Error, which names the line.
  static ChatTemplate parse(std::string_view text);
  // Parses a file with lines as described above. Throws FileError.
  static ChatTemplate load(const std::string& path);
  // Returns a built-in template: "chatml" (Qwen and others), "llama3" or "zephyr". Throws Error for another name.
  static ChatTemplate named(std::string_view name);

  // Returns the whole text of a finished conversation, or of a prompt that the model continues. It is for people and
  // tests: ids come from ChatEncoder, which distinguishes the template's text from that of messages. Throws Error for a
  // role that the template does not have, and if there are no messages.
  std::string render(std::span<const Message> messages, bool for_generation = false) const;

  bool has_role(std::string_view role) const { return roles_.contains(std::string(role)); }
  bool is_trained(std::string_view role) const;

 private:
  friend class ChatEncoder;
  struct Role {
    std::string before, after;  // the text before and after the content
    bool trim = false;
  };
  ChatTemplate() = default;
  void check_messages(std::span<const Message> messages) const;
  std::string words(const Role& role, const std::string& content) const;

  std::map<std::string, Role> roles_;
  std::vector<std::string> trained_;
  std::string start_, end_, no_system_, generation_;
};

// Converts conversations to ids with a chat template and a tokenizer.
//
//   const data::ChatEncoder chat(data::ChatTemplate::named("chatml"), tokenizer);
//   std::vector<int32_t> prompt = chat.prompt({{{"user", "Hello!"}}});    // for nn::generate()
//   std::string answer = tokenizer.decode(new_tokens);
//
// The ids of a prompt are exactly the first ids of a training example with the same messages.
// Keeps a reference to the tokenizer. Thread safety: immutable.
class ChatEncoder {
 public:
  ChatEncoder(ChatTemplate chat, const io::Tokenizer& tokenizer);
  // Uses a Jinja template (chat/chat.h): `chat_template` is the name of a template in the tokenizer's folder, the text
  // of a template, or empty for the folder's default. The text of a special token inside a message stays ordinary text
  // here, too (ChatOptions::split_special_tokens).
  //
  // Loss is on {% generation %} blocks. Without such blocks it is on the content of messages of the role "assistant"
  // and on the end marker after it, but only if the borders are exact. They are exact if the conversation begins with
  // the prompt for the message (both as text and as ids), and with the conversation that ends after the message. Some
  // templates render earlier messages differently when others follow (they drop the reasoning, for example). Then
  // example() throws an Error that says what to do. Throws Error if there is no such template, and TemplateError.
  static ChatEncoder of_jinja(const text::PreTrainedTokenizer& tokenizer, std::string_view chat_template = "");
  ~ChatEncoder();
  ChatEncoder(ChatEncoder&&) noexcept;

  // Returns a training example. Throws the errors of render(), and Error for a trained message without content and for
  // text that the tokenizer refuses. An example without a trained message has no target.
  Example example(std::span<const Message> messages) const;
  // Like example(), for a conversation in JSON: see chat/chat.h. A ChatTemplate uses only the fields role and content.
  Example example_of_json(std::string_view conversation) const;
  // Returns the ids without loss flags: of the whole conversation, or of a prompt that the model continues.
  std::vector<int32_t> ids_of_json(std::string_view conversation, bool add_generation_prompt) const;
  // Returns the ids of a prompt: the messages, and the text that prompts the model to answer.
  std::vector<int32_t> prompt(std::span<const Message> messages) const;
  // Returns the token that ends the model's answer, for the stop tokens of generate(); -1 if the template has no such
  // token.
  int32_t end_token() const;
  // Returns the text that ends the model's answer if end_token() is -1. It is empty if the template has no such text
  // either.
  const std::string& end_text() const;
  // Returns the ChatTemplate. Throws Error if the encoder uses a Jinja template.
  const ChatTemplate& chat_template() const;
  bool is_jinja() const;

 private:
  friend Example example_of(const ChatEncoder& encoder, const text::Conversation& conversation);
  struct Impl;
  struct Plain;
  struct Jinja;
  explicit ChatEncoder(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace rondo::data
#pragma GCC visibility pop
