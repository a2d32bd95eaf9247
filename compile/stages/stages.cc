#include "rondo/compile/stages/stages.h"

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

struct Row {
  const char* name;
  unsigned uses;
};
constexpr unsigned kDisable = static_cast<unsigned>(StageUse::kDisable), kDump = static_cast<unsigned>(StageUse::kDump),
                   kPlant = static_cast<unsigned>(StageUse::kPlant), kPass = kDisable | kDump | kPlant;
constexpr Row kTable[] = {
    {"record", kPlant},
    {"compile", kPlant},
    {"differentiate", kDump | kPlant},
    {"layouts", kPass},
    {"partition", kDump | kPlant},
    {"recompute", kDisable},
    {"verify", kPlant},
    {"input", kDump},  // the graph that the passes get, after it was verified
    {"decompose", kPass},
    {"segments", kPass},
    {"cse", kPass},
    {"dce", kPass},
    {"join", kPass},
    {"assemble", kPass},
    {"collectives", kPass},
    {"products", kPass},
    {"split", kPass},
    {"widen", kPass},
    {"fuse", kPass},
    {"epilogues", kDisable},
    {"lower", kDump | kPlant},
    {"schedule", kPlant},
    {"relax", kDisable},
    {"plan", kPlant},
    {"reuse", kDisable},
    {"emit", kPlant},
    {"cache", kDisable},
    {"place", kPlant},
    {"run", kPlant},
    {"numbers", 0},  // RONDO_CHECK=units compares them
};
static_assert(std::size(kTable) == kStages && kStages <= 64);

bool allows(const Row& row, StageUse use) { return (row.uses & static_cast<unsigned>(use)) != 0; }

uint64_t parse(std::string_view list) {
  uint64_t bits = 0;
  for (std::string name : std::vector<std::string>(absl::StrSplit(std::string(list), ',', absl::SkipWhitespace()))) {
    absl::StripAsciiWhitespace(&name);
    const std::optional<CompilerStage> stage = find_stage(name, StageUse::kDisable);
    if (!stage)
      throw Error(absl::StrCat("RONDO_DISABLE: no stage \"", name,
                               "\". Stages: ", absl::StrJoin(stage_names(StageUse::kDisable), ", ")));
    bits |= bit_of(*stage);
  }
  return bits;
}

std::atomic<uint64_t>& chosen() {
  static std::atomic<uint64_t> bits = [] {
    const char* list = std::getenv("RONDO_DISABLE");
    return list == nullptr ? uint64_t{0} : parse(list);
  }();
  return bits;
}

}  // namespace

std::string_view name_of(CompilerStage stage) { return kTable[static_cast<int>(stage)].name; }
std::vector<std::string> stage_names(StageUse use) {
  std::vector<std::string> names;
  for (const Row& row : kTable)
    if (allows(row, use)) names.emplace_back(row.name);
  return names;
}
std::optional<CompilerStage> find_stage(std::string_view name, StageUse use) {
  for (int i = 0; i < kStages; ++i)
    if (kTable[i].name == name && allows(kTable[i], use)) return static_cast<CompilerStage>(i);
  return std::nullopt;
}
uint64_t disabled_stages() { return chosen().load(std::memory_order_relaxed); }
bool enabled(CompilerStage stage) { return (disabled_stages() & bit_of(stage)) == 0; }
void disable_stages(std::string_view list) { chosen().store(parse(list), std::memory_order_relaxed); }

}  // namespace rondo::compile
