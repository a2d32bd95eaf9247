#include "rondo/compile/stages/outcomes.h"

#include <atomic>
#include <iterator>
#include <mutex>

namespace rondo::compile {
namespace {

constexpr std::string_view kOutcomeNames[] = {"region made", "ran compiled", "failed to compile",
                                              "ran eagerly", "bypassed",     "replayed op by op"};
static_assert(std::size(kOutcomeNames) == kOutcomes);

struct Outcomes {
  std::array<std::atomic<int64_t>, kOutcomes> counts{};
  std::mutex mutex;
  std::array<std::string, kOutcomes> reasons;  // guarded by mutex
};
// Never destroyed: the backward of a static tensor may count while static objects are destroyed.
Outcomes& outcomes() {
  static auto* const instance = new Outcomes;
  return *instance;
}

}  // namespace

std::string_view name_of(Outcome outcome) { return kOutcomeNames[static_cast<size_t>(outcome)]; }

void count(Outcome outcome) { outcomes().counts[static_cast<size_t>(outcome)].fetch_add(1, std::memory_order_relaxed); }

void count(Outcome outcome, std::string_view why) {
  count(outcome);
  std::lock_guard lock(outcomes().mutex);
  outcomes().reasons[static_cast<size_t>(outcome)] = why;
}

OutcomeCounts outcome_counts() {
  OutcomeCounts counts;
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = outcomes().counts[i].load(std::memory_order_relaxed);
  return counts;
}

std::string last_reason(Outcome outcome) {
  std::lock_guard lock(outcomes().mutex);
  return outcomes().reasons[static_cast<size_t>(outcome)];
}

}  // namespace rondo::compile
