// The fields of a config.json, or of a file like it. A getter marks its field as understood and notes what is wrong
// with it. check() then throws one error that lists everything, including the fields that no getter has read, unless
// these are harmless (harmless_fields.h).
//
//   ConfigFields config(path, text);
//   const int64_t layers = config.size("num_hidden_layers", {}, kMostLayers);
//   config.check(/*allow_unknown=*/false);
//
// Getters always return a usable value, but do not build anything before check().
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
inline constexpr int64_t kMostLabels = 1 << 18;  // the names of so many fit into ConfigFields::kMostBytes
inline constexpr int64_t kMostWidth = int64_t{1} << 31;

class ConfigFields {
 public:
  static constexpr uint64_t kMostBytes = 16 << 20;

  // The name under which the table of harmless fields lists those of preprocessor_config.json.
  static constexpr std::string_view kImageProcessor = "image_processor";

  // Throws FileError if `text` is not one JSON object without duplicate names.
  ConfigFields(std::string path, std::string_view text);
  // For a file that is not a model's: `family` replaces its model_type.
  ConfigFields(std::string path, std::string_view text, std::string_view family);

  const std::string& path() const { return path_; }
  // Returns all fields, in the order of the file.
  const std::vector<ConfigField>& fields() const { return fields_; }
  void set(const std::string& name, const std::string& json) { set_field(fields_, name, json); }
  // True if the field is present and not null.
  bool has(std::string_view name) const;
  bool is_null(std::string_view name) const;
  // True if the field is present, and a number below 0.
  bool negative(std::string_view name) const;

  // Reads an integer from 1 to `most`. If `otherwise` is nullopt, an absent field is noted as missing.
  int64_t size(std::string_view name, std::optional<int64_t> otherwise = std::nullopt, int64_t most = kMostWidth);
  // Reads an integer from 0 to `most`; absent or null: nullopt.
  std::optional<int64_t> count(std::string_view name, int64_t most = kMostWidth);
  // Reads the number of a row in a table of `rows`, such as a token of the vocabulary. A negative number counts from
  // the table's end, as for torch.nn.Embedding's padding_idx. Absent or null: nullopt.
  std::optional<int64_t> row(std::string_view name, int64_t rows);
  // Reads a list of `n` integers from 1 to `most`.
  std::vector<int64_t> sizes(std::string_view name, std::vector<int64_t> otherwise, size_t n,
                             int64_t most = kMostWidth);
  // Reads a list of `n` finite numbers, or one number that stands for all of them.
  std::vector<double> numbers(std::string_view name, std::vector<double> otherwise, size_t n);
  // Reads the side of a square: an integer above 0, or a list of two equal ones.
  int64_t side(std::string_view name, int64_t otherwise);
  // Reads a finite number above 0.
  double positive(std::string_view name, double otherwise);
  // Reads a finite number, 0 or above.
  double not_negative(std::string_view name, double otherwise);
  // As positive(), but notes an absent field as missing.
  double required_positive(std::string_view name);
  // Reads a number from 0 to 1.
  double probability(std::string_view name, double otherwise);
  bool flag(std::string_view name, bool otherwise);
  std::string word(std::string_view name, std::string_view otherwise);
  // Calls `element` with each element of a list of strings. Returns false if there is no list.
  bool words(std::string_view name, absl::FunctionRef<void(std::string_view)> element);
  // Returns the number of entries of an object or list; absent or null: nullopt.
  std::optional<int64_t> entries(std::string_view name);
  // Returns the fields of an object, with names like "rope_scaling.factor" in messages; null if it is absent.
  std::unique_ptr<ConfigFields> object(std::string_view name);
  // As object(), for an object that is the config.json of another model. Which of its fields are harmless depends on
  // its own model_type. An absent object is noted as missing.
  std::unique_ptr<ConfigFields> model(std::string_view name);

  // Notes the field as unsupported, unless it is absent, null or this JSON text. Use it for fields whose only right
  // value follows from other fields; fields whose right values are constants belong in the table of harmless_fields.cc.
  void must_be(std::string_view name, std::string_view text);
  // Marks fields as understood: they have no effect here.
  void harmless(std::initializer_list<std::string_view> names);
  void unsupported(std::string_view name);
  void missing(std::string_view name);
  void invalid(std::string_view name, std::string_view wanted);

  // Notes the fields that no call above has named, unless they are harmless.
  void note_unknown();
  // Calls note_unknown(), and throws ConfigError if anything was noted. With allow_unknown unknown fields do not count.
  void check(bool allow_unknown);

 private:
  ConfigFields(std::string path, std::string prefix, std::string model_type, std::string_view text,
               std::shared_ptr<ConfigProblems> problems);
  void parse(std::string_view text);
  void read_model_type();
  // Returns the field's value, or null if it is absent or null. Marks the field as understood.
  const std::string* take(std::string_view name);
  std::optional<double> number(std::string_view name, std::string_view wanted);
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most);

  std::string path_, prefix_, model_type_;  // model_type_: the model's type, "" if it has none
  size_t inside_ = 0;                       // prefix_ without its first inside_ characters is the path within the model
  std::vector<ConfigField> fields_;
  std::set<std::string, std::less<>> understood_;
  std::shared_ptr<ConfigProblems> problems_;
};

// Returns the fields as one JSON object. Its lines after the first begin with `indent`.
std::string json_object(const std::vector<ConfigField>& fields, std::string_view indent = "");
// Writes the fields as one JSON object, whole or not at all. Throws FileError.
void write_fields(const std::string& path, const std::vector<ConfigField>& fields);

// Return the JSON text of a value, for writing.
std::string json_text(std::string_view text);
std::string json_text(double value);
std::string json_text(int64_t value);
std::string json_text(bool value);
inline std::string json_text(const char* text) { return json_text(std::string_view(text)); }

}  // namespace rondo::nn
