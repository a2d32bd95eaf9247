#include "rondo/runtime/cuda/source.h"

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/context.h"
#include "rondo/runtime/cuda/device_math.h"
#include "rondo/runtime/cuda/layout.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/status.h"
#include "rondo/runtime/error.h"

namespace rondo::cuda {
namespace {

// Conversions are those of ops/elementwise_body.h.
constexpr const char* kElementTypes = R"cuda(
template <class T> struct RondoCompute { using Type = T; };
template <> struct RondoCompute<rondo_bf16> { using Type = float; };
template <> struct RondoCompute<rondo_f16> { using Type = float; };
template <class T> RONDO_DEVICE T widen(T x) { return x; }
RONDO_DEVICE float widen(rondo_bf16 x) { return to_float(x); }
RONDO_DEVICE float widen(rondo_f16 x) { return to_float(x); }

// A float without its fraction: the nearest number of the type where it is out of range, 0 for NaN.
template <class In> RONDO_DEVICE long long to_long(In x) {
  const In high = static_cast<In>(9223372036854775808.0);
  if (x >= high) return 9223372036854775807ll;
  if (x < -high) return -9223372036854775807ll - 1;
  return x == x ? static_cast<long long>(x) : 0ll;
}
template <class In> RONDO_DEVICE int to_int(In x) {
  const In high = static_cast<In>(2147483648.0);
  if (x >= high) return 2147483647;
  if (x < -high) return -2147483647 - 1;
  return x == x ? static_cast<int>(x) : 0;
}
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

// Machine code for one architecture. Whoever comes first compiles it, and others wait for it.
struct Image {
  std::mutex mutex;
  std::string code;
};
struct Loaded {
  std::shared_ptr<const Module> module;
  Kernel kernel;
};
struct Cache {
  std::shared_mutex mutex;                                          // of the two maps
  absl::flat_hash_map<std::string, std::shared_ptr<Image>> images;  // by architecture and text
  absl::flat_hash_map<std::string, Loaded> loaded;                  // by device, kernel and defines
};
Cache& cache() {
  static auto* const cache = new Cache;  // never destroyed: the driver may be gone at the end of a process
  return *cache;
}

// A kernel that another process has compiled would be looked up here: compile/ has a cache on disk, and may hand one
// in.
std::string code_of(const std::string& file, const std::string& text, const std::string& architecture) {
  const std::string key = absl::StrCat(architecture, "\n", text);
  std::shared_ptr<Image> image;
  {
    const std::lock_guard lock(cache().mutex);
    std::shared_ptr<Image>& found = cache().images[key];
    if (found == nullptr) found = std::make_shared<Image>();
    image = found;
  }
  const std::lock_guard lock(image->mutex);
  if (image->code.empty()) image->code = compile_text(file, text, architecture);
  return image->code;
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
  for (const Define& define : defines) absl::StrAppend(&text, "#define ", define.name, " ", define.value, "\n");
  absl::StrAppend(&text, std::string(source.text));
  return text;
}

std::string compile_text(const std::string& file, const std::string& text, const std::string& architecture) {
  std::string why_not;
  const Nvrtc* const nvrtc = find_nvrtc(&why_not);
  if (nvrtc == nullptr) throw DeviceError(absl::StrCat("no kernels on CUDA: ", why_not));
  NvrtcOutput output = compile_source(*nvrtc, text, file + ".cu", architecture, kExactFlags);
  if (output.result != NvrtcResult::kSuccess)
    throw DeviceError(absl::StrCat("NVRTC (", nvrtc->path, ") refuses the kernels of ", file, " for ", architecture,
                                   ": ", nvrtc->error_string(output.result), "\n", output.log));
  return std::move(output.cubin);
}

Kernel kernel_of(int device, const Source& source, const char* name, std::initializer_list<Define> defines) {
  // A device that was closed and opened again has another serial number; its modules were unloaded.
  DeviceState& state = device_state(device);
  std::string key = absl::StrCat(state.serial(), " ", source.name, " ", name);
  for (const Define& define : defines) absl::StrAppend(&key, " ", define.name, "=", define.value);
  Cache& all = cache();
  {
    const std::shared_lock lock(all.mutex);
    if (const auto found = all.loaded.find(key); found != all.loaded.end()) return found->second.kernel;
  }
  const std::string code = code_of(source.name, whole_text(source, defines), absl::StrCat("sm_", state.capability()));
  Loaded loaded;
  loaded.module = Module::load(device, code);
  loaded.kernel = loaded.module->kernel(name);
  const std::lock_guard lock(all.mutex);
  return all.loaded.try_emplace(key, std::move(loaded)).first->second.kernel;
}

}  // namespace rondo::cuda
