// tokenizer_config.json beside tokenizer.json, where they disagree: AutoTokenizer's ids, or an error that names a
// field.
#include "rondo/runtime/text/jinja/value.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::text {
namespace {

using jinja::Value;
using Ids = std::vector<int32_t>;

std::string recorded(const std::string& name) { return std::string(tests::kReferenceDir) + "/tokenizers/" + name; }

TEST(TokenizerClass, AsAutoTokenizer) {
  const std::string path = recorded("configs.jsonl"), file = read_bytes(path);
  std::vector<std::string> texts;
  int equal = 0, refused = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t end = file.find('\n', at);
    const Value line = Value::from_json(path, std::string_view(file).substr(at, end - at));
    at = end + 1;
    if (const Value* given = line.dict().find("texts")) {
      for (const Value& text : given->items()) texts.emplace_back(text.text());
      continue;
    }
    jinja::Text config;
    append_json(config, *line.dict().find("config"), {});
    const std::string base(line.dict().find("base")->text());
    SCOPED_TRACE(base + " " + std::string(config));
    TempFolder folder;
    write_bytes(folder / "tokenizer.json", read_bytes(recorded(base + ".json")));
    write_bytes(folder / "tokenizer_config.json", config);
    try {
      const PreTrainedTokenizer tokenizer = AutoTokenizer::from_pretrained(folder.path());
      for (size_t i = 0; i < texts.size(); ++i) {
        Ids wanted;
        for (const Value& id : line.dict().find("ids")->items()[i].items())
          wanted.push_back(static_cast<int32_t>(id.integral()));
        EXPECT_EQ(tokenizer.encode(texts[i]), wanted) << texts[i];
      }
      ++equal;
    } catch (const FileError& error) {
      ++refused;
      EXPECT_EQ(error.path(), folder / "tokenizer_config.json");
      bool named = false;
      for (const auto& [key, value] : line.dict().find("config")->dict().items)
        named |= std::string(error.what()).find(key.text()) != std::string::npos;
      EXPECT_TRUE(named) << error.what();
    }
  }
  EXPECT_GT(equal, 150);
  EXPECT_LT(refused, 60);
}

// Which class counts is not only the one that tokenizer_config.json names.
TEST(TokenizerClass, TheFamilyDecidesToo) {
  TempFolder folder;
  write_bytes(folder / "tokenizer.json", read_bytes(recorded("llama2.json")));
  const auto encode = [&] { return AutoTokenizer::from_pretrained(folder.path()).encode("  two spaces"); };
  const Ids whole_file = encode();
  write_bytes(folder / "tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  const Ids rebuilt = encode();
  EXPECT_NE(rebuilt, whole_file);
  write_bytes(folder / "config.json", R"({"model_type": "llama"})");
  EXPECT_EQ(encode(), rebuilt);
  write_bytes(folder / "config.json", R"({"model_type": "mistral"})");
  EXPECT_EQ(encode(), whole_file);
}

// clean_up_tokenization_spaces works on the whole text, for WordPiece; for byte pairs by another field only.
TEST(TokenizerClass, CleansUpSpaces) {
  constexpr char kBytePairsToo[] = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";
  const auto decoded = [](const char* base, const std::string& config, const char* text) {
    TempFolder folder;
    write_bytes(folder / "tokenizer.json", read_bytes(recorded(base)));
    write_bytes(folder / "tokenizer_config.json", config);
    const PreTrainedTokenizer tokenizer = AutoTokenizer::from_pretrained(folder.path());
    return tokenizer.decode(tokenizer.encode(text));
  };
  const std::string on = R"("clean_up_tokenization_spaces": true)";
  EXPECT_EQ(decoded("bert_uncased.json", "{}", "it ' s the . we"), "it ' s the. we");
  EXPECT_EQ(decoded("bert_uncased.json", "{" + on + "}", "it ' s the . we"), "it's the. we");
  EXPECT_EQ(decoded("gpt2.json", "{" + on + "}", "the . we 're"), "the . we 're");
  EXPECT_EQ(decoded("gpt2.json", "{" + on + ", \"" + kBytePairsToo + "\": true}", "the . we 're"), "the. we're");
  EXPECT_EQ(decoded("gpt2.json", std::string("{\"") + kBytePairsToo + "\": true}", "the . we"), "the . we");
}

}  // namespace
}  // namespace rondo::text
