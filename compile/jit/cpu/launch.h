// How the CPU's code is launched: on the CPU, and on devices whose kernels are host code that runs asynchronously.
#pragma once

#include "rondo/compile/target/launch.h"

namespace rondo::compile::cpu {

void launch_kernel(Device device, const KernelCall& call, const LaunchFunctions::Owner& owner);
void launch_combine(Device device, std::span<const CombineCall> calls, const LaunchFunctions::Owner& owner);
void launch_table(Device device, const TableCall& call, const LaunchFunctions::Owner& owner);
absl::AnyInvocable<void()> ready_table(Device device, const TableCall& call, const LaunchFunctions::Owner& owner);
void launch_library_call(Device device, const std::shared_ptr<const PreparedKernel>& call,
                         std::span<std::byte* const> addresses);

}  // namespace rondo::compile::cpu
