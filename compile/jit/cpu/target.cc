#include "rondo/compile/jit/cpu/target.h"

#include "rondo/compile/codegen/cpu/schedule.h"
#include "rondo/compile/jit/cpu/host_key.h"
#include "rondo/compile/jit/cpu/launch.h"
#include "rondo/compile/jit/cpu/object.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/runtime/onednn/product_library.h"

namespace rondo::compile::cpu {
namespace {

absl::StatusOr<std::shared_ptr<const MachineCode>> place(const std::string& object) {
  absl::StatusOr<std::shared_ptr<const MachineCode>> code = place_object(object);
  if (absl::IsUnimplemented(code.status())) return link_object(object);
  return code;
}

AbsorbsFn absorbs(const OpDef& op) { return op.host.absorbs; }

absl::Status check(const std::string& object) { return check_object(object); }

}  // namespace

constexpr Target kTarget = {
    .backend = Backend::kCPU,
    .name = &host_name,
    .key = &host_key,
    .machine = [](Device) { return product_library(); },  // the key describes the rest of the machine
    .absorbs = &absorbs,
    .schedule = &schedule,
    .can_compile = &toolchain_exists,
    .load_compiler = &load_toolchain,
    .compile = &compile_object,
    .place = &place,
    .check = &check,
    .capabilities = {.prefers_channels_last = true},
    .runs_on = nullptr,
    .stand_in = nullptr,
    .launch = {.kernel = &launch_kernel,
               .combine = &launch_combine,
               .table = &launch_table,
               .ready_table = &ready_table,
               .library_call = &launch_library_call},
};

}  // namespace rondo::compile::cpu
