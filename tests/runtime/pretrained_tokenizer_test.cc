// Tokenizers of published models, against what the reference recorded (tests/reference/record_tokenizers.py).
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::text {
namespace {

using Ids = std::vector<int32_t>;
using test::error_of;

const std::string& recorded_folder() {
  static const std::string folder = std::string(tests::kReferenceDir) + "/tokenizers/";
  return folder;
}
PreTrainedTokenizer recorded(const std::string& name) {
  return PreTrainedTokenizer::from_file(recorded_folder() + name + ".json");
}

// The lines of a recording, cut at tabs.
std::vector<std::vector<std::string>> calls_of(const std::string& name) {
  std::vector<std::vector<std::string>> out;
  const std::string text = read_bytes(recorded_folder() + name + ".txt");
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    auto& fields = out.emplace_back(1);
    for (size_t i = at; i < end; ++i)
      if (text[i] == '\t') fields.emplace_back();
      else fields.back() += text[i];
    at = end + 1;
  }
  return out;
}
Ids numbers(const std::string& field) {
  Ids out;
  for (const char* at = field.c_str(); *at != '\0';) {
    char* end = nullptr;
    out.push_back(static_cast<int32_t>(std::strtol(at, &end, 10)));
    at = *end == ' ' ? end + 1 : end;
  }
  return out;
}
std::string string_of(const std::string& field) {
  static const std::string path = "recording";
  return io::JsonReader(path, field).string();
}
Ids flat(const std::vector<Encoding::Offset>& offsets) {
  Ids out;
  for (const Encoding::Offset& offset : offsets) {
    out.push_back(offset.begin);
    out.push_back(offset.end);
  }
  return out;
}

class Recorded : public testing::TestWithParam<const char*> {};

TEST_P(Recorded, EqualsTheReference) {
  const PreTrainedTokenizer tokenizer = recorded(GetParam());
  const auto calls = calls_of(GetParam());
  ASSERT_GT(calls.size(), 300u);
  for (const auto& call : calls) {
    SCOPED_TRACE(call[1]);
    const std::string text = string_of(call[1]);
    if (call[0] == "one") {
      const Encoding encoding = tokenizer(text);
      EXPECT_EQ(encoding.ids, numbers(call[2]));
      EXPECT_EQ(tokenizer.encode(text), encoding.ids);
      EXPECT_EQ(flat(encoding.offsets), numbers(call[3]));
      EXPECT_EQ(encoding.word_ids, numbers(call[4]));
      EXPECT_EQ(tokenizer.decode(encoding.ids, {.skip_special_tokens = false}), string_of(call[5]));
    } else if (call[0] == "two") {
      const std::string pair = string_of(call[2]);
      const Encoding encoding = tokenizer(text, pair);
      EXPECT_EQ(encoding.ids, numbers(call[3]));
      EXPECT_EQ(flat(encoding.offsets), numbers(call[4]));
      EXPECT_EQ(encoding.type_ids, numbers(call[5]));
    } else {
      ASSERT_EQ(call[0], "raw");
      EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = false, .split_special_tokens = true}), numbers(call[2]));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, Recorded,
                         testing::Values("bert_cased", "bert_uncased", "gpt2", "llama2", "llama3", "metaspace", "qwen2",
                                         "roberta", "split", "suffix"),
                         [](const auto& info) { return std::string(info.param); });

TEST(PreTrainedTokenizer, OffsetsInBytes) {
  const PreTrainedTokenizer tokenizer = recorded("bert_uncased");
  const std::string text = "Zürich: \u4f60 caf\u00e9";
  const Encoding points = tokenizer(text), bytes = tokenizer(text, EncodeOptions{.offset_unit = OffsetUnit::kBytes});
  EXPECT_EQ(points.ids, bytes.ids);
  ASSERT_EQ(points.size(), bytes.size());
  EXPECT_EQ(points.offsets[points.size() - 2].end, 14);
  EXPECT_EQ(bytes.offsets[points.size() - 2].end, static_cast<int32_t>(text.size()));
}

TEST(PreTrainedTokenizer, Masks) {
  const PreTrainedTokenizer tokenizer = recorded("bert_uncased");
  const Encoding encoding = tokenizer("the word", "is", {.padding = {{.pad_to_multiple_of = 8}}});
  ASSERT_EQ(encoding.size() % 8, 0u);
  const size_t real = static_cast<size_t>(
      std::count(encoding.attention_mask.begin(), encoding.attention_mask.end(), 1));
  EXPECT_LT(real, encoding.size());
  EXPECT_EQ(encoding.special_tokens_mask.front(), 1);
  EXPECT_EQ(encoding.special_tokens_mask[1], 0);
  EXPECT_EQ(encoding.sequence_ids.front(), -1);
  EXPECT_EQ(encoding.sequence_ids[1], 0);
  EXPECT_EQ(encoding.sequence_ids[real - 2], 1);
  EXPECT_EQ(encoding.type_ids[real - 2], 1);
  EXPECT_EQ(encoding.ids.back(), 0);
  EXPECT_EQ(encoding.special_tokens_mask.back(), 1);
  EXPECT_EQ(encoding.word_ids.back(), -1);
}

TEST(PreTrainedTokenizer, Truncation) {
  const PreTrainedTokenizer tokenizer = recorded("bert_uncased");
  const std::string a = "a a a a a a", b = "b b b b";
  const auto ids = [&](const Truncation& truncation) { return tokenizer(a, b, {.truncation = truncation}).ids; };
  const int32_t cls = 2, sep = 3, x = tokenizer.token_to_id("a"), y = tokenizer.token_to_id("b");
  EXPECT_EQ(ids({.max_length = 9}), (Ids{cls, x, x, x, sep, y, y, y, sep}));
  EXPECT_EQ(ids({.max_length = 12}), (Ids{cls, x, x, x, x, x, sep, y, y, y, y, sep}));
  EXPECT_EQ(ids({.max_length = 10, .strategy = Truncation::kOnlyFirst}), (Ids{cls, x, x, x, sep, y, y, y, y, sep}));
  EXPECT_EQ(ids({.max_length = 11, .strategy = Truncation::kOnlySecond}), (Ids{cls, x, x, x, x, x, x, sep, y, y, sep}));
  EXPECT_EQ(ids({.max_length = 3}), (Ids{cls, sep, sep}));
  EXPECT_EQ(ids({.strategy = Truncation::kDoNotTruncate}).size(), 13u);
  EXPECT_THROW(ids({.max_length = 2}), Error);
  EXPECT_THROW(ids({.max_length = 6, .strategy = Truncation::kOnlySecond}), Error);
  EXPECT_THROW(tokenizer(a, {.truncation = {{.max_length = 4, .strategy = Truncation::kOnlySecond}}}), Error);
  const Encoding left = tokenizer("a b", {.truncation = {{.max_length = 3, .side = Side::kLeft}}});
  EXPECT_EQ(left.ids, (Ids{cls, y, sep}));
  EXPECT_EQ(left.offsets[1], (Encoding::Offset{2, 3}));
}

TEST(PreTrainedTokenizer, PaddingOnTheLeft) {
  const PreTrainedTokenizer tokenizer = recorded("gpt2");
  const std::string_view texts[] = {"the", "the of"};
  const EncodeOptions options{.padding = {{.side = Side::kLeft, .pad_id = 7, .pad_type_id = 3}}};
  const auto batch = tokenizer.encode_batch(texts, options);
  ASSERT_EQ(batch[0].size(), batch[1].size());
  EXPECT_EQ(batch[0].ids[0], 7);
  EXPECT_EQ(batch[0].type_ids[0], 3);
  EXPECT_EQ(batch[0].attention_mask.front(), 0);
  EXPECT_EQ(batch[0].attention_mask.back(), 1);
  const auto fixed = tokenizer.encode_batch(texts, {.padding = {{.strategy = Padding::kMaxLength, .max_length = 11}}});
  EXPECT_EQ(fixed[1].size(), 11u);
  EXPECT_TRUE(tokenizer.encode_batch(std::span<const std::string_view>{}).empty());
}

// Such lengths would take all memory, or overflow.
TEST(PreTrainedTokenizer, PaddingHasALimit) {
  const PreTrainedTokenizer tokenizer = recorded("gpt2");
  for (const int64_t length : {INT64_MAX, int64_t{1} << 40, int64_t{-1}}) {
    EXPECT_THROW(tokenizer("the", {.padding = {{.strategy = Padding::kMaxLength, .max_length = length}}}), Error);
    EXPECT_THROW(tokenizer("the", {.padding = {{.pad_to_multiple_of = length}}}), Error);
  }
}

TEST(PreTrainedTokenizer, MovedFromIsAnError) {
  PreTrainedTokenizer tokenizer = recorded("gpt2");
  const PreTrainedTokenizer taken = std::move(tokenizer);
  const std::vector<int32_t> ids = taken.encode("the");
  const std::string moved = "PreTrainedTokenizer: the tokenizer was moved to another object";
  EXPECT_EQ(error_of([&] { tokenizer.encode("the"); }), moved);
  EXPECT_EQ(error_of([&] { tokenizer("the"); }), moved);
  EXPECT_EQ(error_of([&] { tokenizer.decode(ids); }), moved);
  EXPECT_EQ(error_of([&] { tokenizer.vocab_size(); }), moved);
  EXPECT_EQ(error_of([&] { tokenizer.eos_token_id(); }), moved);
}

// The same encodings whatever the number of threads, and from several threads at once.
TEST(PreTrainedTokenizer, Threads) {
  const PreTrainedTokenizer tokenizer = recorded("llama3");
  std::vector<std::string> texts;
  for (const auto& call : calls_of("llama3"))
    if (call[0] == "one") texts.push_back(string_of(call[1]));
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  const int before = num_threads();
  std::vector<std::vector<Encoding>> results;
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    results.push_back(tokenizer.encode_batch(views));
  }
  set_num_threads(before);
  for (size_t i = 0; i < texts.size(); ++i)
    for (const auto& result : results) {
      EXPECT_EQ(result[i].ids, results[0][i].ids);
      EXPECT_EQ(result[i].offsets, results[0][i].offsets);
    }
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([&] {
      for (size_t i = 0; i < texts.size(); ++i) wrong += tokenizer.encode(texts[i]) != results[0][i].ids;
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(PreTrainedTokenizer, SpecialTokens) {
  const PreTrainedTokenizer tokenizer = recorded("gpt2");
  const int32_t end = tokenizer.token_to_id("<|endoftext|>");
  EXPECT_TRUE(tokenizer.is_special(end));
  EXPECT_FALSE(tokenizer.is_special(end + 1));
  EXPECT_EQ(tokenizer.encode("<|endoftext|>"), (Ids{end}));
  EXPECT_GT(tokenizer.encode("<|endoftext|>", {.split_special_tokens = true}).size(), 3u);
  EXPECT_EQ(tokenizer.decode(Ids{end}), "");
  EXPECT_EQ(tokenizer.decode(Ids{end}, {.skip_special_tokens = false}), "<|endoftext|>");
  EXPECT_EQ(tokenizer.id_to_token(end), "<|endoftext|>");
  EXPECT_EQ(tokenizer.token_to_id("no such token"), -1);
}

// Half a character: U+FFFD, or the bytes for one who joins pieces.
TEST(PreTrainedTokenizer, BrokenCharacters) {
  const PreTrainedTokenizer tokenizer = recorded("gpt2");
  Ids ids = tokenizer.encode("\U0001F9EA");
  ASSERT_GT(ids.size(), 1u);
  const Ids rest(ids.begin() + 1, ids.end());
  ids.resize(1);
  EXPECT_EQ(tokenizer.decode(ids), "\ufffd");
  const DecodeOptions keep{.replace_invalid = false};
  EXPECT_EQ(tokenizer.decode(ids, keep) + tokenizer.decode(rest, keep), "\U0001F9EA");
}

TEST(PreTrainedTokenizer, RefusesWhatItCannotDo) {
  const PreTrainedTokenizer tokenizer = recorded("gpt2");
  const auto message = [](auto call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(message([&] { tokenizer.encode("ab\xff"); }), "encode: the text is not valid UTF-8 at byte 2");
  EXPECT_EQ(message([&] { tokenizer.encode("a\xed\xa0\x80"); }), "encode: the text is not valid UTF-8 at byte 1");
  const int64_t n = tokenizer.vocab_size();
  // A model's vocabulary may be padded: its ids without a token are left out, as in the reference.
  const Ids words = tokenizer.encode("left out"), padding = {static_cast<int32_t>(n), INT32_MAX};
  Ids padded = {padding[0]};
  for (const int32_t id : words) padded.insert(padded.end(), {id, padding[1]});
  EXPECT_EQ(tokenizer.decode(padded), "left out");
  const std::vector<int64_t> wide = {int64_t{1} << 40, words[0], n};
  EXPECT_EQ(tokenizer.decode(wide), tokenizer.decode(Ids{words[0]}));
  EXPECT_EQ(message([&] { tokenizer.decode(Ids{-1}); }), "decode: ids are not negative, got -1");
  EXPECT_EQ(message([&] { tokenizer.decode(std::vector<int64_t>{-7}); }), "decode: ids are not negative, got -1");
  EXPECT_NE(message([&] { tokenizer.id_to_token(-5); }).find("names no token"), std::string::npos);
}

// ---- Files

constexpr char kTiny[] =
    R"({"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,)"
    R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})";

std::string changed(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TokenizerJson, Tiny) {
  const auto tokenizer = PreTrainedTokenizer::from_json(kTiny, "tiny.json");
  EXPECT_EQ(tokenizer.encode("abba"), (Ids{2, 1, 0}));
  EXPECT_EQ(tokenizer.decode(Ids{2, 1, 0}), "ab b a");
  EXPECT_EQ(tokenizer.vocab_size(), 3);
  EXPECT_EQ(tokenizer.encode(""), Ids{});
  // The reference drops what it does not know; here it is an error.
  EXPECT_THROW(tokenizer.encode("abc"), Error);
  // A member of another order and merges as pairs.
  const auto other = PreTrainedTokenizer::from_json(
      R"({"model":{"merges":[["a","b"]],"vocab":{"ab":9,"b":1,"a":0},"type":"BPE"}})" + std::string(50, ' '), "other");
  EXPECT_EQ(other.encode("abba"), (Ids{9, 1, 0}));
  EXPECT_EQ(other.vocab_size(), 10);
  EXPECT_EQ(other.decode(Ids{0, 5, 1}), other.decode(Ids{0, 1})) << "5 is a hole";
}

TEST(TokenizerJson, NamesWhatIsNotSupported) {
  const std::string path = "tokenizer.json";
  const auto refused = [&](std::string_view from, std::string_view to, std::string_view reason) {
    expect_file_error(path, reason, [&] { PreTrainedTokenizer::from_json(changed(kTiny, from, to), path); });
  };
  refused("\"version\":\"1.0\"", "\"version\":\"2.0\"", "version");
  refused("\"version\":\"1.0\"", "\"version\":\"1.0\",\"version\":\"1.0\"", "appears twice");
  refused("\"decoder\":null", "\"decoder\":null,\"extra\":1", "field \"extra\"");
  refused("\"decoder\":null", "\"decoder\":{\"type\":\"CTC\"}", "decoder \"CTC\" is not supported");
  refused("\"decoder\":null", "\"decoder\":{\"type\":\"Fuse\",\"how\":1}", "field \"how\"");
  refused("\"decoder\":null", "\"decoder\":7", "expected an object");
  refused("\"normalizer\":null", "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}",
          "\"Precompiled\"");
  refused("\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}", "\"UnicodeScripts\"");
  refused("\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a+?\"},\"behavior\":\"Isolated\",\"invert\":"
          "false}",
          "lazy quantifier");
  refused("\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a*\"},\"behavior\":\"Isolated\",\"invert\":"
          "false}",
          "can match nothing");
  refused("\"pre_tokenizer\":null",
          "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":"
          "\"Whitespace\"}]}",
          "after ByteLevel");
  refused("\"post_processor\":null",
          "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"b\",3],\"cls\":[\"a\",0]}",
          "token id 3 is not in the vocabulary");
  refused("\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model \"Unigram\" is not supported");
  refused("\"type\":\"BPE\"", "\"type\":\"BPE\",\"dropout\":0.1", "dropout");
  refused("\"type\":\"BPE\"", "\"type\":\"BPE\",\"new_thing\":true", "field \"new_thing\"");
}

TEST(TokenizerJson, RefusesBadVocabularies) {
  const std::string path = "tokenizer.json";
  const auto refused = [&](std::string_view from, std::string_view to, std::string_view reason) {
    expect_file_error(path, reason, [&] { PreTrainedTokenizer::from_json(changed(kTiny, from, to), path); });
  };
  refused("\"ab\":2", "\"ab\":1", "two tokens have the id 1");
  refused("\"ab\":2", "\"a\":2", "appears twice");
  refused("\"ab\":2", "\"ab\":4000000000", "larger than the vocabulary can be");
  refused("\"ab\":2", "\"ab\":99999999999999999999999", "above 2^64");
  refused("\"ab\":2", "\"ab\":-2", "non-negative");
  refused("\"ab\":2", "\"abc\":2", "merged token \"ab\" is not in the vocabulary");
  refused("\"a b\"", "\"a c\"", "\"c\" is not in the vocabulary");
  refused("\"a b\"", "\"ab\"", "not two tokens");
  refused("\"a b\"", "[\"a\",\"b\",\"c\"]", "not two tokens");
  const auto added = [](const char* token) { return "\"added_tokens\":[" + std::string(token) + "]"; };
  refused("\"added_tokens\":[]", added(R"({"id":5,"content":"x","special":true})"), "next free one");
  refused("\"added_tokens\":[]", added(R"({"id":1,"content":"a"})"), "next free one");
  refused("\"added_tokens\":[]", added(R"({"id":3,"content":""})"), "needs an id and its content");
  refused("\"added_tokens\":[]", added(R"({"id":3,"content":"x"},{"id":3,"content":"x"})"), "next free one");
}

TEST(TokenizerJson, EveryTruncationIsAnError) {
  const std::string text = read_bytes(recorded_folder() + "bert_cased.json");
  ASSERT_FALSE(text.empty());
  const std::string path = "cut.json";
  for (size_t n = 0; n + 2 < text.size(); n += 1 + text.size() / 400)
    EXPECT_THROW(PreTrainedTokenizer::from_json(std::string_view(text).substr(0, n), path), FileError) << n;
  // Deep nesting.
  std::string deep = R"({"decoder":)";
  for (int i = 0; i < 5000; ++i) deep += R"({"type":"Sequence","decoders":[)";
  EXPECT_THROW(PreTrainedTokenizer::from_json(deep, path), FileError);
}

// ---- Folders

std::string to_json(const std::vector<std::string>& tokens) {
  std::string out = "{";
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (id > 0) out += ',';
    io::append_json_string(out, tokens[id]);
    out += ":" + std::to_string(id);
  }
  return out + "}";
}

// vocab.json and merges.txt, taken out of a recorded tokenizer.json.
void split_files(const std::string& name, const std::string& vocab, const std::string& merges) {
  const PreTrainedTokenizer whole = recorded(name);
  std::vector<std::string> tokens;
  for (int32_t id = 0; id < whole.vocab_size(); ++id) tokens.push_back(whole.id_to_token(id));
  write_bytes(vocab, to_json(tokens));
  const std::string text = read_bytes(recorded_folder() + name + ".json");
  const std::string path = "recorded";
  std::string lines = "#version: 0.2\n";
  io::JsonReader json(path, text);
  json.object([&](std::string& key) {
    if (key != "model") return json.skip();
    json.object([&](std::string& field) {
      if (field != "merges") return json.skip();
      json.array([&] {
        std::string separator;
        json.array([&] {
          lines += separator + json.string();
          separator = " ";
        });
        lines += "\n";
      });
    });
  });
  write_bytes(merges, lines);
}

TEST(AutoTokenizer, Gpt2Files) {
  TempFolder folder;
  split_files("gpt2", folder / "vocab.json", folder / "merges.txt");
  write_bytes(folder / "tokenizer_config.json",
              R"({"tokenizer_class":"GPT2Tokenizer","model_max_length":1024,"bos_token":"<|endoftext|>",)"
              R"("eos_token":{"content":"<|endoftext|>","lstrip":false,"special":true},"unused":[1,{"x":null}]})");
  const PreTrainedTokenizer tokenizer = AutoTokenizer::from_pretrained(folder.path());
  EXPECT_EQ(tokenizer.eos_token_id(), 0);
  EXPECT_EQ(tokenizer.bos_token_id(), 0);
  EXPECT_EQ(tokenizer.pad_token_id(), -1);
  EXPECT_EQ(tokenizer.model_max_length(), 1024);
  for (const auto& call : calls_of("gpt2"))
    if (call[0] == "one") {
      EXPECT_EQ(tokenizer.encode(string_of(call[1])), numbers(call[2])) << call[1];
    }
  // The class has these tokens by itself.
  write_bytes(folder / "tokenizer_config.json", R"({"tokenizer_class":"GPT2TokenizerFast"})");
  const PreTrainedTokenizer usual = AutoTokenizer::from_pretrained(folder.path());
  EXPECT_EQ(usual.eos_token_id(), 0);
  EXPECT_EQ(usual.bos_token_id(), 0);
  EXPECT_EQ(usual.encode("<|endoftext|>"), std::vector<int32_t>{0});
  EXPECT_EQ(PreTrainedTokenizer::from_gpt2_files(folder / "vocab.json", folder / "merges.txt").eos_token_id(), 0);
  write_bytes(folder / "tokenizer_config.json", R"({"tokenizer_class":"CodeGenTokenizer"})");
  expect_file_error(folder / "tokenizer_config.json", "CodeGenTokenizer",
                    [&] { AutoTokenizer::from_pretrained(folder.path()); });
  write_bytes(folder / "tokenizer_config.json", R"({"eos_token":"</s>x"})");
  expect_file_error(folder / "vocab.json", "\"</s>x\" is not in the vocabulary",
                    [&] { AutoTokenizer::from_pretrained(folder.path()); });
}

// What transformers 5.23.0 gives in each of these cases: beside a tokenizer.json it drops both fields.
TEST(AutoTokenizer, WholeFileDecidesAboutBosAndEos) {
  const std::string whole = read_bytes(recorded_folder() + "llama3.json");
  const size_t begin = whole.find("\"post_processor\":") + 17, end = whole.find(",\"decoder\":");
  const std::string bare = whole.substr(0, begin) + "null" + whole.substr(end);
  for (const char* flags : {"", R"(,"add_bos_token":true)", R"(,"add_bos_token":false)", R"(,"add_eos_token":true)",
                            R"(,"add_bos_token":true,"add_eos_token":true)", R"(,"add_bos_token":null)"}) {
    TempFolder folder;
    write_bytes(folder / "tokenizer_config.json",
                std::string(R"({"tokenizer_class":"LlamaTokenizerFast","bos_token":"<s>","eos_token":"<|eot|>")") +
                    flags + "}");
    write_bytes(folder / "tokenizer.json", whole);
    const PreTrainedTokenizer tokenizer = AutoTokenizer::from_pretrained(folder.path());
    EXPECT_EQ(tokenizer.encode("the word"), (Ids{700, 307, 68, 526})) << flags;
    EXPECT_EQ(tokenizer("the", "word").ids, (Ids{700, 307, 68, 700, 86, 459})) << flags;
    EXPECT_EQ(tokenizer.opening_ids(), Ids{700});
    write_bytes(folder / "tokenizer.json", bare);
    const PreTrainedTokenizer without = AutoTokenizer::from_pretrained(folder.path());
    EXPECT_EQ(without.encode("the word"), (Ids{307, 68, 526})) << flags;
    EXPECT_EQ(without("the", "word").ids, (Ids{307, 68, 86, 459})) << flags;
    EXPECT_EQ(without.opening_ids(), Ids());
    EXPECT_EQ(without.eos_token_id(), 701);
  }
}

TEST(PreTrainedTokenizer, TokensThatAreText) {
  const PreTrainedTokenizer tokenizer = recorded("llama3");
  EXPECT_TRUE(tokenizer.is_added(702));
  EXPECT_FALSE(tokenizer.is_special(702));
  EXPECT_FALSE(tokenizer.is_added(5));
  const auto has = [&](const EncodeOptions& options, int32_t id) {
    const Ids ids = tokenizer.encode("a keepme <|eot|>", options);
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  EXPECT_TRUE(has({}, 702));
  EXPECT_FALSE(has({.split_tokens = {702}}, 702));
  EXPECT_TRUE(has({.split_tokens = {702}}, 701));
  EXPECT_FALSE(has({.split_special_tokens = true, .split_tokens = {702}}, 701));
  // The space that Metaspace puts before the first word only.
  const PreTrainedTokenizer metaspace = recorded("metaspace");
  const Encoding first = metaspace("the"), later = metaspace("the", {.at_start = false});
  EXPECT_NE(first.ids, later.ids);
  EXPECT_EQ(later.offsets.front().begin, 0);
  EXPECT_EQ(later.offsets.back().end, 3);
}

TEST(AutoTokenizer, RobertaFiles) {
  TempFolder folder;
  split_files("roberta", folder / "vocab.json", folder / "merges.txt");
  // <mask> is an added token of the recorded file, and <pad> and <unk> are not in it.
  write_bytes(
      folder / "tokenizer_config.json",
      R"({"tokenizer_class":"RobertaTokenizerFast","add_prefix_space":true,"unk_token":"</s>","pad_token":"</s>"})");
  const PreTrainedTokenizer tokenizer = AutoTokenizer::from_pretrained(folder.path());
  for (const auto& call : calls_of("roberta")) {
    if (call[0] != "one") continue;
    const Encoding encoding = tokenizer(string_of(call[1]));
    EXPECT_EQ(encoding.ids, numbers(call[2])) << call[1];
    EXPECT_EQ(flat(encoding.offsets), numbers(call[3])) << call[1];
  }
}

TEST(AutoTokenizer, BertVocabulary) {
  for (const bool lower : {true, false}) {
    const std::string name = lower ? "bert_uncased" : "bert_cased";
    TempFolder folder;
    const PreTrainedTokenizer whole = recorded(name);
    std::string lines;
    for (int32_t id = 0; id < whole.vocab_size(); ++id) lines += whole.id_to_token(id) + (lower ? "\n" : "\r\n");
    write_bytes(folder / "vocab.txt", lines);
    write_bytes(folder / "tokenizer_config.json",
                lower ? R"({"model_max_length":1000000000000000019884624838656})" : R"({"do_lower_case":false})");
    const PreTrainedTokenizer tokenizer = AutoTokenizer::from_pretrained(folder.path());
    EXPECT_FALSE(tokenizer.model_max_length().has_value());
    EXPECT_EQ(tokenizer.pad_token_id(), 0);
    for (const auto& call : calls_of(name)) {
      if (call[0] == "one") {
        EXPECT_EQ(tokenizer.encode(string_of(call[1])), numbers(call[2])) << call[1];
      }
      if (call[0] == "two") {
        EXPECT_EQ(tokenizer(string_of(call[1]), string_of(call[2])).type_ids, numbers(call[5])) << call[1];
      }
    }
  }
  TempFolder folder;
  write_bytes(folder / "vocab.txt", "a\nb\n");
  expect_file_error(folder / "vocab.txt", "unk_token", [&] { AutoTokenizer::from_pretrained(folder.path()); });
  TempFolder empty;
  expect_file_error(empty.path(), "no tokenizer.json", [&] { AutoTokenizer::from_pretrained(empty.path()); });
}

TEST(AutoTokenizer, WholeFileAndConfig) {
  TempFolder folder;
  std::filesystem::copy_file(recorded_folder() + "llama3.json", folder / "tokenizer.json");
  write_bytes(folder / "special_tokens_map.json", R"({"eos_token":"<|eot|>"})");
  write_bytes(folder / "tokenizer_config.json", R"({"bos_token":"<s>","tokenizer_class":"PreTrainedTokenizerFast"})");
  const PreTrainedTokenizer tokenizer = AutoTokenizer::from_pretrained(folder.path());
  EXPECT_EQ(tokenizer.bos_token_id(), tokenizer.token_to_id("<s>"));
  EXPECT_EQ(tokenizer.eos_token_id(), tokenizer.token_to_id("<|eot|>"));
  EXPECT_EQ(tokenizer.unk_token_id(), -1);
  // A copy of the tokenizer keeps the chat template.
  write_bytes(folder / "chat_template.jinja", "{{ messages }}");
  const TempFolder copy;
  AutoTokenizer::copy_files(folder.path(), copy.path());
  EXPECT_EQ(read_bytes(copy / "chat_template.jinja"), "{{ messages }}");
  EXPECT_EQ(AutoTokenizer::from_pretrained(copy.path()).bos_token_id(), tokenizer.bos_token_id());
  write_bytes(folder / "tokenizer_config.json", R"({"bos_token":)");
  EXPECT_THROW(AutoTokenizer::from_pretrained(folder.path()), FileError);
}

}  // namespace
}  // namespace rondo::text
