// Data files: what becomes a target, which lines are refused, and that nothing is lost.
#include "rondo/runtime/data/read_examples.h"

#include <algorithm>
#include <array>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/data/text_encoder.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::data {
namespace {

using text::PreTrainedTokenizer;

PreTrainedTokenizer recorded(const std::string& name) {
  return PreTrainedTokenizer::from_file(std::string(tests::kReferenceDir) + "/tokenizers/" + name + ".json");
}
Ids encode(const PreTrainedTokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, plain_encoding(false, true));
}
Ids joined(std::initializer_list<Ids> parts) {
  Ids out;
  for (const Ids& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}
std::vector<bool> flags(std::initializer_list<std::pair<size_t, bool>> runs) {
  std::vector<bool> out;
  for (const auto& [n, flag] : runs) out.insert(out.end(), n, flag);
  return out;
}
std::string write(const TempFolder& folder, const std::string& name, std::string_view text) {
  write_bytes(folder / name, text);
  return folder / name;
}

// `read` must throw a DataError of this line that says `reason`.
template <class F> void expect_line_error(int64_t line, std::string_view reason, F&& read) {
  try {
    read();
    ADD_FAILURE() << "accepted; expected: " << reason;
  } catch (const DataError& error) {
    EXPECT_EQ(error.line(), line) << error.what();
    EXPECT_NE(std::string_view(error.what()).find(absl::StrCat("line ", line, ": ")), std::string_view::npos);
    EXPECT_NE(std::string_view(error.what()).find(reason), std::string_view::npos)
        << error.what() << "\nnot: " << reason;
  }
}

// ---- Prompt and completion

TEST(ReadPrompts, OnlyTheCompletionCarriesLoss) {
  TempFolder folder;
  const auto tokenizer = recorded("llama3");  // puts <s> (700) before a text
  const std::string path = write(
      folder, "a.jsonl",
      "{\"prompt\": \"What is a tensor?\", \"completion\": \" A word.\", \"id\": [1, {}]}\n\n"
      "{\"completion\": \"yes\", \"prompt\": \"Is it?\\nSay: \"}\r\n");
  const ExampleSet set = read_prompts(path, tokenizer, {.end_token = 701});
  ASSERT_EQ(set.size(), 2);
  const Ids prompt = encode(tokenizer, "What is a tensor?"), completion = encode(tokenizer, " A word.");
  const Example first = set.example(0);
  EXPECT_EQ(first.ids, joined({{700}, prompt, completion, {701}}));
  EXPECT_EQ(first.targets, flags({{1 + prompt.size(), false}, {completion.size() + 1, true}}));
  EXPECT_EQ(set.report().targets, static_cast<int64_t>(completion.size() + 1 + encode(tokenizer, "yes").size() + 1));
  EXPECT_EQ(set.report().dropped, 0);
  // As columns and targets of a batch row.
  const auto n = static_cast<size_t>(set.columns(0));
  ASSERT_EQ(n, first.ids.size() - 1);
  std::vector<int64_t> x(n), y(n);
  set.copy_columns(0, x.data());
  set.copy_targets(0, y.data());
  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(x[i], first.ids[i]);
    EXPECT_EQ(y[i], first.targets[i + 1] ? first.ids[i + 1] : kIgnoreIndex);
  }
}

TEST(ReadPrompts, BordersAreExact) {
  TempFolder folder;
  const auto tokenizer = recorded("gpt2");
  // "Say: " ends with a space that would join the word behind it: then both are encoded apart.
  const std::string path = write(folder, "a.jsonl",
                                 R"({"prompt": "Say the ", "completion": "number"})"
                                 "\n"
                                 R"({"prompt": "Say the", "completion": " number"})");
  const ExampleSet set = read_prompts(path, tokenizer, {.end_token = -1});
  const Example apart = set.example(0), together = set.example(1);
  const Ids prompt = encode(tokenizer, "Say the ");
  EXPECT_NE(encode(tokenizer, "Say the number").size(), prompt.size() + encode(tokenizer, "number").size());
  EXPECT_EQ(apart.ids, joined({prompt, encode(tokenizer, "number")}));
  EXPECT_EQ(apart.targets, flags({{prompt.size(), false}, {encode(tokenizer, "number").size(), true}}));
  EXPECT_EQ(together.ids, encode(tokenizer, "Say the number"));
  // With a tokenizer that begins each text with a space, the completion gets none of its own.
  const auto llama = recorded("llama2");
  const Ids whole = encode(llama, "the number");
  write(folder, "b.jsonl", R"({"prompt": "the", "completion": " number"})");
  EXPECT_EQ(read_prompts(folder / "b.jsonl", llama, {.begin_token = -1, .end_token = -1}).example(0).ids, whole);
}

TEST(ReadPrompts, OptionsAndNames) {
  TempFolder folder;
  const auto tokenizer = recorded("gpt2");
  const std::string path = write(folder, "a.jsonl", R"({"question": "the", "answer": "the", "prompt": 3})");
  const ExampleSet set = read_prompts(path, tokenizer,
                                      {.begin_token = 5,
                                       .end_token = 7,
                                       .train_on_prompt = true,
                                       .prompt_field = "question",
                                       .completion_field = "answer"});
  const Ids word = encode(tokenizer, "the");
  EXPECT_EQ(set.example(0).ids, joined({{5}, word, word, {7}}));
  // The first token is never a target: nothing stands before it.
  EXPECT_EQ(set.example(0).targets, flags({{1, false}, {2 * word.size() + 1, true}}));
}

TEST(ReadPrompts, SpecialTextOfAUserIsOrdinary) {
  TempFolder folder;
  const auto tokenizer = recorded("llama3");
  const std::string path = write(folder, "a.jsonl", R"({"prompt": "a<|eot|>b", "completion": "c<s>"})");
  const auto count = [&](const ReadOptions& options) {
    const Example example = read_prompts(path, tokenizer, options).example(0);
    return std::count_if(example.ids.begin(), example.ids.end(), [](int32_t id) { return id == 700 || id == 701; });
  };
  EXPECT_EQ(count({.begin_token = -1, .end_token = -1}), 0);
  EXPECT_EQ(count({.allow_special_tokens = true, .begin_token = -1, .end_token = -1}), 2);
}

TEST(ReadPrompts, RefusesLinesByNumber) {
  TempFolder folder;
  const auto tokenizer = recorded("gpt2");
  const std::string good = R"({"prompt": "a", "completion": "b"})"
                           "\n";
  const auto refused = [&](std::string_view bad, std::string_view reason) {
    const std::string path = write(folder, "a.jsonl", absl::StrCat(good, "\n", good, std::string(bad), "\n", good));
    expect_line_error(4, reason, [&] { read_prompts(path, tokenizer); });
  };
  refused("{\"prompt\": \"a\", \"completion\": \"b\"", "at byte");
  refused("{\"prompt\": \"a\", \"completion\": \"b\"} x", "unexpected text after the end");
  refused("[1]", "expected a JSON object");
  refused("plain words", "expected a JSON object");
  refused(R"({"prompt": "a"})", "field \"completion\" is missing");
  refused(R"({"completion": "a"})", "field \"prompt\" is missing");
  refused(R"({"prompt": "a", "completion": ""})", "field \"completion\" is empty");
  refused(R"({"prompt": "a", "completion": null})", "field \"completion\" must be a string");
  refused(R"({"prompt": ["a"], "completion": "b"})", "field \"prompt\" must be a string");
  refused(R"({"prompt": "a", "completion": "b", "prompt": "c"})", "field \"prompt\" appears twice");
  refused("{\"prompt\": \"a\xff\", \"completion\": \"b\"}", "invalid UTF-8 at byte 13");
  refused(R"({"prompt": "a", "completion": "\ud800"})", "lone surrogate");
  expect_line_error(1, "outside the model's vocabulary of 10",
                    [&] { read_prompts(write(folder, "a.jsonl", good), tokenizer, {.vocab_size = 10}); });
  // Of several bad lines, the first is named, whatever the threads do.
  std::string many;
  for (int i = 0; i < 3000; ++i) many += i == 1000 || i == 1001 || i == 2900 ? "{}\n" : good;
  const std::string path = write(folder, "many.jsonl", many);
  for (int i = 0; i < 3; ++i) expect_line_error(1001, "is missing", [&] { read_prompts(path, tokenizer); });
}

TEST(ReadPrompts, RefusesFilesWithoutExamples) {
  TempFolder folder;
  const auto tokenizer = recorded("gpt2");
  expect_file_error(folder / "none.jsonl", "", [&] { read_prompts(folder / "none.jsonl", tokenizer); });
  for (const char* text : {"", "\n \n", "\xEF\xBB\xBF"}) {
    const std::string path = write(folder, "empty.jsonl", text);
    expect_file_error(path, "has no example", [&] { read_prompts(path, tokenizer); });
  }
  const std::string path = write(folder, "long.jsonl", R"({"prompt": "a b c d e f", "completion": "g"})");
  expect_file_error(path, "all 1 were left out", [&] { read_prompts(path, tokenizer, {.max_length = 3}); });
  EXPECT_NE(test::error_of([&] { read_prompts(path, tokenizer, {.too_long = TooLong::kSplit}); }), "");
  EXPECT_NE(test::error_of([&] { read_prompts(path, tokenizer, {.max_length = -1}); }), "");
}

TEST(ReadPrompts, LongExamples) {
  TempFolder folder;
  const auto tokenizer = recorded("gpt2");
  std::string text = R"({"prompt": "a", "completion": "bcdefghij"})"
                     "\n"
                     R"({"prompt": "a", "completion": "b"})"
                     "\n";
  const std::string path = write(folder, "a.jsonl", text);
  const auto with = [&](TooLong how) {
    return read_prompts(path, tokenizer, {.max_length = 3, .too_long = how, .end_token = -1});
  };
  const ExampleSet cut = with(TooLong::kTruncate);
  EXPECT_EQ(cut.size(), 2);
  EXPECT_EQ(cut.columns(0), 3);
  EXPECT_EQ(cut.length(0), 4);
  EXPECT_EQ(cut.report().truncated, 1);
  EXPECT_EQ(cut.report().longest, 3);
  const ExampleSet dropped = with(TooLong::kDrop);
  EXPECT_EQ(dropped.size(), 1);
  EXPECT_EQ(dropped.report().dropped, 1);
  expect_line_error(1, "max_length 3 allows 4", [&] { with(TooLong::kError); });
}

TEST(ReadPrompts, TheResultDoesNotDependOnThreads) {
  TempFolder folder;
  const auto tokenizer = recorded("qwen2");
  std::string text;
  for (int i = 0; i < 5000; ++i)
    text += absl::StrCat(R"({"prompt": "number )", i, R"(", "completion": "the word )", i * i, "\"}\n");
  const std::string path = write(folder, "a.jsonl", text);
  const int before = num_threads();
  set_num_threads(1);
  const uint64_t one = read_prompts(path, tokenizer).fingerprint();
  set_num_threads(3);
  const ExampleSet set = read_prompts(path, tokenizer);
  set_num_threads(before);
  EXPECT_EQ(set.size(), 5000);
  EXPECT_EQ(set.fingerprint(), one);
  EXPECT_NE(read_prompts(path, tokenizer, {.train_on_prompt = true}).fingerprint(), one);
}

// Damaged files are read or refused, always with one of our errors.
TEST(ReadPrompts, DamagedFiles) {
  TempFolder folder;
  const auto tokenizer = recorded("llama3");
  const std::string good = R"({"prompt": "the w\u00f6rd \ud83d\ude00", "completion": "naïve 世界", "x": [1.5e3, null]})"
                           "\n";
  uint32_t state = 5;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  int read = 0, refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string bytes = good + good;
    for (uint32_t n = 1 + next() % 3; n > 0; --n) {
      const size_t at = next() % bytes.size();
      switch (next() % 4) {
        case 0: bytes[at] = static_cast<char>(next()); break;
        case 1: bytes.erase(at, 1 + next() % 5); break;
        case 2: bytes.insert(at, 1, "\\\"{}[]:,u\n\0\xf0"[next() % 12]); break;
        default: bytes.resize(at); break;
      }
      if (bytes.empty()) bytes = "\n";
    }
    const std::string path = write(folder, "a.jsonl", bytes);
    try {
      read += read_prompts(path, tokenizer, {.max_length = 64, .vocab_size = 704}).size() > 0;
    } catch (const FileError& error) {
      EXPECT_EQ(error.path(), path);
      ++refused;
    }
  }
  EXPECT_GT(read, 20);
  EXPECT_GT(refused, 200);
}

// ---- Plain text

std::string some_text(int lines) {
  std::string out;
  const char* const words[] = {"the", "tensor", "whose", "wordé", "naïve", "  two", "\tn", "Привет", "12345", "a-b"};
  uint32_t state = 7;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int i = 0; i < lines; ++i) {
    for (uint32_t n = next() % 12; n > 0; --n)
      absl::StrAppend(&out, words[next() % std::size(words)], n > 1 ? " " : "");
    out += next() % 9 == 0 ? "\n\n\n" : "\n";
  }
  return out;
}

TEST(ReadText, WindowsCoverTheFileExactly) {
  TempFolder folder;
  const std::string text = some_text(9000);  // several pieces
  ASSERT_GT(text.size(), size_t{200000});
  const std::string path = write(folder, "a.txt", text);
  for (const char* name : {"gpt2", "llama2", "llama3", "qwen2", "metaspace"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = recorded(name);
    const ExampleSet set = read_text(path, tokenizer, {.max_length = 63, .begin_token = -1});
    const Ids whole = encode(tokenizer, text);
    Ids read = {whole[0]};
    for (int64_t i = 0; i < set.size(); ++i) {
      const Example window = set.example(i);
      EXPECT_EQ(window.ids[0], read.back());
      EXPECT_EQ(set.columns(i) == 63 || i + 1 == set.size(), true);
      read.insert(read.end(), window.ids.begin() + 1, window.ids.end());
    }
    EXPECT_EQ(read, whole);
    EXPECT_EQ(set.report().targets, static_cast<int64_t>(whole.size()) - 1);
  }
}

TEST(ReadText, TextsOfAFile) {
  TempFolder folder;
  const auto tokenizer = recorded("llama3");
  const auto texts = [&](const std::string& name, std::string_view bytes, const ReadOptions& options) {
    const ExampleSet set = read_text(write(folder, name, bytes), tokenizer, options);
    std::vector<std::string> out;
    for (int64_t i = 0; i < set.size(); ++i) {
      const Example example = set.example(i);
      EXPECT_EQ(example.ids.front(), 700);
      EXPECT_EQ(example.ids.back(), 701);
      out.push_back(tokenizer.decode(std::span(example.ids).subspan(1, example.ids.size() - 2)));
    }
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts("a.txt", "one\r\n\n two\nthree", {.end_token = 701, .separator = "\n"}),
            (Texts{"one", " two", "three"}));
  EXPECT_EQ(texts("a.txt", "one\n\nmore\n<|e|>\n two<|e|>three\n<|e|>\n\n", {.end_token = 701, .separator = "<|e|>"}),
            (Texts{"one\n\nmore", " two", "three"}));
  EXPECT_EQ(texts("a.jsonl", "{\"text\": \"one\\n\"}\n{\"text\": \"two\", \"x\": 1}\n", {.end_token = 701}),
            (Texts{"one\n", "two"}));
  EXPECT_EQ(texts("a.jsonl", "{\"body\": \"one\"}", {.end_token = 701, .text_field = "body"}), (Texts{"one"}));
}

TEST(ReadText, LongTexts) {
  TempFolder folder;
  const auto tokenizer = recorded("gpt2");
  const std::string path = write(folder, "a.txt", "abcdefgh\nxyz\na\n");
  const auto with = [&](std::optional<TooLong> how) {
    return read_text(path, tokenizer, {.max_length = 3, .too_long = how, .end_token = -1, .separator = "\n"});
  };
  ASSERT_GT(encode(tokenizer, "abcdefgh").size(), size_t{4});
  ASSERT_LT(encode(tokenizer, "xyz").size(), size_t{4});
  const ExampleSet split = with(std::nullopt), cut = with(TooLong::kTruncate), dropped = with(TooLong::kDrop);
  EXPECT_EQ(split.report().truncated, 0);
  EXPECT_EQ(cut.columns(0), 3);
  EXPECT_EQ(cut.report().truncated, 1);
  EXPECT_EQ(dropped.report().dropped, cut.report().dropped + 1);
  EXPECT_GT(split.size(), cut.size());
  expect_line_error(1, "max_length", [&] { with(TooLong::kError); });
}

TEST(ReadText, RefusesBadFiles) {
  TempFolder folder;
  const auto tokenizer = recorded("gpt2");
  const ReadOptions options{.max_length = 8};
  expect_file_error(write(folder, "a.txt", "\n\n"), "has no example",
                    [&] { read_text(folder / "a.txt", tokenizer, options); });
  write_bytes(folder / "a.txt", "fine\nfi\xC3");
  expect_line_error(2, "invalid UTF-8 at byte 2", [&] { read_text(folder / "a.txt", tokenizer, options); });
  write_bytes(folder / "a.txt", "!\n!\nthe\n");
  ASSERT_LT(encode(tokenizer, "\n")[0], 200);
  ASSERT_GE(encode(tokenizer, "the")[0], 200);
  expect_line_error(3, "outside the model's vocabulary of 200",
                    [&] { read_text(folder / "a.txt", tokenizer, {.max_length = 8, .vocab_size = 200}); });
  EXPECT_NE(test::error_of([&] { read_text(folder / "a.txt", tokenizer, {}); }).find("needs max_length"),
            std::string::npos);
}

// Lines that cross the borders of what is read at once (1 MB), one that is longer, and a last one without an end.
TEST(ReadText, LinesOfAnyLength) {
  TempFolder folder;
  const io::ByteTokenizer bytes;
  std::vector<std::string> lines;
  uint32_t state = 9;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (size_t total = 0; total < 3'300'000; total += lines.back().size()) {
    const size_t n = lines.size() == 40 ? 1'500'000 : 2 + next() % 60'000;
    lines.push_back(std::string(n, static_cast<char>('a' + next() % 26)) + std::to_string(lines.size()));
  }
  for (const char* end : {"\n", "\r\n"}) {
    std::string text = "\xEF\xBB\xBF";
    for (const std::string& line : lines) text += (text.size() > 3 ? end : "") + line;
    const ExampleSet set = read_text(write(folder, "a.txt", text), bytes, {.separator = "\n"});
    ASSERT_EQ(set.size(), static_cast<int64_t>(lines.size()));
    for (size_t i = 0; i < lines.size(); ++i)
      ASSERT_EQ(bytes.decode(set.example(static_cast<int64_t>(i)).ids), lines[i]) << i;
  }
}

TEST(ReadText, SeveralThreadsRead) {
  TempFolder folder;
  const auto tokenizer = recorded("gpt2");
  const std::string path = write(folder, "a.txt", some_text(3000));
  const uint64_t alone = read_text(path, tokenizer, {.max_length = 50}).fingerprint();
  std::array<uint64_t, 3> seen = {};
  std::vector<std::thread> threads;
  for (uint64_t& fingerprint : seen)
    threads.emplace_back([&] { fingerprint = read_text(path, tokenizer, {.max_length = 50}).fingerprint(); });
  for (std::thread& thread : threads) thread.join();
  for (const uint64_t fingerprint : seen) EXPECT_EQ(fingerprint, alone);
}

TEST(ReadText, AnyTokenizer) {
  TempFolder folder;
  const io::ByteTokenizer bytes;
  const ExampleSet set = read_text(write(folder, "a.txt", "abcdefg"), bytes, {.max_length = 3});
  ASSERT_EQ(set.size(), 2);
  EXPECT_EQ(set.example(0).ids, (Ids{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(set.example(1).ids, (Ids{'d', 'e', 'f', 'g'}));
}

// ---- Labelled texts

TEST(ReadLabelled, ColumnsAndJson) {
  TempFolder folder;
  const auto tokenizer = recorded("bert_uncased");
  const ExampleSet columns = read_labelled(write(folder, "a.tsv", "good\tthe word\nbad\twhose\ttensor\n"), tokenizer);
  EXPECT_EQ(columns.label_names(), (std::vector<std::string>{"bad", "good"}));
  EXPECT_EQ(columns.label(0), 1);
  EXPECT_EQ(columns.label(1), 0);
  EXPECT_TRUE(columns.labelled());
  EXPECT_EQ(columns.example(0).ids, tokenizer.encode("the word"));
  EXPECT_EQ(columns.columns(0), columns.length(0));
  EXPECT_EQ(columns.example(1).ids, tokenizer.encode("whose\ttensor"));

  const ExampleSet json = read_labelled(
      write(folder, "a.jsonl",
            "{\"text\": \"a\", \"label\": 10}\n{\"text\": \"b\", \"text_pair\": \"c\", \"label\": 9}\n"),
      tokenizer);
  EXPECT_EQ(json.label_names(), (std::vector<std::string>{"9", "10"}));  // as numbers
  EXPECT_EQ(json.label(0), 1);
  const text::Encoding pair = tokenizer("b", "c");
  EXPECT_EQ(json.example(1).ids, pair.ids);
  for (size_t i = 0; i < pair.size(); ++i) EXPECT_EQ(json.example(1).second[i], pair.type_ids[i] == 1);
  // Another file by the names of the first; numbers where the names are words.
  const std::string more = write(folder, "b.tsv", "good\tthe\n0\tword\n");
  const ExampleSet evaluation = read_labelled(more, tokenizer, {.label_names = columns.label_names()});
  EXPECT_EQ(evaluation.label(0), 1);
  EXPECT_EQ(evaluation.label(1), 0);
  EXPECT_EQ(evaluation.label_names(), columns.label_names());
}

TEST(ReadLabelled, AsManyLabelsAsLines) {
  TempFolder folder;
  const auto tokenizer = recorded("bert_uncased");
  std::string lines;
  constexpr int kLabels = 200'000;
  for (int i = 0; i < kLabels; ++i) lines += "label " + std::to_string(kLabels - i) + "\ta\n";
  const std::string path = write(folder, "a.tsv", lines);
  const ExampleSet set = read_labelled(path, tokenizer);  // a search for each line takes minutes
  ASSERT_EQ(set.label_names().size(), static_cast<size_t>(kLabels));
  for (int i = 0; i < kLabels; i += 9973)
    EXPECT_EQ(set.label_names()[static_cast<size_t>(set.label(i))], "label " + std::to_string(kLabels - i));
}

TEST(ReadLabelled, ALineHasALimit) {
  TempFolder folder;
  const auto tokenizer = recorded("bert_uncased");
  const std::string path = write(folder, "a.tsv", "x\ta\ny\t" + std::string((16 << 20) + 1, 'b') + "\nx\ta\n");
  expect_line_error(2, "the line has more than 16777216 bytes",
                    [&] { read_labelled(path, tokenizer, {.max_length = 6}); });
}

TEST(ReadLabelled, NumbersAndSeveralClasses) {
  TempFolder folder;
  const auto tokenizer = recorded("bert_uncased");
  const auto row = [](const ExampleSet& set, int64_t index) {
    std::vector<float> y(static_cast<size_t>(set.label_width()));
    set.copy_label(index, y.data());
    return y;
  };
  const ReadOptions numbers = {.label_kind = LabelKind::kNumbers}, classes = {.label_kind = LabelKind::kClasses};
  const ExampleSet columns = read_labelled(write(folder, "n.tsv", "1.5,-2\tthe word\n0,1e3\tword\n"), tokenizer,
                                           numbers);
  EXPECT_EQ(row(columns, 0), (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(columns.example(1).numbers, (std::vector<float>{0, 1000}));
  const ExampleSet json = read_labelled(write(folder, "n.jsonl", "{\"text\": \"word\", \"label\": 0.25}\n"), tokenizer,
                                        numbers);
  EXPECT_EQ(row(json, 0), (std::vector<float>{0.25f}));
  const ExampleSet several = read_labelled(write(folder, "c.tsv", "b,a\tthe word\n\tword\nc\tword\n"), tokenizer,
                                           classes);
  EXPECT_EQ(several.label_names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(row(several, 0), (std::vector<float>{1, 1, 0}));
  EXPECT_EQ(row(several, 1), (std::vector<float>{0, 0, 0}));
  const ExampleSet lists = read_labelled(
      write(folder, "c.jsonl", "{\"text\": \"word\", \"label\": [\"c\"]}\n{\"text\": \"word\", \"label\": \"a\"}\n"),
      tokenizer, {.label_kind = LabelKind::kClasses, .label_names = several.label_names()});
  EXPECT_EQ(row(lists, 0), (std::vector<float>{0, 0, 1}));
  EXPECT_NE(lists.fingerprint(), several.fingerprint());
  for (const char* bad :
       {"1,2\tword\n3\tword\n", "x\tword\n", "nan\tword\n", "1,,2\tword\n", "\tword\n", "1e99\tword\n"})
    EXPECT_THROW(read_labelled(write(folder, "bad.tsv", bad), tokenizer, numbers), DataError) << bad;
}

TEST(ReadLabelled, LongTextsKeepTheirLastSpecialToken) {
  TempFolder folder;
  const auto tokenizer = recorded("bert_uncased");
  const std::string path = write(folder, "a.tsv", "x\tthe word of the tensor is long\ny\ta\n");
  const ExampleSet set = read_labelled(path, tokenizer, {.max_length = 6});
  EXPECT_EQ(set.length(0), 6);
  EXPECT_EQ(set.example(0).ids.back(), tokenizer.encode("a").back());
  EXPECT_EQ(set.report().truncated, 1);
  EXPECT_EQ(read_labelled(path, tokenizer, {.max_length = 6, .too_long = TooLong::kDrop}).size(), 1);
  expect_line_error(1, "max_length is 6",
                    [&] { read_labelled(path, tokenizer, {.max_length = 6, .too_long = TooLong::kError}); });
}

TEST(ReadLabelled, RefusesLinesByNumber) {
  TempFolder folder;
  const auto tokenizer = recorded("bert_uncased");
  const auto refused = [&](const std::string& name, std::string_view bad, std::string_view reason) {
    const std::string path = write(
        folder, name, (name.ends_with("l") ? "{\"text\": \"a\", \"label\": 1}\n" : "1\ta\n") + std::string(bad));
    expect_line_error(2, reason, [&] { read_labelled(path, tokenizer, {.label_names = {"0", "1"}}); });
  };
  refused("a.tsv", "no tab here", "expected a label, a tab and a text");
  refused("a.tsv", "\ttext", "the label is empty");
  refused("a.tsv", "1\t", "the text is empty");
  refused("a.tsv", "2\ttext", "the label \"2\" is none of 0, 1");
  refused("a.jsonl", R"({"text": "a"})", "field \"label\" is missing");
  refused("a.jsonl", R"({"text": "a", "label": 1.5})", "must be an integer");
  refused("a.jsonl", R"({"text": "a", "label": true})", "must be a string or an integer");
  refused("a.jsonl", R"({"label": 1})", "field \"text\" is missing");
}

// ---- The set itself

TEST(ExampleSet, HoldsAnyIds) {
  ExampleSet set;
  std::vector<Example> examples;
  uint32_t state = 3;
  const auto next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (int i = 0; i < 900; ++i) {  // beyond one block, with large ids in the second
    Example example;
    for (uint32_t n = 2 + next() % 3000; n > 0; --n) {
      example.ids.push_back(static_cast<int32_t>(i > 700 ? next() : next() % 50000));
      example.targets.push_back(n == 1 || next() % 2 == 0);
    }
    example.targets[0] = false;
    set.add(example);
    examples.push_back(std::move(example));
  }
  ASSERT_GT(set.report().tokens, int64_t{1} << 20);
  for (int64_t i = 0; i < set.size(); ++i) {
    ASSERT_EQ(set.example(i).ids, examples[static_cast<size_t>(i)].ids);
    ASSERT_EQ(set.example(i).targets, examples[static_cast<size_t>(i)].targets);
  }
}

TEST(ExampleSet, RefusesWhatIsNoExample) {
  ExampleSet set;
  for (const Example& bad : {Example{}, Example{.ids = {1, 2}}, Example{.ids = {1, 2}, .targets = {true, false}},
                             Example{.ids = {1}, .targets = {true}}, Example{.ids = {1, -2}, .targets = {false, true}},
                             Example{.ids = {1, 2}, .targets = {false, true}, .second = {true}},
                             Example{.ids = {1}, .targets = {true}, .label = 0}})
    EXPECT_NE(test::error_of([&] { set.add(bad); }), "");
  EXPECT_EQ(set.size(), 0);
  set.add({.ids = {1, 2}, .targets = {false, true}});
  EXPECT_NE(test::error_of([&] { set.add({.ids = {1}, .label = 1}); }), "");
  EXPECT_EQ(set.size(), 1);
}

}  // namespace
}  // namespace rondo::data
