// read_chats: reads conversations with a ChatTemplate or a Jinja template.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/chat_encoder_impl.h"
#include "rondo/runtime/data/read_lines.h"

namespace rondo::data {
namespace {

void require_targets(const Example& example, const std::string& path, int64_t line) {
  if (std::find(example.targets.begin(), example.targets.end(), true) == example.targets.end())
    throw DataError(path, line, "the conversation has no message whose words carry loss");
}

ExampleSet read_plain_chats(const std::string& path, const ChatEncoder& encoder, const io::Tokenizer& tokenizer,
                            const ReadOptions& options) {
  const TextEncoder speller(tokenizer, false);
  ExampleSet out;
  add_lines(
      path, options, speller,
      [&](std::string_view text, int64_t line) {
        std::optional<std::vector<Message>> messages;
        const auto read_message = [&](io::JsonReader& json) {
          if (json.peek() != '{') json.fail("a message must be an object");
          std::optional<std::string> role, content;
          json.object([&](std::string& key) {
            std::optional<std::string>* const to = key == options.role_field      ? &role
                                                   : key == options.content_field ? &content
                                                                                  : nullptr;
            if (to == nullptr) return json.skip();
            if (*to) json.fail(absl::StrCat("field ", io::shown(key), " of a message appears twice"));
            *to = read_string_field(json, key);
          });
          if (!role) json.fail(missing_field(options.role_field) + " in a message");
          if (!content) json.fail(missing_field(options.content_field) + " in a message");
          messages->push_back({*std::move(role), *std::move(content)});
        };
        read_json_line(path, line, text, [&](io::JsonReader& json, const std::string& key) {
          if (key != options.messages_field) return false;
          if (json.peek() != '[') json.fail(absl::StrCat("field ", io::shown(key), " must be an array of messages"));
          messages.emplace();
          json.array([&] { read_message(json); });
          return true;
        });
        if (!messages) throw DataError(path, line, missing_field(options.messages_field));
        Example example = encoder.example(*messages);
        require_targets(example, path, line);
        return example;
      },
      out);
  return out;
}

ExampleSet read_jinja_chats(const std::string& path, const ChatEncoder& encoder, const io::Tokenizer& tokenizer,
                            const ReadOptions& options) {
  const text::ConversationFields fields{options.messages_field, options.role_field, options.content_field};
  const TextEncoder speller(tokenizer, false);
  static const std::string& kLabel = *new std::string("JSON");
  ExampleSet out;
  add_lines(
      path, options, speller,
      [&](std::string_view text, int64_t line) {
        text::Conversation conversation;
        try {
          io::JsonReader json(kLabel, text);
          if (json.peek() != '{') json.fail("expected a JSON object");
          conversation = text::read_conversation(json, fields);
          json.finish();
        } catch (const FileError& error) {
          throw DataError(path, line, std::string_view(error.what()).substr(kLabel.size() + 2));
        }
        Example example = example_of(encoder, conversation);
        require_targets(example, path, line);
        return example;
      },
      out);
  return out;
}

}  // namespace

ExampleSet read_chats(const std::string& path, const io::Tokenizer& tokenizer, const ChatTemplate& chat,
                      const ReadOptions& options) try {
  check_options(options, false);
  return read_plain_chats(path, ChatEncoder(chat, tokenizer), tokenizer, options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("read_chats");
}

ExampleSet read_chats(const std::string& path, const ChatEncoder& encoder, const text::PreTrainedTokenizer& tokenizer,
                      const ReadOptions& options) try {
  check_options(options, false);
  return encoder.is_jinja() ? read_jinja_chats(path, encoder, tokenizer, options)
                            : read_plain_chats(path, encoder, tokenizer, options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("read_chats");
}

}  // namespace rondo::data
