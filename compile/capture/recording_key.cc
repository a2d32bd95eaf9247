#include "rondo/compile/capture/recording_key.h"

#include <bit>

#include "rondo/compile/stages/stages.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {

// Note [What shapes a plan]. Each fact that a plan depends on is in the key, or is checked when the plan runs:
//   in the key, of inputs       dtype, sizes, strides, requires_grad, leaf (the backward may read a parameter again,
//                               but other inputs may be overwritten before it runs), and which inputs are one tensor
//   in the key, of calls        op, operands, integers, requires_grad of results (which covers no_grad), order
//   in the key, of outputs      which values are held, in what order; which of them are needed only by views (hidden)
//   in the key, of writes       which calls write in place, and which values are versions of which inputs
//   in the key, of all          the device
//   arguments of a run          floats: formulas compute the program's floats from the recording's, as long as guards
//                               hold (capture/float_trace.h). Integers that feed arithmetic are recorded as floats
//   part of the recording       autocast (casts are recorded), train/eval, random states (each is a recorded tensor),
//                               hooks and host writes (they end a recording)
//   in the key of a backward    Arriving: which gradients arrive, to which sums the backward adds, which it overwrites
//   checked when the plan runs  who else holds memory (donation, in-place sums), memory that inputs share, versions of
//                               saved tensors, hooks and retained gradients, retain_graph, a parameter's 16-bit copy
//   one for each region         CompileOptions; the key does not repeat them
//   of no influence on results  thread count (fixed chunks), addresses and storage offsets, memory purposes, lines of
//                               the program; marks and earlier compilations (they choose code, but not its results)
RecordingKey pack(const Graph& graph, PackFloats floats) {
  const bool with_floats = floats == PackFloats::kYes;
  // Packing must be fast, because it runs at every call of a block. So the words are counted first, and then written
  // without checks.
  size_t words = 3 + graph.outputs.size() + graph.versions.size();
  for (ValueId id : graph.inputs)
    words += 4 + static_cast<size_t>(graph.value(id).sizes.rank() + graph.value(id).strides.rank());
  for (const GraphNode& node : graph.nodes)
    words += 3 + node.inputs.size() + node.attrs.ints.size() + (with_floats ? node.attrs.floats.size() : 0) +
             node.outputs.size();
  RecordingKey key(words);
  uint64_t* next = key.data();
  const auto add = [&](uint64_t word) { *next++ = word; };
  const auto add_dims = [&](const Dims& dims) {
    add(static_cast<uint64_t>(dims.rank()));
    for (int64_t dim : dims) add(static_cast<uint64_t>(dim));
  };
  add(disabled_stages());
  add(graph.inputs.size());
  for (ValueId id : graph.inputs) {
    const Value& v = graph.value(id);
    add(static_cast<uint64_t>(id));
    add(static_cast<uint64_t>(v.dtype) << 2 | v.leaf << 1 | v.requires_grad);
    add_dims(v.sizes);
    add_dims(v.strides);
  }
  add(graph.versions.size() << 32 | graph.nodes.size());
  for (const GraphNode& node : graph.nodes) {
    add(reinterpret_cast<uint64_t>(node.op));
    add(uint64_t{node.in_place} << 63 | node.inputs.size() << 32 | node.outputs.size());
    add(node.attrs.ints.size() << 32 | node.attrs.floats.size());
    for (ValueId id : node.inputs) add(static_cast<uint64_t>(id));
    for (int64_t i : node.attrs.ints) add(static_cast<uint64_t>(i));
    if (with_floats)
      for (SymFloat number : node.attrs.floats) add(std::bit_cast<uint64_t>(number.value()));
    // Shapes and dtypes of results follow from the rest of the key. requires_grad does not: no_grad changes it.
    for (ValueId id : node.outputs) add(graph.value(id).requires_grad);
  }
  for (ValueId id : graph.outputs) add(static_cast<uint64_t>(id) << 1 | graph.value(id).hidden);
  for (const Version& version : graph.versions)
    add(static_cast<uint64_t>(version.value) << 32 | static_cast<uint32_t>(version.input));
  invariant(next == key.data() + words, "the key has as many words as were counted");
  return key;
}

}  // namespace rondo::compile
