// The parts of a tokenizer: the steps from a text to its Encoding, and the settings of its folder.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/text/added_tokens.h"
#include "rondo/runtime/text/decoder.h"
#include "rondo/runtime/text/encoding.h"
#include "rondo/runtime/text/model.h"
#include "rondo/runtime/text/normalizer.h"
#include "rondo/runtime/text/post_processor.h"
#include "rondo/runtime/text/pre_tokenizer.h"

namespace rondo::text {

// Tokens with a role, as tokenizer_config.json names them.
struct SpecialNames {
  std::string bos, eos, unk, pad, sep, cls, mask;
};

// The number of spaces at both ends of a token.
struct Spaces {
  int32_t leading = 0, trailing = 0;
};

// The text of a chat template in the folder. `where`: its name in error messages. See chat/chat_renderer.h.
struct ChatTemplateText {
  std::string where, text;
};

struct TokenizerParts {
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
  std::map<std::string, ChatTemplateText> chat_templates;  // by name

  // Adds a token with its id in the vocabulary, or with the next free id. Returns false, and adds nothing, if
  // `token.id` is not negative and differs from this id, or if an added token already has the id or the text. Call
  // finish() after the last token.
  bool add_token(AddedToken token);
  void finish();

  const AddedToken* added_token(int64_t id) const;
  bool is_added(std::string_view content) const { return added_by_content_.contains(content); }
  const std::deque<AddedToken>& added_tokens() const { return added_; }
  // Returns null if the id names no token.
  const std::string* spelling(int64_t id) const;
  int32_t id(std::string_view token) const;
  int64_t size() const;

  // Encodes one text. `ids_only`: leaves the other vectors empty. `spaces`: receives the spaces of each token if the
  // post-processor trims offsets.
  void encode(std::string_view text, const EncodeOptions& options, bool ids_only, Scratch& scratch, Encoding& out,
              std::vector<Spaces>& spaces) const;
  Encoding encode_texts(std::span<const std::string_view> texts, const EncodeOptions& options, Scratch& scratch) const;

  // Borrows a Scratch for one call. Later calls reuse it, so words stay cached. There is one Scratch for each
  // concurrent call.
  class Lease {
   public:
    explicit Lease(const TokenizerParts& parts);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Scratch& operator*() { return *scratch_; }

   private:
    const TokenizerParts& parts_;
    std::unique_ptr<Scratch> scratch_;
  };

 private:
  // Normalises a text and cuts it. Calls `word` for each word and `token` for each added token, in order.
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

}  // namespace rondo::text
