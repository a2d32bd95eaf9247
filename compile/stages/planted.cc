#include "rondo/compile/stages/planted.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {

std::vector<std::string_view> stage_names() {
  std::vector<std::string_view> names{"record", "compile", "differentiate", "partition", "verify"};
  for (const char* pass : pass_names()) names.emplace_back(pass);
  names.insert(names.end(), {"fuse", "lower", "schedule", "plan", "emit", "place", "run"});
  return names;
}

void plant_failure(std::string_view stage) {
  static const std::vector<std::string_view> names = stage_names();
  const char* chosen = nullptr;
  if (!stage.empty()) {
    const auto found = std::find(names.begin(), names.end(), stage);
    if (found == names.end())
      throw Error(absl::StrCat("no stage \"", std::string(stage), "\" to plant a failure in. Stages: ",
                               absl::StrJoin(std::vector<std::string>(names.begin(), names.end()), ", ")));
    chosen = found->data();  // names are literals
  }
  detail::planted.store(chosen, std::memory_order_relaxed);
}

void detail::fail_if_planted(std::string_view stage) {
  if (const char* chosen = planted.load(std::memory_order_relaxed); chosen != nullptr && stage == chosen)
    throw_internal(absl::StrCat("planted in stage \"", std::string(stage), "\""));
}

}  // namespace rondo::compile
