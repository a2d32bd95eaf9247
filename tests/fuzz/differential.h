// Runs a random program as a module, eagerly and compiled, and compares everything that a user could see.
#pragma once

#include <string>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/tests/fuzz/program.h"

namespace rondo::fuzz {

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
  bool keeps_less = false;                     // than eager execution, as some values are recomputed
  bool second_order = false;                   // gradients of gradients
  size_t comparable = SIZE_MAX;                // observations until second derivatives have moved parameters
  int forward_errors = 0;                      // of ops, not of the program's own `throw`
  std::vector<compile::RegionReport> reports;  // of all regions
  std::string unlisted;                        // a break, or a library call, that is not on its list (breaks.h)
  int joins = 0;                               // calls that put tensors side by side: default mode may sum them apart
  bool orders_sums = false;                    // a region broke to add gradients in eager's order, as exact mode does
};
// `perturbation`: by how much of itself a number of the inputs may differ, to see how much a result depends on it.
Trail run(const Program& program, Mode mode, double perturbation = 0);

struct Check {
  bool exact = true;         // exact mode against eager, in every bit
  bool default_mode = true;  // default mode against eager, within tolerance; both modes run as many kernels
};
// The first difference, in words; empty if there is none.
std::string difference(const Program& program, const Check& check = {});

}  // namespace rondo::fuzz
