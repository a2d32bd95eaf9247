#include "rondo/runtime/data/read_lines.h"

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/line_reader.h"

namespace rondo::data {

void read_json_line(const std::string& path, int64_t line, std::string_view text,
                    absl::FunctionRef<bool(io::JsonReader&, const std::string&)> field) {
  static const std::string& kLabel = *new std::string("JSON");
  try {
    io::JsonReader json(kLabel, text);
    if (json.peek() != '{') json.fail("expected a JSON object");
    std::vector<std::string> seen;
    json.object([&](std::string& key) {
      if (!field(json, key)) return json.skip();
      if (std::find(seen.begin(), seen.end(), key) != seen.end())
        json.fail(absl::StrCat("field ", io::shown(key), " appears twice"));
      seen.push_back(key);
    });
    json.finish();
  } catch (const FileError& error) {
    throw DataError(path, line, std::string_view(error.what()).substr(kLabel.size() + 2));
  }
}

std::string read_string_field(io::JsonReader& json, const std::string& key) {
  if (json.peek() != '"') json.fail(absl::StrCat("field ", io::shown(key), " must be a string"));
  return json.string();
}

std::string missing_field(const std::string& name) { return absl::StrCat("field ", io::shown(name), " is missing"); }

void check_vocabulary(const Ids& ids, const ReadOptions& options, const TextEncoder& encoder, const std::string& path,
                      int64_t line) {
  if (options.vocab_size == 0 || ids.empty()) return;
  const int32_t largest = *std::max_element(ids.begin(), ids.end());
  if (largest < options.vocab_size) return;
  throw DataError(
      path, line,
      absl::StrCat("token ", largest, " (", encoder.spelling(largest), ") is outside the model's vocabulary of ",
                   options.vocab_size, "; is the tokenizer the model's own?"));
}

Ids opening_of(const ReadOptions& options, const TextEncoder& encoder) {
  if (!options.begin_token) return encoder.opening();
  return *options.begin_token < 0 ? Ids() : Ids{*options.begin_token};
}

bool is_json_lines(std::string_view path) {
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json");
}

void check_options(const ReadOptions& options, bool may_split) {
  if (options.max_length < 0) throw Error(absl::StrCat("ReadOptions: max_length ", options.max_length));
  if (options.vocab_size < 0) throw Error(absl::StrCat("ReadOptions: vocab_size ", options.vocab_size));
  if (!may_split && options.too_long == TooLong::kSplit)
    throw Error("ReadOptions: TooLong::kSplit is for read_text; a prompt without its answer teaches nothing");
}

void require_examples(const ExampleSet& set, const std::string& path) {
  if (set.size() > 0) return;
  if (set.report().dropped == 0) throw FileError(path, "has no example");
  throw FileError(path, absl::StrCat("has no example that can be used: all ", set.report().dropped,
                                     " were left out, as they are too long or have no target within max_length"));
}

namespace {

struct Line {
  std::string text;
  int64_t number = 0;
};
struct Outcome {
  Example example{};
  bool truncated = false, dropped = false;
  std::exception_ptr error = nullptr;
};

// Truncates or drops the example as the options require.
void fit(Outcome& out, const ReadOptions& options, const std::string& path, int64_t line) {
  Example& example = out.example;
  if (example.targets.empty()) {  // labelled: read_labelled has already truncated it, but kept its last special token
    out.dropped = example.ids.empty();
    return;
  }
  const auto most = static_cast<size_t>(options.max_length) + 1;
  if (options.max_length > 0 && example.ids.size() > most) {
    const TooLong how = options.too_long.value_or(TooLong::kTruncate);
    if (how == TooLong::kError)
      throw DataError(
          path, line,
          absl::StrCat("the example has ", example.ids.size(), " tokens, but max_length ", options.max_length,
                       " allows ", most, "; shorten it, or truncate or drop such examples"));
    if (how == TooLong::kDrop) {
      out.dropped = true;
      return;
    }
    example.ids.resize(most);
    example.targets.resize(most);
    out.truncated = true;
  }
  out.dropped = example.ids.size() < 2 || std::count(example.targets.begin() + 1, example.targets.end(), true) == 0;
}

}  // namespace

void add_lines(const std::string& path, const ReadOptions& options, const TextEncoder& encoder,
               absl::FunctionRef<Example(std::string_view, int64_t)> make, ExampleSet& out) {
  constexpr size_t kBytes = 1 << 20, kLines = 1 << 12;  // limits of a group of lines that is encoded in parallel
  constexpr int64_t kGrain = 4;
  // The longest line, in bytes. Encoding an example takes up to 40 bytes of memory for each byte of its text.
  constexpr uint64_t kLongestExample = 1 << 24;
  LineReader reader(path, kLongestExample);
  std::vector<Line> lines;
  std::vector<Outcome> outcomes;
  for (bool more = true; more;) {
    lines.clear();
    for (size_t bytes = 0; bytes < kBytes && lines.size() < kLines;) {
      std::string_view line;
      more = reader.next(line);
      if (!more) break;
      if (is_blank(line)) continue;
      lines.push_back({std::string(without_return(line)), reader.number()});
      bytes += line.size();
    }
    outcomes.assign(lines.size(), {});
    parallel_for(static_cast<int64_t>(lines.size()), kGrain, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const int64_t number = lines[i].number;
        try {
          try {
            outcomes[i].example = make(lines[i].text, number);
            check_vocabulary(outcomes[i].example.ids, options, encoder, path, number);
            fit(outcomes[i], options, path, number);
          } catch (const FileError&) {
            throw;
          } catch (const OutOfMemoryError&) {
            throw;
          } catch (const Error& error) {  // from the tokenizer or the template
            throw DataError(path, number, error.what());
          }
        } catch (...) {
          outcomes[i].error = std::current_exception();
        }
      }
    });
    for (const Outcome& outcome : outcomes) {
      if (outcome.error) std::rethrow_exception(outcome.error);
      if (outcome.dropped) {
        out.count_dropped();
        continue;
      }
      out.add(outcome.example);
      if (outcome.truncated) out.count_truncated();
    }
  }
  require_examples(out, path);
}

}  // namespace rondo::data
