// Reads tokenizers from vocabulary files and from a model's folder. Settings that vocab.json and vocab.txt do not have
// get the defaults of the same classes in transformers.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/text/folder_config.h"
#include "rondo/runtime/text/json_fields.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/runtime/text/tokenizer_json.h"

namespace rondo::text {
namespace {

using Config = FolderConfig;

constexpr uint64_t kLargestTemplate = uint64_t{1} << 20;
constexpr char kChatTemplates[] = "additional_chat_templates";

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// Reads a special token: its text, or an object that describes it.
AddedToken read_special(io::JsonReader& json) {
  AddedToken token{.id = -1, .special = true};
  if (json.peek() == '"') {
    token.content = json.string();
    return token;
  }
  json.object([&](std::string& key) {
    if (key == "content") token.content = json.string();
    else if (key == "single_word") token.single_word = json.boolean();
    else if (key == "lstrip") token.lstrip = json.boolean();
    else if (key == "rstrip") token.rstrip = json.boolean();
    else if (key == "normalized") token.normalized = json.boolean();
    else if (key == "special") token.special = json.boolean();
    else json.skip();  // such as "__type"
  });
  return token;
}

using Role = std::string SpecialNames::*;
Role role_of(std::string_view key) {
  if (key == "bos_token") return &SpecialNames::bos;
  if (key == "eos_token") return &SpecialNames::eos;
  if (key == "unk_token") return &SpecialNames::unk;
  if (key == "pad_token") return &SpecialNames::pad;
  if (key == "sep_token") return &SpecialNames::sep;
  if (key == "cls_token") return &SpecialNames::cls;
  if (key == "mask_token") return &SpecialNames::mask;
  return nullptr;
}

bool read_flag(io::JsonReader& json, bool unset) { return read_null(json) ? unset : json.boolean(); }

using NamedTokens = std::vector<std::pair<std::string, AddedToken>>;

AddedToken read_as_special(io::JsonReader& json) {
  AddedToken token = read_special(json);
  token.special = true;
  return token;
}

// Reads special tokens without a role: a list of tokens, or an object that gives each token a name.
void read_further_tokens(io::JsonReader& json, NamedTokens& named, std::optional<std::vector<AddedToken>>& list) {
  list.reset();
  if (json.peek() == '{') {
    json.object([&](std::string& name) { named.emplace_back(std::move(name), read_as_special(json)); });
  } else {
    list.emplace();
    if (!read_null(json)) json.array([&] { list->push_back(read_as_special(json)); });
  }
}

// True for a field that holds a token, such as "image_token". False for flags such as "add_bos_token".
bool is_named_token(const std::string& key, const io::JsonReader& json) {
  if (!key.ends_with("_token")) return false;
  io::JsonReader ahead = json;
  if (ahead.peek() != '{') return ahead.peek() == '"';
  bool has_content = false;
  ahead.object([&](std::string& field) {
    has_content = has_content || field == "content";
    ahead.skip();
  });
  return has_content;
}

void set_named(const NamedTokens& tokens, NamedTokens& out) {
  for (const auto& [name, token] : tokens) {
    if (token.content.empty()) continue;
    const auto known = std::find_if(out.begin(), out.end(), [&](const auto& other) { return other.first == name; });
    if (known == out.end()) out.emplace_back(name, token);
    else known->second = token;
  }
}

// Reads one template, or several with names: an object of templates, or a list of objects with "name" and "template".
void read_chat_templates(io::JsonReader& json, Config& out) {
  out.chat_templates.clear();
  if (read_null(json)) return;
  if (json.peek() == '"') {
    out.chat_templates.emplace_back("default", json.string());
    return;
  }
  if (json.peek() == '{') {
    json.object([&](std::string& name) {
      std::string text = json.string();
      out.chat_templates.emplace_back(std::move(name), std::move(text));
    });
    return;
  }
  json.array([&] {
    auto& [name, text] = out.chat_templates.emplace_back();
    json.object([&](std::string& key) {
      if (key == "name") name = json.string();
      else if (key == "template") text = json.string();
      else json.skip();
    });
    if (name.empty()) json.fail("chat_template: a template has no name");
  });
}

// Returns the names of the template files in the subfolder kChatTemplates.
std::vector<std::string> more_templates(const std::string& folder) {
  std::vector<std::string> names = io::list_folder(absl::StrCat(folder, "/", kChatTemplates));
  std::erase_if(names, [](const std::string& name) { return std::filesystem::path(name).extension() != ".jinja"; });
  return names;
}

// Returns the chat templates by name. Template files, if there are any, replace all templates in the field
// chat_template of tokenizer_config.json.
std::map<std::string, ChatTemplateText> folder_templates(const std::string& folder, const Config& config) {
  std::map<std::string, ChatTemplateText> out;
  const auto read = [&](const std::string& name, const std::string& path) {
    out.insert_or_assign(name, ChatTemplateText{path, io::read_text(path, kLargestTemplate)});
  };
  if (const std::string path = folder + "/chat_template.jinja"; is_file(path)) read("default", path);
  for (const std::string& name : more_templates(folder))
    read(std::filesystem::path(name).stem().string(), absl::StrCat(folder, "/", kChatTemplates, "/", name));
  if (!out.empty()) return out;
  for (const auto& [name, text] : config.chat_templates)
    out.insert_or_assign(name, ChatTemplateText{absl::StrCat(config.path, ", chat_template"), text});
  return out;
}

void read_role(io::JsonReader& json, Role role, Config& out) {
  out.names.*role = "";
  std::erase(out.without, role);
  if (read_null(json)) {
    out.without.push_back(role);
    return;
  }
  AddedToken token = read_as_special(json);
  out.names.*role = token.content;
  out.special.push_back(std::move(token));
}

void read_config(const std::string& path, Config& out) {
  const std::string text = io::read_text(path, kLargestFile);
  io::JsonReader json(path, text);
  NamedTokens extra, alone, specific;  // as in transformers, the later lists replace tokens of the earlier ones
  json.object([&](std::string& key) {
    if (const Role role = role_of(key)) {
      read_role(json, role, out);
    } else if (key == "tokenizer_class") {
      out.tokenizer_class = read_optional_string(json).value_or("");
    } else if (key == "do_lower_case") {
      out.do_lower_case = read_flag(json, true);
    } else if (key == "tokenize_chinese_chars") {
      out.tokenize_chinese_chars = read_flag(json, true);
    } else if (key == "strip_accents") {
      if (!read_null(json)) out.strip_accents = json.boolean();
    } else if (key == "add_prefix_space") {
      if (!read_null(json)) out.add_prefix_space = json.boolean();
    } else if (key == "legacy") {
      if (!read_null(json)) out.legacy = json.boolean();
    } else if (key == "split_special_tokens") {
      out.split_special_tokens = read_flag(json, false);
    } else if (key == "additional_special_tokens") {
      read_further_tokens(json, extra, out.additional);
    } else if (key == "extra_special_tokens") {
      read_further_tokens(json, extra, out.extra);
    } else if (key == "model_specific_special_tokens") {
      if (!read_null(json))
        json.object([&](std::string& name) { specific.emplace_back(std::move(name), read_as_special(json)); });
    } else if (is_named_token(key, json)) {
      alone.emplace_back(key, read_as_special(json));
    } else if (key == "clean_up_tokenization_spaces") {
      out.clean_up_tokenization_spaces = read_flag(json, false);
    } else if (key == "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output") {
      out.clean_up_byte_pairs = read_flag(json, false);
    } else if (key == "add_bos_token") {
      out.add_bos = read_flag(json, false);
    } else if (key == "add_eos_token") {
      out.add_eos = read_flag(json, false);
    } else if (key == "model_max_length") {
      // In files, 1e30 means "no limit".
      const bool is_null = read_null(json);
      const std::string_view digits = is_null ? std::string_view() : json.number();
      int64_t length = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), length);
      if (!is_null && error == std::errc() && end == digits.data() + digits.size() && length < INT32_MAX)
        out.model_max_length = length;
    } else if (key == "chat_template") {
      read_chat_templates(json, out);
    } else if (key == "added_tokens_decoder") {
      out.has_decoder = true;
      out.added.clear();
      json.object([&](std::string& id) {
        AddedToken& token = out.added.emplace_back();
        const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token.id);
        const int32_t value = token.id;
        if (error != std::errc() || end != id.data() + id.size() || value < 0)
          json.fail("added_tokens_decoder: " + io::shown(id) + " is no id");
        token = read_special(json);
        token.id = value;
      });
    } else {
      json.skip();
    }
  });
  json.finish();
  for (const NamedTokens* tokens : {&extra, &alone, &specific}) set_named(*tokens, out.named);
  // additional_special_tokens, the older field, is used if extra_special_tokens is missing or empty.
  if (out.additional && extra.empty() && (!out.extra || out.extra->empty())) {
    out.extra = std::move(out.additional);
    out.additional.reset();
  }
}

// Reads special_tokens_map.json, a file of older programs, which transformers reads if there is no
// added_tokens_decoder. Its roles replace the roles of the config. Its named tokens are added, but replace none. Its
// list additional_special_tokens is used if there is no other list.
void read_older_map(const std::string& path, Config& out) {
  const std::string text = io::read_text(path, kLargestFile);
  io::JsonReader json(path, text);
  NamedTokens named = std::move(out.named), alone, extra;
  out.named.clear();
  json.object([&](std::string& key) {
    if (const Role role = role_of(key)) {
      read_role(json, role, out);
    } else if (key == "additional_special_tokens") {
      read_further_tokens(json, extra, out.additional);
    } else if (key == "extra_special_tokens") {
      std::optional<std::vector<AddedToken>> more;
      read_further_tokens(json, extra, more);
      if (!out.extra) out.extra = std::move(more);
      else if (more) out.extra->insert(out.extra->end(), more->begin(), more->end());
    } else if (is_named_token(key, json)) {
      alone.emplace_back(key, read_as_special(json));
    } else {
      json.skip();
    }
  });
  json.finish();
  for (const NamedTokens* tokens : {&std::as_const(alone), &std::as_const(named), &std::as_const(extra)})
    set_named(*tokens, out.named);
}

// Reads added_tokens.json, also a file of older programs: the texts of added tokens and their ids.
void read_older_tokens(const std::string& path, Config& out) {
  const std::string text = io::read_text(path, kLargestFile);
  io::JsonReader json(path, text);
  const std::vector<AddedToken> further = out.extra.value_or(std::vector<AddedToken>());
  const auto is_special = [&](const std::string& content) {
    const SpecialNames& n = out.names;
    for (const std::string* name : {&n.bos, &n.eos, &n.unk, &n.pad, &n.sep, &n.cls, &n.mask})
      if (*name == content) return true;
    return std::any_of(further.begin(), further.end(),
                       [&](const AddedToken& token) { return token.content == content; });
  };
  json.object([&](std::string& content) {
    const uint64_t id = json.unsigned_integer();
    if (id > INT32_MAX || content.empty()) json.fail(absl::StrCat("added token ", io::shown(content), " has no id"));
    const bool special = is_special(content);
    out.older.push_back(
        {.id = static_cast<int32_t>(id), .content = content, .normalized = !special, .special = special});
  });
  json.finish();
}

// Adds the tokens of added_tokens_decoder or added_tokens.json, and the tokens with a role. Throws FileError if the
// vocabulary lacks a token with a role.
void add_special_tokens(TokenizerParts& out, const Config& config, const std::string& vocab_path) {
  for (const std::vector<AddedToken>* tokens : {&config.added, &config.older})
    for (const AddedToken& token : *tokens)
      if (!out.add_token(token))
        throw FileError(config.path, absl::StrCat("added token ", io::shown(token.content), ": its id ", token.id,
                                                  " is neither the vocabulary's nor the next free one"));
  const SpecialNames& names = config.names;
  for (const std::string& name : {names.bos, names.eos, names.unk, names.pad, names.sep, names.cls, names.mask}) {
    if (name.empty() || out.added_token(out.id(name)) != nullptr) continue;
    const int32_t id = out.model->vocabulary().id(name);
    if (id < 0) throw FileError(vocab_path, "the special token " + io::shown(name) + " is not in the vocabulary");
    out.add_token({.id = id, .content = name, .special = true});
  }
  out.names = names;
  out.model_max_length = config.model_max_length;
  out.finish();
}

int32_t need_token(const TokenizerParts& parts, const std::string& name, const std::string& vocab_path) {
  const int32_t id = parts.id(name);
  if (id < 0) throw FileError(vocab_path, "the special token " + io::shown(name) + " is not in the vocabulary");
  return id;
}

// Reads vocab.json and merges.txt: byte-level BPE of the class that `config` names.
std::unique_ptr<TokenizerParts> read_byte_level(const std::string& vocab_path, const std::string& merges_path,
                                                Config config) {
  const ClassKind kind = config.tokenizer_class.empty() ? ClassKind::kGpt2 : kind_named(config.tokenizer_class);
  const bool roberta = kind == ClassKind::kRoberta, qwen = kind == ClassKind::kQwen2;
  if (!roberta && !qwen && kind != ClassKind::kGpt2)
    throw FileError(config.path,
                    "tokenizer_class " + io::shown(config.tokenizer_class) +
                        " with vocab.json and merges.txt is not supported: GPT2Tokenizer, RobertaTokenizer "
                        "and Qwen2Tokenizer are; or save a tokenizer.json");
  if (config.add_bos || config.add_eos)
    throw FileError(config.path, "add_bos_token and add_eos_token are not supported without a tokenizer.json");
  auto out = std::make_unique<TokenizerParts>();
  {
    const std::string vocab = io::read_text(vocab_path, kLargestFile);
    io::JsonReader json(vocab_path, vocab);
    Vocabulary vocabulary = Vocabulary::read(json, vocab.size());
    json.finish();
    const std::string merges = io::read_text(merges_path, kLargestFile);
    out->model = make_bpe(std::move(vocabulary), read_merges(merges, merges_path), {.byte_level = true}, merges_path);
  }
  if (qwen) {
    out->normalizers.push_back(nfc_normalizer());
    out->pre_tokenizers.steps.push_back(split_pre_tokenizer(kQwen2Pattern));
  }
  out->pre_tokenizers.steps.push_back(byte_level_pre_tokenizer(config.add_prefix_space.value_or(false), !qwen));
  out->pre_tokenizers.byte_level = true;
  out->decoders.present = true;
  out->decoders.steps.push_back(byte_level_decoder());
  // GPT-2 and Qwen2 use <|endoftext|> for all roles. A custom vocabulary may lack it; then there are no default names.
  if (roberta || out->model->vocabulary().id("<|endoftext|>") >= 0) config.names = names_of(kind, config);
  if (roberta) {
    const int32_t mask = out->model->vocabulary().id(config.names.mask);
    const bool listed = std::any_of(config.added.begin(), config.added.end(),
                                    [&](const AddedToken& token) { return token.content == config.names.mask; });
    if (mask >= 0 && !listed)
      config.added.push_back({.id = mask, .content = config.names.mask, .lstrip = true, .special = true});
  }
  add_special_tokens(*out, config, vocab_path);
  if (roberta) {
    const SpecialNames usual = usual_names(kind, config.names);
    set_bert_template(out->post_processor, need_token(*out, usual.cls, vocab_path),
                      need_token(*out, usual.sep, vocab_path));
    make_roberta_template(out->post_processor);
    out->post_processor.trim_offsets = true;
    out->post_processor.add_prefix_space = config.add_prefix_space.value_or(false);
  }
  return out;
}

std::unique_ptr<TokenizerParts> read_bert(const std::string& vocab_path, Config config) {
  if (!config.tokenizer_class.empty() && kind_named(config.tokenizer_class) != ClassKind::kBert)
    throw FileError(config.path, "tokenizer_class " + io::shown(config.tokenizer_class) +
                                     " with vocab.txt is not supported: BertTokenizer is; or save a tokenizer.json");
  config.names = names_of(ClassKind::kBert, config);
  auto out = std::make_unique<TokenizerParts>();
  out->model = make_word_piece(Vocabulary::read_lines(io::read_text(vocab_path, kLargestFile), vocab_path),
                               {.unk_token = config.names.unk}, vocab_path);
  append_bert_normalizer(out->normalizers, true, config.tokenize_chinese_chars,
                         config.strip_accents.value_or(config.do_lower_case), config.do_lower_case);
  out->pre_tokenizers.steps.push_back(bert_pre_tokenizer());
  out->decoders.present = true;
  out->decoders.steps.push_back(word_piece_decoder("##", true));
  add_special_tokens(*out, config, vocab_path);
  const SpecialNames usual = usual_names(ClassKind::kBert, config.names);
  set_bert_template(out->post_processor, need_token(*out, usual.cls, vocab_path),
                    need_token(*out, usual.sep, vocab_path));
  return out;
}

}  // namespace

PreTrainedTokenizer PreTrainedTokenizer::from_gpt2_files(const std::string& vocab_path,
                                                         const std::string& merges_path) try {
  return PreTrainedTokenizer(read_byte_level(vocab_path, merges_path, {.path = vocab_path}));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("PreTrainedTokenizer::from_gpt2_files");
}

PreTrainedTokenizer PreTrainedTokenizer::from_bert_vocabulary(const std::string& vocab_path, bool do_lower_case) try {
  return PreTrainedTokenizer(read_bert(vocab_path, {.path = vocab_path, .do_lower_case = do_lower_case}));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("PreTrainedTokenizer::from_bert_vocabulary");
}

bool AutoTokenizer::is_in(const std::string& folder) try {
  const auto has = [&](const char* name) { return is_file(folder + "/" + name); };
  return has("tokenizer.json") || (has("vocab.json") && has("merges.txt")) || has("vocab.txt");
} catch (const std::bad_alloc&) {
  throw_out_of_memory("AutoTokenizer::is_in");
}

void AutoTokenizer::copy_files(const std::string& from, const std::string& to) try {
  std::error_code error;
  if (std::filesystem::equivalent(from, to, error)) return;
  if (!is_in(from)) throw FileError(from, "has no tokenizer to copy");
  io::make_folders(to);
  for (const char* name :
       {"tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "chat_template.jinja", "generation_config.json"})
    if (const std::string path = from + "/" + name; is_file(path))
      io::write_file_atomic(to + "/" + name, io::read_text(path, kLargestFile));
  for (const std::string& name : more_templates(from)) {
    io::make_folders(to + "/" + kChatTemplates);
    io::write_file_atomic(absl::StrCat(to, "/", kChatTemplates, "/", name),
                          io::read_text(absl::StrCat(from, "/", kChatTemplates, "/", name), kLargestTemplate));
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory("AutoTokenizer::copy_files");
}

PreTrainedTokenizer AutoTokenizer::from_pretrained(const std::string& folder) try {
  const auto in_folder = [&](const char* name) { return folder + "/" + name; };
  Config config{.path = in_folder("tokenizer_config.json")};
  if (is_file(config.path)) read_config(config.path, config);
  if (!config.has_decoder) {
    if (const std::string path = in_folder("special_tokens_map.json"); is_file(path)) read_older_map(path, config);
    if (const std::string path = in_folder("added_tokens.json"); is_file(path)) read_older_tokens(path, config);
  }
  const std::string vocab = in_folder("vocab.json"), merges = in_folder("merges.txt"), lines = in_folder("vocab.txt");
  std::unique_ptr<TokenizerParts> parts;
  if (const std::string whole = in_folder("tokenizer.json"); is_file(whole)) {
    parts = read_whole_file(whole, folder, config);
  } else if (is_file(vocab) && is_file(merges)) {
    parts = read_byte_level(vocab, merges, config);
  } else if (is_file(lines)) {
    parts = read_bert(lines, config);
  } else {
    std::error_code error;
    throw FileError(folder,
                    std::filesystem::is_directory(folder, error)
                        ? "has no tokenizer: no tokenizer.json, no vocab.json with merges.txt, no vocab.txt"
                        : "no such folder. A tokenizer is read from a folder on this machine; nothing is downloaded");
  }
  for (const auto& [name, token] : config.named) parts->further_names.emplace_back(name, token.content);
  parts->cleans_up = config.clean_up_tokenization_spaces &&
                     (!parts->model->is_byte_pair() || config.clean_up_byte_pairs);
  parts->chat_templates = folder_templates(folder, config);
  return PreTrainedTokenizer(std::move(parts));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("AutoTokenizer::from_pretrained");
}

}  // namespace rondo::text
