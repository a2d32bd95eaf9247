#include "rondo/compile/jit/cuda/target.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/codegen/cuda/device_math.h"
#include "rondo/compile/jit/build_hash.h"
#include "rondo/compile/jit/cuda/kernel_code.h"
#include "rondo/compile/jit/cuda/launch.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/host_key.h"
#include "rondo/compile/log.h"
#include "rondo/runtime/cuda/context.h"
#include "rondo/runtime/cuda/nvrtc.h"

namespace rondo::compile::cuda {
namespace {

bool can_compile() { return rondo::cuda::find_nvrtc(nullptr) != nullptr; }

void load_compiler() { static_cast<void>(nvrtc()); }

std::string nvrtc_version() {
  const rondo::cuda::Nvrtc* nvrtc = rondo::cuda::find_nvrtc(nullptr);
  return nvrtc == nullptr ? "" : rondo::cuda::version_of(*nvrtc);  // "": nothing is kept on disk
}

AbsorbsFn absorbs(const OpDef& op) { return op.on[static_cast<size_t>(Backend::kCUDA)].absorbs; }

absl::Status check(const std::string& object) { return unpack_object(object).status(); }

// The functions of the target for one architecture.
template <int kCapability> struct Architecture {
  static const Target& target();

  static std::string name() { return absl::StrCat("cuda sm_", kCapability); }

  static const HostKey& key() {
    static const HostKey key{{{"target", name()},
                              {"build", build_hash()},
                              {"nvrtc", nvrtc_version()},
                              {"flags", absl::StrJoin(kExactFlags, " ")}}};
    return key;
  }

  static std::string compile(const LoopKernel& kernel, const JitOptions& options) {
    const Schedule chosen = schedule(kernel);
    if (options.dump_ir)
      log::write(log::Topic::kOutputCode, absl::StrCat("CUDA C++ of ", kernel.name, "\n", source_of(kernel, chosen)));
    return pack(make_object(kernel, chosen, kCapability));
  }

  static absl::StatusOr<std::shared_ptr<const MachineCode>> place(const std::string& bytes) {
    absl::StatusOr<CudaObject> object = unpack_object(bytes);
    if (!object.ok()) return object.status();
    return std::make_shared<const KernelCode>(*std::move(object), target(), kCapability);
  }

  static bool runs_on(Device device) {
    const int capability = rondo::cuda::device_state(device.index).capability();
    if (kCapability == kNewestCapability) return capability >= kCapability;
    // Machine code runs on devices of its major revision.
    return capability / 10 == kCapability / 10;
  }
};

template <int kCapability> constexpr Target make_target() {
  using Its = Architecture<kCapability>;
  return {
      .backend = Backend::kCUDA,
      .name = &Its::name,
      .key = &Its::key,
      .absorbs = &absorbs,
      .schedule = &split,
      .can_compile = &can_compile,
      .load_compiler = &load_compiler,
      .compile = &Its::compile,
      .place = &Its::place,
      .check = &check,
      // A launch has room for 4 KiB of parameters. A grid covers all elements. Values are read 16 bytes at a time, by
      // warps that share lines of 128.
      .capabilities = {.most_operands = 48, .alignment = 256, .grain = 0, .copies = true},
      .runs_on = &Its::runs_on,
      .launch = {.keeps_owner = false,
                 .kernel = &launch_kernel,
                 .combine = &launch_combine,
                 .table = &launch_table,
                 .ready_table = &ready_table,
                 .library_call = &launch_library_call},
  };
}

}  // namespace

constexpr Target kSm80 = make_target<80>();
constexpr Target kSm90 = make_target<90>();
constexpr Target kSm100 = make_target<100>();

namespace {
template <> const Target& Architecture<80>::target() { return kSm80; }
template <> const Target& Architecture<90>::target() { return kSm90; }
template <> const Target& Architecture<100>::target() { return kSm100; }
}  // namespace

}  // namespace rondo::compile::cuda
