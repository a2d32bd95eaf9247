// Failures that tests plant in stages of the compiler, to see that no test hides them (tests/planted_failures.sh).
//
//   plant_failure("fuse");  // whoever enters this stage gets an InternalError
#pragma once

#include <atomic>
#include <string_view>
#include <vector>

namespace rondo::compile {

// Every stage that enter_stage() knows, in the order in which a call meets them.
std::vector<std::string_view> stage_names();
// From now on this stage fails, for all threads; "": none does. Throws Error, which lists the names, if there is no
// such stage.
void plant_failure(std::string_view stage);

namespace detail {
inline std::atomic<const char*> planted{nullptr};
void fail_if_planted(std::string_view stage);
}  // namespace detail

// Where a stage begins. Costs one relaxed load.
inline void enter_stage(std::string_view stage) {
  if (detail::planted.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
    detail::fail_if_planted(stage);
}

}  // namespace rondo::compile
