#include "rondo/compile/jit/cuda/target.h"

#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/compile/cache.h"
#include "rondo/compile/jit/build_hash.h"
#include "rondo/compile/jit/cuda/kernel_code.h"
#include "rondo/compile/jit/cuda/launch.h"
#include "rondo/compile/log.h"
#include "rondo/compile/target/code_generator.h"
#include "rondo/runtime/cuda/absent.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/dnn_store.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/io/host_key.h"

namespace rondo::compile::cuda {
namespace {

bool can_compile() { return rondo::cuda::find_nvrtc(nullptr) != nullptr; }

AbsorbsFn absorbs(const OpDef& op) { return rondo::cuda::own_kernels(op).absorbs; }

absl::Status check(const std::string& object) { return unpack_object(object).status(); }

class AbsentGpu final : public StandIn {
 public:
  explicit AbsentGpu(int capability) : absent_(capability) {}
  Device device() const override { return absent_.device(); }

 private:
  rondo::cuda::AbsentDevice absent_;
};

// The functions of the target for one architecture.
template <int kCapability> struct Architecture {
  static const Target& target();

  static std::string name() { return absl::StrCat("cuda sm_", kCapability); }

  // There is a key for each NVRTC that this process has used; tests use several.
  static const io::HostKey& key() {
    static std::mutex mutex;
    static auto* const keys = new std::map<std::string, io::HostKey>;
    io::HostKey key = rondo::cuda::key_of_code(kCapability, build_hash());
    const std::lock_guard lock(mutex);
    return keys->try_emplace(key.text(), std::move(key)).first->second;
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
    return rondo::cuda::architecture_of(rondo::cuda::capability_of(device.index)) == kCapability;
  }

  static void add_to(CacheReport& report) {
    const rondo::cuda::SourceReport by_hand = rondo::cuda::source_report(kCapability);
    report.from_disk += by_hand.from_disk;
    report.from_artifacts += by_hand.from_artifacts;
    report.misses += std::ssize(by_hand.compiled);
    for (const std::string& kernel : by_hand.compiled)
      report.missed.push_back({kernel, "by hand", absl::StrCat("no cache and no artifact has it for ", name())});
  }
  static constexpr RuntimeCode kRuntimeCode[] = {
      {
          .build = rondo::cuda::kMaker,
          .contents = [] { return std::vector{rondo::cuda::kernels_by_hand(kCapability)}; },
          .take = [](const io::KernelFile& file) { return rondo::cuda::add_kernels_by_hand(kCapability, file); },
          .add_to = &add_to,
      },
      {
          .build = rondo::cuda::kDnnMaker,
          .contents = [] { return rondo::cuda::stored_plans(kCapability); },
          .take = [](const io::KernelFile& file) { return rondo::cuda::add_plans(kCapability, file); },
          .add_to = [](CacheReport&) {},  // dnn_report() counts the plans
      },
  };
};

template <int kCapability> constexpr Target make_target() {
  using Its = Architecture<kCapability>;
  return {
      .backend = Backend::kCUDA,
      .name = &Its::name,
      .key = &Its::key,
      .machine = [](Device device) { return rondo::cuda::machine_of(device.index); },
      .absorbs = &absorbs,
      .schedule = &split,
      .can_compile = &can_compile,
      .load_compiler = &require_nvrtc,
      .compile = &Its::compile,
      .place = &Its::place,
      .check = &check,
      // most_operands: a launch has room for 4 KiB of parameters. alignment: threads read 16 bytes at a time, and the
      // threads of a warp share cache lines of 128 bytes. grain: a grid always covers all elements.
      .capabilities = {.most_operands = 48,
                       .alignment = 256,
                       .grain = 0,
                       .copies = true,
                       .gathers_sums = true,
                       .epilogues_pay = true},
      .runs_on = &Its::runs_on,
      .runtime_code = Its::kRuntimeCode,
      .stand_in = []() -> std::unique_ptr<const StandIn> { return std::make_unique<AbsentGpu>(kCapability); },
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
