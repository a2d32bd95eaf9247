#include "rondo/examples/recipe.h"

#include <yaml-cpp/emitter.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/open_file.h"

namespace rondo::examples {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 20;

// Reads the parser's events one by one: no tree is built, and an alias is an error at its own line.
class Reader final : public YAML::EventHandler {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}
  std::vector<RecipeEntry> take_entries() { return std::move(entries_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) fail(mark, "a recipe is one document, and here is another");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (depth_ == 0) throw FileError(path_, "the recipe is empty");
    if (!has_key_) fail(mark, "a key is missing");
    fail(line_, absl::StrCat(key_, " has no value"));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { fail(mark, "aliases are not taken in a recipe"); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string& value) override {
    if (depth_ == 0) fail(mark, "a recipe is a mapping of options to values, as in n_layer: 6");
    if (!has_key_) return begin_entry(mark, value);
    if (!in_list_) return end_entry(value);
    if (value.find(',') != std::string::npos) fail(mark, absl::StrCat("a comma in a value of the list ", key_));
    absl::StrAppend(&list_, list_.empty() ? "" : ",", value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    if (depth_ == 0) fail(mark, "a recipe is a mapping of options to values, and this is a list");
    if (!has_key_) fail(mark, "a key must be the name of an option");
    if (in_list_) fail(mark, absl::StrCat("a list in the list ", key_));
    in_list_ = true;
    list_.clear();
  }
  void OnSequenceEnd() override {
    in_list_ = false;
    end_entry(list_);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
    if (in_list_) fail(mark, absl::StrCat("a mapping in the list ", key_));
    if (depth_ == 2) fail(mark, absl::StrCat("a mapping below ", key_, ", which is below a heading"));
    if (depth_ == 1 && !has_key_) fail(mark, "a key must be the name of an option");
    has_key_ = false;  // the key was a heading, so it has no value of its own
    ++depth_;
  }
  void OnMapEnd() override { --depth_; }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& why) const { fail(mark.line + 1, why); }

 private:
  [[noreturn]] void fail(int line, const std::string& why) const {
    throw FileError(absl::StrCat(path_, ":", line), why);
  }
  void begin_entry(const YAML::Mark& mark, const std::string& key) {
    key_ = key;
    line_ = mark.line + 1;
    has_key_ = true;
  }
  void end_entry(const std::string& value) {
    for (const RecipeEntry& before : entries_)
      if (before.key == key_) fail(line_, absl::StrCat(key_, " was given before, in line ", before.line));
    entries_.push_back({key_, value, line_});
    has_key_ = false;
  }

  const std::string path_;
  std::vector<RecipeEntry> entries_;
  int documents_ = 0;
  int depth_ = 0;  // how deep the mappings are nested here
  bool has_key_ = false, in_list_ = false;
  std::string key_, list_;
  int line_ = 0;  // the line of the key
};

}  // namespace

std::vector<RecipeEntry> read_recipe(const std::string& path) {
  const std::string text = io::read_text(path, kMaxBytes);
  Reader reader(path);
  try {
    // Adds an explicit end of the document, because yaml-cpp accepts the end of the file as the end of a quote.
    std::istringstream in(text + "\n...\n");
    YAML::Parser parser(in);
    if (!parser.HandleNextDocument(reader)) throw FileError(path, "the recipe is empty");
    while (parser.HandleNextDocument(reader)) continue;
  } catch (const YAML::Exception& error) {
    reader.fail(error.mark, error.msg);
  }
  return reader.take_entries();
}

void write_recipe(const std::string& path, const std::map<std::string, std::string>& values) {
  YAML::Emitter out;
  out << YAML::BeginMap;
  for (const auto& [key, value] : values) out << YAML::Key << key << YAML::Value << value;
  out << YAML::EndMap << YAML::Newline;
  io::write_file_atomic(path, std::string_view(out.c_str(), out.size()));
}

}  // namespace rondo::examples
