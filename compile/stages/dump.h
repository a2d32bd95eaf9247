// RONDO_DUMP=name,...: what each stage made, as text, to the log's sink. "all" is all stages that have a text; "input"
// is what the passes are given.
#pragma once

#include <string>
#include <string_view>

#include "rondo/compile/stages/stages.h"

namespace rondo::compile {

// Throws Error, which lists the names, the first time if RONDO_DUMP has another.
bool wants_dump(CompilerStage stage);
// While one is there, this thread wants none: what it makes is only compared with something.
class DumpsOff {
 public:
  DumpsOff();
  ~DumpsOff();
  DumpsOff(const DumpsOff&) = delete;
  DumpsOff& operator=(const DumpsOff&) = delete;

 private:
  bool outer_;
};
// "---- stage" and the text. `note` follows the stage's name.
void dump(CompilerStage stage, std::string_view text, std::string_view note = "");

}  // namespace rondo::compile
