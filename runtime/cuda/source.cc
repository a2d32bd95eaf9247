#include "rondo/runtime/cuda/source.h"

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/cuda/device_math.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/status.h"
#include "rondo/runtime/io/object_store.h"

namespace rondo::cuda {
namespace {

// The element types, as source text. Conversions are those of ops/elementwise_body.h.
constexpr const char* kElementTypes = R"cuda(
template <class T> struct RondoCompute { using Type = T; };
template <> struct RondoCompute<rondo_bf16> { using Type = float; };
template <> struct RondoCompute<rondo_f16> { using Type = float; };
template <class T> RONDO_DEVICE T widen(T x) { return x; }
RONDO_DEVICE float widen(rondo_bf16 x) { return to_float(x); }
RONDO_DEVICE float widen(rondo_f16 x) { return to_float(x); }

template <class T> struct RondoIsFloat { static constexpr bool value = false; };
template <> struct RondoIsFloat<float> { static constexpr bool value = true; };
template <> struct RondoIsFloat<double> { static constexpr bool value = true; };

// A number as an element. In is no 16-bit float.
template <class Out> struct RondoConvert {
  template <class In> static __device__ __forceinline__ Out of(In x) { return static_cast<Out>(x); }
};
template <> struct RondoConvert<rondo_bf16> {
  template <class In> static __device__ __forceinline__ rondo_bf16 of(In x) { return to_bf16(static_cast<float>(x)); }
};
template <> struct RondoConvert<rondo_f16> {
  template <class In> static __device__ __forceinline__ rondo_f16 of(In x) { return to_f16(static_cast<float>(x)); }
};
template <> struct RondoConvert<bool> {
  template <class In> static __device__ __forceinline__ bool of(In x) { return x != static_cast<In>(0); }
};
template <> struct RondoConvert<long long> {
  template <class In> static __device__ __forceinline__ long long of(In x) {
    if constexpr (RondoIsFloat<In>::value) return to_long(x);
    else return static_cast<long long>(x);
  }
};
template <> struct RondoConvert<int> {
  template <class In> static __device__ __forceinline__ int of(In x) {
    if constexpr (RondoIsFloat<In>::value) return to_int(x);
    else return static_cast<int>(x);
  }
};
template <> struct RondoConvert<unsigned char> {
  template <class In> static __device__ __forceinline__ unsigned char of(In x) {
    return static_cast<unsigned char>(RondoConvert<long long>::of(x));
  }
};
template <class Out, class In> RONDO_DEVICE Out convert(In x) { return RondoConvert<Out>::of(x); }

RONDO_DEVICE long long first_index() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}
RONDO_DEVICE long long index_step() { return static_cast<long long>(gridDim.x) * blockDim.x; }
)cuda";

constexpr const char* kLayoutFunctions = R"cuda(
template <class Index, int kOperands>
RONDO_DEVICE void walk_dimensions(const RondoLayout& layout, Index rest, long long (&at)[kOperands]) {
#pragma unroll
  for (int k = 0; k < kOperands; ++k) at[k] = 0;
  for (int d = static_cast<int>(layout.rank) - 1; d >= 0; --d) {
    const Index size = static_cast<Index>(layout.sizes[d]), quotient = rest / size;
    const long long index = static_cast<long long>(rest - quotient * size);
    rest = quotient;
#pragma unroll
    for (int k = 0; k < kOperands; ++k) at[k] += index * layout.strides[k][d];
  }
}
// Where element i of each operand lies, in elements.
template <int kOperands>
RONDO_DEVICE void offsets_of(const RondoLayout& layout, long long i, long long (&at)[kOperands]) {
  // A division of 64 bits takes several times as long.
  if (layout.numel <= 0xFFFFFFFFll) walk_dimensions(layout, static_cast<unsigned>(i), at);
  else walk_dimensions(layout, static_cast<unsigned long long>(i), at);
}
)cuda";

// ---- Code by architecture and text

struct CodeHere {
  std::shared_ptr<io::ObjectStore> code;  // by text; null: forgotten
  SourceReport report;
};
struct Loaded {
  std::shared_ptr<const Module> module;
  Kernel kernel;
};
struct Cache {
  std::shared_mutex mutex;  // guards all members below
  std::map<int, CodeHere> architectures;
  HashMap<std::string, Loaded> loaded;  // by device, kernel and defines
};
Cache& kernel_cache() {
  static auto* const cache = new Cache;  // never destroyed: the driver may be gone at the end of a process
  return *cache;
}

// Returns the store of an architecture. Makes a new one if NVRTC's version has changed.
std::shared_ptr<io::ObjectStore> store_of(int architecture) {
  io::HostKey key = key_of_code(architecture, kMaker);
  const std::lock_guard lock(kernel_cache().mutex);
  std::shared_ptr<io::ObjectStore>& store = kernel_cache().architectures[architecture].code;
  if (store == nullptr || (key.complete() && key.text() != store->host().text()))
    store = std::make_shared<io::ObjectStore>(io::DiskCacheOptions::from_environment(), std::move(key));
  return store;
}

std::string pack_image(const Image& image) { return io::pack({"image", {{"cubin", image.cubin}, {"ptx", image.ptx}}}); }
absl::Status unpack_image(const std::string& bytes, Image& image) {
  absl::StatusOr<io::KernelFile> file = io::unpack(bytes);
  if (!file.ok()) return file.status();
  if (file->host != "image" || file->kernels.size() != 2 || file->kernels[0].object.empty())
    return absl::InvalidArgumentError("no image of a kernel");
  image = {std::move(file->kernels[0].object), std::move(file->kernels[1].object)};
  return absl::OkStatus();
}

// Returns the code of a text: found in memory, in an artifact or on disk, or else compiled. `name`: for messages and
// reports. `made_for`: `architecture`, perhaps with a suffix; the text contains it, so caches keep the variants apart.
Image image_of(const std::string& name, const std::string& text, int architecture, Architecture made_for) {
  using From = io::ObjectStore::From;
  Image image;
  const auto read = [&](const std::string& object) { return unpack_image(object, image); };
  const auto make = [&] { return pack_image(image = compile_image(text, name, made_for)); };
  const From from = store_of(architecture)->find_or_make(text, read, make);
  const std::lock_guard lock(kernel_cache().mutex);
  SourceReport& report = kernel_cache().architectures[architecture].report;
  report.from_disk += from == From::kDisk;
  report.from_artifacts += from == From::kArtifact;
  if (from == From::kMade) report.compiled.push_back(name);
  return image;
}

}  // namespace

const char* type_name(DType dtype) {
  constexpr const char* kNames[kNumDTypes] = {"double",    "float", "rondo_bf16",    "rondo_f16",
                                              "long long", "int",   "unsigned char", "bool"};
  return kNames[static_cast<int>(dtype)];
}
const char* compute_type_name(DType dtype) { return type_name(compute_dtype(dtype)); }

const char* word_name(DType dtype) {
  switch (size_of(dtype)) {
    case 1: return "unsigned char";
    case 2: return "unsigned short";
    case 4: return "unsigned";
    default: return "unsigned long long";
  }
}

std::string whole_text(const Source& source, std::initializer_list<Define> defines) {
  std::string text = absl::StrCat(std::string(device_math()), kElementTypes, kLayoutText, kLayoutFunctions,
                                  kDeviceStatusLayout, kDeviceStatusFunctions);
  if (source.only_for != 0) absl::StrAppend(&text, "// for ", Architecture(source.only_for, 'a').name(), " only\n");
  for (const Define& define : defines) absl::StrAppend(&text, "#define ", define.name, " ", define.value, "\n");
  absl::StrAppend(&text, std::string(source.text));
  return text;
}

Kernel kernel_of(int device, const Source& source, const char* name, std::initializer_list<Define> defines,
                 unsigned dynamic_shared) {
  // A device that was closed and opened again has another serial number; its modules were unloaded.
  DeviceState& state = device_state(device);
  std::string key = absl::StrCat(state.serial(), " ", source.name, " ", name, " ", source.only_for);
  for (const Define& define : defines) absl::StrAppend(&key, " ", define.name, "=", define.value);
  Cache& all = kernel_cache();
  {
    const std::shared_lock lock(all.mutex);
    if (const auto found = all.loaded.find(key); found != all.loaded.end()) return found->second.kernel;
  }
  std::string title = source.name;
  for (const Define& define : defines) absl::StrAppend(&title, " ", define.name, "=", define.value);
  const int architecture = architecture_of(state.capability());
  const Architecture made_for = source.only_for != 0 ? Architecture(source.only_for, 'a') : Architecture(architecture);
  if (source.only_for != 0 && source.only_for != state.capability())
    throw_internal(absl::StrCat(source.name, " is for ", made_for.name(), " only, and cuda:", device, " is of ",
                                Architecture(state.capability()).name()));
  const Image image = image_of(title, whole_text(source, defines), architecture, made_for);
  Loaded loaded;
  loaded.module = Module::load(device, image.for_device(state.capability(), made_for));
  loaded.kernel = loaded.module->kernel(name, static_cast<int>(dynamic_shared));
  const std::lock_guard lock(all.mutex);
  return all.loaded.try_emplace(key, std::move(loaded)).first->second.kernel;
}

// ---- Artifacts

io::KernelFile kernels_by_hand(int architecture) {
  const std::shared_lock lock(kernel_cache().mutex);
  const auto found = kernel_cache().architectures.find(architecture);
  if (found == kernel_cache().architectures.end() || found->second.code == nullptr) return {};
  return found->second.code->contents();
}

absl::Status add_kernels_by_hand(int architecture, const io::KernelFile& file) {
  if (absl::Status status = io::accepts(key_of_code(architecture, kMaker), file.host); !status.ok()) return status;
  return store_of(architecture)->take(file, [](const std::string& object) {
    Image image;
    return unpack_image(object, image);
  });
}

SourceReport source_report(int architecture) {
  const std::shared_lock lock(kernel_cache().mutex);
  const auto found = kernel_cache().architectures.find(architecture);
  return found == kernel_cache().architectures.end() ? SourceReport{} : found->second.report;
}

void forget_kernels_by_hand() {
  const std::lock_guard lock(kernel_cache().mutex);
  for (auto& [architecture, here] : kernel_cache().architectures) here.code = nullptr;
}

}  // namespace rondo::cuda
