// What users can read about a region (Regions::report() in compile.h). Plain data.
#pragma once

#include <cstdint>
#include <string>

#pragma GCC visibility push(default)
namespace rondo::compile {

// Declared here because the attribute must come before the definition (region/region.h), in any order of includes.
class [[gnu::visibility("hidden")]] Region;

// The work of one region so far.
struct RegionReport {
  std::string name;      // the class of the block
  int layers = 0;        // the number of modules that share the region
  int entries = 0;       // different recordings: shapes, control flow, integers (floats do not count)
  int compilations = 0;  // how often code had to be generated: for a recording, or for a backward (other_backwards)
  // Counts the compilations, and the recordings and backwards whose code came from disk or an artifact.
  // CompileOptions::recompile_limit bounds this number. Recordings and backwards that share code that this process
  // already has are counted neither here nor in `compilations`.
  int fresh_programs = 0;
  // Generated kernels of the latest entry, forward and backward. A call that runs a long loop over time in pieces may
  // need several entries (capture/loop_steps.h); then the one with the most launches counts.
  int kernels = 0;
  int library_calls = 0;    // matrix products and similar calls, of the same entry
  int other_backwards = 0;  // backwards compiled for other gradients than those of all outputs; each may count as a
                            // compilation
  int eager_runs = 0;       // recordings and backwards that ran eagerly because of a stance, the recompile limit or a
                            // failed stage
  double compile_ms = 0;    // for all entries; includes loading LLVM for the first kernel of a process
  int64_t kept_bytes = 0;   // what one call of the latest entry keeps for its backward, besides inputs and outputs
  // The work, in FLOP, of the products that one backward of the latest entry recomputes. Library calls count if their
  // products are known.
  int64_t recomputed_flops = 0;
  int64_t calls = 0;
  // How a module of this region was used before its first call, as in "its part backbone was called". Such a use runs
  // eagerly, because only a call of the module itself (`model(x)`) runs compiled. Empty if there was no such use.
  std::string used_without_call;
  int64_t replays = 0;           // calls that ran no C++ of the module
  std::string why_not_replayed;  // with Capture::kReplay: why a call was recorded nevertheless
  // Calls that threw an error because of their data, such as an index out of range. Results that were complete by then
  // can be read; reading others throws Error with the reason. Errors that a device reports after the call do not count.
  int64_t failed_runs = 0;
  std::string last_failure;
  // Recordings and backwards that run eagerly because a stage of the compiler failed (a bug of Rondo), or because there
  // is no compiler for their device.
  int failed_compilations = 0;
  std::string last_failed_compilation;
  // How often an entry ran with other floats than in its previous run. Other floats need no new plan.
  int64_t float_changes = 0;
  // The pieces of long loops over time that ran. A piece has several steps, and pieces of equal length share one
  // compilation (capture/loop_steps.h).
  int64_t loop_pieces = 0;
  int64_t graph_breaks = 0;
  std::string last_break;  // the user's file:line and why
  // Why the latest recording after the first was new: its first difference to the nearest one, as in "dim 1 of input #0
  // (read by linear (train.cc:41)): 64 -> 96". Among recordings that run eagerly, only the first is described.
  std::string last_recompile;
  // Recordings that were dropped for new ones, because there were more than CompileOptions::max_entries.
  int64_t forgotten = 0;
  // Calls of compile::reset() since the region was made. The rest of the report counts from the latest reset on.
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
