// Ledger: collects the report of a region. recompile_policy.h decides what may be compiled again.
#pragma once

#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "rondo/compile/exec/program.h"
#include "rondo/compile/region_report.h"

namespace rondo::compile {

// Shared with the region's entries, which compile backwards even after the region is destroyed. Thread safe. Logs
// nothing while the lock is held.
class Ledger {
 public:
  explicit Ledger(std::string name) : name_(std::move(name)) { report_.name = name_; }

  const std::string& name() const { return name_; }
  RegionReport report() const {
    std::lock_guard lock(mutex_);
    return report_;
  }
  // Calls write(report) while the lock is held, and returns its result.
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
  // Returns the reasons of graph breaks: the first 32 different ones.
  std::vector<std::string> breaks() const;
  // Counts a run that threw.
  void add_failed_run(const std::exception& reason);
  // Resets the report to that of a new region, except for the number of layers: compile::reset().
  void restart();
  // Call when a compilation has thrown `reason`. If a stage of the compiler failed (InternalError), or there is no code
  // generator for the device (NoCodeGenerator), counts this, warns once with the reason, and returns true: the caller
  // then runs eagerly. For other errors does nothing and returns false.
  bool add_failed_compilation(const std::exception& reason);

 private:
  const std::string name_;
  mutable std::mutex mutex_;  // guards the members below
  RegionReport report_;
  int most_launches_ = 0;  // the number of launches of the largest entry among those that the latest call made
  std::vector<std::string> breaks_;
};

}  // namespace rondo::compile
