#include "rondo/tests/cuda_on_host/kernel_files.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/device_math.h"
#include "rondo/compile/codegen/cuda/table_layout.h"
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

}  // namespace

KernelFiles::KernelFiles(const std::vector<Source>& sources) {
  std::vector<std::string> files;
  std::vector<Command> running;
  const size_t at_once = std::max(1u, std::thread::hardware_concurrency());
  size_t finished = 0;
  for (size_t first = 0; first < sources.size(); first += kKernelsPerFile) {
    const size_t last = std::min(sources.size(), first + kKernelsPerFile);
    files.push_back(folder_ / absl::StrCat(files.size()));
    std::ofstream file(files.back() + ".cc");
    file << compile::cuda::device_math() << compile::cuda::kSumsLayout << "\n";
    for (size_t i = first; i < last; ++i) file << sources[i].text << "CUDA_ON_HOST_KERNEL(" << sources[i].name << ")\n";
    file.close();
    running.emplace_back(absl::StrCat(RONDO_KERNEL_COMPILER, " -include " RONDO_CUDA_ON_HOST_HEADER " ", files.back(),
                                      ".cc -o ", files.back(), ".so"));
    if (running.size() - finished >= at_once) running[finished++].finish();
  }
  while (finished < running.size()) running[finished++].finish();
  for (size_t f = 0; f < files.size(); ++f) {
    void* library = dlopen((files[f] + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
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
