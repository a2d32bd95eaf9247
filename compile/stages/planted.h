// What tests plant in stages of the compiler: failures, to see that no test hides them (tests/planted_failures.sh), and
// wrong results, to see that checks find them. Only tests plant anything.
//
//   plant_failure("fuse");                  // whoever enters this stage gets an InternalError
//   miscompile_for_tests = &enlarge_roots;  // each kernel that lower() makes is changed
#pragma once

#include <atomic>
#include <string_view>

#include "rondo/compile/stages/stages.h"

namespace rondo::compile {

struct Graph;
struct LoopKernel;

// From now on this stage fails, for all threads; "": none does. Throws Error, which lists the names, if there is no
// such stage.
void plant_failure(std::string_view stage);

// A wrong rule of lowering changes each kernel that lower() makes; a wrong pass changes what the pass of this name
// made. Null: none. Set them while no other thread compiles.
inline void (*miscompile_for_tests)(LoopKernel& kernel) = nullptr;
inline void (*misrewrite_for_tests)(std::string_view pass, Graph& graph) = nullptr;

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
