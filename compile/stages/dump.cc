#include "rondo/compile/stages/dump.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/log.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {
namespace {

// Returns the stages that RONDO_DUMP names, as bits (bit_of()).
uint64_t chosen_stages() {
  const char* list = std::getenv("RONDO_DUMP");
  if (list == nullptr) return 0;
  uint64_t bits = 0;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(list, ',', absl::SkipWhitespace()))) {
    const std::optional<CompilerStage> stage = find_stage(name, StageUse::kDump);
    if (!stage && name != "all")
      throw Error(absl::StrCat("RONDO_DUMP: no stage \"", name, "\". Stages: all, ",
                               absl::StrJoin(stage_names(StageUse::kDump), ", ")));
    bits |= stage ? bit_of(*stage) : ~uint64_t{0};
  }
  return bits;
}

thread_local bool dumps_off = false;

}  // namespace

DumpsOff::DumpsOff() : outer_(std::exchange(dumps_off, true)) {}
DumpsOff::~DumpsOff() { dumps_off = outer_; }

bool wants_dump(CompilerStage stage) {
  static const uint64_t chosen = chosen_stages();
  return !dumps_off && (chosen & bit_of(stage)) != 0;
}

void dump(CompilerStage stage, std::string_view text, std::string_view note) {
  log::write_dump(absl::StrCat("---- ", std::string(name_of(stage)), note.empty() ? "" : " ", std::string(note), "\n",
                               std::string(text)));
}

}  // namespace rondo::compile
