#include "rondo/compile/stages/planted.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {

void plant_failure(std::string_view stage) {
  const std::optional<CompilerStage> chosen = find_stage(stage, StageUse::kPlant);
  if (!chosen && !stage.empty())
    throw Error(absl::StrCat("no stage \"", std::string(stage),
                             "\" to plant a failure in. Stages: ", absl::StrJoin(stage_names(StageUse::kPlant), ", ")));
  detail::planted.store(chosen ? static_cast<int>(*chosen) : -1, std::memory_order_relaxed);
}

void detail::fail_as_planted(CompilerStage stage) {
  throw_internal(absl::StrCat("planted in stage \"", std::string(name_of(stage)), "\""));
}

}  // namespace rondo::compile
