// The compiler's work on one recording. Part of explain.h, which users include; a region logs it. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo::compile {

class Entry;

// One node of a program's graph, after all passes.
struct NodeExplanation {
  std::string op;
  std::string text;    // "%7: f32[8, 64] = add(%5, %6)"
  std::string origin;  // "gradient of linear (train.cc:41, via layers.cc:30)"; or "recomputed gelu (...)"
  std::string file;    // the innermost frame of the user's program
  int line = 0;
  int launch = -1;  // index into ProgramExplanation::launches; -1: costs nothing (a view, or written in place)
};

// One kernel or library call.
struct LaunchExplanation {
  std::string name;  // "kernel 2", or the op of a library call
  bool generated = false;
  bool widens = false;               // a product of f16 that the CPU's library computes in f32
  int algorithm = 0;                 // of a library call that was tuned (Mode::kMaxAutotune); 0: the library's first
                                     // choice
  std::vector<int> nodes;            // indices into ProgramExplanation::nodes
  std::vector<std::string> sources;  // where the nodes come from; each place once
  std::string code;                  // loop IR; empty for library calls
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t bytes_saved = 0;  // compared with eager execution, which runs one kernel for each op
};

// A point where a backward hands over the gradients of a part of the model before it computes those of the next part.
// DistributedDataParallel or UpdateAtSeams take them. If nothing waits for gradients, there are no seams.
struct SeamExplanation {
  std::string part;   // "h.11"; "" outside the blocks
  int gradients = 0;  // the number of gradients handed over
  int launch = 0;     // index into ProgramExplanation::launches: the next launch; at the end, their number
};

struct ProgramExplanation {
  std::string name;                 // "forward", "backward", "backward of other gradients"
  std::vector<std::string> inputs;  // "%0: f32[8, 64]"
  std::vector<std::string> outputs;
  std::vector<NodeExplanation> nodes;
  std::vector<LaunchExplanation> launches;
  std::vector<SeamExplanation> seams;  // of a backward, in order
  int kernels = 0;
  int compiled = 0;  // of these, kernels for which code had to be generated
  int library_calls = 0;
  // Conversions of images between contiguous and channels last: by copies (which may be part of other kernels), and
  // inside of convolutions. Note [Chosen layouts] in transform/lay_out.h.
  int layout_copies = 0, layouts_in_convolutions = 0;
  int64_t arena_bytes = 0;  // leased for a run
  double compile_ms = 0;
};

// The memory in use while a launch runs.
struct MemoryPoint {
  std::string launch;      // "forward: kernel 2"
  int64_t inputs = 0;      // read by this program: parameters, activations, incoming gradients
  int64_t outputs = 0;     // results for the caller
  int64_t kept = 0;        // values that the forward keeps for the backward
  int64_t transients = 0;  // alive in the arena
  int64_t total() const { return inputs + outputs + kept + transients; }
};

// One recording and its programs.
struct EntryExplanation {
  std::vector<ProgramExplanation>
      programs;                     // forward; backward if a gradient is required; backwards of other gradients
  std::vector<MemoryPoint> memory;  // over the launches of forward and backward
  int64_t kept_bytes = 0;
  int64_t recomputed_flops = 0;  // RegionReport::recomputed_flops
};

EntryExplanation explain(const Entry& entry);
std::vector<std::string> perf_hints(const EntryExplanation& entry);

// Returns a line such as "seam of h.11: 12 gradients leave".
std::string to_string(const SeamExplanation& seam);

// Returns a number of bytes for reports, such as "12.3 KB" (1 KB = 1000 bytes).
std::string format_bytes(int64_t bytes);

// Logs a new entry under the topics recompiles, fusion, output_code and perf_hints. `why`: the first difference to
// earlier entries; empty for the first entry.
void log_entry(std::string_view region, const Entry& entry, std::string_view why);

}  // namespace rondo::compile
#pragma GCC visibility pop
