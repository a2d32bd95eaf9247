// StepPasses: the passes (foreach.h) that the steps of one optimizer have needed so far, one for each signature, and
// whether they run generated code.
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "rondo/optim/foreach.h"
#include "rondo/optim/kernel_report.h"
#include "rondo/runtime/device/device.h"

namespace rondo::optim {

class StepPasses {
 public:
  // Returns the pass of this formula on these arrays. `optimizer`: a name for messages. The pass is compiled if the
  // optimizer is compiled, or if the device has generated kernels only. Throws Error if the stance (compile.h) forbids
  // a new kernel.
  std::shared_ptr<Foreach> pass_for(const char* optimizer, Device device, const Body& body,
                                    std::vector<ArraySpec> arrays);
  // Compiles the existing passes, and from now on every new pass.
  void compile_all(const char* optimizer, Device device);

  const KernelReport& report() const { return report_; }
  // True if the stance prevented the compilation of a pass. Then the next step must call pass_for() again.
  bool postponed() const { return postponed_; }
  // Called after each step that updated something. Kernels that are compiled after the first such call count as late.
  void note_step() { stepped_ = true; }

 private:
  void compile_one(const char* optimizer, Device device, Foreach& pass);

  std::vector<std::shared_ptr<Foreach>> passes_;
  KernelReport report_;
  bool stepped_ = false;
  bool postponed_ = false;
};

}  // namespace rondo::optim
