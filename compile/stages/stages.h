// The stages of the compiler. One list of names (stages.cc) serves RONDO_DISABLE, RONDO_DUMP (dump.h), planted failures
// (planted.h) and reproducers (reproducer.h).
//
// RONDO_DISABLE=fuse,relax,...: stages that are left out, to find out which one a wrong number, a slow step or a large
// arena comes from. In exact mode results have the same bits with any of them left out.
//
//   layouts     images have the layouts of eager execution (default mode chooses them inside of a region)
//   recompute   the forward saves all that the backward reads
//   decompose   ops stay whole: one library call instead of simpler ops that fuse
//   segments    rows are made and written before they are added up by index
//   cse         equal calls are made as often as they were recorded
//   dce         values that nothing needs are computed
//   join        calls that continue each other stay separate
//   assemble    values that are laid side by side are copied to their places
//   collectives sums over processes travel one by one (default mode sends independent ones together)
//   products    small products with an operand in common stay separate (default mode joins them)
//   split       an op that reads values that are laid side by side reads all of them as one
//   widen       sums of 16-bit numbers are rounded before they are widened (default mode, on a GPU)
//   fuse        each op has its own kernel
//   epilogues   products leave the ops that follow them to kernels (and do not widen their results)
//   relax       default mode computes as exact mode does
//   reuse       no result is written over an operand
//   cache       kernels are neither read from disk nor written to it
//
// The list of stages that are left out is part of the key of every recording. Thread safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rondo::compile {

// In the order in which a call goes through them.
enum class CompilerStage : uint8_t {
  kRecord,
  kCompile,
  // transform/derivation.cc
  kDifferentiate,
  kLayouts,
  kPartition,
  kRecompute,
  // transform/pipeline.cc; the passes in the order of their first rows in its table
  kVerify,
  kInput,
  kDecompose,
  kSegments,
  kCse,
  kDce,
  kJoin,
  kAssemble,
  kCollectives,
  kProducts,
  kSplitAtParts,
  kWiden,
  // plan/make_plan.cc
  kFuse,
  kEpilogues,
  kLower,
  kSchedule,
  kRelax,
  kPlan,
  kReuse,
  kEmit,
  kCache,
  kPlace,
  kRun,
  kNumbers
};
inline constexpr int kStages = static_cast<int>(CompilerStage::kNumbers) + 1;

std::string_view name_of(CompilerStage stage);
constexpr uint64_t bit_of(CompilerStage stage) { return uint64_t{1} << static_cast<int>(stage); }
// RONDO_DISABLE leaves the stage out; RONDO_DUMP shows what it made; a test plants a failure in it.
enum class StageUse : uint8_t { kDisable = 1, kDump = 2, kPlant = 4 };
// Returns the names of the stages that allow this use, in order.
std::vector<std::string> stage_names(StageUse use);
std::optional<CompilerStage> find_stage(std::string_view name, StageUse use);
// The first call of enabled() or disabled_stages() reads RONDO_DISABLE. It throws Error, which lists the names, if a
// name is unknown.
bool enabled(CompilerStage stage);
uint64_t disabled_stages();  // the bit_of() of each disabled stage
// Replaces the choice of RONDO_DISABLE. Throws Error, which lists the names, if a name is unknown.
void disable_stages(std::string_view list);

}  // namespace rondo::compile
