// Merges many small products into one large product; a loop over time records many small ones. Not exact: a product of
// another size may add in another order.
//
//   rows   x_0 W, x_1 W, ...            (x_0; x_1; ...) W, split into rows: the inputs' share of all gates, the
//                                       gradients of the inputs
//   sums   a_0 b_0 + a_1 b_1 + ...      (a_0, a_1, ...) (b_0; b_1; ...): the gradients of the weights, which otherwise
//                                       are read and written at each step
//          sum(a_0) + sum(a_1) + ...    sum(a_0; a_1; ...), over rows: the gradients of the biases, if products
//                                       concatenate a_0, a_1, ... anyway
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "rondo/compile/capture/trace.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::compile {
namespace {

constexpr size_t kFewest = 4;       // with fewer products, concatenating their operands does not pay
constexpr int64_t kMostRows = 128;  // of one product; larger products are efficient on their own
constexpr int64_t kMostSummed = 256;

struct Products {
  enum Kind : uint8_t { kRows, kSummed } kind;  // kSummed: products, or sums of rows
  std::vector<int32_t> nodes = {};
  int32_t before = 0;              // kRows: the merged product is computed before this node
  std::vector<int32_t> adds = {};  // kSummed: a chain of additions; the last one gives the result
  ValueId start = kNoValue;        // kSummed: the first addition's other operand, if it is no product
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), uses_(graph, 0), first_use_(graph, kNever) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (ValueId id : graph.nodes[n].inputs)
        if (id != kNoValue) {
          ++uses_[id];
          int32_t& first = first_use_[graph.value(id).root];  // a view counts as used where it is made
          first = std::min(first, static_cast<int32_t>(n));
        }
    for (ValueId id : graph.outputs) ++uses_[id];
  }

  std::vector<Products> find() {
    NodeMap<bool> taken(graph_, false);
    std::vector<Products> found = sums(taken);
    for (Products& rows : rows(taken)) found.push_back(std::move(rows));
    // Sums of rows are worth merging only if merged products concatenate the same operands anyway.
    std::set<std::vector<ValueId>> gathered;
    for (const Products& products : found)
      if (!is_sum_of_rows(graph_.node(products.nodes[0]))) gathered.insert(gathered_by(products));
    std::erase_if(found, [&](const Products& sum) {
      return is_sum_of_rows(graph_.node(sum.nodes[0])) && !gathered.contains(gathered_by(sum));
    });
    return found;
  }

 private:
  static constexpr int32_t kNever = INT32_MAX;

  bool is_matrix(ValueId id) const { return id != kNoValue && graph_.value(id).sizes.rank() == 2; }
  bool has_dense_rows(ValueId id) const { return graph_.value(id).strides[1] == 1; }
  bool is_product(const GraphNode& node) const {
    return node.op->kind == OpKind::kContraction && node.op->is<trait::Product>() && is_matrix(node.inputs[0]) &&
           is_matrix(node.inputs[1]);
  }

  // Returns the values behind operand 0 of all products.
  std::vector<ValueId> gathered_by(const Products& products) const {
    std::vector<ValueId> operands;
    for (int32_t n : products.nodes) operands.push_back(graph_.written(graph_.node(n).inputs[0]));
    return operands;
  }
  bool is_sum_of_rows(const GraphNode& node) const {
    constexpr int64_t kFirstDimension = 1;  // as a mask
    return node.op->kind == OpKind::kReduction && node.op->is_additive() && node.inputs.size() == 1 &&
           is_matrix(node.inputs[0]) && node.attrs.ints[0] == kFirstDimension;
  }

  std::vector<Products> rows(const NodeMap<bool>& taken) const {
    std::map<std::pair<const OpDef*, std::vector<ValueId>>, std::vector<int32_t>> by_right;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const GraphNode& node = graph_.nodes[n];
      if (taken[n] || !is_product(node) || !has_dense_rows(node.inputs[0]) ||
          graph_.value(node.inputs[0]).sizes[0] > kMostRows)
        continue;
      by_right[{node.op, {node.inputs.begin() + 1, node.inputs.end()}}].push_back(static_cast<int32_t>(n));
    }
    std::vector<Products> found;
    for (const auto& [right, nodes] : by_right) {
      // Groups as many as can run together: after all their operands are computed and before any of their
      // results is read.
      Products group{.kind = Products::kRows};
      int32_t ready = -1, wanted = kNever;
      const auto close = [&] {
        if (group.nodes.size() >= kFewest) {
          group.before = std::max(ready + 1, group.nodes[0]);
          found.push_back(group);
        }
        group.nodes.clear();
        ready = -1, wanted = kNever;
      };
      for (int32_t n : nodes) {
        const GraphNode& node = graph_.node(n);
        int32_t made = -1;
        for (ValueId id : node.inputs)
          if (id != kNoValue)
            made = std::max(made, graph_.value(graph_.written(id)).producer);  // views can be made earlier
        const int32_t read = first_use_[node.outputs[0]];
        if (!group.nodes.empty() && std::max(ready, made) >= std::min(wanted, read)) close();
        group.nodes.push_back(n);
        ready = std::max(ready, made);
        wanted = std::min(wanted, read);
      }
      close();
    }
    return found;
  }

  // Returns the node of a product, or of a sum of rows, whose result is `id`, if nothing else reads it; otherwise -1.
  int32_t term(ValueId id) const {
    const int32_t n = graph_.value(id).producer;
    if (n < 0 || uses_[id] != 1) return -1;
    const GraphNode& node = graph_.node(n);
    int summed = -1;  // dimension of operand 0
    if (is_product(node) && node.inputs.size() == 2) summed = 1;
    if (is_sum_of_rows(node)) summed = 0;
    return summed >= 0 && graph_.value(node.inputs[0]).sizes[summed] <= kMostSummed ? n : -1;
  }
  // Addition is the only epilogue with two operands.
  bool is_add(const GraphNode& node) const {
    const Dims& sizes = graph_.value(node.outputs[0]).sizes;
    return node.op->epilogue != Epilogue::kNone && node.inputs.size() == 2 &&
           graph_.value(node.inputs[0]).sizes == sizes && graph_.value(node.inputs[1]).sizes == sizes;
  }
  std::vector<Products> sums(NodeMap<bool>& taken) const {
    std::vector<Products> found;
    for (size_t end = graph_.nodes.size(); end-- > 0;) {
      if (taken[end] || !is_add(graph_.nodes[end])) continue;
      Products sum{.kind = Products::kSummed};
      ValueId rest = graph_.nodes[end].outputs[0];
      for (int32_t n = static_cast<int32_t>(end); n >= 0 && is_add(graph_.node(n)) && !taken[n];) {
        const GraphNode& add = graph_.node(n);
        const int last = term(add.inputs[1]) >= 0 ? 1 : term(add.inputs[0]) >= 0 ? 0 : -1;
        if (last < 0) break;
        const int32_t product = term(add.inputs[static_cast<size_t>(last)]);
        if (!sum.nodes.empty() && !fits(graph_.node(sum.nodes[0]), graph_.node(product))) break;
        sum.nodes.push_back(product);
        sum.adds.push_back(n);
        rest = add.inputs[static_cast<size_t>(1 - last)];
        n = uses_[rest] == 1 ? graph_.value(rest).producer : -1;
      }
      if (sum.nodes.empty()) continue;
      if (const int32_t first = term(rest); first >= 0 && fits(graph_.node(sum.nodes[0]), graph_.node(first)))
        sum.nodes.push_back(first);
      else sum.start = rest;
      if (sum.nodes.size() < kFewest) continue;
      std::reverse(sum.nodes.begin(), sum.nodes.end());
      std::reverse(sum.adds.begin(), sum.adds.end());
      for (const std::vector<int32_t>* list : {&sum.nodes, &sum.adds})
        for (int32_t n : *list) taken[n] = true;
      found.push_back(std::move(sum));
    }
    return found;
  }
  bool fits(const GraphNode& a, const GraphNode& b) const {
    return a.op == b.op && a.attrs.ints == b.attrs.ints &&
           graph_.value(a.outputs[0]).sizes == graph_.value(b.outputs[0]).sizes &&
           graph_.value(a.outputs[0]).dtype == graph_.value(b.outputs[0]).dtype;
  }

  const Graph& graph_;
  ValueMap<int> uses_;
  ValueMap<int32_t> first_use_;  // by root: the first node that uses it
};

// Records the graph again with merged products.
class Rewriter {
 public:
  Rewriter(const Graph& graph, std::vector<Products> found)
      : graph_(graph), found_(std::move(found)), symbols_(graph) {}

  Graph run() {
    NoGrad off;
    amp::Autocast as_recorded(std::nullopt);  // the recording contains the casts
    const DeviceScope device(trace_.device);  // where calls without operands run
    RecorderScope record(&trace_);
    NodeMap<bool> gone(graph_, false);
    std::multimap<int32_t, const Products*> at;
    for (const Products& products : found_) {
      for (const std::vector<int32_t>* list : {&products.nodes, &products.adds})
        for (int32_t n : *list) gone[n] = true;
      at.emplace(products.kind == Products::kRows ? products.before : products.adds.back(), &products);
    }
    for (ValueId id : graph_.inputs) symbols_[id] = trace_.placeholder(graph_.value(id));
    for (size_t n = 0; n <= graph_.nodes.size(); ++n) {
      const auto [begin, end] = at.equal_range(static_cast<int32_t>(n));
      for (auto it = begin; it != end; ++it) emit(*it->second);
      // A view may have been made earlier.
      if (n == graph_.nodes.size() || gone[n] || symbols_[graph_.nodes[n].outputs[0]].defined()) continue;
      again(graph_.nodes[n]);
    }
    for (ValueId id : graph_.outputs) trace_.graph.outputs.push_back(trace_.value_of(symbols_[id]));
    return std::move(trace_.graph);
  }

 private:
  // Returns the value in the new recording. If it is not recorded yet, it is a view of a recorded value, and is
  // recorded now.
  Tensor symbol(ValueId id) {
    if (id == kNoValue) return {};
    if (!symbols_[id].defined()) again(graph_.node(graph_.value(id).producer));
    return symbols_[id];
  }
  void again(const GraphNode& node) {
    std::vector<TensorArg> args;
    std::vector<Tensor> inputs, outputs(node.outputs.size());
    for (ValueId id : node.inputs) inputs.push_back(symbol(id));
    for (const Tensor& input : inputs) args.emplace_back(input, node.where);
    trace_.origin = &node.origin;
    call(*node.op, args, node.attrs, outputs);
    for (size_t i = 0; i < outputs.size(); ++i) symbols_[node.outputs[i]] = outputs[i];
  }
  void emit(const Products& products) {
    const GraphNode& like = graph_.node(products.nodes.back());
    for (int32_t n : products.nodes)
      for (ValueId id : graph_.node(n).inputs) symbol(id);
    trace_.origin = &like.origin;
    if (products.kind == Products::kRows) {
      std::vector<Tensor> operands{side_by_side(products, 0, 0)};
      for (size_t i = 1; i < like.inputs.size(); ++i) operands.push_back(symbol(like.inputs[i]));
      const Tensor all = call(*like.op, std::vector<TensorArg>(operands.begin(), operands.end()), like.attrs);
      int64_t row = 0;
      for (int32_t n : products.nodes) {
        const ValueId result = graph_.node(n).outputs[0];
        const int64_t rows = graph_.value(result).sizes[0];
        symbols_[result] = all.slice(0, {row, row + rows});
        row += rows;
      }
      return;
    }
    Tensor sum = like.op->kind == OpKind::kReduction
                     ? call(*like.op, {side_by_side(products, 0, 0)}, like.attrs)
                     : call(*like.op, {side_by_side(products, 0, 1),
                                       side_by_side(products, 1, 2 - like.op->as<trait::Product>()->sums_over)});
    if (products.start != kNoValue) sum = call(*graph_.node(products.adds.back()).op, {symbol(products.start), sum});
    symbols_[graph_.node(products.adds.back()).outputs[0]] = sum;
  }
  // Concatenates operand `which` of all products along `dim`. Transposed operands are concatenated in
  // their memory's layout.
  Tensor side_by_side(const Products& products, size_t which, int dim) {
    std::vector<Tensor> parts, sources;
    for (int32_t n : products.nodes) {
      const ValueId id = graph_.node(n).inputs[which];
      parts.push_back(symbol(id));
      const Value& value = graph_.value(id);
      if (value.producer < 0 || value.root == id) continue;
      const ValueId source = graph_.node(value.producer).inputs[0];
      const Value& below = graph_.value(source);
      if (below.sizes.rank() == 2 && is_contiguous(below.sizes, below.strides) && value.offset == below.offset &&
          value.sizes == Dims{below.sizes[1], below.sizes[0]} && value.strides == Dims{1, below.sizes[1]})
        sources.push_back(symbol(source));
    }
    if (sources.size() == parts.size()) return ops::transpose(ops::cat(sources, 1 - dim), 0, 1);
    return ops::cat(parts, dim);
  }

  const Graph& graph_;
  const std::vector<Products> found_;
  Trace trace_;
  ValueMap<Tensor> symbols_;
};

}  // namespace

std::optional<Graph> merge_products(const Graph& graph) {
  std::vector<Products> found = Finder(graph).find();
  if (found.empty()) return std::nullopt;
  Graph merged = Rewriter(graph, std::move(found)).run();
  // Two groups of products with the same gradients as operands would concatenate these gradients twice.
  for (const auto pass : {&eliminate_common_subexpressions, &eliminate_dead_code})
    if (std::optional<Graph> simpler = pass(merged)) merged = *std::move(simpler);
  return merged;
}

}  // namespace rondo::compile
