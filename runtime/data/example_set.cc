#include "rondo/runtime/data/example_set.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::data {

DataError::DataError(std::string path, int64_t line, std::string_view reason)
    : FileError(std::move(path), absl::StrCat("line ", line, ": ", std::string(reason))), line_(line) {}

// Calls f(i, id, target, second) for the tokens [begin, end); i counts from 0.
template <class F> void ExampleSet::for_tokens(int64_t begin, int64_t end, F&& f) const {
  for (int64_t i = begin; i < end;) {
    const Block& block = blocks_[at(i / kBlock)];
    const int64_t stop = std::min(end, (i / kBlock + 1) * kBlock);
    for (; i < stop; ++i) {
      const size_t in_block = at(i % kBlock);
      const int64_t id = block.wide.empty() ? int64_t{block.narrow[in_block]} : int64_t{block.wide[in_block]};
      f(i - begin, id, block.targets[in_block], !block.second.empty() && block.second[in_block]);
    }
  }
}

void ExampleSet::push(int32_t id, bool target, bool second) {
  if (blocks_.empty() || static_cast<int64_t>(blocks_.back().targets.size()) == kBlock) blocks_.emplace_back();
  Block& block = blocks_.back();
  if (block.wide.empty() && id > UINT16_MAX) {
    block.wide.assign(block.narrow.begin(), block.narrow.end());
    block.narrow = {};
    block.wide.push_back(static_cast<uint32_t>(id));
  } else if (!block.wide.empty()) {
    block.wide.push_back(static_cast<uint32_t>(id));
  } else {
    block.narrow.push_back(static_cast<uint16_t>(id));
  }
  if (second && block.second.empty()) block.second.assign(block.targets.size(), false);
  if (second || !block.second.empty()) block.second.push_back(second);
  block.targets.push_back(target);
}

void ExampleSet::add(const Example& example) {
  const size_t n = example.ids.size();
  const LabelKind kind = example.classes            ? LabelKind::kClasses
                         : !example.numbers.empty() ? LabelKind::kNumbers
                                                    : LabelKind::kClass;
  const bool labelled = example.label >= 0 || kind != LabelKind::kClass;
  if (n == 0) throw Error("ExampleSet::add: the example has no tokens");
  if (example.targets.size() != (labelled ? 0 : n))
    throw Error(absl::StrCat("ExampleSet::add: ", n, " tokens need ", labelled ? 0 : n, " target flags, got ",
                             example.targets.size()));
  if (!example.second.empty() && example.second.size() != n)
    throw Error(absl::StrCat("ExampleSet::add: ", n, " tokens, but ", example.second.size(), " flags of segments"));
  if (example.label > INT32_MAX) throw Error(absl::StrCat("ExampleSet::add: label ", example.label, " is too large"));
  if (size() > 0 && labelled != labelled_)
    throw Error("ExampleSet::add: examples with and without a label cannot stand in one set");
  if (size() > 0 && kind != kind_) throw Error("ExampleSet::add: labels of several kinds cannot stand in one set");
  const auto width = static_cast<int64_t>(example.numbers.size());
  if (size() > 0 && width != width_)
    throw Error(absl::StrCat("ExampleSet::add: an example has ", width, " numbers, and others have ", width_));
  if (!std::all_of(example.numbers.begin(), example.numbers.end(), [](float x) { return std::isfinite(x); }))
    throw Error("ExampleSet::add: a number is not finite");
  for (const int64_t c : example.classes.value_or(std::vector<int64_t>()))
    if (c < 0 || c > INT32_MAX) throw Error(absl::StrCat("ExampleSet::add: there is no class ", c));
  if (const auto least = *std::min_element(example.ids.begin(), example.ids.end()); least < 0)
    throw Error(absl::StrCat("ExampleSet::add: negative id ", least));
  const auto targets = labelled ? 0 : std::count(example.targets.begin() + 1, example.targets.end(), true);
  if (!labelled && targets == 0) throw Error("ExampleSet::add: no token behind the first one is a target");

  labelled_ = labelled;
  for (size_t i = 0; i < n; ++i) {
    const bool second = !example.second.empty() && example.second[i];
    has_pairs_ = has_pairs_ || second;
    push(example.ids[i], !labelled && i > 0 && example.targets[i], second);
  }
  begins_.push_back(begins_.back() + static_cast<int64_t>(n));
  kind_ = kind;
  width_ = width;
  numbers_.insert(numbers_.end(), example.numbers.begin(), example.numbers.end());
  if (example.classes) {
    for (const int64_t c : *example.classes) labels_.push_back(static_cast<int32_t>(c));
    label_begins_.push_back(static_cast<int64_t>(labels_.size()));
  } else if (example.label >= 0) {
    labels_.push_back(static_cast<int32_t>(example.label));
  }
  ++report_.examples;
  report_.tokens += static_cast<int64_t>(n);
  report_.targets += targets;
  report_.longest = std::max(report_.longest, columns(size() - 1));
}

int64_t ExampleSet::label_width() const {
  return kind_ == LabelKind::kNumbers ? width_ : static_cast<int64_t>(label_names_.size());
}

void ExampleSet::copy_label(int64_t index, float* y) const {
  if (kind_ == LabelKind::kNumbers) {
    std::copy_n(numbers_.begin() + index * width_, width_, y);
    return;
  }
  std::fill_n(y, label_width(), 0.0f);
  for (int64_t i = label_begins_[at(index)]; i < label_begins_[at(index) + 1]; ++i) y[labels_[at(i)]] = 1;
}

void ExampleSet::map_labels(std::span<const int64_t> order) {
  for (int32_t& label : labels_) label = static_cast<int32_t>(order[static_cast<size_t>(label)]);
}

Example ExampleSet::example(int64_t index) const {
  Example out{.label = labelled_ && kind_ == LabelKind::kClass ? label(index) : -1};
  if (kind_ == LabelKind::kClasses)
    out.classes.emplace(labels_.begin() + label_begins_[at(index)], labels_.begin() + label_begins_[at(index) + 1]);
  if (kind_ == LabelKind::kNumbers)
    out.numbers.assign(numbers_.begin() + index * width_, numbers_.begin() + (index + 1) * width_);
  for_tokens(begins_[at(index)], begins_[at(index) + 1], [&](int64_t, int64_t id, bool target, bool second) {
    out.ids.push_back(static_cast<int32_t>(id));
    if (!labelled_) out.targets.push_back(target);
    if (has_pairs_) out.second.push_back(second);
  });
  return out;
}

void ExampleSet::copy_columns(int64_t index, int64_t* x) const {
  const int64_t begin = begins_[at(index)];
  for_tokens(begin, begin + columns(index), [&](int64_t i, int64_t id, bool, bool) { x[i] = id; });
}

void ExampleSet::copy_targets(int64_t index, int64_t* y) const {
  const int64_t begin = begins_[at(index)] + 1;
  for_tokens(begin, begin + columns(index),
             [&](int64_t i, int64_t id, bool target, bool) { y[i] = target ? id : kIgnoreIndex; });
}

void ExampleSet::copy_segments(int64_t index, int64_t* segments) const {
  const int64_t begin = begins_[at(index)];
  for_tokens(begin, begin + columns(index), [&](int64_t i, int64_t, bool, bool second) { segments[i] = second; });
}

uint64_t ExampleSet::fingerprint() const try {
  io::Checksum sum;
  std::vector<uint64_t> row;
  for (int64_t index = 0; index < size(); ++index) {
    const bool one_class = labelled_ && kind_ == LabelKind::kClass;
    row = {static_cast<uint64_t>(one_class ? label(index) : -1), static_cast<uint64_t>(length(index))};
    for_tokens(begins_[at(index)], begins_[at(index) + 1], [&](int64_t, int64_t id, bool target, bool second) {
      row.push_back(static_cast<uint64_t>(id) << 2 | static_cast<uint64_t>(target) << 1 |
                    static_cast<uint64_t>(second));
    });
    sum.update(row.data(), row.size() * sizeof(uint64_t));
  }
  if (kind_ != LabelKind::kClass) {
    sum.update(labels_.data(), labels_.size() * sizeof(int32_t));
    sum.update(label_begins_.data(), label_begins_.size() * sizeof(int64_t));
    sum.update(numbers_.data(), numbers_.size() * sizeof(float));
  }
  for (const std::string& name : label_names_) sum.update(name + "\n");
  return sum.digest();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ExampleSet::fingerprint");
}

}  // namespace rondo::data
