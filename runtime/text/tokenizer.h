// Tokenizers of published models: tokenizer.json, vocab.json with merges.txt, vocab.txt.
//
//   const text::PreTrainedTokenizer tokenizer = text::AutoTokenizer::from_pretrained("models/gpt2");
//   std::vector<int32_t> ids = tokenizer.encode("Hello world");
//   std::string text = tokenizer.decode(ids);
//   text::Encoding full = tokenizer("A question?", "Its answer.", {.truncation = {{.max_length = 128}}});
//
// Ids, offsets, masks and texts equal those of Hugging Face's `tokenizers` (README.md names the version). What a file
// asks for and this cannot do is a FileError that names it. Three differences are on purpose:
// - text that is not UTF-8 is an Error: the reference cannot be given any;
// - a character that the vocabulary cannot express, without an unknown token, is an Error: the reference drops it;
// - decode() skips every special token: the reference misses those whose text its normaliser changes.
//
// Special tokens' text ("<|endoftext|>") inside an input becomes the special token, as in the reference. Set
// `split_special_tokens` for text that a user typed.
//
// Thread safety: a tokenizer is immutable; everything here may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/runtime/text/encoding.h"
#include "rondo/runtime/text/simple_tokenizer.h"

#pragma GCC visibility push(default)
namespace rondo::text {

struct TokenizerParts;

class PreTrainedTokenizer : public io::Tokenizer {
 public:
  using TextPair = std::pair<std::string_view, std::string_view>;

  // A tokenizer.json. `path` names it in errors. Throws FileError.
  static PreTrainedTokenizer from_json(std::string_view json, const std::string& path);
  static PreTrainedTokenizer from_file(const std::string& path);
  // GPT-2's vocab.json and merges.txt, under whatever names (encoder.json, vocab.bpe). <|endoftext|> is special if it
  // is a token.
  static PreTrainedTokenizer from_gpt2_files(const std::string& vocab_path, const std::string& merges_path);
  // BERT's vocab.txt.
  static PreTrainedTokenizer from_bert_vocabulary(const std::string& vocab_path, bool do_lower_case = true);

  PreTrainedTokenizer(PreTrainedTokenizer&&) noexcept;
  PreTrainedTokenizer& operator=(PreTrainedTokenizer&&) noexcept;
  ~PreTrainedTokenizer() override;

  // Ids only, with the template's special tokens and the file's truncation and padding. At most 2 GB of text.
  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const;
  // Everything. Throws Error for invalid UTF-8, and if the truncation cannot be done.
  Encoding operator()(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding operator()(std::string_view text, std::string_view pair, const EncodeOptions& options = {}) const;
  // One encoding per text, in order, made on all threads of the pool; padded to the longest of them if padding says so.
  // The result does not depend on the number of threads.
  std::vector<Encoding> encode_batch(std::span<const std::string_view> texts, const EncodeOptions& options = {}) const;
  std::vector<Encoding> encode_batch(std::span<const TextPair> pairs, const EncodeOptions& options = {}) const;

  // Ids that name no token are left out, as a model whose vocabulary is padded makes them. Throws Error on a negative
  // id.
  std::string decode(std::span<const int32_t> ids) const override;
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options) const;
  // For generated tokens (modules/generation/generation.h).
  std::string decode(std::span<const int64_t> ids, const DecodeOptions& options = {}) const;

  // One more than the largest id, added tokens included.
  int64_t vocab_size() const override;
  // -1 if there is none.
  int32_t token_to_id(std::string_view token) const;
  // As the file spells it. Throws Error on an id that names no token.
  std::string id_to_token(int32_t id) const;
  bool is_special(int32_t id) const;
  // It is found in the text before the text is cut into words; special tokens are.
  bool is_added(int32_t id) const;
  // The ids that the template puts before a single text: {bos} for Llama, nothing for GPT-2.
  std::vector<int32_t> opening_ids() const;

  // From tokenizer_config.json or special_tokens_map.json beside the vocabulary; -1 if they name none.
  int32_t bos_token_id() const;
  int32_t eos_token_id() const;
  int32_t unk_token_id() const;
  int32_t pad_token_id() const;
  // Unset if the file has none, or one beyond any length that is meant.
  std::optional<int64_t> model_max_length() const;
  // Its folder has a chat template: see chat/chat.h.
  bool has_chat_template() const;

 private:
  friend class AutoTokenizer;
  friend class ChatRenderer;
  explicit PreTrainedTokenizer(std::unique_ptr<TokenizerParts> parts);
  // Throws Error if the tokenizer was moved to another object.
  const TokenizerParts& parts() const;
  std::unique_ptr<TokenizerParts> parts_;
};

class AutoTokenizer {
 public:
  // A model's folder: tokenizer.json; else vocab.json and merges.txt; else vocab.txt. Names of special tokens come from
  // tokenizer_config.json, where it is present; null takes a role away. special_tokens_map.json, which replaces roles,
  // and added_tokens.json are of older programs: they count if there is no added_tokens_decoder. Where it disagrees
  // with tokenizer.json, ids are those of transformers 5: BertTokenizer, GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer
  // and RobertaTokenizer take vocabulary and merges from the file, and build its steps themselves from do_lower_case,
  // strip_accents, tokenize_chinese_chars, add_prefix_space and legacy; other classes take the whole file. Special
  // tokens that the file lacks are added. Chat templates see tokens with names of their own (image_token,
  // model_specific_special_tokens). decode() ends with clean_up_tokenization_spaces, for byte pair models only if the
  // folder asks for that by the flag's long name. add_bos_token and add_eos_token say nothing beside a tokenizer.json,
  // whose post-processor decides; without one they are a FileError. Throws FileError, which names the field that cannot
  // be followed.
  static PreTrainedTokenizer from_pretrained(const std::string& folder);
  // True if the folder has one of these.
  static bool is_in(const std::string& folder);
  // Copies what from_pretrained() reads, and generation_config.json, into another folder, each file
  // whole or not at all: for a model that is saved beside its tokenizer. Throws FileError, also if there is no
  // tokenizer.
  static void copy_files(const std::string& from, const std::string& to);
};

}  // namespace rondo::text
#pragma GCC visibility pop
