// Data files become examples. One function for each kind of file:
//
//   read_text      plain text; .jsonl: {"text": "..."}                            every token is a target
//   read_prompts   {"prompt": "...", "completion": "..."} a line                  the completion carries loss
//   read_chats     {"messages": [{"role": "...", "content": "..."}, ...]} a line  what the model says carries loss
//   read_labelled  label<TAB>text a line; .jsonl: {"text": "...", "label": ...}   for a classifier
//
//   const auto tokenizer = text::AutoTokenizer::from_pretrained("models/gpt2");
//   auto train = std::make_shared<const data::ExampleSet>(
//       data::read_prompts("train.jsonl", tokenizer, {.max_length = model.config.block_size}));
//
// Other fields of a JSON object are ignored. Empty lines are skipped. Text of special tokens ("<|endoftext|>") in a
// file is ordinary text, unless `allow_special_tokens`. In a chat it always is.
//
// Errors: DataError names the line of a file that cannot be used: malformed JSON, a field that is missing or no string,
// an unknown role or label, an empty completion or text, invalid UTF-8, an id outside the model's vocabulary, and with
// TooLong::kError an example that is too long. FileError: the file cannot be read, or has no example. Error: options
// that make no sense.
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
  kDrop,      // left out
  kError,     // DataError
  kSplit,     // several examples, each of which begins with the last token of the one before; for read_text only
};

struct ReadOptions {
  // T, the columns of an example at most: tokens that the model reads. At most the model's block_size, and the column
  // size of packed rows. An example of a language model has one more token, its last target. 0: any length.
  int64_t max_length = 0;
  // nullopt: kSplit for read_text, kTruncate for the others.
  std::optional<TooLong> too_long = std::nullopt;
  // The model's: an id outside it is an error. 0: not checked.
  int64_t vocab_size = 0;
  bool allow_special_tokens = false;
  // The first token of each text or prompt: nullopt: what the tokenizer puts there (Llama's <s>); -1: none.
  std::optional<int32_t> begin_token = std::nullopt;
  // The last token of each text or completion, which carries loss: nullopt: the tokenizer's eos_token, if it names one;
  // -1: none. A file that is one text gets none.
  std::optional<int32_t> end_token = std::nullopt;
  // read_text: what divides the file into texts. "": the file is one text. "\n": each line is one. Else: this marker,
  // which may stand anywhere in a line; the line breaks beside it belong to no text.
  std::string separator = {};
  // read_prompts: the prompt carries loss, too.
  bool train_on_prompt = false;
  // read_labelled: what a label is. kClasses: names with commas between them, or a JSON list; none is fine. kNumbers:
  // numbers with commas between them, or a JSON number or list; each line has as many.
  LabelKind label_kind = LabelKind::kClass;
  // read_labelled: the names of the classes, by number. Empty: those that the file has, in order (by number, if all are
  // integers). Give an evaluation set the training set's label_names().
  std::vector<std::string> label_names = {};
  // Names of fields.
  std::string text_field = "text", prompt_field = "prompt", completion_field = "completion";
  std::string messages_field = "messages", role_field = "role", content_field = "content";
  std::string label_field = "label", pair_field = "text_pair";
};

// A text of one token, and without one, is left out (ExampleReport::dropped).
ExampleSet read_text(const std::string& path, const io::Tokenizer& tokenizer, const ReadOptions& options);
// Prompt and completion are tokenized so that the mask is exact: see Note [Borders] in text_encoder.h.
ExampleSet read_prompts(const std::string& path, const io::Tokenizer& tokenizer, const ReadOptions& options = {});
// begin_token and end_token are the template's business: those of the options are not used. A conversation without a
// message of a trained role is a DataError.
ExampleSet read_chats(const std::string& path, const io::Tokenizer& tokenizer, const ChatTemplate& chat,
                      const ReadOptions& options = {});
// The same by any encoder of chats. With a Jinja template a line may also have "tools", "documents" and
// "chat_template_kwargs", and messages may have any fields: see chat/chat.h.
ExampleSet read_chats(const std::string& path, const ChatEncoder& encoder, const text::PreTrainedTokenizer& tokenizer,
                      const ReadOptions& options = {});
// With the tokenizer's own template ([CLS] text [SEP]). A field "text_pair" makes it a pair. In JSON, a label is a
// string or an integer. An integer that is no class's name is a class's number if label_names are given. Other kinds of
// labels: ReadOptions::label_kind.
ExampleSet read_labelled(const std::string& path, const text::PreTrainedTokenizer& tokenizer,
                         const ReadOptions& options = {});

}  // namespace rondo::data
#pragma GCC visibility pop
