#include "rondo/tests/cuda_on_host/kernel_files.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/device_math.h"
#include "rondo/compile/codegen/cuda/table_layout.h"
#include "rondo/runtime/cuda/status.h"
#include "rondo/runtime/io/checksum.h"
#include "rondo/tests/cuda_on_host/fiber.h"

namespace rondo::cuda_on_host {
namespace {

// A command whose output is kept.
class Command {
 public:
  explicit Command(const std::string& text) : pipe_(popen((text + " 2>&1").c_str(), "r")) {
    if (pipe_ == nullptr) throw std::runtime_error("cannot run " + text);
  }
  // Waits. Throws what it printed if it failed.
  void finish() {
    std::string output;
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe_)) > 0;) output.append(buffer, n);
    if (pclose(pipe_) != 0) throw std::runtime_error("the compiler refuses the kernels:\n" + output);
  }

 private:
  FILE* pipe_;
};

// A library that an earlier run has made of the same text, by the same compiler, is used again.
std::filesystem::path library_of(const std::string& text) {
  static const std::string compiler = [] {
    std::ifstream file(RONDO_CUDA_ON_HOST_HEADER);
    std::stringstream all;
    all << RONDO_KERNEL_COMPILER << file.rdbuf();
    return all.str();
  }();
  io::Checksum sum;
  sum.update(compiler);
  sum.update(text);
  return std::filesystem::path(RONDO_CUDA_ON_HOST_CACHE) / absl::StrCat("files-", absl::Hex(sum.digest()), ".so");
}

}  // namespace

KernelFiles::KernelFiles(const std::vector<Source>& sources) {
  std::vector<std::filesystem::path> libraries, made;  // `made`: where the compiler puts it; empty: it was there
  std::vector<Command> running;
  const size_t at_once = std::max(1u, std::thread::hardware_concurrency());
  size_t finished = 0;
  for (size_t first = 0; first < sources.size(); first += kKernelsPerFile) {
    const size_t last = std::min(sources.size(), first + kKernelsPerFile);
    std::string text(compile::cuda::device_math());
    absl::StrAppend(&text, std::string(compile::cuda::kSumsLayout), "\n", cuda::kDeviceStatusLayout,
                    cuda::kDeviceStatusFunctions);
    for (size_t i = first; i < last; ++i)
      absl::StrAppend(&text, sources[i].text, "CUDA_ON_HOST_KERNEL(", sources[i].name, ")\n");
    const std::string file = folder_ / absl::StrCat(libraries.size());
    libraries.push_back(library_of(text));
    made.emplace_back();
    if (std::filesystem::exists(libraries.back())) continue;
    std::filesystem::create_directories(libraries.back().parent_path());
    made.back() = absl::StrCat(libraries.back().string(), ".", getpid(), ".", made.size());
    std::ofstream(file + ".cc") << text;
    running.emplace_back(absl::StrCat(RONDO_KERNEL_COMPILER, " -include " RONDO_CUDA_ON_HOST_HEADER " ", file,
                                      ".cc -o ", made.back().string()));
    if (running.size() - finished >= at_once) running[finished++].finish();
  }
  while (finished < running.size()) running[finished++].finish();
  // Other processes see a library when it is whole.
  for (size_t f = 0; f < libraries.size(); ++f)
    if (!made[f].empty()) std::filesystem::rename(made[f], libraries[f]);
  for (size_t f = 0; f < libraries.size(); ++f) {
    void* library = dlopen(libraries[f].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    libraries_.push_back(library);
    const auto bind = reinterpret_cast<SharedMemory (*)(const View*)>(dlsym(library, "cuda_on_host_bind"));
    const SharedMemory shared = bind(view());
    for (size_t i = f * kKernelsPerFile; i < std::min(sources.size(), (f + 1) * kKernelsPerFile); ++i) {
      const auto call = reinterpret_cast<void (*)(void**)>(dlsym(library, (sources[i].name + "__call").c_str()));
      kernels_.push_back({sources[i].name, call, shared});
    }
  }
}

KernelFiles::~KernelFiles() {
#if !RONDO_FIBER_ASAN  // ASan keeps pointers to the globals of a library that was closed, and reads them for each
                       // report.
  for (void* library : libraries_) dlclose(library);
#endif
}

}  // namespace rondo::cuda_on_host
