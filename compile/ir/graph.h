// The graph: a straight-line program of ops over values, in the order of recording. Plain fields; passes rewrite it whole.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/op.h"

namespace rondo::compile {

// Index into Graph::values; -1 where an optional operand is absent.
using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct Value {
  DType dtype = kF32;
  Dims sizes;
  Dims strides;
  bool requires_grad = false;
  bool leaf = false;      // of an input: a parameter, which only an optimizer writes to
  bool grad_mode = true;  // recorded while gradients were on: a view that is made so knows its base
  int32_t producer = -1;  // index into Graph::nodes; -1 for inputs
  // Views share the memory of `root` (their own id otherwise), `offset` elements from where it starts. So does a part that
  // is written straight into what is assembled from it (passes/assemble.cc).
  ValueId root = kNoValue;
  int64_t offset = 0;
};

// The operands of one node: almost always few, so a recording allocates nothing for them.
using ValueIds = absl::InlinedVector<ValueId, 4>;

struct GraphNode {
  const OpDef* op = nullptr;
  ValueIds inputs;
  ValueIds outputs;
  Attrs attrs;
  std::source_location where;
};

struct Graph {
  std::vector<Value> values;
  std::vector<GraphNode> nodes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  Value& value(ValueId id) { return values[static_cast<size_t>(id)]; }
  // The value that `id` looks into, through any views: the one that some node writes, or an input.
  ValueId written(ValueId id) const;
};

// A readable listing, one node a line: "%7 = gelu_tanh(%6) f32[8, 64, 512]".
std::string to_string(const Graph& graph);

// Throws InternalError at the first broken invariant: operands defined before use, metadata as `infer` says, roots valid.
void verify(const Graph& graph);

}  // namespace rondo::compile
