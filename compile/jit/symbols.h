// Shows the names of generated code to debuggers and profilers.
//   gdb    shows kernels in backtraces and takes breakpoints on them (break rondo::layer_norm_gelu), through its JIT
//          interface (the GDB manual's chapter "JIT Compilation Interface"): one small ELF image in memory for each
//          kernel. Always on.
//   perf   reads /tmp/perf-<pid>.map, a line for each kernel. Written with RONDO_PERF=1 only.
// Names are those of the ops: rondo::layer_norm_gelu. Code that several programs share has the name that the first one
// gave it. Thread safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rondo::compile {

// Shows code under this name. Code that is shown already keeps its name.
void show_symbol(const void* code, size_t bytes, std::string_view name);
// Call before the code's memory is freed. Does nothing if the code was not shown. (perf's file keeps the line, so that
// earlier samples still have their name.)
void hide_symbol(const void* code);

// Turns the writing of perf's file on or off. Overrides RONDO_PERF.
void set_perf_map(bool on);
// Returns the path of this process's file for perf.
std::string perf_map_path();

}  // namespace rondo::compile
