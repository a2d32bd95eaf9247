#include "rondo/runtime/cuda/absent.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/backend.h"
#include "rondo/runtime/cuda/cudnn.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/driver.h"

namespace rondo::cuda {
namespace {

// A ModulePtr points to a LoadedImage, a FunctionPtr to a NamedFunction.
struct NamedFunction;
struct LoadedImage {
  std::string image;
  std::map<std::string, std::unique_ptr<NamedFunction>> functions;
};
struct NamedFunction {
  const LoadedImage* module;
  std::string name;
};

constexpr size_t kHostPage = 4096;
constexpr size_t kMemory = size_t{1} << 40;  // bytes of the device: enough for any model that is compiled
constexpr size_t kHostAlignment = 256;

// The state of the absent device.
struct Absent {
  std::mutex mutex;
  int capability = 0;
  std::function<void(const AbsentLaunch&)> watch;
  std::map<DevicePtr, size_t> blocks;
  std::map<ModulePtr, std::unique_ptr<LoadedImage>> modules;
  Cudnn dnn;
};
Absent& absent() {
  static auto* const absent = new Absent;
  return *absent;
}

// Streams, events and other handles are never dereferenced, so any address that is not null will do.
template <class Handle> Handle handle() {
  static char any = 0;
  return reinterpret_cast<Handle>(&any);
}
void* pointer(DevicePtr address) { return reinterpret_cast<void*>(address); }

// Returns the length of an image. A cubin ends with its last section, header or segment (the ELF format). PTX is text
// that ends with a zero byte.
size_t bytes_of_image(const char* image) {
  if (std::memcmp(image,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return std::strlen(image);
  const auto at = [&](size_t offset, auto value) {
    std::memcpy(&value, image + offset, sizeof value);
    return static_cast<size_t>(value);
  };
  const size_t segments = at(32, uint64_t{}), sections = at(40, uint64_t{}), segment_bytes = at(54, uint16_t{}),
               n_segments = at(56, uint16_t{}), section_bytes = at(58, uint16_t{}), n_sections = at(60, uint16_t{});
  size_t end = std::max(segments + segment_bytes * n_segments, sections + section_bytes * n_sections);
  constexpr uint32_t kNoBits = 8;  // a section without contents
  for (size_t i = 0; i < n_sections; ++i) {
    const size_t section = sections + i * section_bytes;
    if (at(section + 4, uint32_t{}) != kNoBits)
      end = std::max(end, at(section + 24, uint64_t{}) + at(section + 32, uint64_t{}));
  }
  return end;
}

Result attribute(int* value, DeviceAttribute which, int) {
  switch (which) {
    case DeviceAttribute::kCapabilityMajor: *value = absent().capability / 10; break;
    case DeviceAttribute::kCapabilityMinor: *value = absent().capability % 10; break;
    case DeviceAttribute::kMaxThreadsPerBlock: *value = 1024; break;
    case DeviceAttribute::kMaxGridX: *value = 0x7FFFFFFF; break;
    case DeviceAttribute::kMaxGridY:
    case DeviceAttribute::kMaxGridZ: *value = 65535; break;
    case DeviceAttribute::kMultiprocessors: *value = 108; break;
    case DeviceAttribute::kMaxSharedPerBlock: *value = 163 << 10; break;
    case DeviceAttribute::kMemoryPools: *value = 1; break;
  }
  return Result::kSuccess;
}

Result allocate(DevicePtr* address, size_t bytes) {
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return Result::kOutOfMemory;
  *address = reinterpret_cast<DevicePtr>(data);
  const std::lock_guard lock(absent().mutex);
  absent().blocks[*address] = bytes;
  return Result::kSuccess;
}
Result release(DevicePtr address) {
  const std::lock_guard lock(absent().mutex);
  const auto found = absent().blocks.find(address);
  if (found == absent().blocks.end()) return Result::kInvalidValue;
  munmap(pointer(address), found->second);
  absent().blocks.erase(found);
  return Result::kSuccess;
}

Result load(ModulePtr* module, const void* image) {
  const auto* const bytes = static_cast<const char*>(image);
  auto made = std::make_unique<LoadedImage>();
  made->image.assign(bytes, bytes_of_image(bytes));
  *module = reinterpret_cast<ModulePtr>(made.get());
  const std::lock_guard lock(absent().mutex);
  absent().modules[*module] = std::move(made);
  return Result::kSuccess;
}
Result unload(ModulePtr module) {
  const std::lock_guard lock(absent().mutex);
  return absent().modules.erase(module) == 1 ? Result::kSuccess : Result::kInvalidHandle;
}
Result find_function(FunctionPtr* function, ModulePtr module, const char* name) {
  const std::lock_guard lock(absent().mutex);
  auto* const image = reinterpret_cast<LoadedImage*>(module);
  std::unique_ptr<NamedFunction>& made = image->functions[name];
  if (made == nullptr) made = std::make_unique<NamedFunction>(NamedFunction{image, name});
  *function = reinterpret_cast<FunctionPtr>(made.get());
  return Result::kSuccess;
}

Result launch(FunctionPtr function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
              unsigned shared, StreamPtr, void**, void**) {
  const auto* const of = reinterpret_cast<const NamedFunction*>(function);
  if (absent().watch) absent().watch({of->name.c_str(), &of->module->image, {gx, gy, gz}, {bx, by, bz}, shared});
  return Result::kSuccess;
}

constexpr Driver kDriver = {
    .init = [](unsigned) { return Result::kSuccess; },
    .driver_version = [](int* version) { return *version = 13000, Result::kSuccess; },
    .error_name = [](Result, const char**) { return Result::kInvalidValue; },
    .error_string = [](Result, const char**) { return Result::kInvalidValue; },
    .device_get = [](int* ordinal, int index) { return *ordinal = index, Result::kSuccess; },
    .device_count = [](int* count) { return *count = 1, Result::kSuccess; },
    .device_name =
        [](char* name, int size, int) {
          std::snprintf(name, static_cast<size_t>(size), "a GPU of sm_%d that is not here", absent().capability);
          return Result::kSuccess;
        },
    .device_attribute = &attribute,
    .device_total_memory = [](size_t* bytes, int) { return *bytes = kMemory, Result::kSuccess; },
    .device_uuid = [](Uuid* uuid, int) { return *uuid = {}, Result::kSuccess; },
    .device_bus = [](char* bus, int size, int) { return bus[0] = size > 0 ? '\0' : bus[0], Result::kSuccess; },
    .device_can_access_peer = [](int* can, int, int) { return *can = 0, Result::kSuccess; },
    .primary_retain = [](Context* context, int) { return *context = handle<Context>(), Result::kSuccess; },
    .primary_release = [](int) { return Result::kSuccess; },
    .context_current = [](Context* context) { return *context = handle<Context>(), Result::kSuccess; },
    .context_push = [](Context) { return Result::kSuccess; },
    .context_pop = [](Context* context) { return *context = handle<Context>(), Result::kSuccess; },
    .context_synchronize = [] { return Result::kSuccess; },
    .context_enable_peer = [](Context, unsigned) { return Result::kPeerAccessUnsupported; },
    .memory_info = [](size_t* free, size_t* total) { return *free = *total = kMemory, Result::kSuccess; },
    .memory_allocate = &allocate,
    .memory_free = &release,
    .memory_allocate_async = [](DevicePtr* address, size_t bytes, StreamPtr) { return allocate(address, bytes); },
    .memory_free_async = [](DevicePtr address, StreamPtr) { return release(address); },
    .default_pool = [](PoolPtr* pool, int) { return *pool = handle<PoolPtr>(), Result::kSuccess; },
    .pool_trim = [](PoolPtr, size_t) { return Result::kSuccess; },
    .host_allocate =
        [](void** data, size_t bytes, unsigned) {
          *data = std::aligned_alloc(kHostAlignment, (bytes + kHostAlignment - 1) / kHostAlignment * kHostAlignment);
          return *data == nullptr ? Result::kOutOfMemory : Result::kSuccess;
        },
    .host_free = [](void* data) { return std::free(data), Result::kSuccess; },
    .copy_to_device = [](DevicePtr to, const void* from, size_t bytes,
                         StreamPtr) { return std::memcpy(pointer(to), from, bytes), Result::kSuccess; },
    .copy_to_host = [](void* to, DevicePtr from, size_t bytes,
                       StreamPtr) { return std::memcpy(to, pointer(from), bytes), Result::kSuccess; },
    .copy_on_device = [](DevicePtr to, DevicePtr from, size_t bytes,
                         StreamPtr) { return std::memcpy(pointer(to), pointer(from), bytes), Result::kSuccess; },
    .copy_peer = [](DevicePtr, Context, DevicePtr, Context, size_t, StreamPtr) { return Result::kInvalidDevice; },
    // Skips large fills: they would make the system provide memory that is never read.
    .fill_bytes =
        [](DevicePtr to, unsigned char byte, size_t bytes, StreamPtr) {
          if (bytes <= kHostPage) std::memset(pointer(to), byte, bytes);
          return Result::kSuccess;
        },
    .stream_create = [](StreamPtr* stream, unsigned, int) { return *stream = handle<StreamPtr>(), Result::kSuccess; },
    .stream_destroy = [](StreamPtr) { return Result::kSuccess; },
    .stream_synchronize = [](StreamPtr) { return Result::kSuccess; },
    .stream_wait_event = [](StreamPtr, EventPtr, unsigned) { return Result::kSuccess; },
    .launch_host = [](StreamPtr, HostFunction function, void* data) { return function(data), Result::kSuccess; },
    .event_create = [](EventPtr* event, unsigned) { return *event = handle<EventPtr>(), Result::kSuccess; },
    .event_destroy = [](EventPtr) { return Result::kSuccess; },
    .event_record = [](EventPtr, StreamPtr) { return Result::kSuccess; },
    .event_query = [](EventPtr) { return Result::kSuccess; },
    .event_synchronize = [](EventPtr) { return Result::kSuccess; },
    // The time must not be 0, because measuring code would then repeat for ever.
    .event_elapsed = [](float* ms, EventPtr, EventPtr) { return *ms = 1, Result::kSuccess; },
    .module_load = &load,
    .module_unload = &unload,
    .module_function = &find_function,
    .function_attribute = [](int* value, FunctionAttribute, FunctionPtr) { return *value = 0, Result::kSuccess; },
    .function_set_attribute = [](FunctionPtr, FunctionAttribute, int) { return Result::kSuccess; },
    .launch = &launch,
};

LtStatus choose(LtHandle, LtDesc, LtLayout, LtLayout, LtLayout, LtLayout, LtPreference, int, LtHeuristic* found,
                int* count) {
  *found = {};
  found->state = LtStatus::kSuccess;
  *count = 1;
  return LtStatus::kSuccess;
}

constexpr CublasLt kCublasLt = {
    .version = [] { return size_t{130000}; },
    .status_string = [](LtStatus) { return "no cuBLASLt: the device is not here"; },
    .create = [](LtHandle* made) { return *made = handle<LtHandle>(), LtStatus::kSuccess; },
    .destroy = [](LtHandle) { return LtStatus::kSuccess; },
    .desc_create = [](LtDesc* made, LtCompute, LtType) { return *made = handle<LtDesc>(), LtStatus::kSuccess; },
    .desc_destroy = [](LtDesc) { return LtStatus::kSuccess; },
    .desc_set = [](LtDesc, LtDescAttribute, const void*, size_t) { return LtStatus::kSuccess; },
    .layout_create = [](LtLayout* made, LtType, uint64_t, uint64_t,
                        int64_t) { return *made = handle<LtLayout>(), LtStatus::kSuccess; },
    .layout_destroy = [](LtLayout) { return LtStatus::kSuccess; },
    .layout_set = [](LtLayout, LtLayoutAttribute, const void*, size_t) { return LtStatus::kSuccess; },
    .preference_create = [](LtPreference* made) { return *made = handle<LtPreference>(), LtStatus::kSuccess; },
    .preference_destroy = [](LtPreference) { return LtStatus::kSuccess; },
    .preference_set = [](LtPreference, LtPreferenceAttribute, const void*, size_t) { return LtStatus::kSuccess; },
    .heuristic = &choose,
    .matmul =
        [](LtHandle, LtDesc, const void*, const void*, LtLayout, const void*, LtLayout, const void*, const void*,
           LtLayout, void*, LtLayout, const LtAlgo*, void*, size_t, StreamPtr) {
          if (absent().watch) absent().watch({"cublasLtMatmul", nullptr, {}, {}, 0});
          return LtStatus::kSuccess;
        },
};

// Returns the real cuDNN, which makes plans without a device. Its functions that need a device are replaced by
// functions that compute nothing.
const Cudnn* library_for_plans() {
  const Cudnn* const found = find_cudnn(nullptr);
  if (found == nullptr) return nullptr;
  Cudnn& here = absent().dnn = *found;
  here.create = [](DnnHandle* made) { return *made = handle<DnnHandle>(), DnnStatus::kSuccess; };
  here.destroy = [](DnnHandle) { return DnnStatus::kSuccess; };
  here.set_stream = [](DnnHandle, StreamPtr) { return DnnStatus::kSuccess; };
  here.execute = [](DnnHandle, DnnDescriptor, DnnDescriptor) {
    if (absent().watch) absent().watch({"cudnnBackendExecute", nullptr, {}, {}, 0});
    return DnnStatus::kSuccess;
  };
  return &here;
}

}  // namespace

bool is_absent() { return absent().capability != 0; }

AbsentDevice::AbsentDevice(int capability, std::function<void(const AbsentLaunch&)> watch) {
  if (devices_in_use())
    throw Error(
        "a GPU that is not here: this process has used a CUDA device; compile for another one in a process of its own, "
        "before it uses CUDA");
  close();
  absent().capability = capability;
  absent().watch = std::move(watch);
  use_libraries(&kDriver, &kCublasLt, library_for_plans());
}

AbsentDevice::~AbsentDevice() {
  close();
  use_libraries(nullptr, nullptr);
  absent().watch = nullptr;
  absent().capability = 0;
}

}  // namespace rondo::cuda
