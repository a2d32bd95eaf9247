// Counts, over the whole process, how calls of compiled modules ran: compiled or op by op, and why. RegionReport counts
// the same for one region. A test that compares compiled with eager execution checks with these counts that compiled
// code has run at all (tests/compiled_runs.h).
//
// Thread safe. Counting what ran compiled costs one relaxed atomic addition.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace rondo::compile {

enum class Outcome : uint8_t {
  kRegion,    // a region was made: compile_regions() and compile_module() make them
  kCompiled,  // a program of a region ran, forward or backward; or a compiled step of an optimizer
  kFailed,    // a stage of the compiler failed, or the device has no code generator, so something runs eagerly
  kEager,     // a recording, a backward or an optimizer's step ran op by op, because of a failed stage, the stance or
              // the recompile limit
  kBypassed,  // a compiled module was called and recorded nothing: Stance::kForceEager, EagerScope, DetectAnomaly
  kReplayed,  // a backward ran op by op because eager execution defines it: gradients with a history, hooks inside the
              // region, DetectAnomaly, overwritten memory, or a forward that had failed
};
inline constexpr int kOutcomes = 6;
using OutcomeCounts = std::array<int64_t, kOutcomes>;  // by outcome

std::string_view name_of(Outcome outcome);
void count(Outcome outcome);
// Does what count(outcome) does, and keeps the reason for last_reason(). Takes a lock.
void count(Outcome outcome, std::string_view why);
// Returns the counts since the process began.
OutcomeCounts outcome_counts();
// Returns the latest reason that was counted with this outcome; "" if there was none.
std::string last_reason(Outcome outcome);

}  // namespace rondo::compile
