// Makes a failing program small.
#pragma once

#include "absl/functional/function_ref.h"
#include "rondo/tests/fuzz/program.h"

namespace rondo::fuzz {

// The smallest program found for which `fails` holds, which it does for `program`. At most `budget` calls of `fails`.
Program shrink(const Program& program, absl::FunctionRef<bool(const Program&)> fails, int budget = 600);

}  // namespace rondo::fuzz
