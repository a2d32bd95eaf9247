#include "rondo/runtime/text/chat.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/text/chat_renderer.h"
#include "rondo/runtime/text/jinja/python_text.h"
#include "rondo/runtime/text/tokenizer_impl.h"
#include "rondo/runtime/text/unicode.h"

namespace rondo::text {
namespace {

using jinja::Kind;
using jinja::Value;
using jinja::Values;

// Around ordinary text that spells a token; the same two characters as the reference's.
constexpr std::string_view kBegin = "\U000F0000", kEnd = "\U000F0001";

const Value* field(const Value& object, std::string_view name) {
  return object.is(Kind::kDict) ? object.dict().find(name) : nullptr;
}

// A message as the reference hands it to a template: without fields that are null, reasoning under two names.
Value normalized(const Value& message, const ConversationFields& names) {
  Value::Items items;
  const Value* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"})
    if (const Value* found = field(message, name); reasoning == nullptr && found != nullptr && !found->is_none())
      reasoning = found;
  if (reasoning != nullptr) items.emplace_back(Value::string("thinking"), *reasoning);
  for (const auto& [key, value] : message.dict().items) {
    if (value.is_none()) continue;
    const bool role = key.text() == names.role, content = key.text() == names.content;
    items.emplace_back(role ? Value::string("role") : content ? Value::string("content") : key, value);
  }
  if (reasoning != nullptr) items.emplace_back(Value::string("reasoning_content"), *reasoning);
  return Value::dict(std::move(items));
}

// ---- Ordinary text that spells tokens

// Finds tokens in text: the longest one at each place.
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
  // Bytes of the token at text[at]; 0 if there is none.
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
        at += kBegin.size();  // nobody marks text but us
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

// Takes the marks out of a rendered text.
ChatRenderer::Text without_marks(jinja::Rendered rendered) {
  ChatRenderer::Text out;
  const std::string_view text = rendered.text;
  if (text.find(kBegin) == std::string_view::npos && text.find(kEnd) == std::string_view::npos)
    return {.text = std::move(rendered.text), .generation = std::move(rendered.generation), .ordinary = {}};
  size_t span = 0;
  std::vector<size_t> edges;  // of generation blocks, in order
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
    // A mark without its partner, which the template has cut off, still divides the text.
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

// ---- Conversations

Conversation read_conversation(io::JsonReader& json, const ConversationFields& fields) {
  Conversation out;
  bool has_messages = false;
  const auto read_messages = [&] {
    has_messages = true;
    if (json.peek() != '[')
      json.fail(absl::StrCat("field ", io::shown(fields.messages), " must be an array of messages"));
    json.array([&] {
      if (json.peek() != '{') json.fail("a message must be an object");
      out.messages.push_back(normalized(Value::from_json(json), fields));
    });
  };
  if (json.peek() == '[') {
    read_messages();
  } else {
    if (json.peek() != '{') json.fail("expected an array of messages, or an object with the field \"messages\"");
    std::vector<std::string> seen;
    json.object([&](std::string& key) {
      const bool known = key == fields.messages || key == "tools" || key == "documents" ||
                         key == "chat_template_kwargs";
      if (!known) return json.skip();
      if (std::find(seen.begin(), seen.end(), key) != seen.end())
        json.fail(absl::StrCat("field ", io::shown(key), " appears twice"));
      seen.push_back(key);
      if (key == fields.messages) return read_messages();
      const Value value = Value::from_json(json);
      if (value.is_none()) return;
      if (key == "chat_template_kwargs") {
        if (!value.is(Kind::kDict)) json.fail("field \"chat_template_kwargs\" must be an object");
        for (const auto& [name, one] : value.dict().items) out.variables.emplace_back(name.text(), one);
        return;
      }
      if (!value.is(Kind::kList)) json.fail(absl::StrCat("field ", io::shown(key), " must be an array"));
      (key == "tools" ? out.tools : out.documents) = value;
    });
  }
  if (!has_messages) json.fail(absl::StrCat("field ", io::shown(fields.messages), " is missing"));
  return out;
}

Conversation parse_conversation(std::string_view text) {
  static const std::string kName = "conversation";
  Conversation out;
  try {
    io::JsonReader json(kName, text);
    out = read_conversation(json);
    json.finish();
  } catch (const FileError& error) {  // there is no file
    throw Error(error.what());
  }
  if (out.messages.empty()) throw Error("the conversation has no messages");
  return out;
}

Conversation conversation_of(const std::vector<std::pair<std::string, std::string>>& messages) {
  Conversation out;
  for (const auto& [role, content] : messages)
    out.messages.push_back(Value::dict(
        {{Value::string("role"), Value::string(role)}, {Value::string("content"), Value::string(content)}}));
  return out;
}

// ---- Templates

const jinja::Template& FolderTemplate::get() const {
  if (error) throw TemplateError(*error);
  return *parsed;
}

FolderTemplate parse_folder_template(std::string_view source, const std::string& name) {
  FolderTemplate out;
  try {
    out.parsed.emplace(jinja::Template::parse(source, name));
  } catch (const TemplateError& error) {
    out.error.emplace(error);
  }
  return out;
}

ChatRenderer::ChatRenderer(const PreTrainedTokenizer& tokenizer, std::string_view chat_template)
    : tokenizer_(tokenizer) {
  const FolderTemplates& known = tokenizer.impl().chat_templates;
  if (chat_template.empty()) {
    if (known.empty())
      throw Error(
          "the tokenizer's folder has no chat template (chat_template.jinja, or the field chat_template of "
          "tokenizer_config.json): name one");
    if (!known.contains("default") && !known.contains("tool_use"))
      throw Error(
          absl::StrCat("the tokenizer's folder has several chat templates and none is the default: name one, such as ",
                       io::shown(known.begin()->first)));
    return;
  }
  if (const auto found = known.find(std::string(chat_template)); found != known.end()) {
    fixed_ = &found->second.get();
    return;
  }
  own_.emplace(jinja::Template::parse(chat_template, "chat template"));
  fixed_ = &*own_;
}

const jinja::Template& ChatRenderer::choose(const Conversation& conversation) const {
  if (fixed_ != nullptr) return *fixed_;
  const FolderTemplates& known = tokenizer_.impl().chat_templates;
  auto found = conversation.tools.is_none() ? known.end() : known.find("tool_use");
  if (found == known.end()) found = known.find("default");
  if (found == known.end()) throw Error("the tokenizer's folder has a chat template for tools only: name one");
  return found->second.get();
}

ChatRenderer::Text ChatRenderer::render(const Conversation& conversation, size_t count, bool add_generation_prompt,
                                        bool split_special, const std::stop_token& stop) const {
  const jinja::Template& chat = choose(conversation);
  const PreTrainedTokenizer::Impl& impl = tokenizer_.impl();
  Values messages(conversation.messages.begin(), conversation.messages.begin() + static_cast<std::ptrdiff_t>(count));
  Value tools = conversation.tools, documents = conversation.documents;
  std::vector<std::pair<std::string, Value>> variables = conversation.variables;
  if (split_special) {
    std::vector<std::string> special, written;
    for (const AddedToken& token : impl.added_tokens()) {
      if (token.content.empty()) continue;
      if (token.special) special.push_back(token.content);
      if (token.special || (chat.literal_text().find(token.content) != std::string::npos && !is_blank(token.content)))
        written.push_back(token.content);
    }
    const TokenMarker in_answers(std::move(special)), elsewhere(std::move(written));
    for (Value& message : messages) {
      const Value* role = field(message, "role");
      const bool answer = role != nullptr && role->is_string() && role->text() == "assistant";
      message = (answer ? in_answers : elsewhere).marked(message);
    }
    tools = elsewhere.marked(tools);
    documents = elsewhere.marked(documents);
    for (auto& [name, value] : variables) value = elsewhere.marked(value);
  }
  const SpecialNames& names = impl.names;
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
  for (const auto& [name, text] : impl.further_names) add(name.c_str(), Value::string(text));
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
  size_t passed = 0;  // tokens that end before what is looked for
  // The first token that holds the code point, as the reference finds it; -1 if none does.
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
      for (const AddedToken& token : tokenizer_.impl().added_tokens()) options.split_tokens.push_back(token.id);
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

// ---- The public functions

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
