// ChatTemplate: how the messages of a conversation become one text, written as plain text with role markers.
//
//   start: <|begin_of_text|>
//   system: <|start_header_id|>system<|end_header_id|>\n\n{content|trim}<|eot_id|>
//   user: <|start_header_id|>user<|end_header_id|>\n\n{content|trim}<|eot_id|>
//   assistant: <|start_header_id|>assistant<|end_header_id|>\n\n{content|trim}<|eot_id|>
//
// One line a role: its name, a colon, a space, and its text, where {content} stands for the message's words and
// {content|trim} for them without white space at both ends. In the text, \n, \t, \r and \\ are escapes; no other
// character is special. Empty lines and lines that begin with # are skipped. Names that are no role, all optional:
//   start, end    before the first message, behind the last one of a finished conversation
//   no_system     behind `start`, if the first message is not of the role `system`
//   trained       the roles whose words carry loss, divided by spaces; default: assistant
//   generation    what asks the model for its words; default: the text of the first trained role before {content}
//
// Markers: where the template's own text spells a special token of the tokenizer, it becomes that one token. The same
// words inside a message never do: nobody can forge a role by writing its marker. (Where the tokenizer cannot tell them
// apart, the message is an Error.)
//
// Loss: on the words of trained roles and on the end marker behind them, which is the text up to and including the
// first special token there, or all of it if there is none. Spaces right before {content} count as the words', as
// tokenizers join a space to the word behind it: a prompt then ends before them.
//
// Not expressible, as there is no logic: templates that merge messages (Llama 2's <<SYS>> inside the first [INST]). For
// these, and for a model's own template, there is Jinja: ChatEncoder::of_jinja().
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
  // Throws Error that names the line.
  static ChatTemplate parse(std::string_view text);
  // A file with such lines. Throws FileError.
  static ChatTemplate load(const std::string& path);
  // Known ones: "chatml" (Qwen and others), "llama3", "zephyr". Throws Error for another name.
  static ChatTemplate named(std::string_view name);

  // The whole text of a finished conversation, or of a prompt that asks for the next words. For people and tests: ids
  // come from ChatEncoder, which knows the template's words from the users'. Throws Error for a role that the template
  // has not, and without messages.
  std::string render(std::span<const Message> messages, bool for_generation = false) const;

  bool has_role(std::string_view role) const { return roles_.contains(std::string(role)); }
  bool is_trained(std::string_view role) const;

 private:
  friend class ChatEncoder;
  struct Role {
    std::string before, after;  // of the content
    bool trim = false;
  };
  ChatTemplate() = default;
  void check_messages(std::span<const Message> messages) const;
  std::string words(const Role& role, const std::string& content) const;

  std::map<std::string, Role> roles_;
  std::vector<std::string> trained_;
  std::string start_, end_, no_system_, generation_;
};

// A template for one tokenizer.
//
//   const data::ChatEncoder chat(data::ChatTemplate::named("chatml"), tokenizer);
//   std::vector<int32_t> prompt = chat.prompt({{{"user", "Hello!"}}});    // for nn::generate()
//   std::string answer = tokenizer.decode(new_tokens);
//
// The prompt's ids are exactly those that begin a training example with the same messages.
// Keeps a reference to the tokenizer. Thread safety: immutable.
class ChatEncoder {
 public:
  ChatEncoder(ChatTemplate chat, const io::Tokenizer& tokenizer);
  // By a Jinja template (chat/chat.h): the name of one of the folder's, a whole template, or empty for the folder's
  // own. Text of special tokens in a message stays ordinary text here too (ChatOptions::split_special_tokens).
  //
  // Loss is on {% generation %} blocks. A template without them carries loss on the words of messages of the role
  // "assistant" and on the end marker behind them, but only where that is exact: the conversation begins with the
  // prompt that asks for the message, in text and in ids, and with the conversation up to the message. Where a template
  // writes earlier messages otherwise once others follow (it drops their reasoning, say), example() throws an Error
  // that says what to do. Throws Error without such a template, and TemplateError.
  static ChatEncoder of_jinja(const text::PreTrainedTokenizer& tokenizer, std::string_view chat_template = "");
  ~ChatEncoder();
  ChatEncoder(ChatEncoder&&) noexcept;

  // A training example. Throws Error as render(), for a trained message without words, and for text that the tokenizer
  // refuses. An example without a trained message has no target.
  Example example(std::span<const Message> messages) const;
  // The same of a conversation in JSON: see chat/chat.h. Other templates than Jinja take role and content only.
  Example example_of_json(std::string_view conversation) const;
  // The ids alone, of the conversation as it is, or up to where the model's words begin.
  std::vector<int32_t> ids_of_json(std::string_view conversation, bool add_generation_prompt) const;
  // Up to where the model's words begin.
  std::vector<int32_t> prompt(std::span<const Message> messages) const;
  // The token that ends the model's words, for generate()'s stop tokens; -1 if the template has no such token.
  int32_t end_token() const;
  // The text that ends them, where there is no such token; empty if neither is there.
  const std::string& end_text() const;
  // Throws Error if it is a Jinja template.
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
