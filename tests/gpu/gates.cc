#include "rondo/tests/gpu/gates.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/ir/scanner.h"
#include "rondo/compile/jit/code_store.h"
#include "rondo/compile/jit/cuda/object.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/absent.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/tests/cuda/run_kernel.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/op_samples.h"

namespace rondo::test {
namespace {

using compile::cuda::CudaObject;
using compile::cuda::Schedule;

// The messages of launches on the absent device.
class Launches {
 public:
  void add(const cuda::AbsentLaunch& launch) {
    if (launch.image == nullptr) return;  // a product
    GatedKernel& kernel = kernels_[{launch.name, *launch.image}];
    ++kernel.launches;
    kernel.threads = std::max(kernel.threads, static_cast<int>(launch.block.x * launch.block.y * launch.block.z));
    kernel.dynamic_shared = std::max(kernel.dynamic_shared, launch.shared_bytes);
  }
  void clear() { kernels_.clear(); }
  std::vector<GatedKernel> take(int architecture) {
    const std::map<std::string, Promise> promises = promises_of(architecture);
    std::vector<GatedKernel> result;
    for (auto& [key, kernel] : kernels_) {
      for (MachineCode& code : machine_code(key.second, architecture))
        if (code.name == key.first) kernel.code = std::move(code);
      kernel.code.dynamic_shared = kernel.dynamic_shared;
      kernel.cubin = key.second;
      kernel.architecture = architecture;
      const auto promise = promises.find(key.second);
      kernel.by_hand = promise == promises.end();
      // The kernel that combines partial sums reads them element by element.
      if (!kernel.by_hand && key.first != compile::cuda::kCombineName) {
        kernel.promises_loads = promise->second.loads;
        kernel.promises_stores = promise->second.stores;
      }
      result.push_back(kernel);
    }
    return result;
  }

 private:
  struct Promise {
    bool loads = false, stores = false;
  };

  // Note [Width of accesses] in codegen/cuda/schedule.h.
  static Promise promise_of(const compile::LoopKernel& kernel, const Schedule& s) {
    Promise promise;
    const bool any_cols = !kernel.varying.empty() && kernel.varying[0];
    if (s.shape == Schedule::Shape::kTiles || (kernel.cols < s.elements && !any_cols)) return promise;
    for (const compile::Stage& stage : kernel.stages)
      for (const int32_t id : stage.column) {
        const compile::Instr& i = kernel.instrs[static_cast<size_t>(id)];
        if (i.op != LoopOp::kLoad && i.op != LoopOp::kStore) continue;
        const compile::Operand& operand = kernel.operands[static_cast<size_t>(i.index)];
        if (operand.is_partial || operand.col_stride != 1 ||
            static_cast<size_t>(s.elements) * size_of(operand.dtype) < 16)
          continue;
        (i.op == LoopOp::kLoad ? promise.loads : promise.stores) = true;
      }
    return promise;
  }
  // By cubin, of all generated kernels of this process.
  static std::map<std::string, Promise> promises_of(int architecture) {
    const compile::Target& target = compile::target_named(absl::StrCat("cuda sm_", architecture));
    std::map<std::string, Promise> promises;
    for (const io::KernelRecord& record : compile::CodeStore::of(target).contents().kernels) {
      const absl::StatusOr<CudaObject> object = compile::cuda::unpack_object(record.object);
      if (!object.ok()) throw Error(std::string(object.status().message()));
      compile::Scanner text(record.kernel);  // behind the kernel come other facts
      promises[object->image.cubin] = promise_of(compile::parse_loop_kernel(text), object->schedule);
    }
    return promises;
  }

  std::map<std::pair<std::string, std::string>, GatedKernel> kernels_;  // by name and cubin
};

}  // namespace

std::vector<GatedKernel> kernels_of_step(const StepOptions& options, int architecture) {
  Launches launches;
  const cuda::AbsentDevice gpu(architecture, [&](const cuda::AbsentLaunch& launch) { launches.add(launch); });
  train_steps(options, gpu.device(), 3, [&] { launches.clear(); });
  return launches.take(architecture);
}

std::vector<GatedKernel> kernels_by_hand(int architecture) {
  Launches launches;
  const cuda::AbsentDevice gpu(architecture, [&](const cuda::AbsentLaunch& launch) { launches.add(launch); });
  for (const OpDef* op : all_ops()) {
    if (cuda::own_kernels(*op).kernel == nullptr || op->kind == OpKind::kContraction) continue;
    const OpSpec& spec = *find_spec(op->name);
    const std::vector<OpSample> samples = samples_of(spec);
    std::vector<DType> dtypes = {kF32};
    if (op->body == nullptr) dtypes.push_back(kBF16);
    if (spec.takes_integers) dtypes.push_back(kI32);
    // The first, and where optional operands follow (the random state of attention) the first with these.
    const OpSample* last = nullptr;
    for (const OpSample& sample : samples) {
      if (last != nullptr && sample.inputs.size() <= last->inputs.size()) continue;
      last = &sample;
      for (const DType dtype : dtypes) run(*op, sample.attrs, sample.n_outputs, sample.inputs_as(dtype), gpu.device());
    }
  }
  std::vector<GatedKernel> kernels = launches.take(architecture);
  std::erase_if(kernels, [](const GatedKernel& kernel) { return !kernel.by_hand; });
  return kernels;
}

std::map<std::string, Sectors> sectors_of_step(const StepOptions& options) {
  FakeCuda cuda({.counts_traffic = true});
  train_steps(options, cuda.device(), 1, [] {});
  std::map<std::string, Sectors> result;
  const auto traffic = cuda->traffic();
  double all = 0;
  for (const auto& [name, count] : traffic) all += static_cast<double>(count.sectors);
  for (const auto& [name, count] : traffic)
    if (count.ideal_sectors > 0)
      result[name] = {static_cast<double>(count.sectors) / static_cast<double>(count.ideal_sectors),
                      static_cast<double>(count.sectors) / all};
  return result;
}

std::vector<std::string> broken_gates(const GatedKernel& kernel) {
  std::vector<std::string> broken;
  const auto add = [&](const std::string& what) {
    broken.push_back(absl::StrCat(kernel.code.name, " for sm_", kernel.architecture, ": ", what));
  };
  const MachineCode& code = kernel.code;
  if (code.registers == 0) add("the cubin does not say what it needs");
  if (code.stack_bytes > 0 || code.local > 0)
    add(absl::StrCat("spills: ", code.stack_bytes, " bytes of stack, ", code.local, " accesses of local memory"));
  if (code.generic > 0)
    add(absl::StrCat(code.generic, " accesses of which the compiler does not know that they are of global memory"));
  if (kernel.promises_loads && code.wide_loads == 0) add("no load of 16 bytes, which the schedule promises");
  if (kernel.promises_stores && code.wide_stores == 0) add("no store of 16 bytes, which the schedule promises");
  return broken;
}

}  // namespace rondo::test
