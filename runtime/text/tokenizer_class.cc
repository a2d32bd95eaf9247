// Combines tokenizer.json with tokenizer_config.json, as transformers 5.23 does.
//
// Note [Classes that rebuild]: some classes of transformers take only vocabulary, merges, added tokens and the
// post-processor from tokenizer.json. They build normaliser, pre-tokenizer and decoder from the fields of
// tokenizer_config.json. So if the two files disagree, the class decides. All other classes use the file unchanged.
//
// If tokenizer_config.json names no class, Rondo uses the file unchanged. In that case transformers takes the class
// that belongs to tokenizer_class or model_type in config.json, and adds the special tokens of that class to a
// vocabulary that lacks them. So ids may differ from Rondo's if this class did not write tokenizer.json.
#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/text/folder_config.h"
#include "rondo/runtime/text/json_fields.h"
#include "rondo/runtime/text/tokenizer_json.h"

namespace rondo::text {
namespace {

// Returns the model_type in config.json; "" if there is none.
std::string model_type(const std::string& folder) {
  const std::string path = folder + "/config.json";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return "";
  constexpr uint64_t kLargest = uint64_t{1} << 24;
  const std::string text = io::read_text(path, kLargest);
  io::JsonReader json(path, text);
  std::string type;
  json.object([&](std::string& key) {
    if (key == "model_type" && json.peek() == '"') type = json.string();
    else json.skip();
  });
  return type;
}

// Returns the class that AutoTokenizer of transformers uses. The folders of some model families name a class that is
// known to be wrong.
ClassKind choose_kind(const std::string& folder, const std::string& json, const FolderConfig& config) {
  const ClassKind named = kind_named(config.tokenizer_class);
  if (named == ClassKind::kWholeFile) return named;
  const std::string type = model_type(folder);
  if (type == "qwen2") return ClassKind::kQwen2;
  if (type == "mistral") return ClassKind::kWholeFile;
  // Llama 3's tokenizer.json works on bytes, and LlamaTokenizer cannot.
  if (named == ClassKind::kLlama && json.find("\"ByteLevel\"") != std::string::npos) return ClassKind::kWholeFile;
  return named;
}

const char* flag(bool value) { return value ? "true" : "false"; }

constexpr char kByteLevelDecoder[] =
    R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})";

std::string byte_level(bool add_prefix_space, bool use_regex) {
  return absl::StrCat(R"({"type":"ByteLevel","add_prefix_space":)", flag(add_prefix_space),
                      R"(,"trim_offsets":true,"use_regex":)", flag(use_regex), "}");
}

// See Note [Classes that rebuild].
void set_steps(ClassKind kind, const FolderConfig& config, Amendments& out) {
  const bool prefix = config.add_prefix_space.value_or(kind == ClassKind::kLlama);
  switch (kind) {
    case ClassKind::kWholeFile: return;
    case ClassKind::kBert:
      out.normalizer = absl::StrCat(R"({"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":)",
                                    flag(config.tokenize_chinese_chars), R"(,"strip_accents":)",
                                    config.strip_accents ? flag(*config.strip_accents) : "null", R"(,"lowercase":)",
                                    flag(config.do_lower_case), "}");
      out.pre_tokenizer = R"({"type":"BertPreTokenizer"})";
      out.decoder = R"({"type":"WordPiece","prefix":"##","cleanup":true})";
      return;
    case ClassKind::kGpt2:
    case ClassKind::kRoberta:
      out.normalizer = "null";
      out.pre_tokenizer = byte_level(prefix, true);
      out.decoder = kByteLevelDecoder;
      return;
    case ClassKind::kQwen2: {
      std::string pattern;
      io::append_json_string(pattern, kQwen2Pattern);
      out.normalizer = R"({"type":"NFC"})";
      out.pre_tokenizer = absl::StrCat(R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)",
                                       pattern, R"(},"behavior":"Isolated","invert":false},)",
                                       byte_level(prefix, false), "]}");
      out.decoder = kByteLevelDecoder;
      return;
    }
    case ClassKind::kLlama: {
      const char* scheme = !prefix ? "never" : config.legacy.value_or(false) ? "always" : "first";
      out.normalizer = "null";
      out.pre_tokenizer = absl::StrCat(R"({"type":"Metaspace","replacement":"▁","prepend_scheme":")", scheme,
                                       R"(","split":false})");
      out.decoder = absl::StrCat(R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},)",
                                 R"("content":" "},{"type":"ByteFallback"},{"type":"Fuse"})",
                                 prefix ? R"(,{"type":"Strip","content":" ","start":1,"stop":0})" : "", "]}");
      return;
    }
  }
}

// Properties of the model in the file, and the texts and ids of added_tokens.
struct FileFacts {
  std::string unk;
  bool byte_fallback = false, fuse_unk = false;
  std::vector<std::string> added;
  std::vector<int64_t> added_ids;
};
FileFacts facts_of(const std::string& text, const std::string& path) {
  FileFacts out;
  io::JsonReader json(path, text);
  json.object([&](std::string& key) {
    if (key == "added_tokens" && json.peek() == '[') {
      json.array([&] {
        json.object([&](std::string& field) {
          if (field == "content") out.added.push_back(json.string());
          else if (field == "id") out.added_ids.push_back(static_cast<int64_t>(json.unsigned_integer()));
          else json.skip();
        });
      });
    } else if (key == "model" && json.peek() == '{') {
      json.object([&](std::string& field) {
        if (field == "unk_token" && json.peek() == '"') out.unk = json.string();
        else if (field == "byte_fallback") out.byte_fallback = json.boolean();
        else if (field == "fuse_unk") out.fuse_unk = json.boolean();
        else json.skip();
      });
    } else {
      json.skip();
    }
  });
  return out;
}

}  // namespace

ClassKind kind_named(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (name == "BertTokenizer" || name == "DistilBertTokenizer" || name == "ElectraTokenizer") return ClassKind::kBert;
  if (name == "GPT2Tokenizer") return ClassKind::kGpt2;
  if (name == "RobertaTokenizer") return ClassKind::kRoberta;
  if (name == "Qwen2Tokenizer") return ClassKind::kQwen2;
  if (name == "LlamaTokenizer") return ClassKind::kLlama;
  return ClassKind::kWholeFile;
}

SpecialNames names_of(ClassKind kind, const FolderConfig& config) {
  SpecialNames names = usual_names(kind, config.names);
  for (const auto role : config.without) names.*role = "";
  return names;
}

SpecialNames usual_names(ClassKind kind, SpecialNames names) {
  const auto fill = [](std::string& name, const char* usual) {
    if (name.empty()) name = usual;
  };
  if (kind == ClassKind::kBert) {
    fill(names.unk, "[UNK]"), fill(names.sep, "[SEP]"), fill(names.pad, "[PAD]");
    fill(names.cls, "[CLS]"), fill(names.mask, "[MASK]");
  } else if (kind == ClassKind::kGpt2) {
    fill(names.unk, "<|endoftext|>"), fill(names.bos, "<|endoftext|>"), fill(names.eos, "<|endoftext|>");
  } else if (kind == ClassKind::kQwen2) {
    fill(names.unk, "<|endoftext|>"), fill(names.eos, "<|endoftext|>"), fill(names.pad, "<|endoftext|>");
  } else if (kind == ClassKind::kLlama) {
    fill(names.unk, "<unk>"), fill(names.bos, "<s>"), fill(names.eos, "</s>");
  } else if (kind == ClassKind::kRoberta) {
    fill(names.bos, "<s>"), fill(names.eos, "</s>"), fill(names.sep, "</s>"), fill(names.cls, "<s>");
    fill(names.unk, "<unk>"), fill(names.pad, "<pad>"), fill(names.mask, "<mask>");
  }
  return names;
}

std::unique_ptr<TokenizerParts> read_whole_file(const std::string& path, const std::string& folder,
                                                const FolderConfig& config) {
  const std::string text = io::read_text(path, kLargestFile);
  if (config.split_special_tokens)
    throw FileError(config.path,
                    "split_special_tokens: true is not supported: set EncodeOptions::split_special_tokens");
  const ClassKind kind = choose_kind(folder, text, config);
  Amendments amendments;
  set_steps(kind, config, amendments);
  SpecialNames names = names_of(kind, config);
  const FileFacts facts = facts_of(text, path);
  if (kind != ClassKind::kWholeFile) {
    if (kind == ClassKind::kBert && !facts.unk.empty() && facts.unk != names.unk)
      throw FileError(config.path,
                      absl::StrCat("unk_token: ", io::shown(names.unk), ", but the model in tokenizer.json has ",
                                   io::shown(facts.unk), ": make the two agree"));
    if (kind == ClassKind::kLlama && !(facts.byte_fallback && facts.fuse_unk))
      throw FileError(config.path,
                      absl::StrCat("tokenizer_class: ", config.tokenizer_class,
                                   " makes a model with byte_fallback, and tokenizer.json has another one: "
                                   "name the class PreTrainedTokenizerFast"));
    if (!config.added.empty())
      for (const std::string& token : facts.added)
        if (std::none_of(config.added.begin(), config.added.end(),
                         [&](const AddedToken& other) { return other.content == token; }))
          throw FileError(config.path, absl::StrCat("added_tokens_decoder lacks ", io::shown(token),
                                                    ", which tokenizer.json has: make the two agree"));
  }
  // The tokens, in the order in which they get ids: those of added_tokens_decoder or added_tokens.json by id, those
  // with a role, then the others.
  amendments.tokens = config.added;
  for (const AddedToken& token : config.older)
    if (std::find(facts.added_ids.begin(), facts.added_ids.end(), token.id) == facts.added_ids.end())
      amendments.tokens.push_back(token);
  std::stable_sort(amendments.tokens.begin(), amendments.tokens.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  const auto add = [&](AddedToken token) {
    if (token.content.empty()) return;
    if (std::none_of(amendments.tokens.begin(), amendments.tokens.end(),
                     [&](const AddedToken& other) { return other.content == token.content; }))
      amendments.tokens.push_back(std::move(token));
  };
  const std::string* const roles[] = {&names.bos, &names.eos, &names.unk, &names.sep,
                                      &names.pad, &names.cls, &names.mask};
  for (const std::string* name : roles) {
    AddedToken token{.id = -1, .content = *name, .special = true};
    for (const AddedToken& given : config.special)
      if (given.content == *name) token = given;
    add(std::move(token));
  }
  std::vector<AddedToken> further;
  for (const auto& [name, token] : config.named) further.push_back(token);
  for (AddedToken& token : config.further()) further.push_back(std::move(token));
  for (const AddedToken& token : further) add(token);
  if (kind == ClassKind::kQwen2)  // Qwen2Tokenizer adds tokens of `roles` and `further` a second time, without flags
    for (AddedToken& token : amendments.tokens)
      if (std::any_of(std::begin(roles), std::end(roles), [&](const auto* name) { return *name == token.content; }) ||
          std::any_of(further.begin(), further.end(),
                      [&](const AddedToken& other) { return other.content == token.content; }))
        token = {.id = 0, .content = token.content, .special = true};
  auto out = read_tokenizer_json(text, path, amendments);
  if (kind == ClassKind::kBert || kind == ClassKind::kRoberta) {
    out->post_processor = {};
    const SpecialNames usual = usual_names(kind, config.names);
    set_bert_template(out->post_processor, out->id(usual.cls), out->id(usual.sep));
    if (kind == ClassKind::kRoberta) {
      make_roberta_template(out->post_processor);
      out->post_processor.trim_offsets = true;
      out->post_processor.add_prefix_space = config.add_prefix_space.value_or(false);
    }
  }
  out->names = std::move(names);
  out->model_max_length = config.model_max_length;
  return out;
}

}  // namespace rondo::text
