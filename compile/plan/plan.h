// Plan: a graph, or a pass over a table, made ready for a target: what runs, in which order, and where each value lies.
// make_plan.h makes it, exec/executor.h runs it. Plain data, immutable once made. No address, handle or device is in
// it: one plan serves all devices of its target, and to_string() and parse_plan() write and read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/codegen/lower.h"
#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// Where something lies in one run: in the memory of an input, of a parameter's copy, of a fresh buffer, or (the last
// slot) in the arena.
struct Address {
  int32_t slot = -1;   // -1: nowhere
  int64_t offset = 0;  // bytes
  friend bool operator==(const Address&, const Address&) = default;
};

struct Launch {
  enum class Kind : uint8_t {
    kKernel,       // a generated kernel
    kLibraryCall,  // an op's own kernel and its epilogues
    kCopy,         // bytes of a dense value, by the device's own copy
    kCombine,      // adds up the partial sums that a kernel has left, of all its column results. Several that follow
                   // each other run as one
    kTable,        // a generated kernel on every item of a table, which is an argument of the run
  } kind = Kind::kKernel;
  int32_t kernel = -1;                 // kKernel, kTable: of Plan::kernels; kCombine: whose sums
  std::vector<int32_t> nodes;          // all that it runs; kLibraryCall: the op, then its epilogues; may be none
  ValueIds inputs = {}, outputs = {};  // kLibraryCall, kCopy. Inputs: of the op, then what its epilogues add
  // kKernel: of the operands. kLibraryCall, kCopy: of the inputs, then the outputs. kTable: none. kCombine: of each
  // column result, the partial sums and then the result.
  std::vector<Address> addresses = {};
  int64_t grain = 1;    // kKernel: elements that pay for waking a thread
  int32_t variant = 0;  // kLibraryCall: of OpDef::prepare
  int32_t floats = -1;  // kLibraryCall: its number among those whose op has floats; -1: it has none
  // kKernel: the operands that are checks (Operand::is_check), and the nodes whose indices they bound.
  struct Check {
    int32_t operand, node;
  };
  std::vector<Check> checks = {};

  int32_t op() const { return nodes[0]; }
  // It has a kernel, or finishes one.
  bool runs_kernel() const { return kind != Kind::kLibraryCall && kind != Kind::kCopy; }
};

struct Plan {
  // Where the memory of a root value comes from.
  struct Placement {
    enum Kind : uint8_t { kNone, kInput, kCopy, kOutput, kArena, kShared } kind = kNone;
    // kInput: position; kCopy: position among the copies; kArena: byte offset; kOutput: position among the fresh
    // buffers; kShared: the value with whose memory it is one
    int64_t index = 0;
    friend bool operator==(const Placement&, const Placement&) = default;
  };
  // Memory that is allocated for each run, because the caller gets it.
  struct FreshBuffer {
    int64_t bytes = 0;
    int32_t donor = -1;        // an input whose memory it is, where that is given away
    int32_t first_launch = 0;  // that touches it; in a plan with seams
  };
  // Where a run hands over results that it needs no more: Note [Seams] in plan/seams.h.
  struct Seam {
    int32_t launch = 0;            // that comes next; at the end: the number of launches
    int32_t part = 0;              // of the model, as its entry numbers them
    std::vector<int32_t> outputs;  // positions in graph.outputs
  };
  // The 16-bit copy of an input that is a parameter (runtime/ops/lowered.h).
  struct ParameterCopy {
    int32_t input = 0;
    DType dtype = kBF16;
  };

  std::string target;  // Target::name()
  Graph graph;         // simplified. Floats of its nodes are those of the recording that it was made from
  std::vector<LoweredUnit> kernels;
  std::vector<Launch> launches;
  ValueMap<Placement> placements;
  std::vector<FreshBuffer> fresh;
  std::vector<ParameterCopy> copies;
  std::vector<Address> outputs;      // of graph.outputs
  std::vector<Seam> seams;           // in order
  std::vector<int32_t> last_launch;  // by input, that touches it; -1: none does. In a plan with seams
  int64_t arena_bytes = 0;
  bool keeps_arena = false;    // from run to run (Mode::kReduceOverhead)
  bool reuses_inputs = false;  // a run may write over inputs that its caller gives away

  const LoweredUnit& kernel_of(const Launch& launch) const { return kernels[static_cast<size_t>(launch.kernel)]; }
  LoweredUnit& kernel_of(const Launch& launch) { return kernels[static_cast<size_t>(launch.kernel)]; }
  int32_t arena_slot() const { return static_cast<int32_t>(graph.inputs.size() + copies.size() + fresh.size()); }
  size_t n_slots() const { return static_cast<size_t>(arena_slot()) + 1; }
};

// Numbers the floats of kernels and library calls: LoweredUnit::first_scalar, Launch::floats.
void number_floats(Plan& plan);
// The checks of a launch of a kernel. A check's operand is the value that the node checks; without one, node is -1.
std::vector<Launch::Check> checks_of(const Plan& plan, const Launch& launch);
// True if a check is made behind what comes after it in the program: Note [Checks that wait] of fuse.cc.
bool has_waiting_checks(const Plan& plan);

// All values that a launch reads or writes, and those that it writes; kNoValue may be among them.
std::vector<ValueId> touched(const Plan& plan, const Launch& launch);
std::vector<ValueId> written(const Plan& plan, const Launch& launch);
// Bytes of a kernel's partial sums in the arena: those of one result, and of all.
int64_t partial_stride(const LoweredUnit& unit, int64_t alignment);
int64_t partial_bytes(const LoweredUnit& unit, int64_t alignment);
inline int64_t aligned(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

// Canonical: equal plans give equal text. Left out is what Graph's text leaves out: lines of the user's program.
std::string to_string(const Plan& plan);
// The plan that `text` spells. Throws Error "line 3: what" where the text is not a plan, or where something in it
// points outside of the plan or of the memory that a run of it has (plan/bounds.h).
Plan parse_plan(std::string_view text);

}  // namespace rondo::compile
