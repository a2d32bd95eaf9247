// fuzz_chat_template: damaged chat templates may only fail with Errors.
//
//   fuzz_chat_template [--count N] [--seed N]     damages the templates of tests/reference/chat_templates
//   fuzz_chat_template --bombs [WORD]             what hostile templates take under the default limits, a line each;
//                                                 those with WORD in their names, which end with a size
//   fuzz_chat_template --serve                    for scripts: a line {"folder", "conversation",
//   "add_generation_prompt",
//                                                 "mask"} in, a line {"text", "ids", "mask"} or {"error"} out. "mask":
//                                                 "blocks" as transformers, "exact" as ChatEncoder makes examples;
//                                                 or {"folder", "text"} in, {"ids"} out
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/chat/chat.h"
#include "rondo/runtime/chat/jinja/template.h"
#include "rondo/runtime/data/chat_template.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/tests/paths.h"
#include "rondo/tests/runtime/template_bombs.h"

namespace {

using namespace rondo;
using text::jinja::Value;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  size_t below(size_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>(state_ >> 33) % n;
  }

 private:
  uint64_t state_;
};

constexpr std::string_view kPieces[] = {"{{",
                                        "}}",
                                        "{%",
                                        "%}",
                                        "-%}",
                                        "{%-",
                                        "{#",
                                        "#}",
                                        "(",
                                        ")",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "|",
                                        "'",
                                        "\"",
                                        "~",
                                        "*",
                                        "**",
                                        "//",
                                        "%",
                                        ":",
                                        ",",
                                        ".",
                                        " is ",
                                        " in ",
                                        " not ",
                                        " if ",
                                        " else ",
                                        " for ",
                                        "{% endif %}",
                                        "{% endfor %}",
                                        "{% for m in messages %}",
                                        "{% if true %}",
                                        "{% else %}",
                                        "{% set x = messages %}",
                                        "{% macro f(a) %}",
                                        "{% endmacro %}",
                                        "{{ f(f) }}",
                                        "{% generation %}",
                                        "{% endgeneration %}",
                                        "loop",
                                        "namespace(a=1)",
                                        "range(99999)",
                                        "* 99999999",
                                        "|map('upper')",
                                        "|list",
                                        "|tojson",
                                        "|sort",
                                        "[::-1]",
                                        "9999999999999999999",
                                        "1e999",
                                        "\\",
                                        "\xFF",
                                        "\n",
                                        " ",
                                        "{% break %}",
                                        "{% set ns.a = ns %}",
                                        "messages",
                                        "|map(attribute='a.b')",
                                        ".items()",
                                        "|join",
                                        "[messages]*9"};

std::string damaged(const std::string& good, Random& random) {
  std::string text = good;
  for (size_t n = 1 + random.below(4); n > 0 && !text.empty(); --n) {
    const size_t at = random.below(text.size());
    switch (random.below(5)) {
      case 0: text[at] = static_cast<char>(random.below(256)); break;
      case 1: text.erase(at, 1 + random.below(12)); break;
      case 2: {
        const size_t from = random.below(text.size());
        text.insert(at, text.substr(from, 1 + random.below(60)));
        break;
      }
      default: text.insert(at, kPieces[random.below(std::size(kPieces))]);
    }
  }
  return text;
}

constexpr char kVariables[] = R"({"messages": [
  {"role": "system", "content": "Be brief."},
  {"role": "user", "content": "What is 6 x 7?\n"},
  {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdefghi", "type": "function",
    "function": {"name": "times", "arguments": {"a": 6, "b": [7.5, null, true, "é"]}}}]},
  {"role": "tool", "content": "42", "tool_call_id": "abcdefghi"},
  {"role": "assistant", "content": "<think>\nsix\n</think>\n\n42"}],
  "tools": [{"type": "function", "function": {"name": "times", "description": "a product\nof two",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["integer", "null"]}},
    "required": ["a"]}}}],
  "documents": [{"title": "t", "text": "x"}], "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})";

int fuzz(int64_t count, uint64_t seed) {
  std::vector<std::string> templates;
  std::error_code error;
  const std::string folder = std::string(tests::kReferenceDir) + "/chat_templates";
  for (std::filesystem::directory_iterator file(folder, error), end; !error && file != end; file.increment(error))
    if (file->path().extension() == ".jinja") templates.push_back(io::read_text(file->path().string(), 1 << 20));
  if (templates.empty()) throw Error("no templates in " + folder);
  std::sort(templates.begin(), templates.end());
  std::vector<std::pair<std::string, Value>> variables;
  const Value all = Value::from_json("variables", kVariables);
  for (const auto& [name, value] : all.dict().items) variables.emplace_back(name.text(), value);
  Random random(seed);
  int64_t rendered = 0, refused = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::string text = damaged(templates[random.below(templates.size())], random);
    try {
      const auto chat = text::jinja::Template::parse(text, "fuzz");
      chat.render(variables,
                  {.track_generation = random.below(2) == 0, .limits = {.steps = 300'000, .bytes = 4 << 20}});
      ++rendered;
    } catch (const text::TemplateError& e) {
      if (e.line() < 1) throw Error(std::string("an error without a line: ") + e.what());
      ++refused;
    }
  }
  std::printf("%lld templates: %lld rendered, %lld refused\n", static_cast<long long>(count),
              static_cast<long long>(rendered), static_cast<long long>(refused));
  return rendered > 0 && refused > 0 ? 0 : 1;
}

// Each in a process of its own, so that the kernel tells its memory and the time of the processor that it took.
int bombs(std::string_view word) {
  struct Told {
    text::jinja::Used used;
    char reason[100] = "";
  };
  double slowest = 0, largest = 0;
  size_t count = 0;
  for (const test::TemplateBomb& bomb : test::template_bombs()) {
    if (bomb.name.find(word) == std::string::npos) continue;
    ++count;
    int ends[2];
    if (pipe(ends) != 0) return 1;
    const pid_t child = fork();
    if (child == 0) {
      Told told;
      try {
        text::jinja::Template::parse(bomb.source, "bomb").render({}, {.used = &told.used});
      } catch (const text::TemplateError& error) {
        std::snprintf(told.reason, sizeof told.reason, "%s", error.reason().c_str());
      }
      _exit(write(ends[1], &told, sizeof told) == sizeof told ? 0 : 1);
    }
    close(ends[1]);
    Told told;
    const bool heard = read(ends[0], &told, sizeof told) == sizeof told;
    close(ends[0]);
    int status = 0;
    rusage usage{};
    if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0 || !heard) {
      std::printf("%s: it crashes\n", bomb.name.c_str());
      return 1;
    }
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    const double took = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    const double memory = static_cast<double>(usage.ru_maxrss) / 1024;
    slowest = std::max(slowest, took);
    largest = std::max(largest, memory);
    std::printf("%6.3f s %5.0f MiB %9llu steps %5.1f MiB charged  %s: %s\n", took, memory,
                static_cast<unsigned long long>(told.used.steps), static_cast<double>(told.used.bytes) / (1 << 20),
                bomb.name.c_str(), told.reason);
    std::fflush(stdout);
  }
  std::printf("%zu templates; the slowest %.3f s, the largest %.0f MiB\n", count, slowest, largest);
  return 0;
}

template <class Numbers> void append_numbers(std::string& out, const char* name, const Numbers& numbers) {
  out += ", \"" + std::string(name) + "\": [";
  bool first = true;
  for (const auto number : numbers)
    out += (std::exchange(first, false) ? "" : ", ") + std::to_string(static_cast<int>(number));
  out += "]";
}

int serve() {
  std::map<std::string, text::PreTrainedTokenizer> tokenizers;
  for (std::string line; std::getline(std::cin, line);) {
    std::string out;
    try {
      const Value request = Value::from_json("request", line);
      const std::string folder(request.dict().find("folder")->text());
      if (!tokenizers.contains(folder)) tokenizers.emplace(folder, text::AutoTokenizer::from_pretrained(folder));
      const text::PreTrainedTokenizer& tokenizer = tokenizers.at(folder);
      if (const Value* plain = request.dict().find("text")) {
        out = "{\"text\": null";
        append_numbers(out, "ids", tokenizer.encode(plain->text()));
        std::cout << out << "}" << std::endl;
        continue;
      }
      text::jinja::Text conversation;
      append_json(conversation, *request.dict().find("conversation"), {});
      if (request.dict().find("mask")->text() == "exact") {
        const data::Example example = data::ChatEncoder::of_jinja(tokenizer).example_of_json(conversation);
        out = "{\"text\": null";
        append_numbers(out, "ids", example.ids);
        append_numbers(out, "mask", example.targets);
      } else {
        const text::EncodedChat chat = apply_chat_template(
            tokenizer, conversation, {.add_generation_prompt = is_true(*request.dict().find("add_generation_prompt"))});
        out = "{\"text\": ";
        io::append_json_string(out, chat.text);
        append_numbers(out, "ids", chat.ids);
        append_numbers(out, "mask", chat.assistant);
      }
      out += "}";
    } catch (const Error& error) {
      out = "{\"error\": ";
      io::append_json_string(out, error.what());
      out += "}";
    }
    std::cout << out << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t count = 10000;
  uint64_t seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--serve") return serve();
    if (name == "--bombs") return bombs(i + 1 < argc ? argv[i + 1] : "");
    if (i + 1 >= argc) return 2;
    const long long value = std::atoll(argv[++i]);
    if (name == "--count") count = value;
    else if (name == "--seed") seed = static_cast<uint64_t>(value);
    else return 2;
  }
  try {
    return fuzz(count, seed);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz_chat_template: %s\n", error.what());
    return 1;
  }
}
