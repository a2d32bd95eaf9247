#include "rondo/runtime/cuda/library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace rondo::cuda {
namespace {

// Returns the existing paths that match, the last in alphabetical order first, so that newer versions come before older
// ones.
std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), GLOB_NOESCAPE, nullptr, &found) == 0)
    for (size_t i = found.gl_pathc; i-- > 0;) paths.emplace_back(found.gl_pathv[i]);
  globfree(&found);
  return paths;
}

// Returns the names to hand to dlopen, in the order in which they are tried: Note [Finding CUDA]. `name` has no
// version: "libnvrtc.so". `versions`: the best one first.
std::vector<std::string> candidates(const char* name, std::initializer_list<const char*> versions) {
  std::vector<std::string> paths;
  const auto look_in = [&](const std::string& folder) {
    for (const char* version : versions)
      for (std::string& path : matches(absl::StrCat(folder, "/", name, ".", version))) paths.push_back(std::move(path));
  };
  if (const char* folders = std::getenv("RONDO_CUDA_PATH"))
    for (const absl::string_view folder : absl::StrSplit(folders, ':', absl::SkipEmpty()))
      for (const char* below : {"", "/lib64", "/lib", "/nvidia/*/lib", "/lib/python3*/site-packages/nvidia/*/lib"})
        look_in(absl::StrCat(folder, below));
  for (const char* version : versions) paths.push_back(absl::StrCat(name, ".", version));
  for (const char* folder : {"/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64", "/opt/cuda/lib64"}) look_in(folder);
  return paths;
}

}  // namespace

void* open_library(const char* name, std::initializer_list<const char*> versions, std::string* path,
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
    // Reports a file that exists but does not load. A name that the loader does not know is not reported.
    if (const char* reason = dlerror(); candidate.find('/') != candidate.npos && broken.empty() && reason != nullptr)
      broken = reason;
  }
  const char* const folders = std::getenv("RONDO_CUDA_PATH");
  *why_not = !broken.empty() ? absl::StrCat(name, " does not load: ", broken)
             : folders == nullptr
                 ? absl::StrCat(name, ".", *versions.begin(),
                                " is not found; set RONDO_CUDA_PATH to its folder if it is there")
                 : absl::StrCat(name, ".", *versions.begin(), " is not found, neither in RONDO_CUDA_PATH=", folders,
                                " nor where the system looks");
  return nullptr;
}

}  // namespace rondo::cuda
