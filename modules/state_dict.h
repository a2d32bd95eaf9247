// StateDict: named tensors, as they are saved and loaded, and the check that keeps a load from stopping half way.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/error.h"
#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

using StateDict = std::map<std::string, Tensor>;

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

struct StateDictReport {
  std::vector<std::string> missing;     // wanted, not in the dict
  std::vector<std::string> unexpected;  // in the dict, not wanted
  std::vector<std::string> mismatched;  // "fc.weight: [3, 4] wanted, [4, 3] given"
  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

// A state dict does not fit; nothing was changed.
class StateDictError : public Error {
 public:
  StateDictError(std::string_view what, StateDictReport report);
  const StateDictReport& report() const { return report_; }

 private:
  StateDictReport report_;
};

// Copies `source` into `targets` (floating dtypes convert, others must be equal) after everything has been checked.
// Targets that are the same tensor under several names need one of them; contradicting values are a mismatch. Throws
// StateDictError; missing and unexpected names only if `strict`. `what` opens the message: "GPT2".
StateDictReport load_tensors(std::span<const NamedTensor> targets, const StateDict& source, bool strict,
                             std::string_view what);

}  // namespace rondo::nn
#pragma GCC visibility pop
