// Target: what the compiler of one architecture provides. Targets are constants and need no device: a plan and its code
// can be made where no such device is.
//
// To add a target: a folder in codegen/ (schedule, emit) and one in jit/ (compile, place), and a line in
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

// What the runtime makes itself when a device needs it: machine code of kernels in its own sources, plans of a library.
// It goes into artifacts beside generated code.
struct RuntimeCode {
  const char* build;  // the component of its key that tells it from generated code
  std::vector<io::KernelFile> (*contents)();
  // kInvalidArgument: damaged. kFailedPrecondition: made for another host; nothing was taken.
  absl::Status (*take)(const io::KernelFile& file);
  void (*add_to)(CacheReport& report);
};

// While it lives, a device of a target is there that runs nothing: a program can make all code that it needs.
class StandIn {
 public:
  virtual ~StandIn() = default;
  virtual Device device() const = 0;
};

struct Target {
  Backend backend;  // whose kernels by hand are its library calls
  // "cpu x86_64": in plans, and in the keys of compiled code.
  std::string (*name)();
  // The whole key: besides the name, all that code depends on and that is no part of a kernel.
  const io::HostKey& (*key)();
  // Times on a device depend on this, and code does not: its model where the key has not got it, and the versions of
  // its driver and libraries. One line. Null: the key says it.
  std::string (*machine)(Device device) = nullptr;
  // The ops that a library call can do on its own result (BackendEntry::absorbs); null: nothing.
  AbsorbsFn (*absorbs)(const OpDef& op);
  // How the iteration space of a lowered kernel is split: LoopKernel::split_columns and chunk_rows. It fixes the order
  // of every reduction, so it must follow from the kernel and its shape only.
  void (*schedule)(LoopKernel& kernel);
  // True if compile() can work. Loads nothing.
  bool (*can_compile)();
  // Gets the compiler ready, in one thread. Throws Error if there is none.
  void (*load_compiler)();
  // Code that place() takes. Thread safe. REQUIRES: the kernel is verified and scheduled. Throws Error if there is no
  // compiler, InternalError if it refuses the kernel.
  std::string (*compile)(const LoopKernel& kernel, const JitOptions& options);
  // Loads code. kInvalidArgument: no code of ours, or damaged.
  absl::StatusOr<std::shared_ptr<const MachineCode>> (*place)(const std::string& object);
  // The checks of place(), without loading.
  absl::Status (*check)(const std::string& object);
  Capabilities capabilities;
  // True if its code runs on this device of `backend`; null: on all of them.
  bool (*runs_on)(Device device);
  std::span<const RuntimeCode> runtime_code = {};
  // Throws Error if the process uses such devices. Null: code is made where it runs.
  std::unique_ptr<const StandIn> (*stand_in)() = nullptr;
  // How the code that place() gave, and the library calls of `backend`, run.
  LaunchFunctions launch;
};

}  // namespace rondo::compile
