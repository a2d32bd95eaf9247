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
  // The pass of this formula on these arrays, on the device of the optimizer of this name. It is compiled if the
  // optimizer is, or if its device has generated kernels only. Throws Error if the stance (compile.h) forbids a new
  // kernel.
  std::shared_ptr<Foreach> pass_for(const char* optimizer, Device device, const Body& body,
                                    std::vector<ArraySpec> arrays);
  // From now on passes are compiled: those that are there, and new ones.
  void compile_all(const char* optimizer, Device device);

  const KernelReport& report() const { return report_; }
  // A stance kept a pass from being compiled when it was last asked for: ask again.
  bool postponed() const { return postponed_; }
  // After the first step that updated something: kernels that are compiled from now on are late.
  void note_step() { stepped_ = true; }

 private:
  void compile_one(const char* optimizer, Device device, Foreach& pass);

  std::vector<std::shared_ptr<Foreach>> passes_;
  KernelReport report_;
  bool stepped_ = false;
  bool postponed_ = false;
};

}  // namespace rondo::optim
