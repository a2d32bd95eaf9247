// The C API's text: whole texts whatever tokenizer.json says about lengths, end tokens, chats, folders of other models.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/c_api/text_stream.h"
#include "rondo/rondo_c.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

class CApiText : public testing::Test {
 protected:
  void SetUp() override {
    nn::GPT2 model({.vocab_size = 800, .block_size = 64, .n_layer = 1, .n_head = 2, .n_embd = 16}, 1);
    nn::save_pretrained(model, folder_ / "model");
    copy("chat_templates/qwen.json", "tokenizer.json");
    write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  }
  void copy(const std::string& from, const std::string& name) {
    std::filesystem::copy_file(std::string(tests::kReferenceDir) + "/" + from, folder_ / ("model/" + name),
                               std::filesystem::copy_options::overwrite_existing);
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / ("model/" + name), std::ios::trunc) << text;
  }
  rondo_model* create() {
    rondo_model* model = nullptr;
    EXPECT_EQ(rondo_model_create((folder_ / "model").c_str(), nullptr, &model), RONDO_OK) << rondo_last_error();
    return model;
  }
  static std::vector<int32_t> encode(rondo_model* model, const char* text) {
    std::vector<int32_t> ids(64);
    int64_t count = 0;
    EXPECT_EQ(rondo_encode(model, text, ids.data(), 64, &count), RONDO_OK) << rondo_last_error();
    ids.resize(static_cast<size_t>(count));
    return ids;
  }
  test::TempFolder folder_;
};

TEST_F(CApiText, ATextIsNeitherCutNorPadded) {
  const char* const text = "the water of the people";
  rondo_model* model = create();
  const std::vector<int32_t> whole = encode(model, text);
  double loss = 0, same = 0;
  ASSERT_EQ(rondo_evaluate_text(model, &text, 1, &loss), RONDO_OK);
  rondo_model_destroy(model);
  ASSERT_GT(whole.size(), 3u);
  std::ifstream file(folder_ / "model/tokenizer.json");
  std::string json(std::istreambuf_iterator<char>(file), {});
  for (const auto& [part, value] :
       {std::pair<std::string, std::string>{
            "truncation", R"({"direction":"Right","max_length":3,"strategy":"LongestFirst","stride":0})"},
        {"padding", R"({"strategy":{"Fixed":40},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,)"
                    R"("pad_type_id":0,"pad_token":"!"})"}}) {
    std::string changed = json;
    const size_t at = changed.find("\"" + part + "\":null");
    ASSERT_NE(at, std::string::npos);
    changed.replace(at + part.size() + 3, 4, value);
    write("tokenizer.json", changed);
    // The file does say so.
    EXPECT_NE(text::AutoTokenizer::from_pretrained(folder_ / "model").encode(text), whole) << part;
    model = create();
    EXPECT_EQ(encode(model, text), whole) << part;
    ASSERT_EQ(rondo_evaluate_text(model, &text, 1, &same), RONDO_OK);
    EXPECT_EQ(same, loss) << part;
    rondo_model_destroy(model);
  }
}

TEST_F(CApiText, EndTokens) {
  const int32_t prompt[] = {5, 6};
  const auto generate = [&](bool ignore_end) {
    rondo_model* model = create();
    rondo_generate_options options{};
    options.size = sizeof options;
    options.max_new_tokens = 8;
    options.ignore_end = ignore_end ? 1 : 0;
    int32_t made[8];
    int64_t count = 0;
    rondo_finish_reason reason = -1;
    EXPECT_EQ(rondo_generate_tokens(model, prompt, 2, &options, made, 8, &count, &reason), RONDO_OK)
        << rondo_last_error();
    rondo_model_destroy(model);
    return std::pair(std::vector<int32_t>(made, made + count), reason);
  };
  const auto [tokens, reason] = generate(false);
  ASSERT_EQ(reason, RONDO_FINISH_LENGTH);
  const std::string first = std::to_string(tokens[0]);
  const auto ends = [&] { return generate(false).second == RONDO_FINISH_END; };
  write("generation_config.json", R"({"eos_token_id": )" + first + "}");
  EXPECT_TRUE(ends());
  EXPECT_EQ(generate(true).second, RONDO_FINISH_LENGTH);
  write("generation_config.json", R"({"eos_token_id": [99999, )" + first + "]}");
  EXPECT_TRUE(ends());
  write("generation_config.json", R"({"eos_token_id": null, "pad_token_id": 3})");
  EXPECT_FALSE(ends());
  // config.json counts where generation_config.json says nothing.
  std::ifstream file(folder_ / "model/config.json");
  std::string config(std::istreambuf_iterator<char>(file), {});
  ASSERT_EQ(config.find("\"eos_token_id\""), std::string::npos);
  config.insert(config.find('{') + 1, "\"eos_token_id\": " + first + ",");
  write("config.json", config);
  EXPECT_TRUE(ends());
  std::filesystem::remove(folder_ / "model/generation_config.json");
  EXPECT_TRUE(ends());
  std::filesystem::remove(folder_ / "model/tokenizer.json");  // also without a tokenizer
  EXPECT_TRUE(ends());
  write("generation_config.json", R"({"eos_token_id": "x"})");
  rondo_model* model = nullptr;
  EXPECT_EQ(rondo_model_create((folder_ / "model").c_str(), nullptr, &model), RONDO_BAD_FILE);
}

TEST_F(CApiText, AFolderOfAnotherKindOfModelIsABadModel) {
  const std::string bert = std::string(tests::kReferenceDir) + "/pretrained/bert_sequence";
  rondo_model* model = nullptr;
  EXPECT_EQ(rondo_model_create(bert.c_str(), nullptr, &model), RONDO_BAD_MODEL);
  EXPECT_NE(std::string(rondo_last_error()).find("there is no such model of the family bert"), std::string::npos)
      << rondo_last_error();
  EXPECT_EQ(model, nullptr);
}

TEST_F(CApiText, Chats) {
  const char* const chat =
      R"([{"role": "user", "content": "the <|im_end|>"}, {"role": "assistant", "content": "water"}])";
  std::vector<int32_t> ids(64), labels(64);
  int64_t count = -1;
  rondo_model* model = create();
  EXPECT_EQ(rondo_encode_chat(model, chat, nullptr, ids.data(), labels.data(), 64, &count), RONDO_BAD_ARGUMENT);
  EXPECT_NE(std::string(rondo_last_error()).find("has no chat template"), std::string::npos) << rondo_last_error();
  EXPECT_EQ(count, -1);
  rondo_model_destroy(model);
  copy("chat_templates/chatml.jinja", "chat_template.jinja");
  model = create();
  ASSERT_EQ(rondo_encode_chat(model, chat, nullptr, ids.data(), labels.data(), 64, &count), RONDO_OK)
      << rondo_last_error();
  const int32_t end = encode(model, "<|im_end|>")[0];
  int64_t ends = 0;
  std::vector<int32_t> said;
  for (int64_t i = 0; i < count; ++i) {
    ends += ids[static_cast<size_t>(i)] == end ? 1 : 0;
    if (labels[static_cast<size_t>(i)] != -100) said.push_back(labels[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(ends, 2);  // the user's is text
  std::vector<int32_t> wanted = encode(model, "water");
  wanted.push_back(end);
  EXPECT_EQ(said, wanted);
  double loss = 0;
  EXPECT_EQ(rondo_train_tokens(model, ids.data(), labels.data(), 1, count, &loss), RONDO_OK) << rondo_last_error();
  // A prompt, by a template of the caller's.
  rondo_chat_options options{};
  options.size = sizeof options;
  options.chat_template = "{% if add_generation_prompt %}{{ messages[0].content }}{% endif %}";
  options.add_generation_prompt = 1;
  ASSERT_EQ(
      rondo_encode_chat(model, R"({"messages": [{"content": "water"}]})", &options, ids.data(), nullptr, 64, &count),
      RONDO_OK)
      << rondo_last_error();
  EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.begin() + count), encode(model, "water"));
  EXPECT_EQ(rondo_encode_chat(model, chat, &options, ids.data(), labels.data(), 64, &count), RONDO_BAD_ARGUMENT);
  EXPECT_EQ(rondo_encode_chat(model, "{", nullptr, ids.data(), nullptr, 64, &count), RONDO_BAD_ARGUMENT);
  EXPECT_EQ(rondo_encode_chat(model, nullptr, nullptr, ids.data(), nullptr, 64, &count), RONDO_BAD_ARGUMENT);
  rondo_model_destroy(model);
}

TEST(TextStream, HoldsBackWhatIsNotCertain) {
  // Token i is piece i; a lone byte of a character decodes to U+FFFD, as byte-level tokenizers do.
  const std::vector<std::string> pieces = {"a S", "T", "ART ", "STO", "x ", "\xE2", "\x82\xAC", " ST", "OP more"};
  const auto decode = [&](std::span<const int64_t> tokens) {
    std::string text;
    for (const int64_t token : tokens) text += pieces[static_cast<size_t>(token)];
    if (text.ends_with("\xE2")) text.replace(text.size() - 1, 1, "\xEF\xBF\xBD");
    return text;
  };
  std::vector<std::string> sent;
  optim::c_api::TextStream stream(decode, {"STOP"}, [&](const std::string& piece) {
    sent.push_back(piece);
    return true;
  });
  for (int64_t token = 0; token < 9; ++token) stream.add(token);
  EXPECT_EQ(sent, (std::vector<std::string>{"a ", "START ", "STOx ", "\xE2\x82\xAC", " "}));
}

}  // namespace
}  // namespace rondo
