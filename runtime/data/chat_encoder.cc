// ChatEncoder: converts a conversation to ids and loss flags. See Note [Borders] in text_encoder.h.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/chat_encoder_impl.h"
#include "rondo/runtime/data/text_encoder.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::data {
namespace {

// Part of the template's own text: a marker (id >= 0) or ordinary text.
struct Literal {
  int32_t id = -1;
  std::string text{};
};
using Literals = std::vector<Literal>;

// The text around a message's content. `spoken_*` carries loss if the role is trained.
struct Frame {
  Literals before, spoken_before, spoken_after, after;
};

// Returns the length of `text` without spaces at its end. For a trained role, loss begins with these spaces.
size_t without_spaces(std::string_view text) {
  const size_t last = text.find_last_not_of(' ');
  return last == std::string_view::npos ? 0 : last + 1;
}

}  // namespace

struct ChatEncoder::Plain : ChatEncoder::Impl {
  ChatTemplate chat;
  TextEncoder encoder;
  Ids markers{};  // the added tokens that the template uses; the text of a message never becomes one
  Literals start{}, end{}, no_system{}, generation{};
  std::map<std::string, Frame> frames{};

  Plain(ChatTemplate given, const io::Tokenizer& tokenizer) : chat(std::move(given)), encoder(tokenizer, false) {
    start = literals(chat.start_), end = literals(chat.end_), no_system = literals(chat.no_system_);
    generation = literals(std::string_view(chat.generation_).substr(0, without_spaces(chat.generation_)));
    for (const auto& [name, role] : chat.roles_) {
      Frame frame;
      const bool trained = chat.is_trained(name);
      const size_t spoken = trained ? without_spaces(role.before) : role.before.size();
      frame.before = literals(std::string_view(role.before).substr(0, spoken));
      frame.spoken_before = literals(std::string_view(role.before).substr(spoken));
      frame.after = literals(role.after);
      if (trained) {
        const auto marker = std::find_if(frame.after.begin(), frame.after.end(),
                                         [](const Literal& literal) { return literal.id >= 0; });
        const auto last = marker == frame.after.end() ? marker : marker + 1;
        frame.spoken_after.assign(frame.after.begin(), last);
        frame.after.erase(frame.after.begin(), last);
      }
      frames.emplace(name, std::move(frame));
    }
    const Literals& closing = frames.at(chat.trained_[0]).spoken_after;
    if (!closing.empty() && closing.back().id >= 0) end_token = closing.back().id;
    else if (!closing.empty()) end_text = closing.back().text;
  }

  // Splits the template's text at added tokens, and collects these in `markers`.
  Literals literals(std::string_view text) {
    Literals out;
    const auto add_text = [&](std::string_view part) {
      if (!part.empty()) out.push_back({.text = std::string(part)});
    };
    size_t done = 0;
    if (const text::PreTrainedTokenizer* tokenizer = encoder.pretrained(); tokenizer != nullptr && !text.empty()) {
      text::EncodeOptions options = plain_encoding(false, false);
      options.offset_unit = text::OffsetUnit::kBytes;
      const text::Encoding encoding = (*tokenizer)(text, options);
      for (size_t i = 0; i < encoding.size(); ++i) {
        const int32_t id = encoding.ids[i];
        if (!tokenizer->is_added(id)) continue;
        add_text(text.substr(done, static_cast<size_t>(encoding.offsets[i].begin) - done));
        out.push_back({.id = id});
        done = static_cast<size_t>(encoding.offsets[i].end);
        if (std::find(markers.begin(), markers.end(), id) == markers.end()) markers.push_back(id);
      }
    }
    add_text(text.substr(done));
    return out;
  }

  // Throws if the text of a message was encoded to the id of a marker. This happens if the vocabulary has the marker as
  // an ordinary token, too.
  void check_text(const Ids& ids) const {
    for (const int32_t id : ids)
      if (std::find(markers.begin(), markers.end(), id) != markers.end())
        throw Error(
            absl::StrCat("a message has the text ", encoder.spelling(id),
                         ", which this tokenizer cannot tell from the template's marker; leave the message out"));
  }

  // Collects ids. Adjacent texts with the same flag are encoded as one text.
  class Writer {
   public:
    explicit Writer(const Plain& impl) : impl_(impl), options_{.split_tokens = impl.markers} {}
    void add(const Literals& literals, bool target) {
      for (const Literal& literal : literals)
        if (literal.id >= 0) add_marker(literal.id, target);
        else add_text(literal.text, target);
    }
    void add_text(std::string_view text, bool target) {
      if (target != target_) flush();
      target_ = target;
      text_ += text;
    }
    void flush() {
      if (text_.empty()) return;
      const TextEncoder& encoder = impl_.encoder;
      // If no text is right before the current one, the current one begins the conversation only if there are no ids
      // yet.
      if (before_.empty()) options_.at_start = out_.ids.empty();
      Ids ids = encoder.continuation(before_, before_ids_, text_, options_);
      impl_.check_text(ids);
      out_.ids.insert(out_.ids.end(), ids.begin(), ids.end());
      out_.targets.resize(out_.ids.size(), target_);
      if (!before_.empty()) {  // continuation() of the next text needs the ids of this text alone
        options_.at_start = false;
        ids = encoder.encode(text_, options_);
      }
      before_ids_ = std::move(ids);
      before_ = std::exchange(text_, {});
    }
    Example finish() {
      flush();
      return std::move(out_);
    }

   private:
    void add_marker(int32_t id, bool target) {
      flush();
      before_.clear();
      before_ids_.clear();
      out_.ids.push_back(id);
      out_.targets.push_back(target);
    }

    const Plain& impl_;
    PieceOptions options_;
    Example out_;
    std::string text_, before_;  // pending text, and the text right before it
    Ids before_ids_;
    bool target_ = false;
  };

  Example encode(std::span<const Message> messages, bool for_generation) const {
    chat.check_messages(messages);
    Writer writer(*this);
    writer.add(start, false);
    if (messages[0].role != "system") writer.add(no_system, false);
    for (const Message& message : messages) {
      const Frame& frame = frames.at(message.role);
      const bool trained = chat.is_trained(message.role);
      const std::string words = chat.words(chat.roles_.at(message.role), message.content);
      if (trained && words.empty())
        throw Error(absl::StrCat("a message of the role \"", message.role, "\" has no words to learn"));
      writer.add(frame.before, false);
      writer.add(frame.spoken_before, trained);
      writer.add_text(words, trained);
      writer.add(frame.spoken_after, trained);
      writer.add(frame.after, false);
    }
    writer.add(for_generation ? generation : end, false);
    return writer.finish();
  }

  Example example(const text::Conversation& conversation) const override {
    return encode(messages_of(conversation), false);
  }
  Ids ids(const text::Conversation& conversation, bool for_generation) const override {
    return std::move(encode(messages_of(conversation), for_generation).ids);
  }
  const ChatTemplate* plain() const override { return &chat; }

 private:
  static std::vector<Message> messages_of(const text::Conversation& conversation) {
    std::vector<Message> out;
    for (const text::jinja::Value& message : conversation.messages) {
      const auto text_of = [&](const char* name) {
        const text::jinja::Value* found = message.dict().find(name);
        if (found == nullptr) throw Error(absl::StrCat("field \"", name, "\" is missing in a message"));
        if (!found->is_string()) throw Error(absl::StrCat("field \"", name, "\" must be a string"));
        return std::string(found->text());
      };
      std::string role = text_of("role");
      out.push_back({std::move(role), text_of("content")});
    }
    return out;
  }
};

ChatEncoder::ChatEncoder(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatEncoder::ChatEncoder(ChatTemplate chat, const io::Tokenizer& tokenizer) try
    : impl_(std::make_unique<const Plain>(std::move(chat), tokenizer)) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatEncoder");
}
ChatEncoder::~ChatEncoder() = default;
ChatEncoder::ChatEncoder(ChatEncoder&&) noexcept = default;

namespace {

text::Conversation conversation_of(std::span<const Message> messages) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const Message& message : messages) {
    if (!io::is_valid_utf8(message.content) || !io::is_valid_utf8(message.role))
      throw Error("a message is not valid UTF-8");
    pairs.emplace_back(message.role, message.content);
  }
  return text::conversation_of(pairs);
}

}  // namespace

Example ChatEncoder::example(std::span<const Message> messages) const try {
  return impl_->example(conversation_of(messages));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatEncoder::example");
}
Example ChatEncoder::example_of_json(std::string_view conversation) const try {
  return impl_->example(text::parse_conversation(conversation));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatEncoder::example_of_json");
}
Ids ChatEncoder::ids_of_json(std::string_view conversation, bool add_generation_prompt) const try {
  return impl_->ids(text::parse_conversation(conversation), add_generation_prompt);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatEncoder::ids_of_json");
}
Ids ChatEncoder::prompt(std::span<const Message> messages) const try {
  return impl_->ids(conversation_of(messages), true);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatEncoder::prompt");
}
int32_t ChatEncoder::end_token() const { return impl_->end_token; }
const std::string& ChatEncoder::end_text() const { return impl_->end_text; }
bool ChatEncoder::is_jinja() const { return impl_->plain() == nullptr; }
const ChatTemplate& ChatEncoder::chat_template() const {
  if (is_jinja()) throw Error("ChatEncoder: its template is Jinja, not a ChatTemplate");
  return *impl_->plain();
}

}  // namespace rondo::data
