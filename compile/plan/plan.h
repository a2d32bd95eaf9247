// Plan: a graph, or a pass over a table, prepared for a target: what runs, in which order, and where each value is in
// memory. make_plan.h makes it, exec/executor.h runs it. Plain data, immutable once made. It contains no pointer,
// handle or device: one plan serves all devices of its target, and to_string() and parse_plan() write and read it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/codegen/lower.h"
#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// An address in the memory of one run. A slot is the memory of one input, of one parameter's copy or of one fresh
// buffer; the last slot is the arena.
struct Address {
  int32_t slot = -1;   // -1: none
  int64_t offset = 0;  // bytes
  friend bool operator==(const Address&, const Address&) = default;
};

struct Launch {
  enum class Kind : uint8_t {
    kKernel,       // a generated kernel
    kLibraryCall,  // an op's own kernel and its epilogues
    kCopy,         // copies the bytes of a dense value with the device's copy function
    kCombine,      // reduces a kernel's partial sums, maxima or minima. Consecutive kCombine run as one launch
    kTable,        // a generated kernel on every item of a table, which is an argument of the run
  } kind = Kind::kKernel;
  int32_t kernel = -1;                 // index in Plan::kernels; kCombine: of the kernel that wrote the partial sums
  std::vector<int32_t> nodes;          // all nodes that it runs; kLibraryCall: the op, then its epilogues; may be empty
  ValueIds inputs = {}, outputs = {};  // kLibraryCall, kCopy. Inputs of the op, then operands of its epilogues
  // kKernel: the operands. kLibraryCall, kCopy: the inputs, then the outputs. kTable: none. kCombine: for each column
  // result, the partial sums and then the result.
  std::vector<Address> addresses = {};
  int64_t grain = 1;    // kKernel: below this many elements, a second thread is not worth waking
  int32_t variant = 0;  // kLibraryCall: an algorithm of OpDef::prepare
  int32_t floats = -1;  // kLibraryCall: its number among the calls of ops with floats; -1: its op has no floats
  // kKernel: the operands that are checks (Operand::is_check), each with the node that makes this check.
  struct Check {
    int32_t operand, node;
  };
  std::vector<Check> checks = {};

  int32_t op() const { return nodes[0]; }
  // True if the launch runs a generated kernel, or adds up the partial sums of one.
  bool runs_kernel() const { return kind != Kind::kLibraryCall && kind != Kind::kCopy; }
};

struct Plan {
  // Where the memory of a root value comes from.
  struct Placement {
    enum Kind : uint8_t { kNone, kInput, kCopy, kOutput, kArena, kShared } kind = kNone;
    // kInput: position; kCopy: position among the copies; kArena: byte offset; kOutput: position among the fresh
    // buffers; kShared: the value that it shares memory with
    int64_t index = 0;
    friend bool operator==(const Placement&, const Placement&) = default;
  };
  // Memory that each run allocates, because it is returned to the caller.
  struct FreshBuffer {
    int64_t bytes = 0;
    int32_t donor = -1;        // the buffer takes the memory of this input if the caller gives it away; -1: none
    int32_t first_launch = 0;  // the first launch that accesses the buffer; only set in plans with seams
  };
  // A place at which a run hands over results that it does not need any more: Note [Seams] in plan/seams.h.
  struct Seam {
    int32_t launch = 0;            // the next launch; at the end: the number of launches
    int32_t part = 0;              // the part of the model: an index in Entry::parts() (region/entry.h)
    std::vector<int32_t> outputs;  // positions in graph.outputs
  };
  // The 16-bit copy of a parameter input (runtime/ops/lowered.h).
  struct ParameterCopy {
    int32_t input = 0;
    DType dtype = kBF16;
  };

  std::string target;  // Target::name()
  Graph graph;         // after all passes. Its nodes have the floats of the original recording
  std::vector<LoweredUnit> kernels;
  std::vector<Launch> launches;
  ValueMap<Placement> placements;
  std::vector<FreshBuffer> fresh;
  std::vector<ParameterCopy> copies;
  std::vector<Address> outputs;      // addresses of graph.outputs
  std::vector<Seam> seams;           // in order
  std::vector<int32_t> last_launch;  // only with seams; by input: the last launch that accesses it; -1: none
  int64_t arena_bytes = 0;
  bool keeps_arena = false;    // the arena is kept between runs (Mode::kReduceOverhead)
  bool reuses_inputs = false;  // a run may write over inputs that its caller gives away

  const LoweredUnit& kernel_of(const Launch& launch) const { return kernels[static_cast<size_t>(launch.kernel)]; }
  LoweredUnit& kernel_of(const Launch& launch) { return kernels[static_cast<size_t>(launch.kernel)]; }
  int32_t arena_slot() const { return static_cast<int32_t>(graph.inputs.size() + copies.size() + fresh.size()); }
  size_t n_slots() const { return static_cast<size_t>(arena_slot()) + 1; }
};

// Numbers the floats of kernels and library calls: LoweredUnit::first_scalar, Launch::floats.
void number_floats(Plan& plan);
// Finds the checks of a kernel's launch: for each operand that is a check, the node of the launch that makes it. `node`
// is -1 if no node of the launch makes this check.
std::vector<Launch::Check> checks_of(const Plan& plan, const Launch& launch);
// True if a check of indices may run after later ops of the program: Note [Checks that wait] in transform/fuse.cc.
bool has_waiting_checks(const Plan& plan);

// touched() returns all values that a launch reads or writes. written() returns those that it writes. kNoValue may be
// among them.
std::vector<ValueId> touched(const Plan& plan, const Launch& launch);
std::vector<ValueId> written(const Plan& plan, const Launch& launch);
// The size in bytes of a kernel's partial sums in the arena: partial_stride() for one result, partial_bytes() for all.
int64_t partial_stride(const LoweredUnit& unit, int64_t alignment);
int64_t partial_bytes(const LoweredUnit& unit, int64_t alignment);
inline int64_t aligned(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

// Prints a plan. The text is canonical: equal plans give equal text. Lines of the user's program are omitted, as in a
// graph's text.
std::string to_string(const Plan& plan);
// Parses a plan. Throws Error "line 3: what" if the text is not a plan, if an index in it is out of range, or if an
// access is outside of the memory of a run (plan/bounds.h).
Plan parse_plan(std::string_view text);

}  // namespace rondo::compile
