#include "rondo/compile/exec/target.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/cpu/target.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/error.h"

namespace rondo::compile {
namespace {

// One line for each target.
constexpr const Target* kTargets[] = {
    &cpu::kTarget,
};

}  // namespace

const Target& target_of(Device device) {
  for (const Target* target : kTargets)
    if (target->backend == backend_of(device).kernels) return *target;
  throw Error(absl::StrCat("compile: there is no code generator for ", to_string(device),
                           "; run its modules without compilation"));
}

}  // namespace rondo::compile
