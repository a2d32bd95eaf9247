// A tokenizer's parts, for tokenizer.cc and for the readers of files.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/text/added_tokens.h"
#include "rondo/runtime/text/chat_renderer.h"
#include "rondo/runtime/text/decoder.h"
#include "rondo/runtime/text/model.h"
#include "rondo/runtime/text/normalizer.h"
#include "rondo/runtime/text/post_processor.h"
#include "rondo/runtime/text/pre_tokenizer.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::text {

// Tokens with a role, as tokenizer_config.json names them.
struct SpecialNames {
  std::string bos, eos, unk, pad, sep, cls, mask;
};

// How many spaces stand at the ends of a token.
struct Spaces {
  int32_t leading = 0, trailing = 0;
};

struct PreTrainedTokenizer::Impl {
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  std::unique_ptr<const Model> model;
  PostProcessor post_processor;
  Decoders decoders;
  std::optional<Truncation> truncation;
  std::optional<Padding> padding;
  SpecialNames names;
  std::vector<std::pair<std::string, std::string>> further_names;  // "image_token" and its text
  bool cleans_up = false;                                          // decode() ends with clean_up()
  std::optional<int64_t> model_max_length;
  FolderTemplates chat_templates;

  // Takes the id that the vocabulary has for the token, or the next free one; false if `token.id` is another, unless it
  // is negative.
  // Call finish() behind the last one.
  bool add_token(AddedToken token);
  void finish();

  const AddedToken* added_token(int64_t id) const;
  bool is_added(std::string_view content) const { return added_by_content_.contains(content); }
  const std::deque<AddedToken>& added_tokens() const { return added_; }
  // Null if the id names no token.
  const std::string* spelling(int64_t id) const;
  int32_t id(std::string_view token) const;
  int64_t size() const;

  // One text; with ids only, the other vectors stay empty. `spaces`: of each token, if offsets are to be trimmed.
  void encode(std::string_view text, const EncodeOptions& options, bool ids_only, Scratch& scratch, Encoding& out,
              std::vector<Spaces>& spaces) const;
  Encoding encode_texts(std::span<const std::string_view> texts, const EncodeOptions& options, Scratch& scratch) const;
  template <class TextsOf>
  std::vector<Encoding> encode_batch(size_t n, const EncodeOptions& options, TextsOf texts_of) const;

  // Scratch memory is handed from call to call, so that words stay cached. As many as there ever were callers at once.
  class Lease {
   public:
    explicit Lease(const Impl& impl);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() { return *scratch_; }

   private:
    const Impl& impl_;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  // Normalises and cuts a text. `word` and `token` get what is left, in order.
  void walk(std::string_view text, const EncodeOptions& options, bool tracked,
            absl::FunctionRef<void(const Piece&)> word,
            absl::FunctionRef<void(const Piece&, const AddedToken&)> token) const;
  void cut(size_t step, const Piece& piece, absl::FunctionRef<void(const Piece&)> word) const;

  std::deque<AddedToken> added_;  // its elements never move
  HashMap<int32_t, const AddedToken*> added_by_id_;
  HashMap<std::string_view, const AddedToken*> added_by_content_;
  AddedTokenFinder in_raw_, in_normalized_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

// Bytes of a tokenizer file. Files are copied, not mapped: one that is truncated meanwhile is an error and not a
// signal.
inline constexpr uint64_t kLargestFile = uint64_t{1} << 30;
// Changes that the other files of a folder make to tokenizer.json (tokenizer_class.cc).
struct Amendments {
  // JSON instead of the file's own part; empty: the file's.
  std::string normalizer{}, pre_tokenizer{}, decoder{};
  // Tokens by their text. Those that the file lacks are added behind its own, with ids of their own. Of one that the
  // file has, the flags count if its id is not negative.
  std::vector<AddedToken> tokens{};
};
// tokenizer.json.
std::unique_ptr<PreTrainedTokenizer::Impl> read_tokenizer_json(std::string_view text, const std::string& path,
                                                               const Amendments& amendments = {});

}  // namespace rondo::text
