#include "rondo/compile/region/recompile_policy.h"

#include "absl/strings/str_cat.h"
#include "rondo/compile/log.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {

RecompilePolicy::Verdict RecompilePolicy::ask() const {
  return ledger_.update([&](RegionReport& report) {
    Verdict verdict;
    const bool limit_reached = report.fresh_programs >= options_.recompile_limit;
    verdict.eagerly = limit_reached || stance() == Stance::kEagerOnRecompile;
    if (!verdict.eagerly) return verdict;
    verdict.explained = report.eager_runs++ > 0;
    if (limit_reached && !verdict.explained)
      verdict.warning = absl::StrCat(
          "region ", report.name, ": new code for ", report.fresh_programs,
          " recordings and backwards, no more (CompileOptions::recompile_limit); what is new runs eagerly: ");
    return verdict;
  });
}

bool RecompilePolicy::must_run_eagerly(const std::string& why) const {
  const Verdict verdict = ask();
  if (!verdict.eagerly || verdict.explained) return verdict.eagerly;
  ledger_.update([&](RegionReport& report) { report.last_recompile = why; });
  if (!verdict.warning.empty()) log::warn_once(verdict.warning + why);
  return true;
}

void RecompilePolicy::throw_recompile(const std::string& why) const {
  throw Error(absl::StrCat("region ", ledger_.name(),
                           " would have to be compiled anew (Stance::kFailOnRecompile forbids it): ", why));
}

}  // namespace rondo::compile
