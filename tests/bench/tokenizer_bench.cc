// Encodes texts for tests/bench/peers/compare_tokenizers.py, which compares the result with the reference's.
//
//   bench_tokenizer TOKENIZER [options] < texts > encodings
//
// TOKENIZER is a folder, a tokenizer.json, or VOCAB.json,MERGES.txt. A text is a 32-bit length and its bytes. For each
// text: the number of tokens, then four numbers a token (id, begin, end, word), then the decoded text with its length.
//   --pairs           two texts make one encoding
//   --no_special      add_special_tokens = false
//   --split_special   split_special_tokens = true
//   --time ROUNDS     no encodings: prints the seconds of each round; --threads N: of encode_batch with N threads
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/text/tokenizer.h"

namespace {

using rondo::text::AutoTokenizer;
using rondo::text::EncodeOptions;
using rondo::text::PreTrainedTokenizer;

PreTrainedTokenizer load(const std::string& name) {
  if (const size_t comma = name.find(','); comma != name.npos)
    return PreTrainedTokenizer::from_gpt2_files(name.substr(0, comma), name.substr(comma + 1));
  return std::filesystem::is_directory(name) ? AutoTokenizer::from_pretrained(name)
                                             : PreTrainedTokenizer::from_file(name);
}

std::vector<std::string_view> read_texts(const std::string& input) {
  std::vector<std::string_view> texts;
  for (size_t at = 0; at + 4 <= input.size();) {
    uint32_t length = 0;
    input.copy(reinterpret_cast<char*>(&length), 4, at);
    if (length > input.size() - at - 4) throw rondo::Error("the input ends inside a text");
    texts.push_back(std::string_view(input).substr(at + 4, length));
    at += 4 + length;
  }
  return texts;
}

void put(std::string& out, int64_t value) {
  const auto small = static_cast<int32_t>(value);
  out.append(reinterpret_cast<const char*>(&small), 4);
}

int run(int argc, char** argv) {
  bool pairs = false;
  int rounds = 0, threads = 0;
  EncodeOptions options;
  for (int i = 2; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--pairs") pairs = true;
    else if (flag == "--no_special") options.add_special_tokens = false;
    else if (flag == "--split_special") options.split_special_tokens = true;
    else if (flag == "--time" && i + 1 < argc) rounds = std::atoi(argv[++i]);
    else if (flag == "--threads" && i + 1 < argc) threads = std::atoi(argv[++i]);
    else throw rondo::Error("unknown option " + std::string(flag));
  }
  const PreTrainedTokenizer tokenizer = load(argv[1]);
  const std::string input(std::istreambuf_iterator<char>(std::cin), {});
  const std::vector<std::string_view> texts = read_texts(input);
  if (threads > 0) rondo::set_num_threads(threads);
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    size_t tokens = 0;
    if (threads > 0)
      for (const auto& encoding : tokenizer.encode_batch(texts, options)) tokens += encoding.size();
    else
      for (const std::string_view text : texts) tokens += tokenizer.encode(text, options).size();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%.6f %zu\n", seconds.count(), tokens);
  }
  if (rounds > 0) return 0;
  std::string out;
  for (size_t i = 0; i + (pairs ? 1 : 0) < texts.size(); i += pairs ? 2 : 1) {
    const rondo::text::Encoding encoding = pairs ? tokenizer(texts[i], texts[i + 1], options)
                                                 : tokenizer(texts[i], options);
    put(out, static_cast<int64_t>(encoding.size()));
    for (size_t t = 0; t < encoding.size(); ++t) {
      put(out, encoding.ids[t]);
      put(out, encoding.offsets[t].begin);
      put(out, encoding.offsets[t].end);
      put(out, encoding.word_ids[t]);
    }
    const std::string text = tokenizer.decode(encoding.ids, {.skip_special_tokens = false});
    put(out, static_cast<int64_t>(text.size()));
    out += text;
  }
  std::cout << out << std::flush;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_tokenizer TOKENIZER [options] < texts\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const rondo::Error& error) {
    std::fprintf(stderr, "bench_tokenizer: %s\n", error.what());
    return 1;
  }
}
