// GPT-2's two files, as published. Expected ids come from an independent implementation of the published encoder.
#include <chrono>
#include <memory>

#include "rondo/runtime/io/checksum.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::text {
namespace {

using Ids = std::vector<int32_t>;

// "<|endoftext|>" is ordinary text.
Ids ordinary(const PreTrainedTokenizer& bpe, std::string_view text) {
  return bpe.encode(text, {.split_special_tokens = true});
}

// Small enough to check by hand: all bytes, then three merges.
struct TinyVocabulary {
  TempFolder folder;
  std::string encoder = folder / "encoder.json", merges = folder / "vocab.bpe";
  TinyVocabulary() {
    write(R"(,"ab":256,"abc":257,"\u0120a":258,"<|endoftext|>":259)");
    write_bytes(merges, "#version: 0.2\na b\nab c\n\u0120 a\n");
  }
  void write(const std::string& more, int bytes = 256) const {
    std::string json = "{";
    int next = 0x100;
    for (int b = 0; b < bytes; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      char escape[16];
      snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(printable ? b : next));
      next += !printable;
      json += (b ? ",\"" : "\"") + std::string(escape) + "\":" + std::to_string(b);
    }
    write_bytes(encoder, json + more + "}");
  }
};

TEST(Gpt2Files, TinyVocabulary) {
  const TinyVocabulary files;
  const PreTrainedTokenizer bpe = PreTrainedTokenizer::from_gpt2_files(files.encoder, files.merges);
  EXPECT_EQ(bpe.vocab_size(), 260);
  EXPECT_EQ(bpe.eos_token_id(), 259);
  EXPECT_EQ(bpe.encode("abcab"), (Ids{257, 256}));
  EXPECT_EQ(bpe.encode(" ab"), (Ids{' ', 256})) << "the lower rank goes first";
  EXPECT_EQ(bpe.encode(" aa"), (Ids{258, 'a'}));
  EXPECT_EQ(ordinary(bpe, "<|endoftext|>").size(), 13u);
  EXPECT_EQ(bpe.encode("ab<|endoftext|><|endoftext|>b"), (Ids{256, 259, 259, 'b'}));
  EXPECT_EQ(bpe.decode(Ids{257, 259, 258}, {.skip_special_tokens = false}), "abc<|endoftext|> a");
  EXPECT_THROW(bpe.encode("\xff"), Error);
  EXPECT_EQ(bpe.decode(Ids{256, 260, 'b'}), "abb");  // a model's vocabulary may be padded beyond the tokenizer's
  EXPECT_THROW(bpe.decode(Ids{-1}), Error);
}

TEST(Gpt2Files, RefusesBadFiles) {
  const TinyVocabulary files;
  const auto refused = [&](const std::string& path, std::string_view reason) {
    expect_file_error(path, reason, [&] { PreTrainedTokenizer::from_gpt2_files(files.encoder, files.merges); });
  };
  const auto bad_merges = [&](std::string_view text, std::string_view reason) {
    write_bytes(files.merges, text);
    refused(files.merges, reason);
  };
  bad_merges("a\n", "line 1: expected two tokens");
  bad_merges("a b\na b c\n", "line 2: expected two tokens");
  bad_merges("a c\n", "merged token \"ac\" is not in the vocabulary");
  bad_merges("a \u4f60\n", "\"\u4f60\" is not in the vocabulary");
  bad_merges("a \xff\n", "line 1");
  write_bytes(files.merges, "a b\r\n\r\n");
  EXPECT_EQ(PreTrainedTokenizer::from_gpt2_files(files.encoder, files.merges).encode("ab"), (Ids{256}));

  const auto bad_encoder = [&](const std::string& more, std::string_view reason) {
    files.write(more);
    refused(files.encoder, reason);
  };
  bad_encoder(R"(,"ab":255)", "two tokens have the id 255");
  bad_encoder(R"(,"ab":-1)", "non-negative");
  bad_encoder(R"(,"ab":256.5)", "non-negative");
  bad_encoder(R"(,"ab":4000000000)", "larger than the vocabulary can be");
  bad_encoder(R"(,"ab":[256])", "non-negative");
}

class Gpt2Vocabulary : public testing::Test {
 protected:
  void SetUp() override {
    const std::string encoder = shared_data("gpt2-encoder.json"), merges = shared_data("gpt2-vocab.bpe");
    if (encoder.empty() || merges.empty()) GTEST_SKIP() << "../shared/data has no GPT-2 vocabulary";
    bpe = std::make_unique<PreTrainedTokenizer>(PreTrainedTokenizer::from_gpt2_files(encoder, merges));
  }
  std::unique_ptr<PreTrainedTokenizer> bpe;
};

TEST_F(Gpt2Vocabulary, KnownIds) {
  EXPECT_EQ(bpe->vocab_size(), 50257);
  EXPECT_EQ(bpe->eos_token_id(), 50256);
  const std::pair<std::string, Ids> known[] = {
      {"Hello world", {15496, 995}},
      {" the", {262}},
      {"", {}},
      {"'tis I'll we're  two   spaces \n\n tabs\t\tend ",
       {470, 271, 314, 1183, 356, 821, 220, 734, 220, 220, 9029, 220, 628, 22524, 197, 197, 437, 220}},
      {"na\u00efve caf\u00e9 \u2014 \u201cquotes\u201d \u4f60\u597d\u4e16\u754c \U0001f600\U0001f44d\U0001f3fd "
       "\u0928\u092e\u0938\u094d\u0924\u0947",
       {2616,  38776, 40304, 851, 564,   250, 421,   6421, 447,   251, 220,   19526, 254,
        25001, 121,   10310, 244, 45911, 234, 30325, 222,  41840, 235, 8582,  237,   121,
        28225, 101,   11976, 106, 11976, 116, 24231, 235,  11976, 97,  24231, 229}},
      {"3.14159 1234567890 x\u00b2\u00bd", {18, 13, 1415, 19707, 17031, 2231, 30924, 3829, 2124, 31185, 23141}},
      {"a\u00a0b\u2003c\u180ed\034e\u200bf\u3000g",
       {64, 1849, 65, 447, 225, 66, 157, 254, 236, 67, 216, 68, 9525, 69, 5099, 222, 70}},
      {"supercalifragilisticexpialidocious antidisestablishmentarianism",
       {16668, 9948, 361, 22562, 346, 396, 501, 42372, 498, 312, 32346, 1885, 29207, 44390, 3699, 1042}},
      {"<|endoftext|>", {27, 91, 437, 1659, 5239, 91, 29}},
      {"\r\n \177   ", {201, 198, 220, 221, 220, 220, 220}},
      {"                    x\n\n\n\n\n\n\n", {220, 220, 220, 220, 220, 220, 220, 220,  220, 220, 220, 220,
                                               220, 220, 220, 220, 220, 220, 220, 2124, 628, 628, 628, 198}},
  };
  for (const auto& [text, ids] : known) {
    EXPECT_EQ(ordinary(*bpe, text), ids) << text;
    EXPECT_EQ(bpe->decode(ids), text);
  }
  EXPECT_EQ(bpe->encode("a<|endoftext|> the"), (Ids{64, 50256, 262}));
}

// One long word must not cost quadratic time.
TEST_F(Gpt2Vocabulary, LongWords) {
  for (const char* unit : {"a", "ab", "\n", " ", "0", "!?"}) {
    std::string text;
    while (text.size() < 500'000) text += unit;
    EXPECT_EQ(bpe->decode(bpe->encode(text)), text);
  }
}

TEST_F(Gpt2Vocabulary, TinyShakespeare) {
  const std::string path = shared_data("tinyshakespeare.txt");
  if (path.empty()) GTEST_SKIP() << "../shared/data/tinyshakespeare.txt is not there";
  const std::string text = read_bytes(path);
  const auto start = std::chrono::steady_clock::now();
  const Ids ids = bpe->encode(text);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  RecordProperty("megabytes_per_second", std::to_string(static_cast<double>(text.size()) / 1e6 / seconds.count()));
  EXPECT_EQ(ids.size(), 338'025u);  // also nanoGPT's count for the whole text: 301,966 + 36,059
  io::Checksum sum;
  sum.update(ids.data(), ids.size() * sizeof ids[0]);
  EXPECT_EQ(sum.digest(), 0x77E4EE5A75962217u);
  EXPECT_EQ(bpe->decode(ids), text);
}

}  // namespace
}  // namespace rondo::text
