#include "rondo/examples/image_captioning/word_tokenizer.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"

namespace rondo::examples {
namespace {

const std::vector<std::string> kSpecial = {"[PAD]", "[CLS]", "[SEP]", "[UNK]"};

std::string json_of(const std::vector<std::string>& vocabulary) {
  std::vector<std::string> special, entries;
  for (size_t id = 0; id < kSpecial.size(); ++id)
    special.push_back(absl::StrCat(
        R"({"id": )", id, R"(, "content": ")", kSpecial[id],
        R"(", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, )", R"("special": true})"));
  for (size_t id = 0; id < vocabulary.size(); ++id) {
    std::string entry = "      ";
    io::append_json_string(entry, vocabulary[id]);
    entries.push_back(absl::StrCat(entry, ": ", id));
  }
  return absl::StrCat(R"({
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [)",
                      absl::StrJoin(special, ", "), R"(],
  "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": false,
                 "lowercase": false},
  "pre_tokenizer": {"type": "BertPreTokenizer"},
  "post_processor": null,
  "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
  "model": {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
    "vocab": {
)",
                      absl::StrJoin(entries, ",\n"), "\n    }\n  }\n}\n");
}

}  // namespace

std::string word_tokenizer_json(std::span<const std::string> captions, int64_t vocab_size) {
  std::vector<std::string> vocabulary = kSpecial;
  // A tokenizer with an empty vocabulary, which finds where words begin and end.
  const auto cutter = text::PreTrainedTokenizer::from_json(json_of(vocabulary), "tokenizer.json");
  std::map<std::string, int64_t> counts;
  for (const std::string& caption : captions) {
    const text::Encoding words = cutter(caption,
                                        {.split_special_tokens = true, .offset_unit = text::OffsetUnit::kBytes});
    for (const auto& [begin, end] : words.offsets)
      ++counts[caption.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin))];
  }
  std::set<std::string> characters;
  for (const auto& [word, count] : counts)
    for (size_t at = 0, end = 0; at < word.size(); at = end) {
      for (end = at + 1; end < word.size() && (word[end] & 0xC0) == 0x80;) ++end;
      characters.insert(word.substr(at, end - at));
    }
  for (const std::string& character : characters) {
    vocabulary.push_back(character);
    vocabulary.push_back("##" + character);
  }
  if (std::ssize(vocabulary) > vocab_size)
    throw Error(absl::StrCat("--vocab_size=", vocab_size, ": the captions have ", characters.size(),
                             " different characters; at least ", vocabulary.size(), " tokens are needed"));
  std::vector<std::pair<std::string, int64_t>> words(counts.begin(), counts.end());
  std::stable_sort(words.begin(), words.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [word, count] : words)
    if (!characters.contains(word) && std::ssize(vocabulary) < vocab_size) vocabulary.push_back(word);
  return json_of(vocabulary);
}

void save_word_tokenizer(const std::string& json, const std::string& folder) {
  io::make_folders(folder);
  io::write_file_atomic(folder + "/tokenizer.json", json);
  io::write_file_atomic(folder + "/tokenizer_config.json", R"({
  "tokenizer_class": "PreTrainedTokenizerFast",
  "clean_up_tokenization_spaces": false,
  "pad_token": "[PAD]",
  "cls_token": "[CLS]",
  "sep_token": "[SEP]",
  "unk_token": "[UNK]"
}
)");
}

}  // namespace rondo::examples
