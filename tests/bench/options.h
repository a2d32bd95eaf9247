// The options of a benchmark: --name=value, --name value or --name, which is "1".
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::bench {

inline int64_t whole_number(const std::string& text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) throw Error(absl::StrCat("not a whole number: '", text, "'"));
  return value;
}

class Options {
 public:
  Options(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
      const std::string arg = argv[i];
      const size_t eq = arg.find('=');
      if (arg.rfind("--", 0) != 0) throw Error("unexpected argument " + arg);
      if (eq != std::string::npos) values_[arg.substr(2, eq - 2)] = arg.substr(eq + 1);
      else if (i + 1 < argc && argv[i + 1][0] != '-') values_[arg.substr(2)] = argv[++i];
      else values_[arg.substr(2)] = "1";
    }
  }
  bool has(const std::string& name) const { return values_.count(name) != 0; }
  std::string text(const std::string& name, const std::string& fallback) const {
    const auto found = values_.find(name);
    return found == values_.end() ? fallback : found->second;
  }
  int64_t integer(const std::string& name, int64_t fallback) const {
    const auto found = values_.find(name);
    return found == values_.end() ? fallback : whole_number(found->second);
  }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace rondo::bench
