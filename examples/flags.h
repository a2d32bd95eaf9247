// Flags: a tiny typed command-line parser.
// - `--name=value` and `--name value` set a flag. `--name` alone turns a bool on.
// - --help prints every flag with its default.
// - --recipe FILE takes flags from a file (recipe.h). The command line wins over the file.
// - --save_recipe FILE writes a recipe with the flags that differ from their defaults.
//
//   int64_t n_layer = 4;
//   Device device;
//   Flags flags("train_gpt", "Trains a GPT.");
//   flags.add("n_layer", &n_layer, "number of blocks");
//   flags.add("device", &device, "where it trains");
//   flags.parse({"--n_layer=6", "--device=cuda"});   // Error: unknown flag --n_layers; did you mean --n_layer?
//
// Keeps pointers to the variables: they must outlive the parser. Their values at the time of add() are the defaults.
//
// Why no library: a resumed run asks which flags were given and takes the others from its checkpoint, bit for bit.
// Abseil's Flags do not tell this, are global, and end the process on a bad value. CLI11 2.1 (Debian 12's)
// reads 9223372036854775808 as the largest int64 and 010 as 8, leaves 0 in the variable at --n_layer=four, takes
// --bias=true for the value of the flag before it, and names no nearest flag. tests/examples/flags_test.cc has each of
// these.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rondo/runtime/device/device.h"

namespace rondo::examples {

class Flags {
 public:
  using Target = std::variant<int64_t*, double*, bool*, std::string*, Device*>;

  Flags(std::string program, std::string purpose) : program_(std::move(program)), purpose_(std::move(purpose)) {}
  // `choices`, if any, are the only values of a string.
  void add(std::string name, Target target, std::string help, std::vector<std::string> choices = {});
  // Throws Error for an unknown flag, a missing value, a value of another type than the flag's, and a device that this
  // process does not have (the error says why). Errors in a recipe begin with its name and the line. Under a launcher
  // "cuda" is the device of the process's LOCAL_RANK (dist/groups/placement.h).
  void parse(const std::vector<std::string>& args);
  void set(const std::string& name, const std::string& value);

  bool help_wanted() const { return help_wanted_; }
  std::string usage() const;
  // True if the flag was in parse()'s arguments or in a recipe.
  bool given(const std::string& name) const { return given_.contains(name); }
  const std::set<std::string>& all_given() const { return given_; }
  // Returns every flag, with its value as text that set() accepts.
  std::map<std::string, std::string> values() const;

 private:
  struct Flag {
    std::string name;
    Target target;
    std::string help, default_text;
    std::vector<std::string> choices;
  };
  const Flag& find(const std::string& name) const;
  void take_recipe(const std::string& path);

  std::string program_, purpose_;
  std::vector<Flag> flags_;
  std::set<std::string> given_;
  bool help_wanted_ = false;
};

// Returns "; did you mean n_layer?" if one of the names is near enough, else "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& names);

}  // namespace rondo::examples
