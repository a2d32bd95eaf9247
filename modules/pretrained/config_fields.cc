#include "rondo/modules/pretrained/config_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/modules/pretrained/harmless_fields.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"

namespace rondo::nn {
namespace {

std::string message_of(const ConfigProblems& problems, const std::string& what) {
  std::string text = absl::StrCat("does not describe ", what, " that can be built here");
  const auto list = [&](const char* title, const std::vector<std::string>& items) {
    if (!items.empty()) absl::StrAppend(&text, "\n  ", title, ": ", absl::StrJoin(items, ", "));
  };
  list("missing", problems.missing);
  list("invalid", problems.invalid);
  list("not supported", problems.unsupported);
  list("unknown (allow_unknown_fields, in finetune and classify --allow_unknown_fields, ignores them)",
       problems.unknown);
  return text;
}

// Returns a value, shortened, for messages.
std::string short_text(std::string_view json) {
  constexpr size_t kShown = 60;
  std::string text(json.substr(0, kShown));
  // A cut character would make the message invalid UTF-8.
  while (json.size() > kShown && !text.empty() && static_cast<uint8_t>(text.back()) >= 0x80) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return json.size() > kShown ? text + "..." : text;
}

}  // namespace

ConfigError::ConfigError(const std::string& path, ConfigProblems problems, const std::string& what)
    : FileError(path, message_of(problems, what)), problems_(std::move(problems)) {}

ConfigFields::ConfigFields(std::string path, std::string_view text)
    : ConfigFields(std::move(path), "", "", text, std::make_shared<ConfigProblems>()) {
  read_model_type();
}

ConfigFields::ConfigFields(std::string path, std::string_view text, std::string_view family)
    : ConfigFields(std::move(path), "", std::string(family), text, std::make_shared<ConfigProblems>()) {}

ConfigFields::ConfigFields(std::string path, std::string prefix, std::string model_type, std::string_view text,
                           std::shared_ptr<ConfigProblems> problems)
    : path_(std::move(path)),
      prefix_(std::move(prefix)),
      model_type_(std::move(model_type)),
      problems_(std::move(problems)) {
  parse(text);
}

void ConfigFields::read_model_type() {
  for (const ConfigField& field : fields_)
    if (field.name == "model_type" && field.json.starts_with('"'))
      model_type_ = io::JsonReader(path_, field.json).string();
}

void ConfigFields::parse(std::string_view text) {
  io::JsonReader json(path_, text);
  std::set<std::string> seen;
  json.object([&](std::string& name) {
    if (!seen.insert(name).second) json.fail(absl::StrCat("two fields ", io::shown(prefix_ + name)));
    json.peek();  // moves to the value's first character
    const size_t begin = json.position();
    json.skip();
    fields_.push_back({std::move(name), std::string(text.substr(begin, json.position() - begin))});
  });
  json.finish();
}

const std::string* ConfigFields::take(std::string_view name) {
  understood_.insert(std::string(name));
  for (const ConfigField& field : fields_)
    if (field.name == name) return field.json == "null" ? nullptr : &field.json;
  return nullptr;
}

bool ConfigFields::has(std::string_view name) const {
  return std::any_of(fields_.begin(), fields_.end(),
                     [&](const ConfigField& field) { return field.name == name && field.json != "null"; });
}

bool ConfigFields::is_null(std::string_view name) const {
  return std::any_of(fields_.begin(), fields_.end(),
                     [&](const ConfigField& field) { return field.name == name && field.json == "null"; });
}

bool ConfigFields::negative(std::string_view name) const {
  return std::any_of(fields_.begin(), fields_.end(),
                     [&](const ConfigField& field) { return field.name == name && field.json.starts_with('-'); });
}

void ConfigFields::invalid(std::string_view name, std::string_view wanted) {
  const std::string* json = take(name);
  problems_->invalid.push_back(absl::StrCat(prefix_, std::string(name), ": ",
                                            json != nullptr ? short_text(*json) : "null", ", wanted ",
                                            std::string(wanted)));
}

std::optional<int64_t> ConfigFields::integer(std::string_view name, int64_t least, int64_t most) {
  const std::string* json = take(name);
  if (json == nullptr) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(json->data(), json->data() + json->size(), value);
  if (error == std::errc() && end == json->data() + json->size() && value >= least && value <= most) return value;
  invalid(name, absl::StrCat("an integer from ", least, " to ", most));
  return std::nullopt;
}

int64_t ConfigFields::size(std::string_view name, std::optional<int64_t> otherwise, int64_t most) {
  const bool there = has(name);
  const std::optional<int64_t> value = integer(name, 1, most);
  if (!there && !otherwise) missing(name);
  return value ? *value : otherwise.value_or(1);
}

std::optional<int64_t> ConfigFields::count(std::string_view name, int64_t most) { return integer(name, 0, most); }

std::optional<int64_t> ConfigFields::row(std::string_view name, int64_t rows) {
  const std::optional<int64_t> value = integer(name, -rows, rows - 1);
  return value && *value < 0 ? *value + rows : value;
}

std::vector<int64_t> ConfigFields::sizes(std::string_view name, std::vector<int64_t> otherwise, size_t n,
                                         int64_t most) {
  const std::string* json = take(name);
  if (json == nullptr && otherwise.size() == n) return otherwise;
  std::vector<int64_t> values;
  bool fits = json != nullptr && json->starts_with('[');
  if (fits) {
    io::JsonReader reader(path_, *json);
    reader.array([&] {
      int64_t value = 0;
      const char first = reader.peek();
      if (first < '0' || first > '9') {
        fits = false;
        return reader.skip();
      }
      const std::string_view text = reader.number();
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      fits &= error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= most;
      values.push_back(value);
    });
  }
  if (fits && values.size() == n) return values;
  invalid(name, absl::StrCat("a list of ", n, " integers from 1 to ", most));
  return std::vector<int64_t>(n, 1);
}

std::vector<double> ConfigFields::numbers(std::string_view name, std::vector<double> otherwise, size_t n) {
  const std::string* json = take(name);
  if (json == nullptr) return otherwise;
  io::JsonReader reader(path_, *json);
  std::vector<double> values;
  bool fits = true;
  const auto next = [&] {
    double value = 0;
    const char first = reader.peek();
    if (first != '-' && (first < '0' || first > '9')) {
      fits = false;
      return reader.skip();
    }
    const std::string_view text = reader.number();
    fits &= std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc() && std::isfinite(value);
    values.push_back(value);
  };
  if (json->starts_with('[')) {
    reader.array(next);
  } else {
    next();
    values.resize(n, values.empty() ? 0 : values[0]);
  }
  if (fits && values.size() == n) return values;
  invalid(name, absl::StrCat("a number, or a list of ", n));
  return otherwise;
}

int64_t ConfigFields::side(std::string_view name, int64_t otherwise) {
  const std::string* json = take(name);
  if (json == nullptr || !json->starts_with('[')) return size(name, otherwise);
  std::vector<int64_t> sides;
  io::JsonReader reader(path_, *json);
  reader.array([&] {
    int64_t value = 0;
    const char first = reader.peek();
    if (first < '0' || first > '9') return reader.skip();
    const std::string_view text = reader.number();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value > 0 && value <= kMostWidth)
      sides.push_back(value);
  });
  if (sides.size() == 2 && sides[0] == sides[1]) return sides[0];
  if (sides.size() == 2) unsupported(name);
  else invalid(name, "a size, or a list of height and width");
  return otherwise;
}

std::optional<double> ConfigFields::number(std::string_view name, std::string_view wanted) {
  const std::string* json = take(name);
  if (json == nullptr) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(json->data(), json->data() + json->size(), value);
  if (error == std::errc() && end == json->data() + json->size() && std::isfinite(value)) return value;
  invalid(name, wanted);
  return std::nullopt;
}

double ConfigFields::positive(std::string_view name, double otherwise) {
  constexpr std::string_view kWanted = "a number above 0";
  const std::optional<double> value = number(name, kWanted);
  if (value && !(*value > 0)) invalid(name, kWanted);
  return value && *value > 0 ? *value : otherwise;
}

double ConfigFields::not_negative(std::string_view name, double otherwise) {
  constexpr std::string_view kWanted = "a number, 0 or above";
  const std::optional<double> value = number(name, kWanted);
  if (value && *value < 0) invalid(name, kWanted);
  return value && *value >= 0 ? *value : otherwise;
}

double ConfigFields::required_positive(std::string_view name) {
  if (!has(name)) missing(name);
  return positive(name, 1);
}

double ConfigFields::probability(std::string_view name, double otherwise) {
  constexpr std::string_view kWanted = "a number from 0 to 1";
  const std::optional<double> value = number(name, kWanted);
  const bool fits = value && *value >= 0 && *value <= 1;
  if (value && !fits) invalid(name, kWanted);
  return fits ? *value : otherwise;
}

bool ConfigFields::flag(std::string_view name, bool otherwise) {
  const std::string* json = take(name);
  if (json == nullptr) return otherwise;
  if (*json != "true" && *json != "false") invalid(name, "true or false");
  return *json == "true";
}

std::string ConfigFields::word(std::string_view name, std::string_view otherwise) {
  const std::string* json = take(name);
  if (json == nullptr) return std::string(otherwise);
  if (json->starts_with('"')) return io::JsonReader(path_, *json).string();
  invalid(name, "a string");
  return std::string(otherwise);
}

bool ConfigFields::words(std::string_view name, absl::FunctionRef<void(std::string_view)> element) {
  const std::string* json = take(name);
  if (json == nullptr) return false;
  io::JsonReader reader(path_, *json);
  bool fits = json->starts_with('[');
  if (fits)
    reader.array([&] {
      if (reader.peek() == '"') return element(reader.string());
      fits = false;
      reader.skip();
    });
  if (!fits) invalid(name, "a list of strings");
  return fits;
}

std::optional<int64_t> ConfigFields::entries(std::string_view name) {
  const std::string* json = take(name);
  if (json == nullptr) return std::nullopt;
  io::JsonReader reader(path_, *json);
  int64_t n = 0;
  const auto next = [&] {
    ++n;
    reader.skip();
  };
  if (json->starts_with('{')) reader.object([&](std::string&) { next(); });
  else if (json->starts_with('[')) reader.array(next);
  else invalid(name, "an object or a list");
  return n;
}

std::unique_ptr<ConfigFields> ConfigFields::object(std::string_view name) {
  const std::string* json = take(name);
  if (json == nullptr) return nullptr;
  if (json->starts_with('{')) {
    std::unique_ptr<ConfigFields> inner(
        new ConfigFields(path_, absl::StrCat(prefix_, std::string(name), "."), model_type_, *json, problems_));
    inner->inside_ = inside_;
    return inner;
  }
  invalid(name, "an object");
  return nullptr;
}

std::unique_ptr<ConfigFields> ConfigFields::model(std::string_view name) {
  if (!has(name)) missing(name);
  std::unique_ptr<ConfigFields> inner = object(name);
  if (inner == nullptr) return nullptr;
  inner->inside_ = inner->prefix_.size();
  inner->read_model_type();
  return inner;
}

void ConfigFields::must_be(std::string_view name, std::string_view text) {
  const std::string* json = take(name);
  if (json != nullptr && *json != text) unsupported(name);
}

void ConfigFields::harmless(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) understood_.insert(std::string(name));
}

void ConfigFields::unsupported(std::string_view name) {
  const std::string* json = take(name);
  problems_->unsupported.push_back(absl::StrCat(prefix_, std::string(name), ": ", json ? short_text(*json) : "null"));
}

void ConfigFields::missing(std::string_view name) { problems_->missing.push_back(prefix_ + std::string(name)); }

void ConfigFields::note_unknown() {
  for (const ConfigField& field : fields_) {
    if (understood_.contains(field.name)) continue;
    switch (effect_of(model_type_, prefix_.substr(inside_) + field.name, field.json)) {
      case FieldEffect::kNone: break;
      case FieldEffect::kOfItsFields:
        if (const auto inside = object(field.name)) inside->note_unknown();
        break;
      case FieldEffect::kChanges: unsupported(field.name); break;
      case FieldEffect::kUnknown:
        problems_->unknown.push_back(absl::StrCat(prefix_, field.name, ": ", short_text(field.json)));
    }
  }
}

void ConfigFields::check(bool allow_unknown) {
  note_unknown();
  if (allow_unknown) problems_->unknown.clear();
  if (!problems_->empty())
    throw ConfigError(path_, *problems_, model_type_ == kImageProcessor ? "an image processor" : "a model");
}

std::string json_object(const std::vector<ConfigField>& fields, std::string_view indent) {
  const std::string line = absl::StrCat("\n", std::string(indent));
  std::string text = "{";
  for (const ConfigField& field : fields)
    absl::StrAppend(&text, text.size() > 1 ? "," : "", line, "  ", json_text(field.name), ": ", field.json);
  return absl::StrCat(text, line, "}");
}

void write_fields(const std::string& path, const std::vector<ConfigField>& fields) {
  io::write_file_atomic(path, json_object(fields) + "\n");
}

void set_field(std::vector<ConfigField>& fields, const std::string& name, const std::string& json) {
  for (ConfigField& field : fields)
    if (field.name == name) {
      field.json = json;
      return;
    }
  fields.push_back({name, json});
}

std::string json_text(std::string_view text) {
  std::string json;
  io::append_json_string(json, text);
  return json;
}
std::string json_text(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  std::string json(text, end);
  // Python reads "1" as an integer, and some fields are checked to be floats.
  if (json.find_first_of(".e") == json.npos) json += ".0";
  return json;
}
std::string json_text(int64_t value) { return absl::StrCat(value); }
std::string json_text(bool value) { return value ? "true" : "false"; }

}  // namespace rondo::nn
