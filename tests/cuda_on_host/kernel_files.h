// Emitted kernels, compiled by the host's compiler and loaded. Files are compiled side by side, and kept for the next
// run: what has not changed is not compiled again.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/cuda_on_host/machine.h"

namespace rondo::cuda_on_host {

class KernelFiles {
 public:
  struct Source {
    std::string name;  // of the kernel, without its arguments
    std::string text;
  };
  // In files of kKernelsPerFile. Throws std::runtime_error with the compiler's words.
  explicit KernelFiles(const std::vector<Source>& sources);
  KernelFiles(std::string name, std::string text)
      : KernelFiles(std::vector<Source>{{std::move(name), std::move(text)}}) {}
  ~KernelFiles();
  KernelFiles(const KernelFiles&) = delete;
  KernelFiles& operator=(const KernelFiles&) = delete;
  // By position in `sources`. Lives as long as this.
  const Kernel& kernel(size_t i) const { return kernels_[i]; }

  static constexpr size_t kKernelsPerFile = 50;

 private:
  test::TempFolder folder_;
  std::vector<void*> libraries_;
  std::vector<Kernel> kernels_;
};

}  // namespace rondo::cuda_on_host
