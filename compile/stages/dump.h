// RONDO_DUMP=name,...: writes the result of each named stage as text to the log's sink. "all": all stages that have a
// text. "input": the graph that the passes get.
#pragma once

#include <string>
#include <string_view>

#include "rondo/compile/stages/stages.h"

namespace rondo::compile {

// True if RONDO_DUMP names the stage. The first call throws Error, which lists the names, if RONDO_DUMP has an unknown
// one.
bool wants_dump(CompilerStage stage);
// While an object of this class exists, this thread dumps nothing: for graphs that are only made to be compared.
class DumpsOff {
 public:
  DumpsOff();
  ~DumpsOff();
  DumpsOff(const DumpsOff&) = delete;
  DumpsOff& operator=(const DumpsOff&) = delete;

 private:
  bool outer_;
};
// Writes "---- stage" and the text. `note` follows the stage's name.
void dump(CompilerStage stage, std::string_view text, std::string_view note = "");

}  // namespace rondo::compile
