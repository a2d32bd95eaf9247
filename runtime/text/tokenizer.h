// Tokenizers of published models: tokenizer.json, vocab.json with merges.txt, vocab.txt.
//
//   const text::PreTrainedTokenizer tokenizer = text::AutoTokenizer::from_pretrained("models/gpt2");
//   std::vector<int32_t> ids = tokenizer.encode("Hello world");
//   std::string text = tokenizer.decode(ids);
//   text::Encoding full = tokenizer("A question?", "Its answer.", {.truncation = {{.max_length = 128}}});
//
// Ids, offsets, masks and texts equal those of Hugging Face's `tokenizers` (README.md names the version). A feature in
// a file that is not supported is a FileError that names it. Three differences are intended:
// - text that is not UTF-8 is an Error; the reference cannot receive such text;
// - a character that the vocabulary cannot express is an Error if there is no unknown token; the reference drops it;
// - decode() skips every special token; the reference does not skip one if its normaliser changes the token's text.
//
// The text of a special token ("<|endoftext|>") inside an input becomes the special token, as in the reference. Set
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

  // Reads a tokenizer.json. `path` names it in errors. Throws FileError.
  static PreTrainedTokenizer from_json(std::string_view json, const std::string& path);
  static PreTrainedTokenizer from_file(const std::string& path);
  // Reads GPT-2's vocab.json and merges.txt, which may have other names (encoder.json, vocab.bpe). <|endoftext|> is
  // special if the vocabulary has it.
  static PreTrainedTokenizer from_gpt2_files(const std::string& vocab_path, const std::string& merges_path);
  // Reads BERT's vocab.txt.
  static PreTrainedTokenizer from_bert_vocabulary(const std::string& vocab_path, bool do_lower_case = true);

  PreTrainedTokenizer(PreTrainedTokenizer&&) noexcept;
  PreTrainedTokenizer& operator=(PreTrainedTokenizer&&) noexcept;
  ~PreTrainedTokenizer() override;

  // Returns only the ids, with the template's special tokens and the file's truncation and padding. At most 2 GB of
  // text.
  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<int32_t> encode(std::string_view text, const EncodeOptions& options) const;
  // Returns the whole Encoding. Throws Error for invalid UTF-8, and if truncation cannot shorten the texts enough.
  Encoding operator()(std::string_view text, const EncodeOptions& options = {}) const;
  Encoding operator()(std::string_view text, std::string_view pair, const EncodeOptions& options = {}) const;
  // Returns one encoding per text, in order, computed on all threads of the pool. Padding::kLongest pads to the longest
  // of these encodings. The result does not depend on the number of threads.
  std::vector<Encoding> encode_batch(std::span<const std::string_view> texts, const EncodeOptions& options = {}) const;
  std::vector<Encoding> encode_batch(std::span<const TextPair> pairs, const EncodeOptions& options = {}) const;

  // Returns the text of the ids. Skips ids that name no token: a model with a padded vocabulary can generate them.
  // Throws Error on a negative id.
  std::string decode(std::span<const int32_t> ids) const override;
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options) const;
  // As above, for generated tokens (modules/generation/generation.h).
  std::string decode(std::span<const int64_t> ids, const DecodeOptions& options = {}) const;

  // Returns one more than the largest id, added tokens included.
  int64_t vocab_size() const override;
  // Returns -1 if there is no such token.
  int32_t token_to_id(std::string_view token) const;
  // Returns the token as the file spells it. Throws Error on an id that names no token.
  std::string id_to_token(int32_t id) const;
  bool is_special(int32_t id) const;
  // True for an added token (added_tokens.h). All special tokens are added tokens.
  bool is_added(int32_t id) const;
  // Returns the ids that the template puts before a single text: {bos} for Llama, nothing for GPT-2.
  std::vector<int32_t> opening_ids() const;

  // Return the ids of the tokens that tokenizer_config.json or special_tokens_map.json, in the folder of the
  // vocabulary, name for these roles; -1 if they name none.
  int32_t bos_token_id() const;
  int32_t eos_token_id() const;
  int32_t unk_token_id() const;
  int32_t pad_token_id() const;
  // Returns the length in tokens of the model's longest input. nullopt if the file gives no length, or a huge length
  // that means "no limit".
  std::optional<int64_t> model_max_length() const;
  // True if the folder has a chat template: see chat/chat.h.
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
  // Reads a model's folder: tokenizer.json; else vocab.json and merges.txt; else vocab.txt. The names of special tokens
  // come from tokenizer_config.json, if it exists; null removes a role. special_tokens_map.json, which replaces roles,
  // and added_tokens.json are older files: they are used if tokenizer_config.json has no added_tokens_decoder.
  //
  // If tokenizer_config.json and tokenizer.json disagree, ids are those of transformers 5. BertTokenizer,
  // GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer and RobertaTokenizer take only vocabulary and merges from
  // tokenizer.json, and build the steps from do_lower_case, strip_accents, tokenize_chinese_chars, add_prefix_space and
  // legacy. Other classes use the whole file. Special tokens that the file lacks are added. add_bos_token and
  // add_eos_token have no effect with a tokenizer.json, where the post-processor decides, and with a vocab.txt. If one
  // of them is true, a vocab.json without a tokenizer.json is a FileError.
  //
  // Chat templates see model-specific tokens by name (image_token, model_specific_special_tokens). decode() ends with
  // the clean-up of clean_up_tokenization_spaces; for byte pair models the folder must also set
  // clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output. Throws FileError, which names a field that
  // is not supported.
  static PreTrainedTokenizer from_pretrained(const std::string& folder);
  // True if `folder` has the vocabulary files of a tokenizer that from_pretrained() reads.
  static bool is_in(const std::string& folder);
  // Copies the files that from_pretrained() reads, and generation_config.json, to another folder, each atomically: for
  // a model that is saved together with its tokenizer. Throws FileError, also if `from` has no tokenizer.
  static void copy_files(const std::string& from, const std::string& to);
};

}  // namespace rondo::text
#pragma GCC visibility pop
