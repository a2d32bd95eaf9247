// read_labelled: reads texts with labels.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/read_lines.h"

namespace rondo::data {
namespace {

std::optional<int64_t> integer_of(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Numbers the label names. Without a given list of names, numbers them in the order in which the threads read them.
class Labels {
 public:
  explicit Labels(const std::vector<std::string>& given) : fixed_(!given.empty()) {
    for (const std::string& name : given)
      if (!numbers_.emplace(name, static_cast<int64_t>(numbers_.size())).second)
        throw Error(absl::StrCat("ReadOptions: the label name ", io::shown(name), " appears twice"));
  }

  int64_t number(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = numbers_.find(name);
    if (found != numbers_.end()) return found->second;
    const auto count = static_cast<int64_t>(numbers_.size());
    if (!fixed_) return numbers_.emplace(name, count).first->second;
    if (const auto value = integer_of(name); value && *value >= 0 && *value < count) return *value;
    std::string known;
    for (const auto& [other, number] : numbers_) absl::StrAppend(&known, known.empty() ? "" : ", ", other);
    throw Error(absl::StrCat("the label ", io::shown(name), " is none of ", known.substr(0, 200)));
  }

  // Sorts names that come from the file, and renumbers the labels of `set`.
  void settle(ExampleSet& set) const {
    std::vector<std::string> names(numbers_.size());
    for (const auto& [name, number] : numbers_) names[static_cast<size_t>(number)] = name;
    if (!fixed_) {
      std::vector<std::string> sorted = names;
      const bool integers = std::all_of(names.begin(), names.end(),
                                        [](const auto& name) { return !!integer_of(name); });
      std::sort(sorted.begin(), sorted.end(), [&](const std::string& a, const std::string& b) {
        return integers ? std::pair(*integer_of(a), a) < std::pair(*integer_of(b), b) : a < b;
      });
      std::map<std::string_view, int64_t> place;
      for (const std::string& name : sorted) place.emplace(name, static_cast<int64_t>(place.size()));
      std::vector<int64_t> order;
      for (const std::string& name : names) order.push_back(place.at(name));
      set.map_labels(order);
      names = std::move(sorted);
    }
    set.set_label_names(std::move(names));
  }

 private:
  const bool fixed_;
  std::mutex mutex_;
  std::map<std::string, int64_t> numbers_;
};

struct LabelledText {
  std::optional<std::vector<std::string>> labels{};  // exactly one if label_kind is kClass
  std::optional<std::string> text{}, pair{};
};

// Reads a label as text: for classes a string or an integer, for kNumbers a number.
std::string read_json_label(io::JsonReader& json, const std::string& key, LabelKind kind) {
  const bool numbers = kind == LabelKind::kNumbers;
  if (!numbers && json.peek() == '"') return json.string();
  const char first = json.peek();
  if (first != '-' && (first < '0' || first > '9'))
    json.fail(absl::StrCat("field ", io::shown(key), " must be a ", numbers ? "number" : "string or an integer"));
  std::string text(json.number());
  if (!numbers && !integer_of(text)) json.fail(absl::StrCat("field ", io::shown(key), " must be an integer"));
  return text;
}

std::vector<std::string> split_labels(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t at = 0; !text.empty() && at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    parts.emplace_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

float number_of(const std::string& path, int64_t line, const std::string& text) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    throw DataError(path, line, absl::StrCat("the label ", io::shown(text), " is no finite number"));
  return value;
}

LabelledText read_json(const std::string& path, int64_t line, std::string_view json_text, const ReadOptions& options) {
  LabelledText out;
  read_json_line(path, line, json_text, [&](io::JsonReader& json, const std::string& key) {
    if (key == options.text_field) {
      out.text = read_string_field(json, key);
    } else if (key == options.pair_field) {
      out.pair = read_string_field(json, key);
    } else if (key == options.label_field) {
      out.labels.emplace();
      const auto next = [&] { out.labels->push_back(read_json_label(json, key, options.label_kind)); };
      if (options.label_kind != LabelKind::kClass && json.peek() == '[') json.array(next);
      else next();
    } else {
      return false;
    }
    return true;
  });
  for (const auto& [there, name] :
       {std::pair(out.text.has_value(), &options.text_field), {out.labels.has_value(), &options.label_field}})
    if (!there) throw DataError(path, line, missing_field(*name));
  return out;
}

LabelledText read_columns(const std::string& path, int64_t line, std::string_view text, LabelKind kind) {
  const size_t tab = text.find('\t');
  if (tab == std::string_view::npos) throw DataError(path, line, "expected a label, a tab and a text");
  const std::string_view label = text.substr(0, tab);
  return {.labels = kind == LabelKind::kClass ? std::vector{std::string(label)} : split_labels(label),
          .text = std::string(text.substr(tab + 1))};
}

}  // namespace

ExampleSet read_labelled(const std::string& path, const text::PreTrainedTokenizer& tokenizer,
                         const ReadOptions& options) try {
  check_options(options, false);
  const TextEncoder speller(tokenizer, options.allow_special_tokens);
  const TooLong how = options.too_long.value_or(TooLong::kTruncate);
  const bool json = is_json_lines(path);
  const LabelKind kind = options.label_kind;
  Labels labels(options.label_names);
  std::mutex mutex;
  std::atomic<int64_t> numbers = 0;  // how many numbers each label has; 0: not known yet
  const auto check_count = [&](int64_t line, int64_t count) {
    int64_t others = 0;
    if (count == 0) throw DataError(path, line, "the label is empty");
    if (!numbers.compare_exchange_strong(others, count) && others != count)
      throw DataError(path, line, absl::StrCat("the label has ", count, " numbers, and others have ", others));
  };
  int64_t truncated = 0;
  ExampleSet out;
  add_lines(
      path, options, speller,
      [&](std::string_view line_text, int64_t line) {
        const LabelledText read = json ? read_json(path, line, line_text, options)
                                       : read_columns(path, line, line_text, kind);
        for (const std::string& label : *read.labels)
          if (label.empty()) throw DataError(path, line, "the label is empty");
        if (kind == LabelKind::kNumbers) check_count(line, static_cast<int64_t>(read.labels->size()));
        if (read.text->empty()) throw DataError(path, line, "the text is empty");
        text::EncodeOptions encoding = plain_encoding(true, !options.allow_special_tokens);
        const auto encode = [&] {
          return read.pair ? tokenizer(*read.text, *read.pair, encoding) : tokenizer(*read.text, encoding);
        };
        text::Encoding encoded = encode();
        if (options.max_length > 0 && static_cast<int64_t>(encoded.size()) > options.max_length) {
          if (how == TooLong::kError)
            throw DataError(path, line,
                            absl::StrCat("the text has ", encoded.size(), " tokens, but max_length is ",
                                         options.max_length, "; shorten it, or truncate or drop such texts"));
          if (how == TooLong::kDrop) return Example{.label = 0};
          encoding.truncation = text::Truncation{.max_length = options.max_length};
          encoded = encode();
          const std::lock_guard lock(mutex);
          ++truncated;
        }
        Example example{.ids = std::move(encoded.ids)};
        if (kind == LabelKind::kClass) example.label = labels.number(read.labels->front());
        if (kind == LabelKind::kClasses) example.classes.emplace();
        for (const std::string& label : *read.labels) {
          if (kind == LabelKind::kClasses) example.classes->push_back(labels.number(label));
          if (kind == LabelKind::kNumbers) example.numbers.push_back(number_of(path, line, label));
        }
        if (read.pair)
          for (const int32_t type : encoded.type_ids) example.second.push_back(type == 1);
        return example;
      },
      out);
  for (; truncated > 0; --truncated) out.count_truncated();
  if (kind != LabelKind::kNumbers) labels.settle(out);
  return out;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("read_labelled");
}

}  // namespace rondo::data
