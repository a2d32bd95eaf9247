// The report of a region, as it is written. What may be compiled anew is decided in recompile_policy.h.
#pragma once

#include <exception>
#include <mutex>
#include <string>

#include "rondo/compile/exec/program.h"
#include "rondo/compile/region_report.h"

namespace rondo::compile {

// Entries have it, too: they compile backwards, even when the region is gone. Thread safe; nothing is logged while the
// lock is held.
class Ledger {
 public:
  explicit Ledger(std::string name) : name_(std::move(name)) { report_.name = name_; }

  const std::string& name() const { return name_; }
  RegionReport report() const {
    std::lock_guard lock(mutex_);
    return report_;
  }
  // write(report) has it for itself, and may return something.
  template <class Write> auto update(Write write) {
    std::lock_guard lock(mutex_);
    return write(report_);
  }
  void add_backward(const ProgramStats& stats, const std::string& why);
  void add_eager_run();
  // A run threw.
  void add_failed_run(const std::exception& reason);
  // As of a new region, but for its layers: compile::reset().
  void restart();
  // A stage of the compiler failed (InternalError), or there is none for the device (NoCodeGenerator), so something
  // runs eagerly: counts it, and warns once with the reason. False, and nothing was done: it is another error.
  bool add_failed_compilation(const std::exception& reason);

 private:
  const std::string name_;
  mutable std::mutex mutex_;
  RegionReport report_;
};

}  // namespace rondo::compile
