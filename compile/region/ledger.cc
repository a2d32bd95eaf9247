#include "rondo/compile/region/ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {

void Ledger::begin_call(bool is_replayed) {
  std::lock_guard lock(mutex_);
  ++report_.calls;
  report_.replays += is_replayed;
  most_launches_ = 0;
}

void Ledger::add_entry(const NewEntry& made) {
  int kernels = 0, library_calls = 0, compiled = 0, fresh = 0;
  for (const ProgramStats& program : made.programs) {
    compiled += program.compiled;
    fresh += program.fresh;
    kernels += program.kernels;
    library_calls += program.library_calls;
  }
  std::lock_guard lock(mutex_);
  ++report_.entries;
  report_.compile_ms += made.compile_ms;
  report_.compilations += compiled > 0;
  report_.fresh_programs += fresh > 0;
  if (kernels + library_calls < most_launches_) return;
  most_launches_ = kernels + library_calls;
  report_.kernels = kernels;
  report_.library_calls = library_calls;
  report_.kept_bytes = made.kept_bytes;
  report_.recomputed_flops = made.recomputed_flops;
}

void Ledger::add_backward(const ProgramStats& stats, const std::string& why) {
  update([&](RegionReport& report) {
    ++report.other_backwards;
    report.compilations += stats.compiled > 0;
    report.fresh_programs += stats.fresh > 0;
    report.compile_ms += stats.compile_ms;
    report.last_recompile = why;
  });
  if (log::enabled(log::Topic::kRecompiles)) log::write(log::Topic::kRecompiles, absl::StrCat(name(), ": ", why));
}

void Ledger::restart() {
  std::lock_guard lock(mutex_);
  RegionReport anew;
  anew.name = name_;
  anew.layers = report_.layers;
  anew.resets = report_.resets + 1;
  report_ = std::move(anew);
  breaks_.clear();
}

void Ledger::add_break(const std::string& reason) {
  constexpr size_t kMostReasons = 32;
  std::lock_guard lock(mutex_);
  ++report_.graph_breaks;
  report_.last_break = reason;
  if (breaks_.size() < kMostReasons && std::find(breaks_.begin(), breaks_.end(), reason) == breaks_.end())
    breaks_.push_back(reason);
}

std::vector<std::string> Ledger::breaks() const {
  std::lock_guard lock(mutex_);
  return breaks_;
}

void Ledger::add_eager_run() {
  update([](RegionReport& report) { ++report.eager_runs; });
}

void Ledger::add_failed_run(const std::exception& reason) {
  update([&](RegionReport& report) {
    report.last_failure = reason.what();
    ++report.failed_runs;
  });
}

bool Ledger::add_failed_compilation(const std::exception& reason) {
  const bool is_bug = dynamic_cast<const InternalError*>(&reason) != nullptr;
  if (!is_bug && dynamic_cast<const NoCodeGenerator*>(&reason) == nullptr) return false;
  update([&](RegionReport& report) {
    ++report.failed_compilations;
    ++report.eager_runs;
    report.last_failed_compilation = reason.what();
  });
  count(Outcome::kFailed, reason.what());
  log::warn_once(absl::StrCat("region ", name(), " runs eagerly in part: ",
                              is_bug ? "a stage of the compiler failed. Please report this: " : "", reason.what()));
  return true;
}

}  // namespace rondo::compile
