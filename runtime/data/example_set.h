// ExampleSet: token ids with a loss mask, or with a label, held compactly in memory.
//
//   const auto chats = std::make_shared<const data::ExampleSet>(
//       data::read_chats("chats.jsonl", tokenizer, data::ChatTemplate::named("chatml"), {.max_length = 512}));
//   data::ExampleBatches batches(chats, {.batch_size = 8});      // example_batches.h
//
// An example of a language model has L tokens. The model reads the first L - 1 of them, the `columns`, and predicts the
// last L - 1. Tokens whose target flag is set carry loss. The first token is never a target. A labelled example (for a
// classifier) has L columns, because the model reads all of its tokens.
//
// Memory: 2 bytes for each token while ids fit in 16 bits (else 4), plus one bit for each flag.
// Thread safety: immutable once it is filled; then everything may be called from several threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rondo/runtime/base/error.h"

#pragma GCC visibility push(default)
namespace rondo::data {

// A line of a data file cannot be used. The message names the file, the line (from 1) and the reason.
class DataError : public FileError {
 public:
  DataError(std::string path, int64_t line, std::string_view reason);
  int64_t line() const { return line_; }

 private:
  int64_t line_;
};

// The meaning of a label.
enum class LabelKind {
  kClass,    // one class
  kClasses,  // a set of classes (multi-label classification)
  kNumbers,  // numbers (regression)
};

struct Example {
  std::vector<int32_t> ids = {};
  std::vector<bool> targets = {};  // one per token; empty for a labelled example
  std::vector<bool> second = {};   // one per token: true in the second text of a pair; empty if there is no pair
  int64_t label = -1;              // kClass: the class, from 0
  std::optional<std::vector<int64_t>> classes = std::nullopt;  // kClasses: the classes, each from 0
  std::vector<float> numbers = {};                             // kNumbers: finite numbers
};

// Counts from reading examples.
struct ExampleReport {
  int64_t examples = 0;   // examples in the set
  int64_t tokens = 0;     // tokens of these examples
  int64_t targets = 0;    // tokens that carry loss
  int64_t longest = 0;    // columns of the longest example
  int64_t truncated = 0;  // examples that lost tokens to max_length; texts that were split do not count
  int64_t dropped = 0;    // examples left out: too long, or without a target (perhaps because of truncation)
};

class ExampleSet {
 public:
  int64_t size() const { return static_cast<int64_t>(begins_.size()) - 1; }
  // True if the examples have labels. All examples of a set do, or none.
  bool labelled() const { return labelled_; }
  const ExampleReport& report() const { return report_; }
  // Returns the kind of the labels. For labelled sets only.
  LabelKind label_kind() const { return kind_; }
  // Returns how many numbers copy_label() writes. kClasses: the number of classes; kNumbers: the numbers of each
  // example.
  int64_t label_width() const;
  // Returns the names of the labels, by number; empty unless the set is labelled.
  const std::vector<std::string>& label_names() const { return label_names_; }
  // Returns a hash of all ids, flags and labels in their order. A resumed run compares it to check that the data is the
  // same.
  uint64_t fingerprint() const;

  // Returns the number of tokens of one example. REQUIRES: 0 <= index < size().
  int64_t length(int64_t index) const { return begins_[at(index) + 1] - begins_[at(index)]; }
  int64_t columns(int64_t index) const { return length(index) - (labelled_ ? 0 : 1); }
  int64_t label(int64_t index) const { return labels_[at(index)]; }  // REQUIRES: kClass
  // Writes label_width() numbers to y. kClasses: 1 for the classes of the example, 0 for the others.
  void copy_label(int64_t index, float* y) const;
  Example example(int64_t index) const;
  // Sets x[c] to the id in column c, for all columns.
  void copy_columns(int64_t index, int64_t* x) const;
  // Sets y[c] to the id after column c if that token is a target, else to kIgnoreIndex (token_data.h).
  void copy_targets(int64_t index, int64_t* y) const;
  // Sets segments[c] to 1 if column c is in the second text of a pair, else to 0.
  void copy_segments(int64_t index, int64_t* segments) const;
  // True if some example has tokens of a second text.
  bool has_pairs() const { return has_pairs_; }

  // Adds one example. Throws Error if it is empty, if its numbers of flags and ids differ, if an id is negative, if it
  // has no target, or if its kind of label or its count of numbers differs from that of the other examples.
  void add(const Example& example);
  void set_label_names(std::vector<std::string> names) { label_names_ = std::move(names); }
  // Renumbers the labels: label i becomes order[i].
  void map_labels(std::span<const int64_t> order);
  // Count an example that the caller has truncated or left out.
  void count_truncated() { ++report_.truncated; }
  void count_dropped() { ++report_.dropped; }

 private:
  static constexpr int64_t kBlock = int64_t{1} << 20;  // tokens of a full block
  // Only the last block grows, so growing copies at most one block.
  struct Block {
    std::vector<uint16_t> narrow;
    std::vector<uint32_t> wide;  // replaces `narrow` as soon as an id needs it
    std::vector<bool> targets, second;
  };
  static size_t at(int64_t index) { return static_cast<size_t>(index); }
  void push(int32_t id, bool target, bool second);
  template <class F> void for_tokens(int64_t begin, int64_t end, F&& f) const;

  std::vector<Block> blocks_;
  std::vector<int64_t> begins_ = {0};
  std::vector<int32_t> labels_;  // kClass: one per example; kClasses: all classes of example 0, then of example 1, ...
  std::vector<int64_t> label_begins_ = {0};  // kClasses: where the labels of each example begin
  std::vector<float> numbers_;               // kNumbers: `width_` for each example
  int64_t width_ = 0;
  LabelKind kind_ = LabelKind::kClass;
  std::vector<std::string> label_names_;
  ExampleReport report_;
  bool labelled_ = false, has_pairs_ = false;
};

}  // namespace rondo::data
#pragma GCC visibility pop
