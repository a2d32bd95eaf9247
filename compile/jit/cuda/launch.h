// How CUDA code is launched: kernels on the compute stream, by cuLaunchKernel. Launches copy their arguments.
#pragma once

#include "rondo/compile/target/launch.h"

namespace rondo::compile::cuda {

void launch_kernel(Device device, const KernelCall& call, const LaunchFunctions::Owner& owner);
void launch_combine(Device device, std::span<const CombineCall> calls, const LaunchFunctions::Owner& owner);
void launch_table(Device device, const TableCall& call, const LaunchFunctions::Owner& owner);
absl::AnyInvocable<void()> ready_table(Device device, const TableCall& call, const LaunchFunctions::Owner& owner);
// Runs a prepared library call. The library itself enqueues its work on the compute stream.
void launch_library_call(Device device, const std::shared_ptr<const PreparedKernel>& call,
                         std::span<std::byte* const> addresses);

}  // namespace rondo::compile::cuda
