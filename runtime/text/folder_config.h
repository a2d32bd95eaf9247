// The settings in the files beside a vocabulary, and how they change tokenizer.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/runtime/text/tokenizer_parts.h"

namespace rondo::text {

// The fields of tokenizer_config.json that matter here. The others are for other programs.
struct FolderConfig {
  std::string path;
  std::string tokenizer_class{};
  bool do_lower_case = true, tokenize_chinese_chars = true;
  std::optional<bool> strip_accents{}, add_prefix_space{}, legacy{};
  bool add_bos = false, add_eos = false, split_special_tokens = false;
  // transformers 5 cleans up the texts of byte pair models only if the second one says so, too.
  bool clean_up_tokenization_spaces = false, clean_up_byte_pairs = false;
  std::optional<int64_t> model_max_length{};
  SpecialNames names{};
  // Roles whose field is null. No token has such a role, not even the one that the class has by itself.
  std::vector<std::string SpecialNames::*> without{};
  bool has_decoder = false;         // added_tokens_decoder is there, so older files are not read
  std::vector<AddedToken> added{};  // added_tokens_decoder
  // Tokens of added_tokens.json. Tokens of tokenizer.json with the same ids replace them.
  std::vector<AddedToken> older{};
  std::vector<AddedToken> special{};  // the tokens that `names` gives
  // Tokens that only this model has, by name, such as image_token: those of an object extra_special_tokens, fields of
  // their own, and model_specific_special_tokens. If a name is there twice, the last one counts.
  std::vector<std::pair<std::string, AddedToken>> named{};
  // Lists of special tokens without a role, if they are there. `extra` counts if it is there, otherwise `additional`.
  std::optional<std::vector<AddedToken>> extra{}, additional{};
  std::vector<AddedToken> further() const { return extra ? *extra : additional.value_or(std::vector<AddedToken>()); }
  std::vector<std::pair<std::string, std::string>> chat_templates{};  // by name
};

// The tokenizer classes that differ here. kWholeFile: any other, which takes tokenizer.json as it is.
enum class ClassKind { kWholeFile, kBert, kGpt2, kRoberta, kQwen2, kLlama };
ClassKind kind_named(std::string tokenizer_class);
// The config's names, and where it says nothing, those that the class has by itself.
SpecialNames names_of(ClassKind kind, const FolderConfig& config);
// The same where null says nothing either: what the classes put around a text.
SpecialNames usual_names(ClassKind kind, SpecialNames names);

// The pattern by which Qwen2Tokenizer cuts text into words.
inline constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// tokenizer.json at `path`, in `folder`, as the class that the config names makes it in transformers 5.
std::unique_ptr<TokenizerParts> read_whole_file(const std::string& path, const std::string& folder,
                                                const FolderConfig& config);

}  // namespace rondo::text
