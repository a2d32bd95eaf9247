// The problems of a config.json.
#pragma once

#include <string>
#include <vector>

#include "rondo/runtime/base/error.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct ConfigProblems {
  std::vector<std::string> missing;  // names of fields
  std::vector<std::string> invalid;  // "hidden_size: -3, wanted an integer from 1 to 2147483647"
  std::vector<std::string>
      unsupported;                   // "rope_scaling.rope_type: \"yarn\"": they would change what the model computes
  std::vector<std::string> unknown;  // "new_field: 3": they may change it
  bool empty() const { return missing.empty() && invalid.empty() && unsupported.empty() && unknown.empty(); }
};

// Thrown if a config.json, or a preprocessor_config.json, does not describe `what` in a form that Rondo can build.
// Lists all fields that are the reason.
class ConfigError : public FileError {
 public:
  ConfigError(const std::string& path, ConfigProblems problems, const std::string& what = "a model");
  const ConfigProblems& problems() const { return problems_; }

 private:
  ConfigProblems problems_;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
