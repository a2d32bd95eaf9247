// The settings in the other files of a tokenizer's folder, and how they change tokenizer.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/text/tokenizer_parts.h"

namespace rondo::text {

// The fields of tokenizer_config.json that affect encoding and decoding.
struct FolderConfig {
  std::string path;
  std::string tokenizer_class{};
  bool do_lower_case = true, tokenize_chinese_chars = true;
  std::optional<bool> strip_accents{}, add_prefix_space{}, legacy{};
  bool add_bos = false, add_eos = false, split_special_tokens = false;
  // For byte pair models, transformers 5 cleans up texts only if the second flag is set, too.
  bool clean_up_tokenization_spaces = false, clean_up_byte_pairs = false;
  std::optional<int64_t> model_max_length{};
  SpecialNames names{};
  // Roles with a null field. No token gets one of these roles, not even the default token of the class.
  std::vector<std::string SpecialNames::*> without{};
  bool has_decoder = false;         // the field added_tokens_decoder exists, so the older files are not read
  std::vector<AddedToken> added{};  // the tokens in added_tokens_decoder
  // Tokens of added_tokens.json. Tokens of tokenizer.json with the same ids replace them.
  std::vector<AddedToken> older{};
  std::vector<AddedToken> special{};  // the tokens whose texts are in `names`
  // Model-specific tokens by name, such as image_token. They come from an object extra_special_tokens, from single
  // fields, and from model_specific_special_tokens. If a name occurs twice, the last token is used.
  std::vector<std::pair<std::string, AddedToken>> named{};
  // Lists of special tokens without a role, if they exist. `extra` takes precedence over `additional`.
  std::optional<std::vector<AddedToken>> extra{}, additional{};
  std::vector<AddedToken> further() const { return extra ? *extra : additional.value_or(std::vector<AddedToken>()); }
  std::vector<std::pair<std::string, std::string>> chat_templates{};  // by name
};

// Tokenizer classes with rules of their own. kWholeFile: any other class; it uses tokenizer.json unchanged.
enum class ClassKind { kWholeFile, kBert, kGpt2, kRoberta, kQwen2, kLlama };
ClassKind kind_named(std::string tokenizer_class);
// Returns the names in the config. If a field is missing, its name is the default of the class.
SpecialNames names_of(ClassKind kind, const FolderConfig& config);
// Fills empty names with the defaults of the class, even the names that are null in the config. The templates that put
// special tokens around texts (post_processor.h) use the result.
SpecialNames usual_names(ClassKind kind, SpecialNames names);

// The pattern with which Qwen2Tokenizer splits text into words.
inline constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Reads tokenizer.json at `path`, in `folder`. Changes it as transformers 5 does for the class that the config names.
std::unique_ptr<TokenizerParts> read_whole_file(const std::string& path, const std::string& folder,
                                                const FolderConfig& config);

}  // namespace rondo::text
