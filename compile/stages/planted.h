// What tests plant in stages of the compiler: failures, to see that no test hides them (tests/planted_failures.sh), and
// wrong results, to see that checks find them. Only tests plant anything.
//
//   plant_failure("fuse");                  // this stage now throws InternalError
//   miscompile_for_tests = &enlarge_roots;  // each kernel that lower() makes is changed
#pragma once

#include <atomic>
#include <string_view>

#include "rondo/compile/stages/stages.h"

namespace rondo::compile {

struct Graph;
struct LoopKernel;

// From now on this stage fails, for all threads; "": no stage does. Throws Error, which lists the names, if there is
// no such stage.
void plant_failure(std::string_view stage);

// The first function imitates a wrong rule of lowering: it changes each kernel that lower() makes. The second imitates
// a wrong pass: it changes the result of the pass of this name. Null: nothing is changed. Set them while no other
// thread compiles.
inline void (*miscompile_for_tests)(LoopKernel& kernel) = nullptr;
inline void (*misrewrite_for_tests)(std::string_view pass, Graph& graph) = nullptr;

namespace detail {
inline std::atomic<int> planted{-1};  // a CompilerStage; -1: none
[[noreturn]] void fail_as_planted(CompilerStage stage);
}  // namespace detail

// Call where a stage begins. Costs one relaxed load.
inline void enter_stage(CompilerStage stage) {
  if (detail::planted.load(std::memory_order_relaxed) == static_cast<int>(stage)) [[unlikely]]
    detail::fail_as_planted(stage);
}

}  // namespace rondo::compile
