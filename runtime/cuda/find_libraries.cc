// Defines find_driver(), find_cudnn() and the other find_*() functions. They return the libraries that were found, or
// those that use_libraries() has set instead.
#include <dlfcn.h>

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <system_error>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/cudnn.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/library.h"

namespace rondo::cuda {
namespace {

// One library: its table, or the reason why there is none.
template <class Table> struct Found {
  std::unique_ptr<const Table> table;
  std::string why_not;
  bool asked = false;
  std::vector<std::unique_ptr<const Table>> earlier;  // forgotten, but other code may still hold and call them

  void forget() {
    if (table != nullptr) earlier.push_back(std::move(table));
    why_not.clear();
    asked = false;
  }
};

struct Libraries {
  std::mutex mutex;
  Found<Driver> driver;
  Found<Nvrtc> nvrtc;
  Found<CublasLt> lt;
  Found<Cudnn> dnn;
  const Driver* other_driver = nullptr;  // set by use_libraries()
  const CublasLt* other_lt = nullptr;
  const Cudnn* other_dnn = nullptr;
};
Libraries& libraries() {
  static Libraries* libraries = new Libraries;  // never destroyed: device memory may be freed until the process ends
  return *libraries;
}

// Fills a table. Returns the first function that the library lacks, or null.
#define RONDO_CUDA_BIND(member, symbol, ...)                                                 \
  table.member = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(dlsym(library, #symbol)); \
  if (table.member == nullptr) return #symbol;
const char* fill(Driver& table, void* library) {
  RONDO_CUDA_DRIVER(RONDO_CUDA_BIND)
  return nullptr;
}
const char* fill(Nvrtc& table, void* library) {
  RONDO_CUDA_NVRTC(RONDO_CUDA_BIND)
  return nullptr;
}
const char* fill(CublasLt& table, void* library) {
  RONDO_CUDA_LT(RONDO_CUDA_BIND)
  return nullptr;
}
const char* fill(Cudnn& table, void* library) {
  RONDO_CUDA_DNN(RONDO_CUDA_BIND)
  return nullptr;
}
#undef RONDO_CUDA_BIND

// The oldest version of cuDNN that is accepted: Note [Which cuDNN] in cudnn.h.
constexpr size_t kOldestCudnn = 91100;
constexpr const char* kInstallCudnn = "; plans need cuDNN 9.11 or newer (pip: nvidia-cudnn-cu13 or nvidia-cudnn-cu12)";

// When NVRTC first compiles, it opens its builtins library by name alone. Not every NVRTC then searches its own folder:
// the NVRTC of a CUDA 12 or 13 toolkit has no run path. Such an NVRTC would not find the builtins in a wheel, in a
// folder of RONDO_CUDA_PATH, or in a toolkit that the system's loader does not know. So the builtins are opened here by
// their path; the loader then knows the name when NVRTC asks for it. If the builtins are not in NVRTC's folder, NVRTC
// searches for them, and its log says what it misses.
void open_builtins(const Nvrtc& nvrtc) {
  int major = 0, minor = 0;
  if (nvrtc.version(&major, &minor) != NvrtcResult::kSuccess) return;
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(nvrtc.version), &here) == 0 || here.dli_fname == nullptr) return;
  std::error_code ignored;
  const std::filesystem::path opened = here.dli_fname, real = std::filesystem::canonical(opened, ignored);
  const std::string name = absl::StrCat("libnvrtc-builtins.so.", major, ".", minor);
  for (const std::filesystem::path& library : {opened, real})  // the builtins are beside the link or beside its target
    if (library.has_parent_path() && dlopen((library.parent_path() / name).c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr)
      return;
}

template <class Table>
const Table* find(Found<Table> Libraries::*which, const char* name, std::initializer_list<const char*> versions,
                  std::string* why_not) {
  Libraries& all = libraries();
  const std::lock_guard lock(all.mutex);
  Found<Table>& found = all.*which;
  if (!std::exchange(found.asked, true)) {
    std::string path;
    if (void* library = open_library(name, versions, &path, &found.why_not)) {
      auto table = std::make_unique<Table>();
      if constexpr (requires { table->path; }) table->path = path;
      if (const char* missing = fill(*table, library))
        found.why_not = absl::StrCat(path, " is too old: it has no ", missing);
      else found.table = std::move(table);
      if constexpr (std::is_same_v<Table, Cudnn>)
        if (found.table != nullptr && found.table->version() < kOldestCudnn) {
          found.why_not = absl::StrCat(path, " is cuDNN ", version_of(*found.table), ", which is too old");
          found.table = nullptr;
        }
      if constexpr (std::is_same_v<Table, Nvrtc>)
        if (found.table != nullptr) open_builtins(*found.table);
    }
  }
  if (why_not != nullptr) *why_not = found.why_not;
  return found.table.get();
}

template <class Table> const Table* instead(const Table* Libraries::*which) {
  const std::lock_guard lock(libraries().mutex);
  return libraries().*which;
}
}  // namespace

const Driver* find_driver(std::string* why_not) {
  if (const Driver* other = instead(&Libraries::other_driver)) return other;
  return find(&Libraries::driver, "libcuda.so", {"1"}, why_not);
}
namespace {
// The major versions of a toolkit's libraries, the best one first. A driver takes code and libraries of its own major
// version and of older ones (CUDA Compatibility, "Minor Version Compatibility").
std::initializer_list<const char*> toolkit_versions() {
  static constexpr std::initializer_list<const char*> kNewestFirst = {"13", "12"}, kOlderFirst = {"12", "13"};
  const Driver* driver = find_driver(nullptr);
  int version = 0;
  const bool older = driver != nullptr && driver->driver_version(&version) == Result::kSuccess && version > 0 &&
                     version < 13000;
  return older ? kOlderFirst : kNewestFirst;
}
}  // namespace

const Nvrtc* find_nvrtc(std::string* why_not) {
  return find(&Libraries::nvrtc, "libnvrtc.so", toolkit_versions(), why_not);
}
const CublasLt* find_cublas_lt(std::string* why_not) {
  if (const CublasLt* other = instead(&Libraries::other_lt)) return other;
  return find(&Libraries::lt, "libcublasLt.so", toolkit_versions(), why_not);
}
const CublasLt& require_cublas_lt() {
  std::string why_not;
  if (const CublasLt* const found = find_cublas_lt(&why_not)) return *found;
  throw DeviceError(absl::StrCat("no matrix products on CUDA: ", why_not));
}

const Cudnn* find_cudnn(std::string* why_not) {
  if (const Cudnn* other = instead(&Libraries::other_dnn)) return other;
  std::string reason;
  const Cudnn* const found = find(&Libraries::dnn, "libcudnn.so", {"9"}, &reason);
  if (why_not != nullptr) *why_not = found != nullptr ? "" : absl::StrCat(reason, kInstallCudnn);
  return found;
}
const Cudnn& require_cudnn() {
  std::string why_not;
  if (const Cudnn* const found = find_cudnn(&why_not)) return *found;
  throw DeviceError(absl::StrCat("no plans of cuDNN: ", why_not));
}
std::string version_of(const Cudnn& library) {
  const size_t version = library.version();
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

void use_libraries(const Driver* driver, const CublasLt* lt, const Cudnn* dnn) {
  const std::lock_guard lock(libraries().mutex);
  libraries().other_driver = driver;
  libraries().other_lt = lt;
  libraries().other_dnn = dnn;
}

void forget_libraries() {
  Libraries& all = libraries();
  const std::lock_guard lock(all.mutex);
  all.driver.forget();
  all.nvrtc.forget();
  all.lt.forget();
  all.dnn.forget();
}

}  // namespace rondo::cuda
