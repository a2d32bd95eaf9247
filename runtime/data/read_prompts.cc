// read_prompts: reads lines with a prompt and its completion.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/read_lines.h"

namespace rondo::data {

ExampleSet read_prompts(const std::string& path, const io::Tokenizer& tokenizer, const ReadOptions& options) try {
  check_options(options, false);
  const TextEncoder encoder(tokenizer, options.allow_special_tokens);
  const Ids opening = opening_of(options, encoder);
  const int32_t end = options.end_token.value_or(encoder.end_of_text());
  ExampleSet out;
  add_lines(
      path, options, encoder,
      [&](std::string_view text, int64_t line) {
        std::optional<std::string> prompt, completion;
        read_json_line(path, line, text, [&](io::JsonReader& json, const std::string& key) {
          std::optional<std::string>* const to = key == options.prompt_field       ? &prompt
                                                 : key == options.completion_field ? &completion
                                                                                   : nullptr;
          if (to != nullptr) *to = read_string_field(json, key);
          return to != nullptr;
        });
        if (!prompt) throw DataError(path, line, missing_field(options.prompt_field));
        if (!completion) throw DataError(path, line, missing_field(options.completion_field));
        if (completion->empty())
          throw DataError(path, line, absl::StrCat("field ", io::shown(options.completion_field), " is empty"));
        Example example{.ids = opening};
        const Ids before = encoder.encode(*prompt);
        const Ids words = encoder.continuation(*prompt, before, *completion);
        example.ids.insert(example.ids.end(), before.begin(), before.end());
        example.targets.assign(example.ids.size(), options.train_on_prompt);
        example.ids.insert(example.ids.end(), words.begin(), words.end());
        if (end >= 0) example.ids.push_back(end);
        example.targets.resize(example.ids.size(), true);
        return example;
      },
      out);
  return out;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("read_prompts");
}

}  // namespace rondo::data
