// Target: what the compiler of one architecture provides. Targets are constants and need no device: a plan and its code
// can be made on a machine without such a device.
//
// To add a target, write a folder in codegen/ (schedule, emit) and one in jit/ (compile, place), and add a line to
// jit/targets.cc.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/target/launch.h"
#include "rondo/compile/transform/capabilities.h"
#include "rondo/runtime/io/kernel_file.h"
#include "rondo/runtime/op/op.h"

namespace rondo::io {
struct HostKey;
}

namespace rondo::compile {

struct CacheReport;
struct JitOptions;

// Code that the runtime itself makes when a device needs it: machine code of kernels in its own sources, plans of a
// library. Artifacts contain it besides generated code.
struct RuntimeCode {
  const char* build;  // the key component by which it differs from generated code
  std::vector<io::KernelFile> (*contents)();
  // kInvalidArgument: damaged. kFailedPrecondition: made for another host; nothing was loaded.
  absl::Status (*take)(const io::KernelFile& file);
  void (*add_to)(CacheReport& report);
};

// While a StandIn lives, its target has a device that runs nothing. A program on this device makes all the code that it
// would need on a real one.
class StandIn {
 public:
  virtual ~StandIn() = default;
  virtual Device device() const = 0;
};

struct Target {
  Backend backend;  // the backend whose hand-written kernels are the target's library calls
  // Returns the name, such as "cpu x86_64". It is part of plans and of the keys of compiled code.
  std::string (*name)();
  // Returns the whole key: the name, and everything else that code depends on besides the kernel itself.
  const io::HostKey& (*key)();
  // Returns one line with the facts that measured times depend on but code does not: the device's model if it is not in
  // the key, and the versions of its driver and libraries. Null: the key contains all such facts.
  std::string (*machine)(Device device) = nullptr;
  // Returns the ops that a library call can apply to its own result (BackendEntry::absorbs); null: none.
  AbsorbsFn (*absorbs)(const OpDef& op);
  // Decides how the iteration space of a lowered kernel is split: LoopKernel::split_columns and chunk_rows. The split
  // fixes the order of every reduction, so it must depend on the kernel and its shape only.
  void (*schedule)(LoopKernel& kernel);
  // True if there is a compiler. Loads nothing.
  bool (*can_compile)();
  // Loads the compiler. Call it from one thread. Throws Error if there is none.
  void (*load_compiler)();
  // Returns code for place(). Thread safe. REQUIRES: the kernel is verified and scheduled. Throws Error if there is no
  // compiler, InternalError if the compiler refuses the kernel.
  std::string (*compile)(const LoopKernel& kernel, const JitOptions& options);
  // Loads code. kInvalidArgument: not our code, or damaged.
  absl::StatusOr<std::shared_ptr<const MachineCode>> (*place)(const std::string& object);
  // Does the checks of place() without loading the code.
  absl::Status (*check)(const std::string& object);
  Capabilities capabilities;
  // True if the target's code runs on this device of `backend`; null: on all of them.
  bool (*runs_on)(Device device);
  std::span<const RuntimeCode> runtime_code = {};
  // Makes a StandIn. Throws Error if the process has used a device of `backend`. Null: code can only be made on the
  // machine that runs it.
  std::unique_ptr<const StandIn> (*stand_in)() = nullptr;
  // How code from place(), and the library calls of `backend`, are launched.
  LaunchFunctions launch;
};

}  // namespace rondo::compile
