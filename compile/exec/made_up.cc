#include "rondo/compile/exec/made_up.h"

#include <algorithm>
#include <limits>

namespace rondo::compile {
namespace {

// What the ops that read an integer value, or a view of it, require of its numbers.
struct Places {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  bool known = false;      // an op uses the numbers as places
  int64_t bound = kNone;   // the numbers must be smaller
  int64_t segmented = -1;  // the numbers split this many rows into segments (all starts, then the last end); -1: none
};

void note_reader(const Graph& graph, const GraphNode& node, ValueId id, Places& places) {
  const auto below = [&](int64_t bound) { places.bound = std::min(places.bound, bound); };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] != id) continue;
    if (node.op->is<trait::SumSegments>() && i == 1) {
      places.known = true;
      places.segmented = graph.value(node.inputs[0]).sizes[0];
    } else if (const auto* pick = node.op->as<trait::Pick>(); pick != nullptr && i == 1) {
      places.known = true;
      below(graph.value(node.inputs[0]).sizes[pick->dim(node.attrs)]);
    } else if (node.op->checks && node.inputs.size() == 1) {
      // The ops that check or sort indices have the bound of the indices as their first integer attribute.
      places.known = true;
      below(node.attrs.ints[0]);
    } else {
      // Only the op knows which dimension an index refers to, so every dimension of its other operands and results
      // is a bound.
      places.known = places.known || node.op->checks || (node.op->is<trait::SumByIndex>() && i == 1);
      for (const ValueIds* list : {&node.inputs, &node.outputs})
        for (const ValueId other : *list) {
          if (other == kNoValue || other == id) continue;
          for (const int64_t size : graph.value(other).sizes) below(size);
        }
    }
  }
}

Places places_of(const Graph& graph, ValueId id) {
  Places places;
  for (const GraphNode& node : graph.nodes) {
    if (std::find(node.inputs.begin(), node.inputs.end(), id) == node.inputs.end()) continue;
    if (node.op->kind != OpKind::kView && !node.op->is<trait::SideBySide>()) {
      note_reader(graph, node, id, places);
    } else {
      for (const ValueId shown : node.outputs) {  // a view, or a concatenation with others
        const Places seen = places_of(graph, shown);
        places.known = places.known || seen.known;
        places.bound = std::min(places.bound, seen.bound);
        places.segmented = std::max(places.segmented, seen.segmented);
      }
    }
  }
  if (places.bound == Places::kNone) places.bound = 1;
  places.bound = std::max<int64_t>(places.bound, 1);
  return places;
}

Tensor made_up_integers(const Graph& graph, ValueId id, int64_t extent, Device device, Generator& generator) {
  const Value& value = graph.value(id);
  if (value.dtype == kBool) return Tensor::randint(0, 2, {extent}, {kI64, device}, &generator);
  const Places places = places_of(graph, id);
  if (places.segmented < 0) return Tensor::randint(0, places.bound, {extent}, {kI64, device}, &generator);
  std::vector<int64_t> starts(static_cast<size_t>(extent));
  for (int64_t k = 0; k < extent; ++k)
    starts[static_cast<size_t>(k)] = places.segmented * k / std::max<int64_t>(extent - 1, 1);
  return Tensor::from(std::move(starts), {extent}).to(device);
}

}  // namespace

Tensor made_up(const Graph& graph, ValueId id, Device device, Generator& generator) {
  const Value& value = graph.value(id);
  int64_t extent = 1;
  for (int d = 0; d < value.sizes.rank(); ++d) extent += std::max<int64_t>(value.sizes[d] - 1, 0) * value.strides[d];
  const Tensor memory = is_floating(value.dtype)
                            ? Tensor::rand({extent}, {value.dtype, device}, &generator)
                            : made_up_integers(graph, id, extent, device, generator).to(value.dtype);
  return Tensor::over(memory.storage(), 0, value.sizes, value.strides, value.dtype);
}

bool are_places(const Graph& graph, ValueId id) {
  const DType dtype = graph.value(id).dtype;
  return !is_floating(dtype) && dtype != kBool && places_of(graph, id).known;
}

bool are_good_places(const Graph& graph, ValueId id, const std::vector<int64_t>& integers) {
  const Places places = places_of(graph, id);
  if (places.segmented >= 0)
    return std::is_sorted(integers.begin(), integers.end()) &&
           (integers.empty() || (integers.front() >= 0 && integers.back() <= places.segmented));
  return std::all_of(integers.begin(), integers.end(), [&](int64_t i) { return i >= 0 && i < places.bound; });
}

}  // namespace rondo::compile
