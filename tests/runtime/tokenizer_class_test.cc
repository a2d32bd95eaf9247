// tokenizer_config.json beside tokenizer.json, where they disagree: AutoTokenizer's ids, or an error that names a
// field.
#include "rondo/runtime/chat/jinja/value.h"
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

// What says which tokens are special: null, the two names of a list, a field that is there twice, and the files that
// older programs wrote, which count without added_tokens_decoder only. Recorded with transformers 5.24.0.
struct NamedTwice {
  const char *base, *config, *map, *added;
  Ids roles;  // bos, eos, unk, pad
  Ids ids;    // of "a<img>b<pad>c<x>"
};
const NamedTwice kNamedTwice[] = {
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","unk_token":null,"bos_token":null})",
     "",
     "",
     {-1, 0, -1, -1},
     {65, 28, 327, 71, 30, 66, 28, 80, 275, 30, 67, 28, 88, 30}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","unk_token":null,"unk_token":"<|endoftext|>"})",
     "",
     "",
     {0, 0, 0, -1},
     {65, 28, 327, 71, 30, 66, 28, 80, 275, 30, 67, 28, 88, 30}},
    {"qwen2",
     R"({"tokenizer_class":"Qwen2Tokenizer","pad_token":null})",
     "",
     "",
     {-1, 700, 700, -1},
     {64, 27, 325, 70, 29, 65, 27, 79, 274, 29, 66, 27, 87, 29}},
    {"roberta",
     R"({"tokenizer_class":"RobertaTokenizer","pad_token":null,"unk_token":null})",
     "",
     "",
     {0, 1, -1, -1},
     {0, 66, 29, 328, 72, 31, 67, 29, 81, 278, 31, 68, 29, 89, 31, 1}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","additional_special_tokens":["<img>"],"extra_special_tokens":["<pad>"]})",
     "",
     "",
     {0, 0, 0, -1},
     {65, 28, 327, 71, 30, 66, 700, 67, 28, 88, 30}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","extra_special_tokens":[],"additional_special_tokens":["<img>"]})",
     "",
     "",
     {0, 0, 0, -1},
     {65, 700, 66, 28, 80, 275, 30, 67, 28, 88, 30}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","extra_special_tokens":{"image_token":"<x>"},"additional_special_tokens":["<img>"]})",
     "",
     "",
     {0, 0, 0, -1},
     {65, 701, 66, 28, 80, 275, 30, 67, 700}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","additional_special_tokens":["<pad>"],"additional_special_tokens":["<img>"]})",
     "",
     "",
     {0, 0, 0, -1},
     {65, 700, 66, 28, 80, 275, 30, 67, 28, 88, 30}},
    {"roberta",
     R"({"tokenizer_class":"RobertaTokenizer","bos_token":"<s>","eos_token":"</s>"})",
     R"({"bos_token":"</s>","eos_token":null})",
     "",
     {1, -1, 701, 702},
     {0, 66, 29, 328, 72, 31, 67, 702, 68, 29, 89, 31, 1}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","added_tokens_decoder":{"0":{"content":"<|endoftext|>","special":true}}})",
     R"({"pad_token":"<pad>","additional_special_tokens":["<img>"]})",
     "",
     {0, 0, 0, -1},
     {65, 28, 327, 71, 30, 66, 28, 80, 275, 30, 67, 28, 88, 30}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","additional_special_tokens":["<pad>"]})",
     R"({"additional_special_tokens":["<img>"]})",
     "",
     {0, 0, 0, -1},
     {65, 28, 327, 71, 30, 66, 700, 67, 28, 88, 30}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","extra_special_tokens":["<pad>"]})",
     R"({"extra_special_tokens":["<img>"],"pad_token":"<x>"})",
     "",
     {0, 0, 0, 700},
     {65, 702, 66, 701, 67, 700}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer"})",
     R"({"additional_special_tokens":["<img>"]})",
     "",
     {0, 0, 0, -1},
     {65, 700, 66, 28, 80, 275, 30, 67, 28, 88, 30}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer"})",
     "",
     R"({"<img>":700,"<x>":705})",
     {0, 0, 0, -1},
     {65, 700, 66, 28, 80, 275, 30, 67, 701}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","pad_token":"<x>"})",
     "",
     R"({"<img>":0,"<x>":700})",
     {0, 0, 0, 700},
     {65, 28, 327, 71, 30, 66, 28, 80, 275, 30, 67, 700}},
    {"gpt2",
     R"({"tokenizer_class":"GPT2Tokenizer","added_tokens_decoder":{"0":{"content":"<|endoftext|>","special":true}}})",
     "",
     R"({"<img>":700})",
     {0, 0, 0, -1},
     {65, 28, 327, 71, 30, 66, 28, 80, 275, 30, 67, 28, 88, 30}},
};
TEST(TokenizerClass, NullTwoListsAndOlderFiles) {
  for (const NamedTwice& c : kNamedTwice) {
    SCOPED_TRACE(std::string(c.base) + " " + c.config + " " + c.map + " " + c.added);
    TempFolder folder;
    write_bytes(folder / "tokenizer.json", read_bytes(recorded(std::string(c.base) + ".json")));
    write_bytes(folder / "tokenizer_config.json", c.config);
    if (*c.map != 0) write_bytes(folder / "special_tokens_map.json", c.map);
    if (*c.added != 0) write_bytes(folder / "added_tokens.json", c.added);
    const PreTrainedTokenizer t = AutoTokenizer::from_pretrained(folder.path());
    EXPECT_EQ((Ids{t.bos_token_id(), t.eos_token_id(), t.unk_token_id(), t.pad_token_id()}), c.roles);
    EXPECT_EQ(t.encode("a<img>b<pad>c<x>"), c.ids);
  }
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
