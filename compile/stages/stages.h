// RONDO_DISABLE=fuse,relax,...: stages of the compiler that are left out, to find out which one a wrong number, a slow
// step or a large arena comes from. In exact mode results have the same bits with any of them left out.
//
//   decompose   ops stay whole: one library call instead of simpler ops that fuse
//   segments    rows are made and written before they are added up by index
//   cse         equal calls are made as often as they were recorded
//   dce         what nobody needs is computed
//   join        calls that continue each other stay separate
//   assemble    values that are laid side by side are copied there
//   collectives sums over processes travel one by one (default mode sends independent ones together)
//   products    small products with an operand in common stay separate (default mode joins them)
//   split       what reads values that are laid side by side reads all of them as one
//   widen       sums of 16-bit numbers are rounded before they are widened (default mode, on a GPU)
//   fuse        a kernel for each op
//   epilogues   products leave what follows them to kernels (and do not widen their results)
//   layouts     images lie as in eager execution (default mode chooses for those inside of a region)
//   relax       default mode computes as exact mode does
//   recompute   the forward saves all that the backward reads
//   reuse       no result is written over an operand
//   cache       kernels are neither read from disk nor written to it
//
// Part of the key of every recording. Thread safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace rondo::compile {

enum class CompilerStage : uint8_t {
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
  kFuse,
  kEpilogues,
  kLayouts,
  kRelax,
  kRecompute,
  kReuse,
  kCache
};
inline constexpr int kStages = static_cast<int>(CompilerStage::kCache) + 1;
// The stages before kFuse are the passes of transform/pipeline.cc, in the order in which they first come there.
inline constexpr int kPasses = static_cast<int>(CompilerStage::kFuse);

std::string_view name_of(CompilerStage stage);
std::vector<const char*> pass_names();
// RONDO_DISABLE is read the first time that one of these two is called. Throws Error, which lists the names, where it
// has another.
bool enabled(CompilerStage stage);
uint32_t disabled_stages();  // bit 1 << stage
// Replaces the choice of RONDO_DISABLE. Throws as above.
void disable_stages(std::string_view list);

}  // namespace rondo::compile
