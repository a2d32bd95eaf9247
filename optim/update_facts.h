// UpdateFacts: the numbers that decide an update of parameters: the optimizer's options, its groups, and its states if
// they were loaded. Processes that train one model must have the same ones (dist/ddp/ddp.h compares them).
//
//   UpdateFacts facts = template_of_this_optimizer;   // the names are shared
//   facts.numbers = {1e-3, 0.9};                      // one for each name
//   facts.hash();                                     // equal in two processes if all numbers are equal
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo {

struct UpdateFacts {
  std::shared_ptr<const std::vector<std::string>> names;  // "AdamW, group 0: lr"
  std::vector<double> numbers;                            // one for each name; a hash is a whole number below 2^53
  uint64_t hash() const;
  // Returns one line for each number, such as "AdamW, group 0: lr is 0.001".
  std::string text() const;
};

// The owner of a GradientClaim::kAverager may have an UpdateListener. The optimizer that uses the gradients tells it
// which updates it has made.
class UpdateListener {
 public:
  virtual ~UpdateListener() = default;
  // Called when a step has updated parameters with the claimed gradients.
  virtual void on_update(UpdateFacts facts) = 0;
};

}  // namespace rondo
#pragma GCC visibility pop
