#include "rondo/compile/region/ledger.h"

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {

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
