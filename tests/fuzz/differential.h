// Compares everything that a user of a random program could see: compiled against eager.
#pragma once

#include <string>

#include "rondo/tests/fuzz/run.h"

namespace rondo::fuzz {

struct Check {
  bool exact = true;         // exact mode against eager, in every bit
  bool default_mode = true;  // default mode against eager, within tolerance; both modes run as many kernels
};
// The first difference, in words; empty if there is none.
std::string difference(const Program& program, const Check& check = {});

}  // namespace rondo::fuzz
