// The checks of DetectAnomaly (anomaly.h).
#pragma once

#include <span>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "rondo/runtime/op/op.h"

namespace rondo::anomaly {

// Every call of an op reads these flags. So they are variables: a function call would cost more.
extern constinit thread_local bool in_scope;   // true in a DetectAnomaly scope
extern constinit thread_local bool detecting;  // the same, but false inside of an op that is checked as a whole

// The worst value that a tensor holds.
enum class Worst : uint8_t { kFinite, kInfinity, kNaN };
Worst worst_of(const Tensor& tensor);  // kFinite for integers and undefined tensors

// Collects operands, then checks what is computed from them. Detection is off while it exists: ops that run inside of
// the checked op are not checked one by one.
class Check {
 public:
  Check() : outer_(std::exchange(detecting, false)) {}
  ~Check() { detecting = outer_; }
  Check(const Check&) = delete;
  Check& operator=(const Check&) = delete;
  void operand(std::string_view name, const Tensor& tensor);
  void operand(std::string_view name, double value);
  // Throws Error if `result` holds a NaN, or an infinity although every operand was finite. `statistic`: the result is
  // one that the op keeps for its gradient. An infinity in a statistic has a meaning (a row of attention without any
  // key) and is no error. The message is "who: what, f32[8], has a NaN, first at [3]; <operands> (location)".
  void result(std::string_view who, std::string_view what, const Tensor& result,
              absl::FunctionRef<std::string()> location, bool statistic = false) const;

 private:
  bool outer_;
  Worst worst_ = Worst::kFinite;
  std::string operands_;  // describes the operands that are not finite
};

// Runs a call of `op` and checks its results. `run` writes them. For an in-place call, `outputs` holds the operand that
// the call overwrites.
void checked_call(const OpDef& op, std::span<const TensorArg> inputs, const Attrs& attrs,
                  std::span<const Tensor> outputs, absl::FunctionRef<void()> run);

}  // namespace rondo::anomaly
