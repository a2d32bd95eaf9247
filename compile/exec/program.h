// Program: a compiled graph. A flat list of launches (generated kernels and library calls) over buffers that are
// planned once: outputs are fresh, transients live in an arena leased for one run. Immutable after compilation; run()
// may be called from several threads at once.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "rondo/compile/codegen/lower.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {

struct ProgramStats {
  int kernels = 0;   // generated
  int compiled = 0;  // of these, the ones for which code had to be generated
  int library_calls = 0;
  int64_t arena_bytes = 0;
  double compile_ms = 0;  // all of it: passes, planning, code
};

// How a graph whose inputs have marked dimensions would look at other sizes of these.
struct OtherSizes {
  std::optional<Graph> next;               // at the next size of each; nothing: it cannot be told
  std::optional<Graph> smallest, largest;  // nothing: as before, or there is no bound
};
struct SizeMarks {
  absl::AnyInvocable<OtherSizes() const> graph_at;
  // Code for these ranges of sizes exists, so whatever serves is taken.
  bool ranges_met = false;
};

struct ProgramOptions {
  Sizes sizes = Sizes::kConstant;
  bool exact = false;
  Mode mode = Mode::kDefault;
  Epilogues epilogues = Epilogues::kTuned;
  // Results to be written over an input, which belongs to the caller then, as positions in graph.inputs and
  // graph.outputs. Where the order of reads and writes allows it, run() returns the input's own memory.
  struct Update {
    int32_t input, output;
  };
  std::vector<Update> updates = {};
  // By position in graph.inputs (empty: none): a result that is computed element for element from what stands here may
  // take its memory, in a call of run_and_release().
  std::vector<bool> donated = {};
  // If not null, for the time of compile(): code reads what depends on marked dimensions when it runs, whatever `sizes`
  // says, and assumes that they stay within their ranges.
  const SizeMarks* marks = nullptr;
};

class Program {
 public:
  static constexpr int64_t kGrain = 1 << 14;
  // Where something lies in one run: in the memory of an input, of a parameter's copy, of a fresh buffer, or (the last
  // slot) in the arena.
  struct Address {
    int32_t slot = -1;   // -1: nowhere
    int64_t offset = 0;  // bytes
  };
  // One launch: a generated kernel (kernel >= 0) or a library call of graph_.nodes[node] with its epilogues.
  struct Launch {
    int32_t kernel = -1;
    int32_t node = -1;
    std::vector<int32_t> nodes;  // all that it runs
    // Of a library call. Inputs: of the node, then what its epilogues add.
    ValueIds inputs = {}, outputs = {};
    std::shared_ptr<const PreparedKernel> prepared = nullptr;  // null: the op's kernel works out each call anew
    // Of a kernel's operands; of a library call's inputs, then outputs.
    std::vector<Address> addresses = {};
    // Of a kernel: elements that pay for waking a thread.
    int64_t grain = kGrain;
  };
  // Where the memory of a root value comes from.
  struct Placement {
    enum Kind { kNone, kInput, kCopy, kOutput, kArena, kShared } kind = kNone;
    int64_t index = 0;  // kInput: position; kCopy: position among the copies; kArena: byte offset; kOutput: position
                        // among fresh buffers; kShared: the value with whose memory it is one
    int64_t bytes = 0;
  };

  static std::shared_ptr<const Program> compile(Graph graph, const ProgramOptions& options = {});

  // Inputs as graph.inputs: same dtypes, sizes and strides; undefined where nothing reads one. Returns one tensor per
  // graph.outputs, without history.
  std::vector<Tensor> run(std::span<const Tensor> inputs) const { return run(inputs, false); }
  // The same; donated inputs that nobody but `inputs` holds are written over.
  std::vector<Tensor> run_and_release(std::vector<Tensor> inputs) const { return run(inputs, true); }
  // True if run_and_release() could write over anything.
  bool reuses_inputs() const { return reuses_inputs_; }

  const Graph& graph() const { return graph_; }
  const ProgramStats& stats() const { return stats_; }
  const std::vector<Launch>& launches() const { return launches_; }
  const std::vector<LoweredUnit>& kernels() const { return kernels_; }
  const std::vector<Placement>& placements() const { return placements_; }
  // All values that a launch reads or writes; kNoValue among them.
  std::vector<ValueId> touched(const Launch& launch) const;
  // Arena bytes of a kernel's partial sums.
  int64_t partial_bytes(int32_t kernel) const;

 private:
  struct Frame;

  // Passes, and all up to code; gives the kernels.
  std::vector<LoopKernel> make_launches(Graph graph, const ProgramOptions& options);
  static std::vector<KernelHint> compare(const std::vector<LoopKernel>& kernels, OtherSizes other,
                                         const ProgramOptions& options);
  // Of the products of graph_, what they are to do on their own results.
  EpilogueChains choose_epilogues(const ProgramOptions& options) const;
  void add_library_call(const Unit& unit);
  std::vector<Tensor> run(std::span<const Tensor> inputs, bool release) const;
  void plan(const ProgramOptions& options);
  // (read, written) by a launch, so that the written value may have the memory of the one that is read.
  std::vector<std::pair<ValueId, ValueId>> overwritable(const Launch& launch) const;
  struct Sharing;
  void share_in_place(const ProgramOptions& options, std::vector<int>& first, const std::vector<int>& last);
  bool is_update(const ProgramOptions& options, size_t source, size_t result) const;
  bool takes_donations(const Launch& launch) const;
  void share_transient(size_t source, size_t result, Sharing& sharing);
  void take_donation(size_t source, size_t result, Sharing& sharing);
  void hand_on(size_t source, size_t result, Sharing& sharing);
  Address address_of(ValueId id) const;
  void resolve_addresses();
  // The kernel of a library call in one of its variants; null: there is none.
  std::shared_ptr<const PreparedKernel> prepare(const Launch& launch, int variant) const;
  void tune(bool exact);
  // program_run.cc; what is timed, in program_tune.cc
  Frame make_frame(std::span<const Tensor> inputs, bool release) const;
  std::vector<Tensor> run_launches(std::span<const Tensor> inputs, bool release) const;
  void run_launch(const Launch& launch, Frame& frame) const;
  void run_kernel(const Launch& launch, Frame& frame) const;
  void run_library_call(const Launch& launch, Frame& frame) const;

  Graph graph_;
  std::vector<Launch> launches_;
  std::vector<LoweredUnit> kernels_;
  std::vector<int64_t> partial_offsets_;  // of each kernel: arena offset of its partial sums
  std::vector<CompiledKernel> code_;      // of each kernel
  std::vector<Placement> placements_;     // by value
  struct FreshBuffer {
    int64_t bytes = 0;
    int32_t donor = -1;  // an input whose memory it is, where that is given away
  };
  std::vector<FreshBuffer> fresh_;
  // 16-bit copies of inputs that are parameters.
  struct ParameterCopy {
    size_t input = 0;
    DType dtype = kBF16;
  };
  std::vector<ParameterCopy> copies_;
  bool reuses_inputs_ = false;
  bool exact_ = false;
  Epilogues epilogues_ = Epilogues::kTuned;
  // Mode::kReduceOverhead: arenas of earlier runs.
  bool keeps_arena_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<Storage> arenas_;
  ProgramStats stats_;
};

}  // namespace rondo::compile
