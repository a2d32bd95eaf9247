// The end of a recording: finds the values that somebody still holds, and gives their handles memory and history.
#pragma once

#include <string>

#include "rondo/compile/capture/writes.h"
#include "rondo/compile/region/run.h"

namespace rondo::compile {

// Makes the values that somebody still holds the outputs of trace.graph. The base of a held view is an output, too: a
// write through one view must reach the base's history, and through it all other views.
void choose_outputs(WritingTrace& trace);

// Gives the outputs' handles their memory, history and marks. Then rethrows the error of the run, if there is one.
// Reading a handle that got no value throws Error, which names `region` and that error.
void attach_outputs(WritingTrace& trace, const RunResult& run, const std::string& region);

}  // namespace rondo::compile
