// Runs a random program as a module, eagerly or compiled, and writes down everything that a user could see.
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
  bool depends_less = false;                   // grad() passes fewer results: those that depend on what it asks for
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

// What the last exception of a run said, with its place; "": there was none.
std::string& last_error();

}  // namespace rondo::fuzz
