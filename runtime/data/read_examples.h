// Reads data files into examples. There is one function for each kind of file:
//
//   read_text      plain text; .jsonl: {"text": "..."}                            every token is a target
//   read_prompts   lines {"prompt": "...", "completion": "..."}                   the completion carries loss
//   read_chats     lines {"messages": [{"role": "...", "content": "..."}, ...]}   the model's messages carry loss
//   read_labelled  lines label<TAB>text; .jsonl: {"text": "...", "label": ...}    for a classifier
//
//   const auto tokenizer = text::AutoTokenizer::from_pretrained("models/gpt2");
//   auto train = std::make_shared<const data::ExampleSet>(
//       data::read_prompts("train.jsonl", tokenizer, {.max_length = model.config.block_size}));
//
// Other fields of a JSON object are ignored. Empty lines are skipped. The text of a special token ("<|endoftext|>") in
// a file is ordinary text, unless `allow_special_tokens` is set. In a chat it is ordinary text in any case.
//
// Errors: a DataError names the line that cannot be used: malformed JSON, a field that is missing or not a string, an
// unknown role or label, an empty completion or text, invalid UTF-8, an id outside the model's vocabulary, or with
// TooLong::kError an example that is too long. FileError: the file cannot be read, or has no example. Error: the
// options are invalid.
// Memory: some megabytes of text at a time, and the examples. Lines are tokenized on all threads of the pool. The
// result does not depend on their number. Thread safety: everything here may be called from several threads at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/runtime/data/chat_template.h"
#include "rondo/runtime/data/example_set.h"
#include "rondo/runtime/text/tokenizer.h"

#pragma GCC visibility push(default)
namespace rondo::data {

enum class TooLong {
  kTruncate,  // the end is cut off; an example that loses all its targets is dropped
  kDrop,      // the example is left out
  kError,     // throws DataError
  kSplit,     // split into several examples; each begins with the last token of the example before. read_text only
};

struct ReadOptions {
  // The largest number of columns of an example: tokens that the model reads. It must not exceed the model's
  // block_size, nor the length of packed rows. An example of a language model has one more token, its last target. 0:
  // any length.
  int64_t max_length = 0;
  // What happens to an example that exceeds max_length. nullopt: kSplit for read_text, kTruncate for the others.
  std::optional<TooLong> too_long = std::nullopt;
  // The model's vocabulary size: an id outside it is an error. 0: not checked.
  int64_t vocab_size = 0;
  bool allow_special_tokens = false;
  // The first token of each text or prompt. nullopt: the tokenizer's own (<s> for Llama). -1: none.
  std::optional<int32_t> begin_token = std::nullopt;
  // The last token of each text or completion, which carries loss. nullopt: the tokenizer's eos_token if it has one,
  // but none for a file that is one text. -1: none.
  std::optional<int32_t> end_token = std::nullopt;
  // read_text: the separator of texts in a file. "": the file is one text. "\n": each line is one. Any other marker may
  // be anywhere in a line; line breaks beside it belong to no text.
  std::string separator = {};
  // read_prompts: the prompt carries loss, too.
  bool train_on_prompt = false;
  // read_labelled: the kind of labels. kClasses: names separated by commas, or a JSON list; it may be empty. kNumbers:
  // numbers separated by commas, or a JSON number or list; all lines have the same count.
  LabelKind label_kind = LabelKind::kClass;
  // read_labelled: the names of the classes, by number. Empty: the names in the file, sorted (by value, if all are
  // integers). For an evaluation set, pass the training set's label_names().
  std::vector<std::string> label_names = {};
  // Names of fields.
  std::string text_field = "text", prompt_field = "prompt", completion_field = "completion";
  std::string messages_field = "messages", role_field = "role", content_field = "content";
  std::string label_field = "label", pair_field = "text_pair";
};

// Reads plain texts. A text of fewer than two tokens is left out (ExampleReport::dropped).
ExampleSet read_text(const std::string& path, const io::Tokenizer& tokenizer, const ReadOptions& options);
// Reads prompts with completions. Both are tokenized so that the mask is exact: see Note [Borders] in text_encoder.h.
ExampleSet read_prompts(const std::string& path, const io::Tokenizer& tokenizer, const ReadOptions& options = {});
// Reads conversations. The template determines the first and last token; begin_token and end_token of the options are
// ignored. A conversation without a message of a trained role is a DataError.
ExampleSet read_chats(const std::string& path, const io::Tokenizer& tokenizer, const ChatTemplate& chat,
                      const ReadOptions& options = {});
// Like the function above, with any ChatEncoder. With a Jinja template a line may also have "tools", "documents" and
// "chat_template_kwargs", and messages may have any fields: see chat/chat.h.
ExampleSet read_chats(const std::string& path, const ChatEncoder& encoder, const text::PreTrainedTokenizer& tokenizer,
                      const ReadOptions& options = {});
// Reads labelled texts and encodes them with the tokenizer's own template ([CLS] text [SEP]). A line with a field
// "text_pair" is a pair of texts. In JSON, a label is a string or an integer. If label_names are given, an integer that
// is not a name is the number of a class. Other kinds of labels: ReadOptions::label_kind.
ExampleSet read_labelled(const std::string& path, const text::PreTrainedTokenizer& tokenizer,
                         const ReadOptions& options = {});

}  // namespace rondo::data
#pragma GCC visibility pop
