#include "rondo/compile/stages/stages.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {
namespace {

constexpr const char* kNames[] = {"decompose",   "segments", "cse",       "dce",   "join", "assemble",
                                  "collectives", "products", "split",     "widen", "fuse", "epilogues",
                                  "layouts",     "relax",    "recompute", "reuse", "cache"};
static_assert(std::size(kNames) == kStages);

uint32_t parse(std::string_view list) {
  uint32_t bits = 0;
  for (std::string name : std::vector<std::string>(absl::StrSplit(std::string(list), ',', absl::SkipWhitespace()))) {
    absl::StripAsciiWhitespace(&name);
    const auto* const found = std::find(std::begin(kNames), std::end(kNames), name);
    if (found == std::end(kNames))
      throw Error(absl::StrCat("RONDO_DISABLE: no stage \"", name, "\". Stages: ", absl::StrJoin(kNames, ", ")));
    bits |= 1u << (found - kNames);
  }
  return bits;
}

std::atomic<uint32_t>& chosen() {
  static std::atomic<uint32_t> bits = [] {
    const char* list = std::getenv("RONDO_DISABLE");
    return list == nullptr ? 0u : parse(list);
  }();
  return bits;
}

}  // namespace

std::string_view name_of(CompilerStage stage) { return kNames[static_cast<int>(stage)]; }
std::vector<const char*> pass_names() { return {kNames, kNames + kPasses}; }
uint32_t disabled_stages() { return chosen().load(std::memory_order_relaxed); }
bool enabled(CompilerStage stage) { return (disabled_stages() >> static_cast<int>(stage) & 1u) == 0; }
void disable_stages(std::string_view list) { chosen().store(parse(list), std::memory_order_relaxed); }

}  // namespace rondo::compile
