// Program: a compiled graph. A flat list of launches (generated kernels and library calls) over buffers that are planned
// once: outputs are fresh, transients live in an arena leased for one run.
// Immutable after compilation; run() may be called from several threads at once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "rondo/compile/codegen/lower.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/compile/jit/kernel_table.h"

namespace rondo::compile {

struct ProgramStats {
  int kernels = 0;        // generated
  int compiled = 0;       // of these, the ones that no earlier program had
  int library_calls = 0;
  int64_t arena_bytes = 0;
  double compile_ms = 0;  // all of it: passes, planning, code
};

class Program {
 public:
  // One launch: a generated kernel (kernel >= 0) or a library call of graph_.nodes[node].
  struct Launch {
    int32_t kernel = -1;
    int32_t node = -1;
    std::vector<int32_t> nodes;  // all that it runs
  };
  // Where the memory of a root value comes from.
  struct Placement {
    enum Kind { kNone, kInput, kOutput, kArena, kShared } kind = kNone;
    int64_t index = 0;  // kInput: position; kArena: byte offset; kOutput: position among fresh buffers;
                        // kShared: the value with whose memory it is one
    int64_t bytes = 0;
  };

  // `exact`: false allows what codegen/relax.h does.
  static std::shared_ptr<const Program> compile(Graph graph, Sizes sizes = Sizes::kConstant, bool exact = true);

  // Inputs as graph.inputs: same dtypes, sizes and strides; undefined where nothing reads one. Returns one tensor per graph.outputs, without history.
  std::vector<Tensor> run(std::span<const Tensor> inputs) const;

  const Graph& graph() const { return graph_; }
  const ProgramStats& stats() const { return stats_; }
  const std::vector<Launch>& launches() const { return launches_; }
  const std::vector<LoweredUnit>& kernels() const { return kernels_; }
  const std::vector<Placement>& placements() const { return placements_; }
  // Arena bytes of a kernel's partial sums.
  int64_t partial_bytes(int32_t kernel) const;

 private:
  struct Frame;

  void plan();
  void share_in_place(std::vector<int>& first, std::vector<int>& last);
  void run_kernel(const LoweredUnit& unit, int32_t index, Frame& frame) const;
  void run_library_call(const GraphNode& node, Frame& frame) const;

  Graph graph_;
  std::vector<Launch> launches_;
  std::vector<LoweredUnit> kernels_;
  std::vector<int64_t> partial_offsets_;  // of each kernel: arena offset of its partial sums
  std::vector<CompiledKernel> code_;      // of each kernel
  std::vector<Placement> placements_;  // by value
  int64_t fresh_buffers_ = 0;
  ProgramStats stats_;
};

}  // namespace rondo::compile
