// Finds elementwise ops that a product applies to its own result before it stores it. The product's result is then
// written once and not read back.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/transform/passes.h"

namespace rondo::compile {
namespace {

bool is_dense(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  return value.root == id && value.offset == 0 && is_contiguous(value.sizes, value.strides);
}

class EpilogueFinder {
 public:
  EpilogueFinder(const Graph& graph, bool exact, AbsorbsOf absorbs)
      : graph_(graph), exact_(exact), absorbs_of_(absorbs), reads_(graph, 0), reader_(graph, -1) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (graph.nodes[n].op->kind == OpKind::kView) continue;
      for (ValueId id : graph.nodes[n].inputs) {
        if (id == kNoValue) continue;
        const ValueId written = graph.written(id);
        ++reads_[written];
        reader_[written] = static_cast<int32_t>(n);
      }
    }
    // Outputs get two more reads, so that they never count as read only once: the caller reads them, too. A read of a
    // part of an assembled value counts as a read of the whole.
    for (ValueId id : graph.outputs) reads_[graph.written(id)] += 2;
  }

  std::vector<int32_t> chain_of(const GraphNode& product) const {
    std::vector<int32_t> chain;
    const AbsorbsFn absorbs = absorbs_of_(*product.op);
    if (absorbs == nullptr || product.outputs.size() != 1) return chain;
    for (ValueId id : product.inputs)
      if (id != kNoValue && graph_.value(id).sizes.numel() == 0) return chain;  // the product is empty
    std::vector<Epilogue> kinds;
    for (ValueId result = product.outputs[0];;) {
      if (!is_dense(graph_, result) || reads_[result] != 1) return chain;
      const int32_t reader = reader_[result];
      const GraphNode& node = graph_.node(reader);
      if (!applies(node, result)) return chain;
      kinds.push_back(node.op->epilogue);
      if (!absorbs(kinds, graph_.value(product.outputs[0]).dtype, exact_)) return chain;
      chain.push_back(reader);
      result = node.outputs[0];
    }
  }

 private:
  // True if the node is an epilogue that works element by element: all operands and the result are as
  // large as `result`.
  bool applies(const GraphNode& node, ValueId result) const {
    if (node.op->epilogue == Epilogue::kNone || node.outputs.size() != 1 || !is_dense(graph_, node.outputs[0]))
      return false;
    const Value& out = graph_.value(node.outputs[0]);
    const bool widens = node.op->epilogue == Epilogue::kWiden;
    if (widens && out.dtype != kF32) return false;
    if (!widens && out.dtype != graph_.value(result).dtype) return false;
    if (out.sizes.numel() != graph_.value(result).sizes.numel()) return false;
    for (ValueId id : node.inputs) {
      if (id == kNoValue) return false;
      const Value& in = graph_.value(id);
      if ((!widens && in.dtype != out.dtype) || !(in.sizes == out.sizes) || !is_contiguous(in.sizes, in.strides))
        return false;
      if (graph_.written(id) == result && same_elements(graph_, id) != result) return false;
    }
    return true;
  }

  const Graph& graph_;
  bool exact_;
  AbsorbsOf absorbs_of_;
  ValueMap<int> reads_;       // number of reads, by written value
  ValueMap<int32_t> reader_;  // the last node that reads it
};

}  // namespace

EpilogueChains find_epilogues(const Graph& graph, bool exact, AbsorbsOf absorbs) {
  const EpilogueFinder finder(graph, exact, absorbs);
  EpilogueChains chains(graph.nodes.size());
  NodeMap<bool> taken(graph, false);  // a sum of two products can be an epilogue of only one of them
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (int32_t node : finder.chain_of(graph.nodes[n])) {
      if (taken[node]) break;
      taken[node] = true;
      chains[n].push_back(node);
    }
  }
  return chains;
}

std::string to_string(const EpilogueChains& chains) {
  std::string text;
  for (size_t n = 0; n < chains.size(); ++n)
    if (!chains[n].empty()) absl::StrAppend(&text, "epilogues ", n, " ", absl::StrJoin(chains[n], " "), "\n");
  return text;
}

}  // namespace rondo::compile
