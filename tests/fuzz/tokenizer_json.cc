// Damaged tokenizer.json files: reading one, and using it if it can be read, ends in a result or in a rondo::Error.
//
//   fuzz_tokenizer [--from SEED] [--count N] [folder of recorded tokenizers]
//
// Run it in a build with -DRONDO_SANITIZE=address,undefined. A seed that fails names itself and is repeated by --from.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/tokenizer.h"
#include "rondo/tests/paths.h"

namespace {

using rondo::text::PreTrainedTokenizer;

class Mutator {
 public:
  Mutator(const std::vector<std::string>& files, uint64_t seed) : files_(files), random_(seed) {}

  // Most files are whole JSON with parts of several tokenizers, so that they are read to the end; the rest is damaged.
  std::string make() {
    std::string text = pick(files_);
    if (below(4) > 0) {
      const size_t parts = 1 + below(3);
      for (size_t i = 0; i < parts; ++i) exchange(text);
      if (below(2) == 0) return text;
      steps_only_ = true;
    }
    const size_t times = 1 + below(3);
    for (size_t i = 0; i < times && !text.empty(); ++i) mutate(text);
    return text;
  }
  // Texts to encode: real ones, and bytes of the file itself.
  std::string some_text(const std::string& file) {
    static const std::vector<std::string> texts = {
        "",
        " ",
        "Hello, world!  It's 3.14 \u00e9\u0301 \u4f60\u597d \U0001F469\u200d\U0001F680\n\n",
        "\xff\xfe",
        "<|endoftext|> <mask> [CLS]",
        std::string(300, 'a'),
        std::string(200, ' '),
        "e\u0301\u0323\uac01\u1100\u1161 \u0344 \u212b"};
    if (below(4) > 0) return pick(texts);
    const size_t at = below(file.size() + 1);
    return file.substr(at, below(60));
  }

 private:
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

  // Where the value of a top-level key stands; empty if there is none.
  static std::pair<size_t, size_t> value_of(const std::string& text, std::string_view key) {
    static const std::string path = "fuzzed";
    std::pair<size_t, size_t> out{0, 0};
    rondo::io::JsonReader json(path, text);
    json.object([&](std::string& name) {
      json.peek();
      const size_t begin = json.position();
      json.skip();
      if (name == key) out = {begin, json.position()};
    });
    return out;
  }
  // A top-level value gives way to another tokenizer's, or a field of a step to another value.
  void exchange(std::string& text) {
    static const std::vector<std::string> keys = {"normalizer",   "pre_tokenizer", "decoder",    "post_processor",
                                                  "added_tokens", "model",         "truncation", "padding"};
    static const std::vector<std::string> values = {
        R"({"direction":"Left","max_length":5,"strategy":"LongestFirst","stride":0})",
        R"({"direction":"Right","max_length":9,"strategy":"OnlySecond","stride":2})",
        R"({"strategy":{"Fixed":20},"direction":"Left","pad_to_multiple_of":8,"pad_id":1,"pad_type_id":0,"pad_token":"x"})",
        R"({"strategy":"BatchLongest","direction":"Right","pad_to_multiple_of":null,"pad_id":1,"pad_type_id":2,"pad_token":"x"})",
        "null"};
    const std::string& key = pick(keys);
    const std::string& other = pick(files_);
    const auto [begin, end] = value_of(text, key);
    const auto [from, to] = value_of(other, key);
    if (begin == end || from == to) return;
    const bool option = key == "truncation" || key == "padding";
    text.replace(begin, end - begin, option ? pick(values) : other.substr(from, to - from));
  }

  void mutate(std::string& text) {
    static const std::vector<std::string> tokens = {"null",
                                                    "true",
                                                    "-1",
                                                    "1e9",
                                                    "4294967296",
                                                    "18446744073709551616",
                                                    "2147483647",
                                                    "0.5",
                                                    "\"\"",
                                                    "[]",
                                                    "{}",
                                                    "\"A\"",
                                                    "\\ud800",
                                                    "\"BPE\"",
                                                    "\"WordPiece\"",
                                                    "\"ByteLevel\"",
                                                    "\"Sequence\"",
                                                    "\"Metaspace\"",
                                                    "\"Split\"",
                                                    "\"NFKC\"",
                                                    "\"TemplateProcessing\"",
                                                    "\"\u2581\"",
                                                    "\"type\":",
                                                    "{\"type\":\"Fuse\"}",
                                                    "{\"type\":\"NFD\"}",
                                                    "{\"type\":\"ByteLevel\"}",
                                                    "{\"type\":\"Lowercase\"}",
                                                    "{\"type\":\"Digits\",\"individual_digits\":true}",
                                                    "{\"Regex\":\"(?:a|b)*c|\\\\s+(?!\\\\S)\"}",
                                                    "{\"String\":\"\"}"};
    const size_t at = below(steps_only_ ? std::min(text.find("\"model\""), text.size()) : text.size());
    switch (steps_only_ ? 3 + below(2) : below(8)) {
      case 0: text[at] = static_cast<char>(random_()); break;
      case 1: text[at] = "{}[]\",:0123456789\\-+eE. ntf"[below(27)]; break;
      case 2: text.erase(at, 1 + below(20)); break;
      case 3: text.insert(at, pick(tokens)); break;
      case 4: {  // a value gives way to another
        const size_t colon = text.find(':', at);
        if (colon == text.npos) break;
        const size_t end = text.find_first_of(",}]", colon);
        text.replace(colon + 1, end == text.npos ? 1 : end - colon - 1, pick(tokens));
        break;
      }
      case 5: {  // a part of another file
        const std::string& other = pick(files_);
        const size_t from = below(other.size());
        text.insert(at, other.substr(from, 1 + below(200)));
        break;
      }
      case 6: text.resize(at); break;
      case 7: {  // before the vocabulary, where the steps are
        const size_t model = std::min(text.find("\"model\""), text.size());
        const size_t place = below(model + 1);
        text.replace(place, std::min<size_t>(below(6), text.size() - place), pick(tokens));
        break;
      }
    }
  }

  const std::vector<std::string>& files_;
  std::mt19937_64 random_;
  bool steps_only_ = false;  // leaves most of the file whole
};

// True if the file could be read.
bool try_one(const std::string& file, Mutator& mutator) {
  try {
    const PreTrainedTokenizer tokenizer = PreTrainedTokenizer::from_json(file, "fuzzed");
    for (int i = 0; i < 6; ++i) {
      const std::string text = mutator.some_text(file), pair = mutator.some_text(file);
      try {
        const rondo::text::Encoding encoding = i % 3 == 0 ? tokenizer(text, pair) : tokenizer(text);
        const size_t n = encoding.size();
        if (encoding.type_ids.size() != n || encoding.offsets.size() != n || encoding.word_ids.size() != n ||
            encoding.attention_mask.size() != n || encoding.special_tokens_mask.size() != n ||
            encoding.sequence_ids.size() != n)
          throw std::logic_error("vectors of unequal length");
        for (const auto& offset : encoding.offsets)
          if (offset.begin < 0 || offset.end < offset.begin ||
              offset.end > static_cast<int32_t>(std::max(text.size(), pair.size())))
            throw std::logic_error("an offset outside the text");
        tokenizer.decode(encoding.ids);
        if (i % 3 != 0 && tokenizer.encode(text) != encoding.ids) throw std::logic_error("encode() has other ids");
      } catch (const rondo::Error&) {
      }
    }
    return true;
  } catch (const rondo::Error&) {
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t from = 0, count = 20000;
  std::string folder = std::string(rondo::tests::kReferenceDir) + "/tokenizers";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--from") == 0 && i + 1 < argc) from = std::strtoull(argv[++i], nullptr, 10);
    else if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) count = std::strtoull(argv[++i], nullptr, 10);
    else if (argv[i][0] != '-') folder = argv[i];
    else {
      std::fprintf(stderr, "usage: fuzz_tokenizer [--from N] [--count N] [FOLDER of *.json]\n");
      return 2;
    }
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (files.empty()) {
    std::fprintf(stderr, "fuzz_tokenizer: %s has no tokenizers\n", folder.c_str());
    return 2;
  }
  uint64_t readable = 0, failures = 0;
  for (uint64_t seed = from; seed < from + count; ++seed) {
    Mutator mutator(files, seed);
    const std::string file = mutator.make();
    try {
      readable += try_one(file, mutator);
    } catch (const std::exception& error) {
      ++failures;
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), error.what());
    }
  }
  std::printf("%llu files from seed %llu: %llu can be read, %llu failures\n", static_cast<unsigned long long>(count),
              static_cast<unsigned long long>(from), static_cast<unsigned long long>(readable),
              static_cast<unsigned long long>(failures));
  return failures > 0 ? 1 : 0;
}
