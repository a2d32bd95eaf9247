// Runs a random program as a module, eagerly and compiled, and compares everything that a user could see.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "rondo/compile/compile.h"
#include "rondo/tests/fuzz/program.h"

namespace rondo::fuzz {

// The values of a program while its steps run.
class Interpreter {
 public:
  int64_t batch = 5, counter = 0;
  bool training = true;
  std::vector<Tensor> kept, retained;
  int64_t hook_calls = 0;

  void bind(ValueId id, Tensor tensor) { values_[id] = std::move(tensor); }
  const Tensor& value(ValueId id) const;
  bool has(ValueId id) const { return values_.contains(id); }
  void release(ValueId id) { values_.erase(id); }
  void clear() { values_.clear(); }
  // Both throw what the ops throw. `run` minds the step's condition and binds its results.
  void run(const Step& step);
  std::vector<Tensor> call(const Step& step, int64_t times = 1);

 private:
  std::map<ValueId, Tensor> values_;
};

// The tensor of an input or parameter; the same for the same arguments.
Tensor make_leaf(const Program& program, const Leaf& leaf, int64_t batch, uint64_t salt, bool perturbed = false);

enum class Mode { kEager, kExact, kDefault };

// Something that a user saw: text is compared as it is, tensors in every bit.
struct Observation {
  std::string what;
  std::string text;
  Tensor value;
};
struct Trail {
  std::vector<Observation> seen;
  bool backward_threw = false;
  bool recomputes = false;
  int forward_errors = 0;  // of ops, not of the program's own `throw`
  std::optional<compile::RegionReport> report;
};
// `perturbed`: inputs differ in the last bits, to see how much a result depends on them.
Trail run(const Program& program, Mode mode, bool perturbed = false);

struct Check {
  bool exact = true;         // exact mode against eager, in every bit
  bool default_mode = true;  // default mode against eager, within tolerance; both modes run as many kernels
};
// What differs first, in words; empty if nothing does.
std::string difference(const Program& program, const Check& check = {});

}  // namespace rondo::fuzz
