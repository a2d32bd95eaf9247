#include "rondo/runtime/cuda/driver.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rondo::cuda {
namespace {

// The existing paths that match, the last in alphabetical order first: newer versions come before older ones.
std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), GLOB_NOESCAPE, nullptr, &found) == 0)
    for (size_t i = found.gl_pathc; i-- > 0;) paths.emplace_back(found.gl_pathv[i]);
  globfree(&found);
  return paths;
}

// What to hand to dlopen, in this order: Note [Finding CUDA]. `name` without its version: "libnvrtc.so". `versions`:
// the newest first.
std::vector<std::string> candidates(const std::string& name, const std::vector<std::string>& versions) {
  std::vector<std::string> paths;
  const auto look_in = [&](const std::string& folder) {
    for (const std::string& version : versions)
      for (std::string& path : matches(absl::StrCat(folder, "/", name, ".", version))) paths.push_back(std::move(path));
  };
  if (const char* folders = std::getenv("RONDO_CUDA_PATH"))
    for (const absl::string_view folder : absl::StrSplit(folders, ':', absl::SkipEmpty()))
      for (const char* below : {"", "/lib64", "/lib", "/nvidia/*/lib", "/lib/python3*/site-packages/nvidia/*/lib"})
        look_in(absl::StrCat(folder, below));
  for (const std::string& version : versions) paths.push_back(absl::StrCat(name, ".", version));
  for (const char* folder : {"/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64", "/opt/cuda/lib64"}) look_in(folder);
  return paths;
}

// A library, or null and the reason.
void* open_library(const std::string& name, const std::vector<std::string>& versions, std::string* path,
                   std::string* why_not) {
  if (const char* setting = std::getenv("RONDO_CUDA"); setting != nullptr && std::string_view(setting) == "off") {
    *why_not = "RONDO_CUDA=off";
    return nullptr;
  }
  std::string broken;
  for (const std::string& candidate : candidates(name, versions)) {
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      *path = candidate;
      return library;
    }
    // A file that is there and does not load is worth a word; a name that the loader does not know is not.
    if (const char* reason = dlerror(); candidate.find('/') != candidate.npos && broken.empty() && reason != nullptr)
      broken = reason;
  }
  *why_not = broken.empty() ? absl::StrCat(name, ".", versions.front(),
                                           " is not found; set RONDO_CUDA_PATH to its folder if it is there")
                            : absl::StrCat(name, " does not load: ", broken);
  return nullptr;
}

// One library: its table, or the reason why there is none.
template <class Table> struct Found {
  std::unique_ptr<const Table> table;
  std::string why_not;
  bool asked = false;
};

struct Libraries {
  std::mutex mutex;
  Found<Driver> driver;
  Found<Nvrtc> nvrtc;
  Found<CublasLt> lt;
  const Driver* other_driver = nullptr;  // use_libraries()
  const CublasLt* other_lt = nullptr;
};
Libraries& libraries() {
  static Libraries* libraries = new Libraries;  // never destroyed: memory is freed until the end of a process
  return *libraries;
}

template <class Table, class Load> const Table* find(Found<Table> Libraries::*which, std::string* why_not, Load load) {
  Libraries& all = libraries();
  const std::lock_guard lock(all.mutex);
  Found<Table>& found = all.*which;
  if (!found.asked) {
    found.asked = true;
    found.table = load(&found.why_not);
  }
  if (why_not != nullptr) *why_not = found.why_not;
  return found.table.get();
}

// Fills one member; false if the library lacks it.
template <class Function> bool bind(void* library, const char* symbol, Function*& member) {
  member = reinterpret_cast<Function*>(dlsym(library, symbol));
  return member != nullptr;
}

#define RONDO_CUDA_BIND(member, symbol, ...)                          \
  if (!bind(library, #symbol, table->member)) {                       \
    *why_not = absl::StrCat(path, " is too old: it has no " #symbol); \
    return nullptr;                                                   \
  }

std::unique_ptr<const Driver> load_driver(std::string* why_not) {
  std::string path;
  void* library = open_library("libcuda.so", {"1"}, &path, why_not);
  if (library == nullptr) return nullptr;
  auto table = std::make_unique<Driver>();
  RONDO_CUDA_DRIVER(RONDO_CUDA_BIND)
  return table;
}
std::unique_ptr<const Nvrtc> load_nvrtc(std::string* why_not) {
  std::string path;
  void* library = open_library("libnvrtc.so", {"13", "12"}, &path, why_not);
  if (library == nullptr) return nullptr;
  auto table = std::make_unique<Nvrtc>();
  RONDO_CUDA_NVRTC(RONDO_CUDA_BIND)
  table->path = path;
  return table;
}
std::unique_ptr<const CublasLt> load_lt(std::string* why_not) {
  std::string path;
  void* library = open_library("libcublasLt.so", {"13", "12"}, &path, why_not);
  if (library == nullptr) return nullptr;
  auto table = std::make_unique<CublasLt>();
  RONDO_CUDA_LT(RONDO_CUDA_BIND)
  return table;
}
#undef RONDO_CUDA_BIND

}  // namespace

namespace {
template <class Table> const Table* instead(const Table* Libraries::*which) {
  const std::lock_guard lock(libraries().mutex);
  return libraries().*which;
}
}  // namespace

const Driver* find_driver(std::string* why_not) {
  if (const Driver* other = instead(&Libraries::other_driver)) return other;
  return find(&Libraries::driver, why_not, &load_driver);
}
const Nvrtc* find_nvrtc(std::string* why_not) { return find(&Libraries::nvrtc, why_not, &load_nvrtc); }
const CublasLt* find_cublas_lt(std::string* why_not) {
  if (const CublasLt* other = instead(&Libraries::other_lt)) return other;
  return find(&Libraries::lt, why_not, &load_lt);
}

void use_libraries(const Driver* driver, const CublasLt* lt) {
  const std::lock_guard lock(libraries().mutex);
  libraries().other_driver = driver;
  libraries().other_lt = lt;
}

void forget_libraries() {
  Libraries& all = libraries();
  const std::lock_guard lock(all.mutex);
  all.driver = {};
  all.nvrtc = {};
  all.lt = {};
}

}  // namespace rondo::cuda
