#include "rondo/examples/flags.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/groups/placement.h"
#include "rondo/examples/recipe.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::examples {
namespace {

std::string text_of(const Flags::Target& target) {
  struct Visitor {
    std::string operator()(const int64_t* v) const { return absl::StrCat(*v); }
    std::string operator()(const double* v) const {
      double back = 0;
      for (int digits = 6; digits < 17; ++digits) {
        const std::string text = formatted("%.*g", digits, *v);
        if (absl::SimpleAtod(text, &back) && back == *v) return text;
      }
      return formatted("%.17g", *v);
    }
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const std::string* v) const { return *v; }
    std::string operator()(const Device* v) const { return to_string(*v); }
  };
  return std::visit(Visitor(), target);
}

// Sets the target to the value that `text` means. Returns false, and changes nothing, if `text` is not of the target's
// type. Throws Error if there is no such device.
bool assign(const Flags::Target& target, const std::string& text) {
  struct Visitor {
    const std::string& text;
    bool operator()(int64_t* v) const {
      int64_t parsed = 0;
      return absl::SimpleAtoi(text, &parsed) && (*v = parsed, true);
    }
    bool operator()(double* v) const {
      double parsed = 0;
      return absl::SimpleAtod(text, &parsed) && std::isfinite(parsed) && (*v = parsed, true);
    }
    bool operator()(bool* v) const { return absl::SimpleAtob(text, v); }
    bool operator()(std::string* v) const { return *v = text, true; }
    bool operator()(Device* v) const {
      const Device device = dist::device_of_rank(text, dist::Environment::from_process());
      std::string why_not;
      if (device_count(device.backend, &why_not) == 0) throw Error(why_not);
      require_device(device);
      return *v = device, true;
    }
  };
  return std::visit(Visitor{text}, target);
}

const char* type_name(const Flags::Target& target) {
  constexpr const char* kNames[] = {"a whole number", "a finite number", "true or false", "text", "a device"};
  return kNames[target.index()];
}

// Returns the Levenshtein distance of two texts.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
    }
  }
  return row.back();
}

// Flags that every program has. They are not in flags_, because no run stores them.
constexpr const char* kRecipe = "recipe";
constexpr const char* kSaveRecipe = "save_recipe";

}  // namespace

std::string did_you_mean(std::string_view name, const std::vector<std::string>& names) {
  const auto nearest = std::min_element(names.begin(), names.end(), [&](const std::string& a, const std::string& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  if (nearest == names.end() || edit_distance(name, *nearest) > std::max<size_t>(2, name.size() / 3)) return "";
  return absl::StrCat("; did you mean ", *nearest, "?");
}

void Flags::add(std::string name, Target target, std::string help, std::vector<std::string> choices) {
  flags_.push_back({std::move(name), target, std::move(help), text_of(target), std::move(choices)});
}

const Flags::Flag& Flags::find(const std::string& name) const {
  for (const Flag& flag : flags_)
    if (flag.name == name) return flag;
  std::vector<std::string> names = {absl::StrCat("--", kRecipe), absl::StrCat("--", kSaveRecipe)};
  for (const Flag& flag : flags_) names.push_back("--" + flag.name);
  throw Error(absl::StrCat("unknown flag --", name, did_you_mean("--" + name, names), " (--help lists all)"));
}

void Flags::set(const std::string& name, const std::string& value) {
  const Flag& flag = find(name);
  if (!flag.choices.empty() && std::find(flag.choices.begin(), flag.choices.end(), value) == flag.choices.end())
    throw Error(absl::StrCat("--", name, "=", value, ": must be one of ", absl::StrJoin(flag.choices, ", ")));
  bool assigned = false;
  try {
    assigned = assign(flag.target, value);
  } catch (const Error& error) {
    throw Error(absl::StrCat("--", name, "=", value, ": ", error.what()));
  }
  if (!assigned) throw Error(absl::StrCat("--", name, "=", value, ": must be ", type_name(flag.target)));
}

void Flags::take_recipe(const std::string& path) {
  for (const RecipeEntry& entry : read_recipe(path)) try {
      if (entry.key == kRecipe || entry.key == kSaveRecipe)
        throw Error(absl::StrCat(entry.key, " is for the command line: a recipe names no other one"));
      set(entry.key, entry.value);
      given_.insert(entry.key);
    } catch (const Error& error) {
      throw FileError(absl::StrCat(path, ":", entry.line), error.what());
    }
}

void Flags::parse(const std::vector<std::string>& args) {
  std::vector<std::pair<std::string, std::string>> settings;
  std::string saved;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--help" || arg == "-h") {
      help_wanted_ = true;
      continue;
    }
    if (!arg.starts_with("--")) throw Error(absl::StrCat("\"", arg, "\" is not a flag; flags look like --name=value"));
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(2, equals == std::string::npos ? equals : equals - 2);
    const bool of_all = name == kRecipe || name == kSaveRecipe;
    const bool is_switch = !of_all && std::holds_alternative<bool*>(find(name).target);
    const bool alone = equals == std::string::npos && (i + 1 == args.size() || args[i + 1].starts_with("--"));
    if (alone && !is_switch) throw Error(absl::StrCat("--", name, " needs a value"));
    const std::string value = alone ? "true" : equals == std::string::npos ? args[++i] : arg.substr(equals + 1);
    if (name == kRecipe) take_recipe(value);
    else if (name == kSaveRecipe) saved = value;
    else settings.emplace_back(name, value);
  }
  for (const auto& [name, value] : settings) {
    set(name, value);
    given_.insert(name);
  }
  if (saved.empty()) return;
  std::map<std::string, std::string> changed;
  for (const Flag& flag : flags_)
    if (std::string value = text_of(flag.target); value != flag.default_text) changed[flag.name] = std::move(value);
  if (changed.empty()) throw Error(absl::StrCat("--", kSaveRecipe, ": all options are as by default"));
  write_recipe(saved, changed);
}

std::string Flags::usage() const {
  std::string text = absl::StrCat(purpose_, "\n\nUsage: ", program_, " [--name=value ...]\n\n");
  for (const Flag& flag : flags_) {
    std::string left = absl::StrCat("  --", flag.name, flag.default_text.empty() ? "" : "=", flag.default_text);
    left.resize(std::max<size_t>(left.size() + 2, 34), ' ');
    absl::StrAppend(&text, left, flag.help);
    if (!flag.choices.empty()) absl::StrAppend(&text, " (", absl::StrJoin(flag.choices, ", "), ")");
    absl::StrAppend(&text, "\n");
  }
  absl::StrAppend(&text, "\n  --recipe=FILE                   options in YAML or JSON; those of the command line win\n",
                  "  --save_recipe=FILE              writes a recipe with the options that are not as by default\n");
  return text;
}

std::map<std::string, std::string> Flags::values() const {
  std::map<std::string, std::string> all;
  for (const Flag& flag : flags_) all[flag.name] = text_of(flag.target);
  return all;
}

}  // namespace rondo::examples
