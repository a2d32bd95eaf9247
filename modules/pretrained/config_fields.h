// The fields of a config.json, or of a file like it. A getter marks its field as understood and notes what is wrong
// with it; check() then throws one error that lists everything, the fields that nobody asked for included, unless they
// are harmless (harmless_fields.h).
//
//   ConfigFields config(path, text);
//   const int64_t layers = config.size("num_hidden_layers", {}, kMostLayers);
//   config.check(/*allow_unknown=*/false);
//
// Getters return a usable value in any case, but build nothing before check().
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/modules/pretrained/config_error.h"

namespace rondo::nn {

// A field and its value as JSON text.
struct ConfigField {
  std::string name;
  std::string json;
};
// Replaces a field, or adds it.
void set_field(std::vector<ConfigField>& fields, const std::string& name, const std::string& json);

inline constexpr int64_t kMostLayers = 1024;
inline constexpr int64_t kMostLabels = 1 << 18;  // their names fit into ConfigFields::kMostBytes
inline constexpr int64_t kMostWidth = int64_t{1} << 31;

class ConfigFields {
 public:
  static constexpr uint64_t kMostBytes = 16 << 20;

  // The name under which the table of harmless fields lists those of preprocessor_config.json.
  static constexpr std::string_view kImageProcessor = "image_processor";

  // Throws FileError if `text` is not one JSON object without duplicate names.
  ConfigFields(std::string path, std::string_view text);
  // Not a model's: `family` stands for the file's model_type.
  ConfigFields(std::string path, std::string_view text, std::string_view family);

  const std::string& path() const { return path_; }
  // All, in the order of the file.
  const std::vector<ConfigField>& fields() const { return fields_; }
  void set(const std::string& name, const std::string& json) { set_field(fields_, name, json); }
  // Present and not null.
  bool has(std::string_view name) const;
  bool is_null(std::string_view name) const;
  // Present, and a number below 0.
  bool negative(std::string_view name) const;

  // An integer from 1 to `most`. Without a default a missing field is noted.
  int64_t size(std::string_view name, std::optional<int64_t> otherwise = std::nullopt, int64_t most = kMostWidth);
  // An integer from 0 to `most`; absent or null: nullopt.
  std::optional<int64_t> count(std::string_view name, int64_t most = kMostWidth);
  // A row of a table of `rows`, such as a token of the vocabulary. A negative number counts from the table's end, as
  // for torch.nn.Embedding's padding_idx. Absent or null: nullopt.
  std::optional<int64_t> row(std::string_view name, int64_t rows);
  // `n` integers from 1 to `most`, a list in the file.
  std::vector<int64_t> sizes(std::string_view name, std::vector<int64_t> otherwise, size_t n,
                             int64_t most = kMostWidth);
  // `n` finite numbers, a list in the file, or one number that stands for all of them.
  std::vector<double> numbers(std::string_view name, std::vector<double> otherwise, size_t n);
  // The side of a square: an integer above 0, or a list of two equal ones.
  int64_t side(std::string_view name, int64_t otherwise);
  // A finite number above 0.
  double positive(std::string_view name, double otherwise);
  // A finite number, 0 or above.
  double not_negative(std::string_view name, double otherwise);
  // As positive(); without it the field is noted as missing.
  double required_positive(std::string_view name);
  // A number from 0 to 1.
  double probability(std::string_view name, double otherwise);
  bool flag(std::string_view name, bool otherwise);
  std::string word(std::string_view name, std::string_view otherwise);
  // Each element of a list of strings; returns whether it is there.
  bool words(std::string_view name, absl::FunctionRef<void(std::string_view)> element);
  // How many entries an object or list has; absent or null: nullopt.
  std::optional<int64_t> entries(std::string_view name);
  // The fields of an object, with names like "rope_scaling.factor" in messages; null if it is not there.
  std::unique_ptr<ConfigFields> object(std::string_view name);
  // The same for an object that is the config.json of a model of its own, with its model_type: what is harmless there
  // depends on that. Null is noted as missing.
  std::unique_ptr<ConfigFields> model(std::string_view name);

  // Absent, null or this JSON text is fine; anything else is unsupported. For a value that follows from other fields:
  // constants belong in the table of harmless_fields.cc.
  void must_be(std::string_view name, std::string_view text);
  // Understood, and without effect here.
  void harmless(std::initializer_list<std::string_view> names);
  void unsupported(std::string_view name);
  void missing(std::string_view name);
  void invalid(std::string_view name, std::string_view wanted);

  // Notes the fields that no call above has named, unless they are harmless.
  void note_unknown();
  // Throws ConfigError if something was noted.
  void check(bool allow_unknown);

 private:
  ConfigFields(std::string path, std::string prefix, std::string model_type, std::string_view text,
               std::shared_ptr<ConfigProblems> problems);
  void parse(std::string_view text);
  void read_model_type();
  // Its value, which is marked as understood; null if it is absent or null.
  const std::string* take(std::string_view name);
  std::optional<double> number(std::string_view name, std::string_view wanted);
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most);

  std::string path_, prefix_, model_type_;  // the model's, "" if it has none
  size_t inside_ = 0;                       // the part of prefix_ that leads to the model
  std::vector<ConfigField> fields_;
  std::set<std::string, std::less<>> understood_;
  std::shared_ptr<ConfigProblems> problems_;
};

// As one object, whose lines after the first begin with `indent`.
std::string json_object(const std::vector<ConfigField>& fields, std::string_view indent = "");
// Writes them as one object, whole or not at all. Throws FileError.
void write_fields(const std::string& path, const std::vector<ConfigField>& fields);

// JSON texts, for writing.
std::string json_text(std::string_view text);
std::string json_text(double value);
std::string json_text(int64_t value);
std::string json_text(bool value);
inline std::string json_text(const char* text) { return json_text(std::string_view(text)); }

}  // namespace rondo::nn
