// StateDict: named tensors as they are saved and loaded. A load checks everything before it changes anything.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

using StateDict = std::map<std::string, Tensor>;

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

struct StateDictReport {
  std::vector<std::string> missing;     // wanted names that the dict lacks
  std::vector<std::string> unexpected;  // names of the dict that are not wanted
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

// Copies `source` into `targets`, after everything was checked. Floating dtypes convert, others must be equal. A tensor
// that has several names among the targets needs only one of them in `source`; different values under its names are a
// mismatch. Throws StateDictError for mismatches, and, if `strict`, for missing and unexpected names. The message
// begins with `what`: "GPT2".
StateDictReport load_tensors(std::span<const NamedTensor> targets, const StateDict& source, bool strict,
                             std::string_view what);
// As above, but calls `store` for each tensor instead of copying it.
StateDictReport load_tensors(std::span<const NamedTensor> targets, const StateDict& source, bool strict,
                             std::string_view what, absl::FunctionRef<void(Tensor& target, const Tensor& value)> store);

}  // namespace rondo::nn
#pragma GCC visibility pop
