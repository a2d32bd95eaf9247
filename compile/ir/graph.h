// The graph: a straight-line program of ops over values, in the order of recording. Plain fields; passes rewrite it
// whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/op/op.h"

namespace rondo::compile {

// Index into Graph::values; -1 where an optional operand is absent.
using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct Value {
  DType dtype = kF32;
  Dims sizes;
  Dims strides;
  bool requires_grad = false;
  bool leaf = false;         // of an input: a parameter, which only an optimizer writes to
  bool grad_mode = true;     // recorded while gradients were on: a view that is made so knows its base
  bool hidden = false;       // of an output: nobody holds it; it is the base of views that somebody holds
  bool overwritten = false;  // its memory was written later in the recording: Note [Writes] in capture/writes.cc
  int32_t producer = -1;     // index into Graph::nodes; -1 for inputs
  // Views share the memory of `root` (their own id otherwise), `offset` elements from where it starts. So does a part
  // that is written straight into what is assembled from it (transform/assemble.cc).
  ValueId root = kNoValue;
  int64_t offset = 0;
};

// The operands of one node: almost always few, so a recording allocates nothing for them.
using ValueIds = absl::InlinedVector<ValueId, 4>;

// The call of the user's program that a node comes from. For explanations: no pass may decide by it.
struct Origin {
  const OpDef* op = nullptr;   // what was called; null: unknown
  bool gradient = false;       // part of its gradient
  bool again = false;          // computed a second time, for the backward
  std::source_location where;  // the call
  std::source_location user;   // the innermost frame of the user's program
  int32_t call = -1;           // nodes of one number are parts of one op that eager execution would run
};
// "gradient of linear (train.cc:41, via layers.cc:30)". File names are as the compiler saw them.
std::string to_string(const Origin& origin);
// "train.cc:41, via layers.cc:30"
std::string location_of(const Origin& origin);

struct GraphNode {
  const OpDef* op = nullptr;
  ValueIds inputs;
  ValueIds outputs;
  Attrs attrs;
  std::source_location where;
  Origin origin;
  bool in_place = false;  // of a recording: eager execution writes the result over operand 0
};

// A recording's write: `value` is what input number `input` holds from here on. Memory that the recording made has a
// number below 0 instead.
struct Version {
  ValueId value = kNoValue;
  int32_t input = -1;
  friend bool operator==(const Version&, const Version&) = default;
};
// The last version of an input, which the caller must find in the input's memory; or (input < 0) of memory that the
// recording made and returns. Positions in Graph::inputs and Graph::outputs.
struct WriteBack {
  int32_t input, output;
  int32_t writes;  // versions
};

struct Graph {
  std::vector<Value> values;
  std::vector<GraphNode> nodes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<Version> versions;  // of a recording, in the order of the program; passes leave them out

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  Value& value(ValueId id) { return values[static_cast<size_t>(id)]; }
  const GraphNode& node(int32_t n) const { return nodes[static_cast<size_t>(n)]; }
  GraphNode& node(int32_t n) { return nodes[static_cast<size_t>(n)]; }
  // The value that `id` looks into, through any views: the one that some node writes, or an input.
  ValueId written(ValueId id) const;
};

// The line that an error of the call names. The modules that made the call have returned, so it is the one that was
// found when it was recorded.
inline std::source_location line_of(const GraphNode& node) {
  return node.origin.user.line() == 0 ? node.where : node.origin.user;
}

// True if the op's results may lie inside of a larger value, with gaps between their rows (transform/assemble.cc).
inline bool writes_parts(const OpDef& op) {
  return op.strided_outputs || (op.kind == OpKind::kElementwise && op.lower != nullptr);
}

// ---- Tables of a graph: one T for each of its values, or for each of its nodes.
//
//   ValueMap<bool> returned(graph, false);
//   for (ValueId id : graph.outputs) returned[id] = true;
//
// Ids index them without a cast. So do positions (size_t) in loops over all values.
template <class T> class IdMap : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  using std::vector<T>::operator[];
  typename std::vector<T>::reference operator[](int32_t id) { return (*this)[static_cast<size_t>(id)]; }
  typename std::vector<T>::const_reference operator[](int32_t id) const { return (*this)[static_cast<size_t>(id)]; }
};

// By ValueId.
template <class T> class ValueMap : public IdMap<T> {
 public:
  using IdMap<T>::IdMap;
  explicit ValueMap(const Graph& graph, const T& initial = T()) : IdMap<T>(graph.values.size(), initial) {}
};

// By the number of a node (Value::producer).
template <class T> class NodeMap : public IdMap<T> {
 public:
  using IdMap<T>::IdMap;
  explicit NodeMap(const Graph& graph, const T& initial = T()) : IdMap<T>(graph.nodes.size(), initial) {}
};

// By input: whether a node reads it, or an output is it or a view of it.
std::vector<bool> inputs_read(const Graph& graph);

// One for each input that a recording writes, whose last version is among the outputs, and for each result that it
// writes.
std::vector<WriteBack> write_backs(const Graph& recorded);

// ---- Text and checks

// One node a line, canonical: equal graphs give equal text, and parse_graph (ir/parse.h) gives the graph back. Strides
// are left out where they are dense, a root where it is the value itself. No pointers and no paths, unless asked for:
// then each node's line of the user's program follows as a comment.
//   input %0: f32[8, 64] grad
//   %2: f32[8, 64] grad = add_scalar(%0, 1.0)     # train.cc:41
//   %3: f32[64, 8] strides[1, 64] of %2 grad = permute(%2, 1, 0)
//   return %3
enum class Locations { kOmit, kAsComments };
std::string to_string(const Graph& graph, Locations locations = Locations::kOmit);
// One node's line, without its end.
std::string to_string(const Graph& graph, const GraphNode& node);

// The results' metadata as the node's op infers it, from its operands' sizes, with their strides or as if all were
// dense. Throws what `infer` throws.
enum class Operands { kAsTheyAre, kDense };
std::vector<TensorMeta> infer_results(const Graph& graph, const GraphNode& node, Operands operands);

// Throws InternalError at the first broken invariant: operands defined before use, metadata as `infer` says, roots
// valid.
void verify(const Graph& graph);

// How the dtypes or sizes that the graph has for a node's results differ from those that the op infers, or "". Strides
// are not compared: a pass may have changed them. Throws what `infer` throws.
std::string difference_from_inferred(const Graph& graph, const GraphNode& node);

}  // namespace rondo::compile
