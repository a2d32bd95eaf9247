#include "rondo/compile/exec/target.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/cpu/target.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/error.h"

namespace rondo::compile {
namespace {

// One line for each target.
struct Line {
  Backend backend;
  const Target& target;
};
constexpr Line kTargets[] = {
    {Backend::kCPU, cpu::kTarget},
};

}  // namespace

const Target& target_of(Device device) {
  for (const Line& line : kTargets)
    if (line.backend == backend_of(device).kernels) return line.target;
  throw Error(absl::StrCat("compile: there is no code generator for ", to_string(device),
                           "; run its modules without compilation"));
}

}  // namespace rondo::compile
