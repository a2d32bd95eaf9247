// The facts of a region that users read (compile.h, Regions::report). Plain data.
#pragma once

#include <cstdint>
#include <string>

#pragma GCC visibility push(default)
namespace rondo::compile {

// Declared here, since the attribute must come before the definition (region/region.h), whatever is included first.
class [[gnu::visibility("hidden")]] Region;

// One region's work so far.
struct RegionReport {
  std::string name;      // class of the block
  int layers = 0;        // modules that share it
  int entries = 0;       // different recordings met: shapes, control flow, integers (floats do not count)
  int compilations = 0;  // times that code had to be generated: for a recording, or for a backward (other_backwards)
  // Counts the compilations, and the recordings and backwards whose code came from disk or an artifact.
  // CompileOptions::recompile_limit bounds this number. Recordings and backwards that share code of this process count
  // neither here nor in `compilations`.
  int fresh_programs = 0;
  int kernels = 0;          // generated kernels of the latest entry, forward and backward; where one call needs several
                            // entries (a loop in pieces), those of the entry with the most launches
  int library_calls = 0;    // matrix products and the like, of the same entry
  int other_backwards = 0;  // compiled for other gradients than those of all outputs; each may count as a compilation
  int eager_runs = 0;       // recordings and backwards that ran eagerly: a stance, the recompile limit, a failed stage
  double compile_ms = 0;    // all entries together; the first kernel that a process compiles loads LLVM, too
  int64_t kept_bytes = 0;   // by one call for its backward, besides inputs and outputs; of the latest entry
  // The work of the products that one backward of the latest entry computes again. A library call counts if its
  // products are known.
  int64_t recomputed_flops = 0;
  int64_t calls = 0;
  // How a module of this region was used before its first call, as in "its part backbone was called": that runs
  // eagerly, as only a call of the module itself (`model(x)`) runs compiled. Empty: it was not.
  std::string used_without_call;
  int64_t replays = 0;           // of the calls, those that ran no C++ of the module
  std::string why_not_replayed;  // with Capture::kReplay: why some call was recorded all the same
  // Calls that threw an error of their data, such as an index out of range. Values that were complete can be read;
  // another one throws Error with the reason. Errors that a device throws later, when the call is over, do not count.
  int64_t failed_runs = 0;
  std::string last_failure;
  // Recordings and backwards that run eagerly because a stage of the compiler failed, which is a bug of Rondo, or
  // because there is no compiler for their device.
  int failed_compilations = 0;
  std::string last_failed_compilation;
  // Recordings whose floats were not those of the one before that ran the same entry: nothing was planned for them.
  int64_t float_changes = 0;
  // Pieces that long loops over time ran in: some steps each, compiled once for all (capture/loop_steps.h).
  int64_t loop_pieces = 0;
  int64_t graph_breaks = 0;
  std::string last_break;  // the user's file:line and why
  // Why the latest recording after the first was new: its first difference to the nearest one, as in
  // "dim 1 of input #0 (read by linear (train.cc:41)): 64 -> 96". Of those that run eagerly, the first only.
  std::string last_recompile;
  // Recordings that were dropped for new ones, as there are more than CompileOptions::max_entries.
  int64_t forgotten = 0;
  // Calls of compile::reset() since the region was made. What the report says besides is since the latest.
  int64_t resets = 0;
};

// Counts what compile::reset() forgot.
struct ResetReport {
  int regions = 0;
  int64_t recordings = 0;
  int64_t kernels = 0;
};

}  // namespace rondo::compile
#pragma GCC visibility pop
