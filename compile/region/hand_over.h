// The end of a recording: which of its values somebody still wants, and how their handles get memory and history.
#pragma once

#include <string>

#include "rondo/compile/capture/writes.h"
#include "rondo/compile/region/run.h"

namespace rondo::compile {

// Makes the values that are still wanted the outputs of trace.graph. A view that is held keeps its base, so that a
// write through one view reaches the base's history, and from there all its views.
void choose_outputs(WritingTrace& trace);

// Gives the outputs' handles their memory, history and marks. If the run threw, so does this, after that: handles
// without a value then say why, in the name of `region`.
void hand_over(WritingTrace& trace, const Ran& ran, const std::string& region);

}  // namespace rondo::compile
