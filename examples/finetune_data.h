// The input of finetune: plain text, prompts with completions, or chats. The file's lines show which.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rondo/examples/finetune_options.h"
#include "rondo/runtime/data/chat_template.h"
#include "rondo/runtime/data/example_set.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::examples {

struct FinetuneData {
  // Throws DataError, which names the line, FileError, Error if nothing is left for training or for validation, and
  // TemplateError.
  FinetuneData(const FinetuneOptions& options, const text::PreTrainedTokenizer& tokenizer, int64_t vocab_size);

  std::shared_ptr<const data::ExampleSet> train, validation;
  std::optional<data::ChatEncoder> chat;  // for files of chats; keeps a reference to the tokenizer
  std::vector<std::string> notices;       // for the user: how much was read and cut, the chat template
  std::vector<int32_t> prompt;            // the tokens that the printed samples begin with
  std::vector<int64_t> stop_tokens;       // the tokens that end a sample
};

}  // namespace rondo::examples
