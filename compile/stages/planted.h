// Failures that tests plant in stages of the compiler, to see that no test hides them (tests/planted_failures.sh).
//
//   plant_failure("fuse");  // whoever enters this stage gets an InternalError
#pragma once

#include <atomic>
#include <string_view>

#include "rondo/compile/stages/stages.h"

namespace rondo::compile {

// From now on this stage fails, for all threads; "": none does. Throws Error, which lists the names, if there is no
// such stage.
void plant_failure(std::string_view stage);

namespace detail {
inline std::atomic<int> planted{-1};  // a CompilerStage; -1: none
[[noreturn]] void fail_as_planted(CompilerStage stage);
}  // namespace detail

// Where a stage begins. Costs one relaxed load.
inline void enter_stage(CompilerStage stage) {
  if (detail::planted.load(std::memory_order_relaxed) == static_cast<int>(stage)) [[unlikely]]
    detail::fail_as_planted(stage);
}

}  // namespace rondo::compile
