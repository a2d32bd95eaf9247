#include "rondo/runtime/cuda/module.h"

#include <mutex>
#include <set>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/nvtx.h"

namespace rondo::cuda {
namespace {

// Keeps names for ever: there are few of them, and errors still print the names of unloaded kernels.
const char* interned(const std::string& name) {
  static std::mutex* mutex = new std::mutex;
  static auto* names = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  return names->insert(name).first->c_str();
}

[[noreturn, gnu::cold]] void throw_launch(DeviceState& state, Result result, const Kernel& kernel, Dim3 grid,
                                          Dim3 block, unsigned shared_bytes) {
  const std::string call = absl::StrCat("the launch of ", kernel.name, " with a grid of [", grid.x, ", ", grid.y, ", ",
                                        grid.z, "], blocks of [", block.x, ", ", block.y, ", ", block.z, "] and ",
                                        shared_bytes, " bytes of dynamic shared memory");
  state.check(result, call.c_str());
  throw_internal("a launch that succeeded");
}

}  // namespace

std::shared_ptr<const Module> Module::load(int device, const std::string& image) {
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  ModulePtr module = nullptr;
  Result result = state.driver().module_load(&module, image.c_str());
  if (result == Result::kOutOfMemory) {
    state.allocator().trim();  // code needs device memory, and the allocator's cache may hold all of it
    result = state.driver().module_load(&module, image.c_str());
  }
  if (result == Result::kOutOfMemory) throw state.allocator().out_of_memory("load the code of a kernel");
  state.check(result, "cuModuleLoadData");
  state.keep_module(module);
  return std::shared_ptr<const Module>(new Module(device, state.serial(), module));
}

Module::~Module() {
  DeviceState* state = device_state_if_usable(device_);
  if (state == nullptr || state->serial() != serial_) return;
  try {
    const ContextScope scope(*state);
    state->unload_module(module_);
  } catch (const Error&) {
    // The device is lost, and the module with it.
  }
}

Kernel Module::kernel(const std::string& name, int dynamic_shared) const {
  DeviceState& state = device_state(device_);
  const ContextScope scope(state);
  Kernel kernel{nullptr, interned(name)};
  state.check(state.driver().module_function(&kernel.function, module_, name.c_str()),
              absl::StrCat("cuModuleGetFunction(", name, ")").c_str());
  // Without this attribute, a launch may have at most 48 KiB of dynamic shared memory, less the function's static
  // shared memory (cuda.h, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES). Only the compiler knows that number, so
  // the attribute is set for every size.
  if (dynamic_shared > 0)
    state.check(
        state.driver().function_set_attribute(kernel.function, FunctionAttribute::kMaxDynamicShared, dynamic_shared),
        absl::StrCat("cuFuncSetAttribute(", name, ", ", dynamic_shared, " bytes of shared memory)").c_str());
  return kernel;
}

struct LazyModule::Loaded {
  uint64_t serial;
  std::shared_ptr<const Module> module;
  std::vector<Kernel> kernels;
  std::unique_ptr<const Loaded> next;
};

LazyModule::LazyModule(std::function<const std::string&(int)> image, std::vector<std::string> kernels)
    : image_(std::move(image)), names_(std::move(kernels)) {}
LazyModule::~LazyModule() { delete loaded_.load(); }

const Kernel& LazyModule::kernel(int device, size_t i) const {
  const uint64_t serial = device_state(device).serial();
  for (const Loaded* at = loaded_.load(std::memory_order_acquire); at != nullptr; at = at->next.get())
    if (at->serial == serial) [[likely]]
      return at->kernels[i];
  return load(device, serial).kernels[i];
}

const LazyModule::Loaded& LazyModule::load(int device, uint64_t serial) const {
  const std::lock_guard lock(mutex_);
  for (const Loaded* at = loaded_.load(std::memory_order_acquire); at != nullptr; at = at->next.get())
    if (at->serial == serial) return *at;  // another thread has loaded it meanwhile
  auto loaded = std::make_unique<Loaded>();
  loaded->serial = serial;
  loaded->module = Module::load(device, image_(device));
  for (const std::string& name : names_) loaded->kernels.push_back(loaded->module->kernel(name));
  loaded->next.reset(loaded_.load(std::memory_order_relaxed));
  loaded_.store(loaded.get(), std::memory_order_release);
  return *loaded.release();
}

void launch(int device, const Kernel& kernel, Dim3 grid, Dim3 block, unsigned shared_bytes, void** args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  DeviceState& state = device_state(device);
  const ContextScope scope(state);
  const Range range(kernel.name);
  const Result result = state.driver().launch(kernel.function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                              shared_bytes, state.compute(), args, nullptr);
  if (result != Result::kSuccess) [[unlikely]]
    throw_launch(state, result, kernel, grid, block, shared_bytes);
  state.enqueued(kernel.name, state.compute());
}

}  // namespace rondo::cuda
