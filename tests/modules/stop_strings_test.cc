// Stop strings found token by token: the answers of decoding everything each time, for less work.
#include "rondo/modules/generation/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "rondo/modules/generation/generation.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/runtime/random/random.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/tests/paths.h"

namespace rondo::nn {
namespace {

using Ids = std::vector<int64_t>;
using Decode = StopStrings::Decode;

text::PreTrainedTokenizer recorded(const std::string& name) {
  return text::PreTrainedTokenizer::from_file(std::string(tests::kReferenceDir) + "/tokenizers/" + name + ".json");
}

// Where a row ends, and with which text. No stop: all tokens.
struct End {
  size_t tokens = 0;
  std::string text = {};
  bool stopped = false;
  bool operator==(const End&) const = default;
};
std::ostream& operator<<(std::ostream& out, const End& end) {
  return out << end.tokens << " tokens, " << (end.stopped ? "stopped: " : "not stopped: ") << end.text;
}

// The definition: all tokens are decoded each time.
End plain(const Decode& decode, const std::vector<std::string>& stops, const Ids& tokens) {
  for (size_t n = 1; n <= tokens.size(); ++n) {
    std::string text = decode(std::span(tokens).first(n));
    size_t cut = text.npos;
    for (const std::string& stop : stops) cut = std::min(cut, text.find(stop));
    if (cut != text.npos) return {n, text.substr(0, cut), true};
  }
  return {.tokens = tokens.size()};
}
End found(const Decode& decode, const std::vector<std::string>& stops, const Ids& tokens) {
  StopStrings search(decode, stops);
  for (size_t n = 1; n <= tokens.size(); ++n)
    if (std::optional<std::string> text = search.text_before_stop(std::span(tokens).first(n))) return {n, *text, true};
  return {.tokens = tokens.size()};
}

struct Work {
  size_t most = 0, all = 0;  // tokens given to `decode`: in one step, in all steps
};
// Of tokens [from, to).
Work work_of(const Decode& decode, const std::vector<std::string>& stops, const Ids& tokens, size_t from, size_t to) {
  size_t decoded = 0;
  const Decode counting = [&](std::span<const int64_t> ids) {
    decoded += ids.size();
    return decode(ids);
  };
  StopStrings search(counting, stops);
  Work work;
  for (size_t n = 1; n <= to; ++n) {
    decoded = 0;
    EXPECT_EQ(search.text_before_stop(std::span(tokens).first(n)), std::nullopt);
    if (n <= from) continue;
    work.most = std::max(work.most, decoded);
    work.all += decoded;
  }
  return work;
}

// Tokens as models make them: words of a text, and pieces of characters. In a third of the rows, pieces are many.
Ids random_tokens(const text::PreTrainedTokenizer& tokenizer, std::mt19937& rng, size_t count) {
  static const char* const kTexts[] = {
      "Hello world", " the water", "\n",    "\u4f60\u597d", "\U0001F600",         " \u00e9t\u00e9",
      "User:",       " ' ",        "don't", "  ",           "\u0411\u0435\u0441", "12345",
      "\u2581_ab",   "x",          "."};
  const size_t pieces = std::array{0, 3, 30}[rng() % 3];
  Ids tokens;
  while (tokens.size() < count) {
    if (rng() % 100 < pieces) {
      tokens.push_back(static_cast<int64_t>(rng() % static_cast<uint64_t>(tokenizer.vocab_size())));
      continue;
    }
    const std::vector<int32_t> ids = tokenizer.encode(kTexts[rng() % std::size(kTexts)],
                                                      text::EncodeOptions{.add_special_tokens = false});
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    if (rng() % 4 == 0 && !tokens.empty()) tokens.pop_back();  // a character is left incomplete
  }
  tokens.resize(count);
  return tokens;
}

TEST(StopStrings, AreThoseOfTheWholeText) {
  std::mt19937 rng(1);
  size_t stopped = 0, late = 0, compared = 0;
  for (const char* name : {"gpt2", "llama2", "llama3", "bert_uncased", "metaspace", "suffix", "split"}) {
    SCOPED_TRACE(name);
    const text::PreTrainedTokenizer tokenizer = recorded(name);
    const Decode decode = [&](std::span<const int64_t> ids) { return tokenizer.decode(ids); };
    for (int round = 0; round < 60; ++round) {
      const Ids tokens = random_tokens(tokenizer, rng, 400);
      // A stop string out of the text of some tokens in the middle, from any byte to any byte.
      const size_t at = rng() % 380;
      std::string stop = decode(std::span(tokens).subspan(at, 1 + rng() % 8));
      if (rng() % 2 == 0) stop = stop.substr(std::min<size_t>(rng() % 4, stop.size()));
      if (rng() % 2 == 0) stop.resize(stop.size() - std::min<size_t>(rng() % 4, stop.size()));
      if (stop.empty()) continue;
      const std::vector<std::string> stops = {"no such text", stop};
      const End expected = plain(decode, stops, tokens);
      ASSERT_EQ(found(decode, stops, tokens), expected) << "round " << round << ", stop '" << stop << "'";
      ++compared;
      stopped += expected.stopped;
      late += expected.stopped && expected.tokens > 150;
    }
  }
  EXPECT_GT(compared, 350u);
  EXPECT_GT(stopped, 200u);
  EXPECT_GT(late, 40u);  // where the stretch is no longer the whole
}

// The cases that a stretch could get wrong, each behind other text, so that not all is decoded.
TEST(StopStrings, HardCases) {
  const text::PreTrainedTokenizer llama = recorded("llama2"), gpt2 = recorded("gpt2"), bert = recorded("bert_uncased");
  const auto check = [](const text::PreTrainedTokenizer& tokenizer, const std::string& pieces, const std::string& stop,
                        bool expected) {
    const Decode decode = [&](std::span<const int64_t> ids) { return tokenizer.decode(ids); };
    const text::EncodeOptions plain_text = {.add_special_tokens = false};
    std::string text;
    for (int i = 0; i < 100; ++i) text += "so it is ";
    Ids tokens;
    for (const int32_t id : tokenizer.encode(text + pieces, plain_text)) tokens.push_back(id);
    ASSERT_GT(tokens.size(), 300u);
    for (size_t drop = 0; drop < 50; drop += 7) {  // other borders of the stretch
      const Ids row(tokens.begin() + static_cast<std::ptrdiff_t>(drop), tokens.end());
      const End end = found(decode, {stop}, row);
      EXPECT_EQ(end.stopped, expected) << pieces << " " << stop;
      EXPECT_EQ(end, plain(decode, {stop}, row)) << pieces << " " << stop;
    }
  };
  for (const auto* tokenizer : {&llama, &gpt2}) {
    check(*tokenizer, "\U0001F600\u4f60\u597d!", "\u4f60", true);            // a character of three tokens
    check(*tokenizer, "\U0001F600\u4f60\u597d!", "\U0001F600\u4f60", true);  // two characters of seven
    check(*tokenizer, "\U0001F600", "\uFFFD", true);                         // what an incomplete character looks like
    check(*tokenizer, "\U0001F600", " \uFFFD\uFFFD\uFFFD!", false);
    check(*tokenizer, "xyzzy plugh\n\nUser: hi", "\n\nUser:", true);  // across several tokens
    check(*tokenizer, "and so on", "is and", true);                   // begins in the filler
    check(*tokenizer, "q", std::string(70, 'q'), false);
  }
  check(bert, "unaffable words .", "words.", true);  // the decoder takes the space away
  check(bert, "unaffable words .", "words .", false);
  // Longer than the stretch would be without it.
  std::string words;
  for (int i = 0; i < 60; ++i) words += "word" + std::to_string(i) + " ";
  check(gpt2, words, words.substr(0, 300), true);
}

// Llama's tokens of single bytes: a run of them is text only as a whole, and one bad byte makes all of it U+FFFD.
TEST(StopStrings, RunsOfBytes) {
  const text::PreTrainedTokenizer llama = recorded("llama2");
  const Decode decode = [&](std::span<const int64_t> ids) { return llama.decode(ids); };
  const auto add_bytes = [&](Ids& tokens, const std::string& bytes) {
    for (const char c : bytes) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", static_cast<uint8_t>(c));
      ASSERT_GE(llama.token_to_id(name), 0);
      tokens.push_back(llama.token_to_id(name));
    }
  };
  for (size_t shift = 0; shift < 3; ++shift) {
    Ids tokens = {llama.token_to_id("x")};
    add_bytes(tokens, std::string(shift, '!'));
    for (int i = 0; i < 100; ++i) add_bytes(tokens, "\u4f60");
    add_bytes(tokens, "\u597d");
    const End end = found(decode, {"\u597d"}, tokens);
    EXPECT_EQ(end, plain(decode, {"\u597d"}, tokens));
    EXPECT_EQ(end.tokens, tokens.size());
  }
  // Appears at the run's start when its last byte comes.
  Ids tokens = {llama.token_to_id("x")};
  add_bytes(tokens, std::string(400, '!') + "\xFF");
  EXPECT_EQ(found(decode, {"x\uFFFD"}, tokens), (End{tokens.size(), "", true}));
}

TEST(StopStrings, TheWorkDoesNotGrowWithTheText) {
  std::mt19937 rng(2);
  for (const char* name : {"gpt2", "llama2", "llama3", "bert_uncased", "metaspace"}) {
    SCOPED_TRACE(name);
    const text::PreTrainedTokenizer tokenizer = recorded(name);
    const Decode decode = [&](std::span<const int64_t> ids) { return tokenizer.decode(ids); };
    const text::EncodeOptions plain_text = {.add_special_tokens = false};
    static const char* const kTexts[] = {" the water", " and then", "\u4f60\u597d", " \U0001F600", "\n",
                                         " caf\u00e9", "."};
    Ids tokens;
    while (tokens.size() < 4000)
      for (const int32_t id : tokenizer.encode(kTexts[rng() % std::size(kTexts)], plain_text)) tokens.push_back(id);
    const std::string stop = "no such text";
    const Work early = work_of(decode, {stop}, tokens, 500, 1000);
    const Work late = work_of(decode, {stop}, tokens, 3500, 4000);
    EXPECT_LT(late.all, early.all * 3 / 2);
    // Every byte a token, the stretch is at most three times what is kept; the step that shortens it decodes up to
    // eight candidates more.
    EXPECT_LT(late.all / 500, 2 * 3 * (stop.size() + StopStrings::kMayChange));
    EXPECT_LT(late.most, 5 * 3 * (stop.size() + StopStrings::kMayChange));
  }
}

// Nothing is assumed of `decode`: where a part's text is no end of the whole's, all is decoded as before.
TEST(StopStrings, AnyDecoder) {
  const Decode backwards = [](std::span<const int64_t> ids) {
    std::string text;
    for (const int64_t id : ids) text.insert(0, std::to_string(id) + " ");
    return text;
  };
  const Decode counts = [](std::span<const int64_t> ids) { return std::to_string(ids.size()) + " tokens"; };
  const Decode numbered = [](std::span<const int64_t> ids) {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i) text += std::to_string(i) + " ";
    return text;
  };
  Ids tokens(500);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i);
  for (const std::string stop : {"450 449", "499 ", "77", "460 tokens", " 450 "})
    for (const Decode& decode : {backwards, counts, numbered})
      EXPECT_EQ(found(decode, {stop}, tokens), plain(decode, {stop}, tokens)) << stop;
}

// As generate() uses it: long rows, of different lengths.
TEST(StopStrings, OfLongRowsInGenerate) {
  GPT2 model({.vocab_size = 29, .block_size = 16, .n_layer = 1, .n_head = 2, .n_embd = 16}, 5);
  size_t decoded = 0;
  const Decode letters = [&](std::span<const int64_t> ids) {
    decoded += ids.size();
    std::string text;
    for (const int64_t id : ids) text += static_cast<char>('A' + id);
    return text;
  };
  const std::vector<Ids> prompts = {{1, 2, 3}, {4}};
  Generator generator(3);
  GenerationOptions options = {.max_new_tokens = 600, .generator = &generator, .slide = true};
  const std::vector<Generation> whole = generate(model, prompts, options);
  const std::string stop = letters(std::span(whole[0].tokens).subspan(500, 6));
  options.stop_strings = {stop};
  options.decode = letters;
  decoded = 0;
  Generator same(3);
  options.generator = &same;
  const std::vector<Generation> cut = generate(model, prompts, options);
  for (size_t row = 0; row < 2; ++row) {
    const End end = plain(letters, {stop}, whole[row].tokens);
    EXPECT_EQ(cut[row].reason == FinishReason::kStopString, end.stopped);
    EXPECT_EQ(cut[row].tokens.size(), end.tokens);
    EXPECT_EQ(cut[row].text, end.stopped ? end.text : letters(whole[row].tokens));
  }
  EXPECT_EQ(cut[0].tokens.size(), 506u);
}

}  // namespace
}  // namespace rondo::nn
