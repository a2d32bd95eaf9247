// ChatEncoder with a Jinja template, and loss masks for templates that do not mark the model's text.
//
// Note [Masks without generation blocks]: let P be the prompt for message i of the assistant (the messages before i,
// with add_generation_prompt), and F the conversation up to and including message i. The text of message i is F without
// the prefix P. This is exact if P is a prefix of F, F is a prefix of the whole conversation, and the ids of P are a
// prefix of the whole conversation's ids. All three are checked; if one does not hold, no mask is exact, and the
// conversation is an Error.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/data/chat_encoder_impl.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::data {
namespace {

using Chat = text::ChatRenderer::Chat;

bool is_assistant(const text::jinja::Value& message) {
  const text::jinja::Value* role = message.dict().find("role");
  return role != nullptr && role->is_string() && role->text() == "assistant";
}

[[noreturn]] void refuse(size_t message, const std::string& why) {
  throw Error(absl::StrCat("message ", message + 1, " (assistant): ", why,
                           ", so that no exact loss mask follows from the template. Write {% generation %} and {% "
                           "endgeneration %} around what "
                           "the model says into the template, or give a conversation for each of its answers"));
}

}  // namespace

struct ChatEncoder::Jinja : ChatEncoder::Impl {
  text::ChatRenderer renderer;

  Jinja(const text::PreTrainedTokenizer& tokenizer, std::string_view chat_template)
      : renderer(tokenizer, chat_template) {
    find_end();
  }

  Example example(const text::Conversation& conversation) const override {
    const Chat whole = encode(conversation, conversation.messages.size(), false);
    Example out{.ids = whole.ids};
    if (whole.has_generation) {
      out.targets.assign(whole.assistant.begin(), whole.assistant.end());
      return out;
    }
    out.targets.assign(out.ids.size(), false);
    for (size_t i = 0; i < conversation.messages.size(); ++i)
      if (is_assistant(conversation.messages[i])) mark(conversation, i, whole, out);
    return out;
  }

  Ids ids(const text::Conversation& conversation, bool for_generation) const override {
    return encode(conversation, conversation.messages.size(), for_generation).ids;
  }

 private:
  Chat encode(const text::Conversation& conversation, size_t count, bool for_generation) const {
    return renderer.encode(conversation, count, for_generation, true);
  }

  // Sets the target flags of message i. See Note [Masks without generation blocks].
  void mark(const text::Conversation& conversation, size_t i, const Chat& whole, Example& out) const {
    if (i == 0) refuse(i, "nothing stands before it that asks for it");
    const Chat before = encode(conversation, i, true);
    const std::string with = i + 1 == conversation.messages.size()
                                 ? whole.text
                                 : renderer.render(conversation, i + 1, false, true).text;
    if (!with.starts_with(before.text)) refuse(i, "the template writes it in another way than its prompt begins");
    if (!whole.text.starts_with(with)) refuse(i, "the template writes it in another way once other messages follow");
    const size_t first = before.ids.size();
    if (whole.ids.size() < first || !std::equal(before.ids.begin(), before.ids.end(), whole.ids.begin()))
      refuse(i, "its first words share a token with the text before them (white space at its start?)");
    const int64_t end = text::jinja::count_points(with);
    // Loss ends with the last marker of the message if only white space follows it. Otherwise the whole message carries
    // loss; but words after a special token are an error.
    size_t last = first, marker = out.ids.size();
    bool special = false;
    for (; last < whole.ids.size() && whole.offsets[last].end <= end; ++last)
      if (renderer.tokenizer().is_added(whole.ids[last]) && last >= first) marker = last;
    if (last < whole.ids.size() && whole.offsets[last].begin < end)
      refuse(i, "its last words share a token with the text behind them");
    if (marker < out.ids.size()) {
      const auto behind = static_cast<size_t>(whole.offsets[marker].end);
      const std::string_view rest = std::string_view(with).substr(
          text::jinja::byte_of_point(with, static_cast<int64_t>(behind)));
      special = renderer.tokenizer().is_special(whole.ids[marker]);
      if (text::jinja::strip_text(rest, text::jinja::Ends::kBoth).empty()) last = marker + 1;
      else if (special) refuse(i, "words stand behind its end marker");
    }
    std::fill(out.targets.begin() + static_cast<std::ptrdiff_t>(first),
              out.targets.begin() + static_cast<std::ptrdiff_t>(last), true);
  }

  // Finds the token that ends the model's text, from a conversation that every template should accept.
  void find_end() {
    Example sample;
    try {
      sample = example(text::conversation_of({{"user", "a"}, {"assistant", "b"}}));
    } catch (const OutOfMemoryError&) {
      throw;
    } catch (const Error&) {
      return;  // the template rejects this conversation: there is no end_token
    }
    for (size_t i = sample.ids.size(); i > 0; --i)
      if (sample.targets[i - 1]) {
        if (renderer.tokenizer().is_added(sample.ids[i - 1])) end_token = sample.ids[i - 1];
        return;
      }
  }
};

ChatEncoder ChatEncoder::of_jinja(const text::PreTrainedTokenizer& tokenizer, std::string_view chat_template) try {
  return ChatEncoder(std::make_unique<const Jinja>(tokenizer, chat_template));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ChatEncoder::of_jinja");
}

Example example_of(const ChatEncoder& encoder, const text::Conversation& conversation) {
  return encoder.impl_->example(conversation);
}

}  // namespace rondo::data
