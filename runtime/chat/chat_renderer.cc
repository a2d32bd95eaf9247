#include "rondo/runtime/chat/chat_renderer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/tokenizer_parts.h"

namespace rondo::text {
namespace {

using jinja::Kind;
using jinja::Value;
using jinja::Values;

// Marks around ordinary text that spells a token; the reference uses the same two characters.
constexpr std::string_view kBegin = "\U000F0000", kEnd = "\U000F0001";

// ---- Ordinary text that spells tokens

// Finds tokens in text: the longest one at each position.
class TokenMarker {
 public:
  explicit TokenMarker(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
    std::sort(tokens_.begin(), tokens_.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
    for (const std::string& token : tokens_) starts_[static_cast<uint8_t>(token[0])] = true;
  }
  Value marked(const Value& value) const {
    switch (value.kind()) {
      case Kind::kString: return Value::string(marked_text(value.text()));
      case Kind::kList: {
        Values items;
        for (const Value& item : value.items()) items.push_back(marked(item));
        return Value::list(std::move(items));
      }
      case Kind::kDict: {
        Value::Items items;
        for (const auto& [key, item] : value.dict().items) items.emplace_back(key, marked(item));
        return Value::dict(std::move(items));
      }
      default: return value;
    }
  }
  // Returns the number of bytes of the token at text[at]; 0 if no token begins there.
  size_t token_at(std::string_view text, size_t at) const {
    if (!starts_[static_cast<uint8_t>(text[at])]) return 0;
    for (const std::string& token : tokens_)
      if (text.substr(at).starts_with(token)) return token.size();
    return 0;
  }

 private:
  std::string marked_text(std::string_view text) const {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      if (text.substr(at).starts_with(kBegin) || text.substr(at).starts_with(kEnd)) {
        at += kBegin.size();  // drops a mark that the message itself contains
        continue;
      }
      const size_t bytes = token_at(text, at);
      if (bytes == 0) out.push_back(text[at++]);
      else
        absl::StrAppend(&out, std::string(kBegin), std::string(text.substr(at, bytes)), std::string(kEnd)), at += bytes;
    }
    return out;
  }

  std::vector<std::string> tokens_;
  bool starts_[256] = {};
};

// Removes the marks from a rendered text. Returns the ranges that they enclosed as `ordinary`.
ChatRenderer::Text without_marks(jinja::Rendered rendered) {
  ChatRenderer::Text out;
  const std::string_view text = rendered.text;
  if (text.find(kBegin) == std::string_view::npos && text.find(kEnd) == std::string_view::npos)
    return {.text = std::move(rendered.text), .generation = std::move(rendered.generation), .ordinary = {}};
  size_t span = 0;
  std::vector<size_t> edges;  // the edges of generation blocks, in order
  for (const auto& [begin, end] : rendered.generation) edges.push_back(begin), edges.push_back(end);
  std::optional<size_t> open;
  for (size_t at = 0; at <= text.size();) {
    while (span < edges.size() && edges[span] <= at) edges[span++] = out.text.size();
    if (at == text.size()) break;
    const bool begins = text.substr(at).starts_with(kBegin), ends = text.substr(at).starts_with(kEnd);
    if (!begins && !ends) {
      out.text.push_back(text[at++]);
      continue;
    }
    // The template may have cut off one mark of a pair. The other mark still splits the text at its position.
    const size_t now = out.text.size();
    if (ends && open) out.ordinary.emplace_back(*std::exchange(open, std::nullopt), now);
    else if (ends) out.ordinary.emplace_back(now, now);
    else {
      if (open) out.ordinary.emplace_back(*open, *open);
      open = now;
    }
    at += kBegin.size();
  }
  if (open) out.ordinary.emplace_back(*open, *open);
  for (size_t i = 0; i + 1 < edges.size(); i += 2) out.generation.emplace_back(edges[i], edges[i + 1]);
  return out;
}

bool is_blank(std::string_view text) { return jinja::strip_text(text, jinja::Ends::kBoth).empty(); }

}  // namespace

// ---- Templates

const jinja::Template& ChatRenderer::FolderTemplate::get() const {
  if (error) throw TemplateError(*error);
  return *parsed;
}

std::optional<ChatRenderer::FolderTemplate> ChatRenderer::folder_template(const PreTrainedTokenizer& tokenizer,
                                                                          const std::string& name) {
  const auto& known = tokenizer.parts().chat_templates;
  const auto found = known.find(name);
  if (found == known.end()) return std::nullopt;
  FolderTemplate out;
  try {
    out.parsed.emplace(jinja::Template::parse(found->second.text, found->second.where));
  } catch (const TemplateError& error) {
    out.error.emplace(error);
  }
  return out;
}

ChatRenderer::ChatRenderer(const PreTrainedTokenizer& tokenizer, std::string_view chat_template)
    : tokenizer_(tokenizer) {
  const auto& known = tokenizer.parts().chat_templates;
  if (chat_template.empty()) {
    if (known.empty())
      throw Error(
          "the tokenizer's folder has no chat template (chat_template.jinja, or the field chat_template of "
          "tokenizer_config.json): name one");
    default_ = folder_template(tokenizer, "default");
    for_tools_ = folder_template(tokenizer, "tool_use");
    if (!default_ && !for_tools_)
      throw Error(
          absl::StrCat("the tokenizer's folder has several chat templates and none is the default: name one, such as ",
                       io::shown(known.begin()->first)));
    return;
  }
  const auto named = known.find(std::string(chat_template));
  fixed_.emplace(named == known.end() ? jinja::Template::parse(chat_template, "chat template")
                                      : jinja::Template::parse(named->second.text, named->second.where));
}

const jinja::Template& ChatRenderer::choose(const Conversation& conversation) const {
  if (fixed_) return *fixed_;
  if (for_tools_ && !conversation.tools.is_none()) return for_tools_->get();
  if (!default_) throw Error("the tokenizer's folder has a chat template for tools only: name one");
  return default_->get();
}

ChatRenderer::Text ChatRenderer::render(const Conversation& conversation, size_t count, bool add_generation_prompt,
                                        bool split_special, const std::stop_token& stop) const {
  const jinja::Template& chat = choose(conversation);
  const TokenizerParts& parts = tokenizer_.parts();
  Values messages(conversation.messages.begin(), conversation.messages.begin() + static_cast<std::ptrdiff_t>(count));
  Value tools = conversation.tools, documents = conversation.documents;
  std::vector<std::pair<std::string, Value>> variables = conversation.variables;
  if (split_special) {
    std::vector<std::string> special, written;
    for (const AddedToken& token : parts.added_tokens()) {
      if (token.content.empty()) continue;
      if (token.special) special.push_back(token.content);
      if (token.special || (chat.literal_text().find(token.content) != std::string::npos && !is_blank(token.content)))
        written.push_back(token.content);
    }
    const TokenMarker in_answers(std::move(special)), elsewhere(std::move(written));
    for (Value& message : messages) {
      const Value* role = message.dict().find("role");
      const bool answer = role != nullptr && role->is_string() && role->text() == "assistant";
      message = (answer ? in_answers : elsewhere).marked(message);
    }
    tools = elsewhere.marked(tools);
    documents = elsewhere.marked(documents);
    for (auto& [name, value] : variables) value = elsewhere.marked(value);
  }
  const SpecialNames& names = parts.names;
  const auto add = [&](const char* name, Value value) {
    if (std::none_of(variables.begin(), variables.end(), [&](const auto& one) { return one.first == name; }))
      variables.emplace_back(name, std::move(value));
  };
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt"})
    if (std::any_of(variables.begin(), variables.end(), [&](const auto& one) { return one.first == name; }))
      throw Error(absl::StrCat("chat_template_kwargs: ", name, " is the name of another variable of chat templates"));
  const std::pair<const char*, const std::string*> tokens[] = {
      {"bos_token", &names.bos}, {"eos_token", &names.eos}, {"unk_token", &names.unk},  {"sep_token", &names.sep},
      {"pad_token", &names.pad}, {"cls_token", &names.cls}, {"mask_token", &names.mask}};
  for (const auto& [name, text] : tokens)
    if (!text->empty()) add(name, Value::string(*text));
  for (const auto& [name, text] : parts.further_names) add(name.c_str(), Value::string(text));
  add("messages", Value::list(std::move(messages)));
  add("tools", std::move(tools));
  add("documents", std::move(documents));
  add("add_generation_prompt", Value::boolean(add_generation_prompt));
  return without_marks(chat.render(variables, {.track_generation = chat.has_generation(), .stop = stop}));
}

// ---- Ids and masks

namespace {

void mark_assistant(ChatRenderer::Chat& chat, const ChatRenderer::Text& rendered) {
  const std::string_view text = rendered.text;
  // A template may have many blocks, so the text and the tokens are walked through once.
  size_t counted = 0;
  int64_t points = 0;
  const auto points_before = [&](size_t byte) {
    points += jinja::count_points(text.substr(counted, byte - counted));
    counted = byte;
    return points;
  };
  size_t passed = 0;  // how many leading tokens end before the code point of the last token_of() call
  // Returns the first token that holds the code point, as the reference finds it; -1 if none does.
  const auto token_of = [&](int64_t point) {
    while (passed < chat.offsets.size() && chat.offsets[passed].end <= point) ++passed;
    for (size_t i = passed; i < chat.offsets.size(); ++i)
      if (chat.offsets[i].begin <= point && point < chat.offsets[i].end) return static_cast<int64_t>(i);
    return int64_t{-1};
  };
  for (const auto& [begin, end] : rendered.generation) {
    if (begin == end) continue;
    const int64_t first = points_before(begin), last = points_before(end) - 1;
    const int64_t from = token_of(first), to = token_of(last);
    if (from < 0 || to < 0)
      throw Error(absl::StrCat("a generation block ", from < 0 ? "begins" : "ends",
                               " in text that becomes no token of its own, so that no exact loss mask exists: ",
                               io::shown(text.substr(begin, end - begin)),
                               ". Move the white space out of the block, in the template or in the message"));
    std::fill(chat.assistant.begin() + from, chat.assistant.begin() + to + 1, true);
  }
}

}  // namespace

ChatRenderer::Chat ChatRenderer::encode(const Conversation& conversation, size_t count, bool add_generation_prompt,
                                        bool split_special, const std::stop_token& stop) const {
  if (conversation.messages.empty()) throw Error("the conversation has no messages");
  Text rendered = render(conversation, count, add_generation_prompt, split_special, stop);
  Chat out;
  int32_t base = 0;  // code points before the piece
  size_t done = 0;
  const auto append = [&](size_t begin, size_t end, bool ordinary) {
    if (begin == end) return;
    const std::string_view piece = std::string_view(rendered.text).substr(begin, end - begin);
    EncodeOptions options{.add_special_tokens = false,
                          .split_special_tokens = ordinary,
                          .at_start = begin == 0,
                          .truncation = Truncation{.strategy = Truncation::kDoNotTruncate},
                          .padding = Padding{.strategy = Padding::kDoNotPad}};
    if (ordinary)
      for (const AddedToken& token : tokenizer_.parts().added_tokens()) options.split_tokens.push_back(token.id);
    const Encoding encoding = tokenizer_(piece, options);
    for (size_t i = 0; i < encoding.size(); ++i) {
      if (ordinary && tokenizer_.is_added(encoding.ids[i]))
        throw Error(
            absl::StrCat("a message has the text ", io::shown(piece),
                         ", which this tokenizer cannot tell from the template's marker; leave the message out"));
      out.ids.push_back(encoding.ids[i]);
      out.offsets.push_back({encoding.offsets[i].begin + base, encoding.offsets[i].end + base});
    }
    base += static_cast<int32_t>(jinja::count_points(piece));
  };
  for (const auto& [begin, end] : rendered.ordinary) {
    append(done, begin, false);
    append(begin, end, true);
    done = end;
  }
  append(done, rendered.text.size(), false);
  out.assistant.resize(out.ids.size());
  out.has_generation = has_generation(conversation);
  mark_assistant(out, rendered);
  out.text = std::move(rendered.text);
  return out;
}

}  // namespace rondo::text
