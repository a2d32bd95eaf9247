#include "rondo/compile/stages/dump.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/log.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {
namespace {

// The names of RONDO_DUMP, checked.
std::vector<std::string> chosen_stages() {
  const char* list = std::getenv("RONDO_DUMP");
  if (list == nullptr) return {};
  std::vector<std::string> known{"all", "input"};
  for (const char* pass : pass_names()) known.emplace_back(pass);
  known.insert(known.end(), {"fuse", "lower"});
  std::vector<std::string> chosen = absl::StrSplit(list, ',', absl::SkipWhitespace());
  for (const std::string& name : chosen)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw Error(absl::StrCat("RONDO_DUMP: no stage \"", name, "\". Stages: ", absl::StrJoin(known, ", ")));
  return chosen;
}

thread_local bool dumps_off = false;

}  // namespace

DumpsOff::DumpsOff() : outer_(std::exchange(dumps_off, true)) {}
DumpsOff::~DumpsOff() { dumps_off = outer_; }

bool wants_dump(std::string_view stage) {
  static const std::vector<std::string> chosen = chosen_stages();
  return !dumps_off && std::any_of(chosen.begin(), chosen.end(),
                                   [&](const std::string& name) { return name == "all" || name == stage; });
}

void dump(std::string_view stage, const std::string& text) {
  log::write_dump(absl::StrCat("---- ", std::string(stage), "\n", text));
}

}  // namespace rondo::compile
