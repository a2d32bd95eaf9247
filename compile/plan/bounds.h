// Checks that a plan's launches access only the memory that a run of the plan has.
#pragma once

#include <optional>
#include <string>

#include "rondo/compile/plan/plan.h"

namespace rondo::compile {

struct OutOfBounds {
  int32_t launch;  // -1: the fault is not in a launch
  std::string what;
};
// Returns the first fault: an address beyond its slot, a library call on values that its op does not accept, a view
// beyond its root, a donor smaller than the buffer that takes its memory. Returns nullopt if there is none. REQUIRES:
// kernels, ids of values and nodes, and kinds of placements are valid (codegen/loop_verify.h, parse_plan); sizes and
// strides are below 2^48.
std::optional<OutOfBounds> find_out_of_bounds(const Plan& plan);

}  // namespace rondo::compile
