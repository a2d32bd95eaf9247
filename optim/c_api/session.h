// Session: the object behind a handle of the C API (rondo_c.h): a causal language model, its tokenizer if its folder
// has one, and its optimizer. The functions are those of rondo_c.h, and throw what the library throws. Options arrive
// in the structs of this version; a field that is 0 still means the default. Invariant: random numbers come from the
// session's own stream, whichever thread calls. Thread safety: one thread at a time (handles.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rondo/modules/generation/generation.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/optim/adam.h"
#include "rondo/rondo_c.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::optim::c_api {

class Session {
 public:
  Session(const std::string& folder, const rondo_model_options& options);

  void save_model(const std::string& folder);
  void add_lora(const rondo_lora_options& options);
  void load_adapter(const std::string& folder);
  void save_adapter(const std::string& folder);
  void merge_adapter();

  void set_optimizer(const rondo_optimizer_options& options);
  void set_learning_rate(double lr);

  // Rows of token ids; labels[i] is the label of tokens[i].
  struct Rows {
    int64_t batch = 0, length = 0;
    std::vector<int64_t> tokens, labels;
  };
  Rows rows_of(const int32_t* tokens, const int32_t* labels, int64_t batch, int64_t length) const;
  Rows rows_of(std::span<const std::string> texts) const;
  // Makes one step. Returns the loss before the step's update.
  double train(const Rows& rows);
  double evaluate(const Rows& rows);

  nn::Generation generate(std::span<const int32_t> prompt, const rondo_generate_options& options);

  std::vector<int32_t> encode(const std::string& text) const;
  std::string decode(std::span<const int32_t> ids) const;
  struct Chat {
    std::vector<int32_t> ids, labels;  // labels: empty unless they are wanted
  };
  Chat encode_chat(const std::string& conversation, const rondo_chat_options& options, bool with_labels) const;

 private:
  class RandomScope;
  const text::PreTrainedTokenizer& tokenizer() const;
  // Throws Error if an id is outside of the model's vocabulary.
  void check_ids(std::span<const int32_t> ids) const;
  // Returns the mean loss of rows, through the model as it is now.
  Tensor loss_of(const Rows& rows);
  Optimizer& optimizer();
  // Returns the text that `tokens` add to the text of the prompt.
  std::string text_after(std::span<const int32_t> prompt, std::span<const int64_t> tokens) const;

  const std::string folder_;            // as the caller names it
  const std::string tokenizer_folder_;  // the same as an absolute path: the host may change its working folder
  const rondo_model_options options_;   // its pointers are not valid any more
  const Device device_;
  nn::AutoModelForCausalLM model_;
  const int64_t vocab_size_, positions_;
  std::optional<text::PreTrainedTokenizer> tokenizer_;
  std::vector<int64_t> end_tokens_;  // any of them ends a generated text
  rondo_optimizer_options optimizer_options_{};
  std::unique_ptr<AdamW> optimizer_;  // null until a step needs it
  uint64_t random_offset_ = 0;        // of the session's stream, whose seed is options_.seed
};

}  // namespace rondo::optim::c_api
