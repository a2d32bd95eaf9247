// The graph: a straight-line program of ops over values, in the order of recording. Plain fields. A pass makes a new
// graph from the old one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/runtime/base/source_location.h"
#include "rondo/runtime/op/op.h"

namespace rondo::compile {

// Index into Graph::values; -1 if an optional operand is absent.
using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct Value {
  DType dtype = kF32;
  Dims sizes;
  Dims strides;
  bool requires_grad = false;
  bool leaf = false;         // inputs only: a parameter, which only an optimizer writes
  bool grad_mode = true;     // recorded in grad mode, in which views keep their base
  bool hidden = false;       // outputs only: no tensor holds it; it is the base of views that are held
  bool overwritten = false;  // its memory was written later in the recording: Note [Writes] in capture/writes.cc
  int32_t producer = -1;     // index into Graph::nodes; -1 for inputs
  // A view shares the memory of `root`, and begins `offset` elements after its start. So does a part that is written
  // directly into an assembled value (transform/assemble.cc). The root of any other value is the value itself.
  ValueId root = kNoValue;
  int64_t offset = 0;
};

// The operands of one node. They are almost always few, so a recording allocates nothing for them.
using ValueIds = absl::InlinedVector<ValueId, 4>;

// The call of the user's program that a node comes from. Only for explanations: no pass may depend on it.
struct Origin {
  const OpDef* op = nullptr;   // the op that was called; null: unknown
  bool gradient = false;       // the node is part of the op's gradient
  bool again = false;          // the node recomputes a value for the backward
  std::source_location where;  // the line of the call
  std::source_location user;   // the innermost frame of the user's program
  int32_t call = -1;           // nodes with the same number are parts of one op of eager execution
};
// Returns a text such as "gradient of linear (train.cc:41, via layers.cc:30)". File names are as the compiler saw them.
std::string to_string(const Origin& origin);
// Returns a text such as "train.cc:41, via layers.cc:30".
std::string location_of(const Origin& origin);

struct GraphNode {
  const OpDef* op = nullptr;
  ValueIds inputs;
  ValueIds outputs;
  Attrs attrs;
  std::source_location where;
  Origin origin;
  bool in_place = false;  // in a recording: eager execution writes the result over operand 0
};

// A recorded write: after it, input number `input` holds `value`. If `input` is below 0, the written memory is one that
// the recording itself allocated.
struct Version {
  ValueId value = kNoValue;
  int32_t input = -1;
  friend bool operator==(const Version&, const Version&) = default;
};
// The last version of written memory. A run must store the last version of an input in the input's memory. If `input`
// is below 0, the recording itself allocated the memory, and returns it. `input` and `output`: positions in
// Graph::inputs and Graph::outputs.
struct WriteBack {
  int32_t input, output;
  int32_t writes;  // number of versions that the recording makes
};

struct Graph {
  std::vector<Value> values;
  std::vector<GraphNode> nodes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<Version> versions;  // of a recording, in program order; passes drop them

  const Value& value(ValueId id) const { return values[static_cast<size_t>(id)]; }
  Value& value(ValueId id) { return values[static_cast<size_t>(id)]; }
  const GraphNode& node(int32_t n) const { return nodes[static_cast<size_t>(n)]; }
  GraphNode& node(int32_t n) { return nodes[static_cast<size_t>(n)]; }
  // Returns the value that `id` is a view of, through any number of views: a node's result that is no view, or an
  // input.
  ValueId written(ValueId id) const;
};

// Returns the line of the user's program that an error of the node names. The line was found during recording, because
// the modules that made the call have returned when the node runs.
inline std::source_location line_of(const GraphNode& node) {
  return node.origin.user.line() == 0 ? node.where : node.origin.user;
}

// True if the op's results may be parts of a larger value, with gaps between their rows (transform/assemble.cc).
inline bool writes_parts(const OpDef& op) {
  return op.strided_outputs || (op.kind == OpKind::kElementwise && op.lower != nullptr);
}

// ---- Tables of a graph: one T for each value or for each node.
//
//   ValueMap<bool> returned(graph, false);
//   for (ValueId id : graph.outputs) returned[id] = true;
//
// They can be indexed by ids without a cast, and by positions (size_t) in loops over all values.
template <class T> class IdMap : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  using std::vector<T>::operator[];
  typename std::vector<T>::reference operator[](int32_t id) { return (*this)[static_cast<size_t>(id)]; }
  typename std::vector<T>::const_reference operator[](int32_t id) const { return (*this)[static_cast<size_t>(id)]; }
};

// Indexed by ValueId.
template <class T> class ValueMap : public IdMap<T> {
 public:
  using IdMap<T>::IdMap;
  explicit ValueMap(const Graph& graph, const T& initial = T()) : IdMap<T>(graph.values.size(), initial) {}
};

// Indexed by a node's number (Value::producer).
template <class T> class NodeMap : public IdMap<T> {
 public:
  using IdMap<T>::IdMap;
  explicit NodeMap(const Graph& graph, const T& initial = T()) : IdMap<T>(graph.nodes.size(), initial) {}
};

// Returns, for each input: true if a node reads it, or if an output is the input or a view of it.
std::vector<bool> inputs_read(const Graph& graph);

// Returns one WriteBack for each input that a recording writes (its last version must be an output), and one for each
// returned result that it writes.
std::vector<WriteBack> write_backs(const Graph& recorded);

// ---- Text and checks of graphs

// One node per line. The text is canonical: equal graphs give equal text, and parse_graph (ir/parse.h) gives the graph
// back. Dense strides are omitted, and so is the root of a value that is no view. The text has no pointers and no
// paths, except with kAsComments: then each node's line in the user's program follows as a comment.
//   input %0: f32[8, 64] grad
//   %2: f32[8, 64] grad = add_scalar(%0, 1.0)     # train.cc:41
//   %3: f32[64, 8] strides[1, 64] of %2 grad = permute(%2, 1, 0)
//   return %3
enum class Locations { kOmit, kAsComments };
std::string to_string(const Graph& graph, Locations locations = Locations::kOmit);
// Returns one node's line, without the newline.
std::string to_string(const Graph& graph, const GraphNode& node);

// Returns the metadata of the node's results, as the op infers them from the operands' sizes and strides. With
// Operands::kDense, all operands count as dense. Throws what `infer` throws.
enum class Operands { kAsTheyAre, kDense };
std::vector<TensorMeta> infer_results(const Graph& graph, const GraphNode& node, Operands operands);

// Throws InternalError at the first broken invariant: operands are defined before use, metadata are what `infer` gives,
// roots are valid.
void verify(const Graph& graph);

// Describes how the dtypes or sizes of a node's results differ from those that the op infers; "" if they do not.
// Strides are not compared: a pass may have changed them. Throws what `infer` throws.
std::string difference_from_inferred(const Graph& graph, const GraphNode& node);

}  // namespace rondo::compile
