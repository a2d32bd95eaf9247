#include "rondo/compile/jit/cuda/target.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/codegen/cuda/device_math.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/compile/jit/build_hash.h"
#include "rondo/compile/jit/host_key.h"
#include "rondo/compile/jit/machine_code.h"

namespace rondo::compile::cuda {
namespace {

std::string name() { return "cuda"; }

const HostKey& key() {
  static const HostKey key{{{"target", name()}, {"build", build_hash()}, {"flags", absl::StrJoin(kExactFlags, " ")}}};
  return key;
}

AbsorbsFn absorbs(const OpDef& /*op*/) { return nullptr; }

bool can_compile() { return true; }  // text needs no compiler
void load_compiler() {}

std::string compile(const LoopKernel& kernel, const JitOptions& /*options*/) {
  return absl::StrCat(std::string(device_math()), emit(kernel, schedule(kernel)));
}

absl::StatusOr<std::shared_ptr<const MachineCode>> place(const std::string& /*object*/) {
  return absl::UnimplementedError("CUDA kernels run on CUDA devices, which this build does not drive yet");
}
absl::Status check(const std::string& /*object*/) { return absl::OkStatus(); }

}  // namespace

constexpr Target kTarget = {
    .backend = Backend::kCUDA,
    .name = &name,
    .key = &key,
    .absorbs = &absorbs,
    .schedule = &split,
    .can_compile = &can_compile,
    .load_compiler = &load_compiler,
    .compile = &compile,
    .place = &place,
    .check = &check,
    // A launch has room for 4 KiB of parameters. A grid covers all elements. Values are read 16 bytes at a time, by
    // warps that share lines of 128.
    .capabilities = {.most_operands = 48, .alignment = 256, .grain = 0, .copies = true},
    .runs_on = nullptr,
    .launch = {},  // place() gives no code yet
};

}  // namespace rondo::compile::cuda
