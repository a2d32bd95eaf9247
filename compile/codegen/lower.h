// Lowering: a fused unit of a graph -> one loop kernel. Runs the ops' `lower` rules on symbolic scalars.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/codegen/scalar.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {

// An ordered reduction over rows, which the kernel writes as one partial row per chunk (Note [Column order]).
struct ColumnResult {
  int32_t operand;  // index of the kernel's operand for the partial results, [chunks, cols] of type `compute`
  ValueId value;    // receives the result of all chunks
  DType compute;
  LoopOp op;  // kColumnSum, kColumnMax or kColumnMin
};

struct LoweredUnit {
  LoopKernel kernel;
  std::vector<ValueId> operands;  // the value behind each kernel operand; kNoValue for partial sums
  std::vector<Scalar> scalars;    // in the order of the kernel's scalars; all of one kind
  int32_t first_scalar = 0;       // kArgument: the position of the first one among the scalars of all kernels of a plan
  std::vector<ColumnResult> column_results;
  std::vector<int64_t> extents;  // the kernel's extents(), for its calls
  // Instructions that round a result to 16 bits only because eager execution stores it in 16 bits; this kernel does not
  // store it. Casts by the user are not among them.
  std::vector<int32_t> roundings;
};

// Lowers a unit to a loop kernel. `needed[id]`: the value is read outside of the unit, so the kernel stores it. The
// kernel is not scheduled: Target::schedule() decides how its iteration space is split.
LoweredUnit lower(const Graph& graph, const Unit& unit, const std::vector<bool>& needed);

// Returns the input of lower() as text for a reproducer (stages/reproducer.h).
std::string lower_input(const Graph& graph, const Unit& unit, const std::vector<bool>& needed);

}  // namespace rondo::compile
