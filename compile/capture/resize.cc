#include "rondo/compile/capture/resize.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>

#include "rondo/runtime/op/op.h"

namespace rondo::compile {
namespace {

// Returns the strides of an input whose sizes change to `to`. Dense dimensions stay dense, and gaps keep their width.
Dims resized_strides(const Dims& sizes, const Dims& strides, const Dims& to) {
  std::vector<int> inner_first(static_cast<size_t>(sizes.rank()));
  std::iota(inner_first.rbegin(), inner_first.rend(), 0);
  std::stable_sort(inner_first.begin(), inner_first.end(), [&](int a, int b) { return strides[a] < strides[b]; });
  Dims result = strides;
  int inner = -1;
  for (int d : inner_first) {
    if (strides[d] == 0) continue;
    if (inner >= 0)
      if (const int64_t gap = strides[d] - strides[inner] * sizes[inner]; gap >= 0)
        result[d] = result[inner] * to[inner] + gap;
    inner = d;
  }
  return result;
}

// Returns where a value ends: one past the offset of its last element, counted from the start of its root.
int64_t reach(const Value& value) {
  int64_t last = value.offset;
  for (int d = 0; d < value.sizes.rank(); ++d) {
    if (value.sizes[d] == 0) return 0;
    last += (value.sizes[d] - 1) * value.strides[d];
  }
  return last + 1;
}

// Sets the metadata of a node's results to what its op infers from its attributes and its operands' metadata. Returns
// false if the op refuses them.
bool resize_results(Graph& graph, const GraphNode& node) {
  std::vector<TensorMeta> results;
  try {
    results = infer_results(graph, node, Operands::kAsTheyAre);
  } catch (const std::exception&) {
    return false;  // the op does not allow these shapes
  }
  const size_t n = results.size();
  if (n < node.outputs.size() || (node.op->n_outputs < 0 && n > node.outputs.size())) return false;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const TensorMeta& meta = results[i];
    Value& value = graph.value(node.outputs[i]);
    if (checked_numel(meta.sizes) < 0) return false;
    value.sizes = meta.sizes;
    value.strides = meta.strides;
    if (node.op->kind == OpKind::kView) value.offset = meta.offset;
  }
  return true;
}

}  // namespace

std::optional<Resizing> Resizing::find(const Graph& recorded, std::span<const VariableDim> dims,
                                       std::span<const int64_t> sizes) {
  constexpr size_t kMaxVariables = 8;
  if (sizes.size() > kMaxVariables) return std::nullopt;
  for (int64_t size : sizes)
    if (size < 3) return std::nullopt;
  // A constant has no operand that shows whether its size follows a variable or a parameter of equal size. Tries both.
  const auto fitting = [&](std::span<const VariableDim> all) -> std::optional<Resizing> {
    for (const bool constants_follow : {true, false})
      if (Resizing found(recorded, all, sizes, constants_follow); found.find_rules()) return found;
    return std::nullopt;
  };
  if (auto as_marked = fitting(dims)) return as_marked;
  // A mask or a table of positions may have a variable dimension without being marked. Parameters keep their sizes.
  std::vector<VariableDim> more(dims.begin(), dims.end());
  for (size_t i = 0; i < recorded.inputs.size(); ++i) {
    const Value& value = recorded.value(recorded.inputs[i]);
    for (int d = 0; d < value.sizes.rank() && !value.leaf; ++d) {
      const auto same_place = [&](const VariableDim& v) { return v.input == static_cast<int32_t>(i) && v.dim == d; };
      const auto variable = std::find(sizes.begin(), sizes.end(), value.sizes[d]);
      if (variable != sizes.end() && std::none_of(dims.begin(), dims.end(), same_place))
        more.push_back({static_cast<int32_t>(i), d, static_cast<int32_t>(variable - sizes.begin())});
    }
  }
  return more.size() > dims.size() ? fitting(more) : std::nullopt;
}

void Resizing::resize_inputs(Graph& graph, std::span<const int64_t> sizes) const {
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    Value& value = graph.value(graph.inputs[i]);
    Dims to = value.sizes;
    for (const VariableDim& d : dims_)
      if (d.input == static_cast<int32_t>(i)) to[d.dim] = sizes[static_cast<size_t>(d.variable)];
    if (to == value.sizes) continue;
    value.strides = resized_strides(value.sizes, value.strides, to);
    value.sizes = to;
  }
}

bool Resizing::find_rules() {
  std::vector<int64_t> smaller;
  for (int64_t size : sizes_) smaller.push_back(size - 1);
  Graph graph = *recorded_;
  resize_inputs(graph, smaller);
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    if (!find_rules_of(graph, static_cast<int32_t>(n), smaller)) return false;
  return true;
}

// Integers up to this one are often dimensions, counts or flags: they do not follow a size merely because they fit one.
constexpr int64_t kSmall = kMaxRank;

std::optional<Resizing::Rule> Resizing::rule_for(int32_t node, int32_t position) const {
  const int64_t value = recorded_->node(node).attrs.ints[static_cast<size_t>(position)];
  if (value < 3) return std::nullopt;
  Rule rule{.node = node, .position = position};
  for (uint32_t mask = 1; mask < 1u << sizes_.size(); ++mask) {
    int64_t product = 1;
    for (size_t v = 0; v < sizes_.size(); ++v)
      if (mask >> v & 1u) product *= sizes_[v];
    // Prefers the product of more variables.
    if (value % product == 0 && (rule.factors == 0 || std::popcount(mask) > std::popcount(rule.factors)))
      rule.factors = mask;
    if (value == product) {
      rule.factors = mask;
      return rule;
    }
  }
  for (size_t v = 0; v < sizes_.size(); ++v)
    if (value > kSmall && std::abs(value - sizes_[v]) <= 2)
      rule = {.node = node, .position = position, .addend = static_cast<int32_t>(v)};
  if (rule.factors == 0 && rule.addend < 0) return std::nullopt;
  return rule;
}

int64_t Resizing::apply(const Rule& rule, int64_t value, std::span<const int64_t> sizes) const {
  if (rule.addend >= 0)
    return value + sizes[static_cast<size_t>(rule.addend)] - sizes_[static_cast<size_t>(rule.addend)];
  for (size_t v = 0; v < sizes_.size(); ++v)
    if (rule.factors >> v & 1u) value = value / sizes_[v] * sizes[v];
  return value;
}

// Tries the likeliest choice first: integers that are equal or nearly equal to a size follow it, the others do not.
bool Resizing::find_rules_of(Graph& graph, int32_t index, std::span<const int64_t> sizes) {
  GraphNode& node = graph.node(index);
  const Attrs recorded = node.attrs;
  constexpr size_t kMaxCandidates = 6;
  std::vector<Rule> candidates;
  std::vector<bool> likely;
  for (size_t p = 0; p < recorded.ints.size() && candidates.size() < kMaxCandidates; ++p) {
    const std::optional<Rule> rule = rule_for(index, static_cast<int32_t>(p));
    if (!rule.has_value()) continue;
    int64_t product = 1;
    for (size_t v = 0; v < sizes_.size(); ++v)
      if (rule->factors >> v & 1u) product *= sizes_[v];
    candidates.push_back(*rule);
    // If the node has no operands, constants_follow_ decides. If it has operands, a small integer is no sign of a size.
    const bool telling = node.inputs.empty() ? constants_follow_ : recorded.ints[p] > kSmall;
    likely.push_back(telling && (rule->addend >= 0 || recorded.ints[p] == product));
  }
  const auto fits = [&](bool in_place) {
    if (!resize_results(graph, node)) return false;
    if (node.op->kind != OpKind::kView) return true;
    const Dims &from = recorded_->value(node.inputs[0]).sizes, &to = recorded_->value(node.outputs[0]).sizes;
    // If the first sizes of a view equal those of its source, they are likely the same dimensions. With `in_place`,
    // they must stay equal.
    for (int d = 0; in_place && d < std::min(from.rank(), to.rank()) && from[d] == to[d]; ++d)
      if (graph.value(node.inputs[0]).sizes[d] != graph.value(node.outputs[0]).sizes[d]) return false;
    // A view contains only elements of its source. If it contained all of them in the recording, it must contain all of
    // them now.
    const Value &source = graph.value(node.inputs[0]), &view = graph.value(node.outputs[0]);
    if (from.numel() == to.numel() && source.sizes.numel() != view.sizes.numel()) return false;
    return std::all_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId id) { return reach(graph.value(id)) <= reach(source); });
  };
  // A choice is the set of candidates that are treated as the opposite of `likely`. Small sets come first, and among
  // sets of equal size, those with the later candidates.
  std::vector<uint32_t> choices(size_t{1} << candidates.size());
  std::iota(choices.rbegin(), choices.rend(), 0u);
  std::stable_sort(choices.begin(), choices.end(),
                   [](uint32_t a, uint32_t b) { return std::popcount(a) < std::popcount(b); });
  for (bool in_place : {true, false}) {
    for (uint32_t choice : choices) {
      node.attrs = recorded;
      std::vector<Rule> chosen;
      for (size_t c = 0; c < candidates.size(); ++c) {
        if (likely[c] == static_cast<bool>(choice >> c & 1u)) continue;
        chosen.push_back(candidates[c]);
        int64_t& value = node.attrs.ints[static_cast<size_t>(candidates[c].position)];
        value = apply(candidates[c], value, sizes);
      }
      if (!fits(in_place)) continue;
      rules_.insert(rules_.end(), chosen.begin(), chosen.end());
      return true;
    }
  }
  return false;
}

std::optional<Graph> Resizing::at(std::span<const int64_t> sizes) const {
  Graph graph = *recorded_;
  resize_inputs(graph, sizes);
  for (const Rule& rule : rules_) {
    int64_t& value = graph.node(rule.node).attrs.ints[static_cast<size_t>(rule.position)];
    value = apply(rule, value, sizes);
  }
  for (const GraphNode& node : graph.nodes)
    if (!resize_results(graph, node)) return std::nullopt;
  return graph;
}

}  // namespace rondo::compile
