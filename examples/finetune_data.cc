#include "rondo/examples/finetune_data.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "rondo/modules/pretrained/end_tokens.h"
#include "rondo/runtime/data/read_examples.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::examples {
namespace {

// Returns the names of the fields in the first line that is not empty. Errors in the line are left for the reader to
// report.
std::set<std::string> fields_of(const std::string& path) {
  std::set<std::string> fields;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line) && line.find_first_not_of(" \t\r") == line.npos) continue;
  try {
    io::JsonReader json(path, line);
    json.object([&](std::string& key) {
      fields.insert(key);
      json.skip();
    });
  } catch (const FileError&) {
  }
  return fields;
}

bool is_chat(const std::string& path) { return path.ends_with(".jsonl") && fields_of(path).contains("messages"); }

data::ChatEncoder chat_encoder_of(const FinetuneOptions& o, const text::PreTrainedTokenizer& tokenizer,
                                  std::vector<std::string>& notices) {
  const std::string& name = o.chat_template;
  if (name.empty()) {
    if (tokenizer.has_chat_template()) return data::ChatEncoder::of_jinja(tokenizer);
    notices.push_back(absl::StrCat(
        o.model_name_or_path, " has no chat template: chats are written as chatml. --chat_template names another"));
    return data::ChatEncoder(data::ChatTemplate::named("chatml"), tokenizer);
  }
  constexpr uint64_t kLargest = 1 << 20;
  if (name.ends_with(".jinja")) return data::ChatEncoder::of_jinja(tokenizer, io::read_text(name, kLargest));
  return data::ChatEncoder(
      std::filesystem::exists(name) ? data::ChatTemplate::load(name) : data::ChatTemplate::named(name), tokenizer);
}

data::ExampleSet read(const std::string& path, const FinetuneOptions& o, const text::PreTrainedTokenizer& tokenizer,
                      const std::optional<data::ChatEncoder>& chat, int64_t vocab_size) {
  const data::ReadOptions options{
      .max_length = o.block_size, .vocab_size = vocab_size, .train_on_prompt = !o.completion_only_loss};
  if (!path.ends_with(".jsonl")) return data::read_text(path, tokenizer, options);
  const std::set<std::string> fields = fields_of(path);
  if (fields.contains("messages")) return data::read_chats(path, *chat, tokenizer, options);
  if (fields.contains("prompt")) return data::read_prompts(path, tokenizer, options);
  return data::read_text(path, tokenizer, options);
}

data::ExampleSet part(const data::ExampleSet& all, int64_t begin, int64_t end) {
  data::ExampleSet some;
  for (int64_t i = begin; i < end; ++i) some.add(all.example(i));
  return some;
}

std::shared_ptr<const data::ExampleSet> shared(data::ExampleSet set) {
  return std::make_shared<const data::ExampleSet>(std::move(set));
}

// Returns a line that says how much was read, and how much of it did not fit.
std::string summary_of(const data::ExampleReport& report, const FinetuneOptions& o, const std::string& path) {
  std::string line = absl::StrCat(path, ": ", report.examples, " examples; ", report.targets, " of ", report.tokens,
                                  " tokens carry loss");
  if (report.truncated > 0) absl::StrAppend(&line, "; ", report.truncated, " were cut to --block_size=", o.block_size);
  if (report.dropped > 0)
    absl::StrAppend(&line, "; ", report.dropped, " were left out, as no token of their first ", o.block_size,
                    " carries loss");
  return line;
}

// Returns the tokens of an example before the first one that carries loss. If all tokens carry loss: the first few.
std::vector<int32_t> beginning_of(const data::Example& example) {
  const auto first = static_cast<size_t>(std::find(example.targets.begin(), example.targets.end(), true) -
                                         example.targets.begin());
  const size_t count = first > 1 ? first : std::min<size_t>(example.ids.size(), 8);
  return {example.ids.begin(), example.ids.begin() + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

FinetuneData::FinetuneData(const FinetuneOptions& o, const text::PreTrainedTokenizer& tokenizer, int64_t vocab_size) {
  if (is_chat(o.train_file) || is_chat(o.validation_file)) chat.emplace(chat_encoder_of(o, tokenizer, notices));
  data::ExampleSet all = read(o.train_file, o, tokenizer, chat, vocab_size);
  notices.push_back(summary_of(all.report(), o, o.train_file));
  if (!o.validation_file.empty()) {
    train = shared(std::move(all));
    validation = shared(read(o.validation_file, o, tokenizer, chat, vocab_size));
    notices.push_back(summary_of(validation->report(), o, o.validation_file));
  } else {
    const int64_t kept = all.size() - all.size() * o.validation_split_percentage / 100;
    if (kept == 0 || kept == all.size())
      throw Error(absl::StrCat(o.train_file, " has ", all.size(), " examples of --block_size=", o.block_size,
                               ": too few to keep ", o.validation_split_percentage,
                               "% for validation. Give --validation_file, or more text"));
    train = shared(part(all, 0, kept));
    validation = shared(part(all, kept, all.size()));
  }
  stop_tokens = nn::end_tokens(o.model_name_or_path, &tokenizer);
  if (chat && chat->end_token() >= 0) stop_tokens.push_back(chat->end_token());
  if (o.prompt.empty()) prompt = beginning_of(validation->example(0));
  else if (chat) prompt = chat->prompt({{{"user", o.prompt}}});
  else prompt = tokenizer.encode(o.prompt, {.add_special_tokens = false});
}

}  // namespace rondo::examples
