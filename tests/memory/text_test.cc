// Tokenizers, chat templates, images and files when memory runs short.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "rondo/runtime/chat/chat.h"
#include "rondo/runtime/checkpoint/checkpoint.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/data/chat_template.h"
#include "rondo/runtime/data/example_batches.h"
#include "rondo/runtime/data/read_examples.h"
#include "rondo/runtime/image/image.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/runtime/text/simple_tokenizer.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/memory/digest.h"
#include "rondo/tests/memory/failing_memory.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

using test::digest;
using test::expect_typed_errors;
using test::note;
using test::read_bytes;
using test::TempFolder;
using test::Work;
using test::write_bytes;
using text::PreTrainedTokenizer;

std::string recorded(const std::string& name) { return std::string(tests::kReferenceDir) + "/" + name; }

const std::string kText =
    "The people went into the water, and we looked about; it isn't 12,345.67 m\xC3\xA9tres -- caf\x65\xCC\x81 "
    "\xE4\xB8\x96\xE7\x95\x8C \xED\x95\x9C\xEA\xB5\xAD <|endoftext|>  \n\n  Antidisestablishmentarianism.";

std::string file_of(const std::string& tokenizer) { return recorded("tokenizers/" + tokenizer + ".json"); }

class MemoryOfTokenizers : public testing::TestWithParam<const char*> {};
TEST_P(MemoryOfTokenizers, RunsShortInAFile) {
  expect_typed_errors([]() -> Work {
    const std::string json = read_bytes(file_of(GetParam()));
    return [=] {
      const PreTrainedTokenizer tokenizer = PreTrainedTokenizer::from_json(json, "tokenizer.json");
      return digest(tokenizer.vocab_size(), tokenizer.id_to_token(7));
    };
  });
}
TEST_P(MemoryOfTokenizers, RunsShortInAText) {
  expect_typed_errors([]() -> Work {
    const auto tokenizer = std::make_shared<const PreTrainedTokenizer>(
        PreTrainedTokenizer::from_file(file_of(GetParam())));
    return [=] {
      const text::Encoding encoding = (*tokenizer)(kText, "and a second text");
      return digest(tokenizer->decode(tokenizer->encode(kText)), encoding.ids, encoding.word_ids);
    };
  });
}
INSTANTIATE_TEST_SUITE_P(All, MemoryOfTokenizers,
                         testing::Values("gpt2", "llama2", "llama3", "qwen2", "roberta", "metaspace", "split", "suffix",
                                         "bert_cased", "bert_uncased"),
                         [](const auto& tokenizer) { return std::string(tokenizer.param); });

// A folder with a tokenizer of gpt2's, a chat template and what tokenizer_config.json says.
std::shared_ptr<TempFolder> folder_with(const std::string& tokenizer, const std::string& config) {
  auto folder = std::make_shared<TempFolder>();
  std::filesystem::copy_file(file_of(tokenizer), *folder / "tokenizer.json");
  write_bytes(*folder / "tokenizer_config.json", config);
  return folder;
}

TEST(MemoryOfAutoTokenizer, RunsShortInAFolder) {
  expect_typed_errors([]() -> Work {
    const auto folder = folder_with("llama3", R"({"bos_token": "<|begin_of_text|>", "added_tokens_decoder": {},
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}", "model_max_length": 512})");
    return [=] {
      const PreTrainedTokenizer tokenizer = text::AutoTokenizer::from_pretrained(folder->path());
      return render_chat(tokenizer, R"([{"role": "user", "content": "Hello!"}])");
    };
  });
}

TEST(MemoryOfAutoTokenizer, RunsShortInAVocabularyOfLines) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    std::string lines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
    for (int i = 0; i < 200; ++i) lines += "word" + std::to_string(i) + "\n##part" + std::to_string(i) + "\n";
    write_bytes(*folder / "vocab.txt", lines);
    return [folder, path = *folder / "vocab.txt"] {
      const auto tokenizer = PreTrainedTokenizer::from_bert_vocabulary(path);
      return digest(tokenizer.encode("word7 word8part9 nothing"), tokenizer.id_to_token(9));
    };
  });
}

TEST(MemoryOfAutoTokenizer, RunsShortInVocabularyAndMerges) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    std::string vocabulary = "{", merges = "#version: 0.2\n";
    int id = 0;
    for (char c = 'a'; c <= 'z'; ++c) vocabulary += std::string("\"") + c + "\": " + std::to_string(id++) + ", ";
    for (char c = 'b'; c <= 'z'; ++c) {
      vocabulary += std::string("\"a") + c + "\": " + std::to_string(id++) + ", ";
      merges += std::string("a ") + c + "\n";
    }
    vocabulary += "\"<|endoftext|>\": " + std::to_string(id) + "}";
    write_bytes(*folder / "vocab.json", vocabulary);
    write_bytes(*folder / "merges.txt", merges);
    return [folder, vocab = *folder / "vocab.json", merge_list = *folder / "merges.txt"] {
      const auto tokenizer = PreTrainedTokenizer::from_gpt2_files(vocab, merge_list);
      return tokenizer.decode(tokenizer.encode("abacadazzz"));
    };
  });
}

TEST(MemoryOfBatches, RunsShortInAnEncodingOfMany) {
  expect_typed_errors([]() -> Work {
    const auto tokenizer = std::make_shared<const PreTrainedTokenizer>(PreTrainedTokenizer::from_file(file_of("gpt2")));
    std::vector<std::string_view> texts(12, kText);
    texts[3] = "short";
    return [=] {
      std::string out;
      for (const text::Encoding& one :
           tokenizer->encode_batch(texts, {.padding = text::Padding{.strategy = text::Padding::kLongest}}))
        note(out, one.ids);
      return out;
    };
  });
}

TEST(MemoryOfCharTokenizer, RunsShort) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    return [folder, path = *folder / "characters.json"] {
      io::CharTokenizer::from_text(kText).save(path);
      const auto tokenizer = io::CharTokenizer::load(path);
      return digest(tokenizer.decode(tokenizer.encode(kText)), tokenizer.to_json());
    };
  });
}

TEST(MemoryOfByteTokenizer, RunsShort) {
  expect_typed_errors(
      []() -> Work { return [] { return io::ByteTokenizer().decode(io::ByteTokenizer().encode(kText)); }; });
}

// ---- Chats

constexpr char kChat[] = R"({"messages": [{"role": "system", "content": "You are short."},
    {"role": "user", "content": "What is 6 * 7?  "}, {"role": "assistant", "content": "42, of course, and no other."},
    {"role": "user", "content": "Why <|im_end|>?"}, {"role": "assistant", "content": "It is."}]})";
constexpr char kTools[] = R"({"messages": [{"role": "user", "content": "Weather in Paris, please"}],
    "tools": [{"type": "function", "function": {"name": "weather", "description": "tells the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "day": {"type": "integer"}},
        "required": ["city"]}}}], "chat_template_kwargs": {"enable_thinking": false}})";

class MemoryOfChats : public testing::TestWithParam<const char*> {};
TEST_P(MemoryOfChats, RunsShortInATemplate) {
  expect_typed_errors([]() -> Work {
    const auto tokenizer = std::make_shared<const PreTrainedTokenizer>(
        PreTrainedTokenizer::from_file(file_of("qwen2")));
    const std::string source = read_bytes(recorded("chat_templates/") + GetParam() + ".jinja");
    const bool tools = std::string(GetParam()).find("qwen") != std::string::npos;
    const text::ChatOptions options{.split_special_tokens = true, .chat_template = source};
    return [=] {
      const text::EncodedChat chat = apply_chat_template(*tokenizer, tools ? kTools : kChat, options);
      return digest(chat.text, tokenizer->decode(chat.ids));
    };
  });
}
INSTANTIATE_TEST_SUITE_P(All, MemoryOfChats,
                         testing::Values("chatml", "chatml_generation", "qwen25_tools", "qwen3_thinking"),
                         [](const auto& name) { return std::string(name.param); });

TEST(MemoryOfTemplates, RunsShortInFiltersAndScopes) {
  expect_typed_errors([]() -> Work {
    const auto tokenizer = std::make_shared<const PreTrainedTokenizer>(PreTrainedTokenizer::from_file(file_of("gpt2")));
    std::string source =
        "{% set ns = namespace(n=0, text='') %}{% macro twice(x, sep=', ') %}{{ x ~ sep ~ x }}"
        "{% endmacro %}{% set d = {";
    for (int i = 0; i < 40; ++i) source += "'name " + std::to_string(i) + " that is long': " + std::to_string(i) + ", ";
    source +=
        "} %}{% for k, v in d | dictsort %}{% set ns.n = ns.n + v %}{{ twice(k | upper) | replace('N', 'm') }}"
        "{% endfor %}{{ d | tojson }}{{ ns.n }}{{ (d.keys() | list + ['a', 'b', 'a']) | unique | join('-') }}"
        "{% for m in messages if m.role != 'system' %}{{ loop.index ~ m.content | trim | title }}{% endfor %}";
    const text::ChatOptions options{.chat_template = source};
    return [=] { return render_chat(*tokenizer, kChat, options); };
  });
}

TEST(MemoryOfChatEncoders, RunsShortInAnExample) {
  expect_typed_errors([]() -> Work {
    const auto tokenizer = std::make_shared<const PreTrainedTokenizer>(
        PreTrainedTokenizer::from_file(file_of("qwen2")));
    const std::string source = read_bytes(recorded("chat_templates/chatml_generation.jinja"));
    const std::vector<data::Message> messages = {{"user", "Hello, you there"}, {"assistant", "Hello to you, too!"}};
    return [=] {
      const auto plain = data::ChatEncoder(data::ChatTemplate::named("chatml"), *tokenizer);
      const auto jinja = data::ChatEncoder::of_jinja(*tokenizer, source);
      return digest(plain.example(messages).ids, jinja.example_of_json(kChat).ids, plain.prompt({messages.data(), 1}));
    };
  });
}

// ---- Examples

TEST(MemoryOfExamples, RunsShortInFilesOfExamples) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    std::string prompts, labels, chats;
    for (int i = 0; i < 12; ++i) {
      const std::string n = std::to_string(i);
      prompts += R"({"prompt": "number )" + n + R"( of many", "completion": " is here"})" + "\n";
      labels += R"({"text": "a text, number )" + n + R"(", "label": "class)" + std::to_string(i % 3) + "\"}\n";
      chats += R"({"messages": [{"role": "user", "content": "say )" + n + R"("}, {"role": "assistant", "content": ")" +
               n + "\"}]}\n";
    }
    write_bytes(*folder / "prompts.jsonl", prompts);
    write_bytes(*folder / "labels.jsonl", labels);
    write_bytes(*folder / "chats.jsonl", chats);
    write_bytes(*folder / "text.txt", kText + "\n" + kText);
    const auto tokenizer = std::make_shared<const PreTrainedTokenizer>(PreTrainedTokenizer::from_file(file_of("gpt2")));
    const std::vector<std::string> files = {*folder / "prompts.jsonl", *folder / "labels.jsonl",
                                            *folder / "chats.jsonl", *folder / "text.txt"};
    const data::ReadOptions lines{.max_length = 16, .separator = "\n"};
    const auto set = std::make_shared<const data::ExampleSet>(data::read_text(files[3], *tokenizer, lines));
    return [=, keep = folder] {
      std::string out;
      const auto add = [&](const data::ExampleSet& read) { note(out, read.size(), read.fingerprint()); };
      add(data::read_prompts(files[0], *tokenizer));
      add(data::read_labelled(files[1], *tokenizer));
      add(data::read_chats(files[2], *tokenizer, data::ChatTemplate::named("chatml")));
      add(data::read_text(files[3], *tokenizer, lines));
      data::ExampleBatches batches(set, {.batch_size = 2, .max_length = 16});
      while (const auto batch = batches.next()) note(out, *batch);
      return out;
    };
  });
}

// ---- Images

class MemoryOfImages : public testing::TestWithParam<const char*> {};
TEST_P(MemoryOfImages, RunsShortInAFile) {
  expect_typed_errors([]() -> Work {
    const std::string path = recorded("images/") + GetParam();
    return [=] {
      const io::ImageInfo info = io::image_info(path);
      return digest(io::read_image(path, {.mode = io::ImageMode::kRgb, .round_16_bits = true}), info.width);
    };
  });
}
INSTANTIATE_TEST_SUITE_P(All, MemoryOfImages,
                         testing::Values("rgb_interlaced.png", "palette_transparent.png", "gray16.png", "cmyk.jpg",
                                         "rgb444_progressive.jpg"),
                         [](const auto& file) {
                           std::string name = file.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(MemoryOfMasks, RunsShort) {
  expect_typed_errors(
      []() -> Work { return [path = recorded("images/palette4.png")] { return digest(io::read_mask(path)); }; });
}

TEST(MemoryOfWrittenImages, RunsShort) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    manual_seed(1);
    const Tensor image = (Tensor::rand({3, 20, 30}) * 255).to(kU8);
    return [folder, image, path = *folder / "image.png"] {
      io::write_image(path, image);
      return digest(io::read_image(path), io::encode_image(image, io::ImageFormat::kJpeg),
                    io::encode_image(image, io::ImageFormat::kPng));
    };
  });
}

// ---- Tensors in files

io::TensorMap some_tensors() {
  manual_seed(2);
  io::TensorMap tensors;
  for (int i = 0; i < 10; ++i)
    tensors["layer." + std::to_string(i) + ".with.a.long.name.weight"] = Tensor::randn({3, i + 1});
  return tensors;
}

TEST(MemoryOfSafetensors, RunsShort) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    const io::TensorMap tensors = some_tensors();
    const io::Metadata metadata = {{"format", "pt"}, {"a name that is long", "a value that is long"}};
    return [=, keep = folder, path = *folder / "model.safetensors"] {
      io::save_safetensors(path, tensors, metadata);
      return digest(io::load_safetensors(path).tensors,
                    io::SafetensorsFile(path, io::Reading::kCopy).load_all().tensors);
    };
  });
}

TEST(MemoryOfCheckpoints, RunsShort) {
  expect_typed_errors([]() -> Work {
    auto folder = std::make_shared<TempFolder>();
    const io::TensorMap tensors = some_tensors();
    auto checkpoint = std::make_shared<io::Checkpoint>();
    checkpoint->model = checkpoint->optimizer = tensors;
    checkpoint->state = {{"a state with a long name", true}, {"another one", 0.5}};
    return [=] {
      for (checkpoint->step = 1; checkpoint->step < 4; ++checkpoint->step)
        io::save_checkpoint(folder->path(), *checkpoint);
      const io::LatestCheckpoint latest = io::load_latest_checkpoint(folder->path());
      return digest(latest.skipped.size(), io::list_checkpoints(folder->path()).size(), latest.checkpoint->step,
                    latest.checkpoint->model);
    };
  });
}

}  // namespace
}  // namespace rondo
