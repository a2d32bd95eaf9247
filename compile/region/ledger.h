// The report of a region, as it is written. What may be compiled anew is decided in recompile_policy.h.
#pragma once

#include <exception>
#include <mutex>
#include <string>
#include <vector>

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
  void begin_call(bool is_replayed);
  struct NewEntry {
    double compile_ms = 0;
    std::vector<ProgramStats> programs;
    int64_t kept_bytes = 0, recomputed_flops = 0;
  };
  void add_entry(const NewEntry& made);
  void add_backward(const ProgramStats& stats, const std::string& why);
  void add_eager_run();
  void add_break(const std::string& reason);
  // The reasons: the first 32 that differ.
  std::vector<std::string> breaks() const;
  // A run threw.
  void add_failed_run(const std::exception& reason);
  // As of a new region, but for its layers: compile::reset().
  void restart();
  // A stage of the compiler failed (InternalError), or there is none for the device (NoCodeGenerator), so something
  // runs eagerly: counts it, and warns once with the reason. False, and nothing was done: it is another error.
  bool add_failed_compilation(const std::exception& reason);

 private:
  const std::string name_;
  mutable std::mutex mutex_;  // guards what follows
  RegionReport report_;
  int most_launches_ = 0;  // of an entry that the latest call made
  std::vector<std::string> breaks_;
};

}  // namespace rondo::compile
