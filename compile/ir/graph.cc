#include "rondo/compile/ir/graph.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/compile/ir/scanner.h"

namespace rondo::compile {
namespace {

std::string name(ValueId id) { return id == kNoValue ? "none" : absl::StrCat("%", id); }

std::string typed(const Graph& graph, ValueId id) {
  const Value& v = graph.value(id);
  std::string text = absl::StrCat(name(id), ": ", std::string(name_of(v.dtype)), rondo::to_string(v.sizes));
  if (!(v.strides == contiguous_strides(v.sizes))) absl::StrAppend(&text, " strides", rondo::to_string(v.strides));
  if (v.root != id) absl::StrAppend(&text, " of ", name(v.root));
  if (v.offset != 0) absl::StrAppend(&text, " at ", v.offset);
  absl::StrAppend(&text, v.requires_grad ? " grad" : "", v.leaf ? " leaf" : "");
  return text;
}

}  // namespace

std::string location_of(const Origin& origin) {
  if (origin.where.line() == 0) return "unknown place";
  std::string text = absl::StrCat(origin.user.file_name(), ":", origin.user.line());
  const bool via = origin.user.line() != origin.where.line() ||
                   std::string_view(origin.user.file_name()) != origin.where.file_name();
  if (via) absl::StrAppend(&text, ", via ", origin.where.file_name(), ":", origin.where.line());
  return text;
}

std::string to_string(const Origin& origin) {
  if (origin.op == nullptr) return location_of(origin);
  return absl::StrCat(origin.gradient ? "gradient of "
                      : origin.again  ? "recomputed "
                                      : "",
                      origin.op->name, " (", location_of(origin), ")");
}

std::string to_string(const Graph& graph, const GraphNode& node) {
  std::string text;
  for (size_t i = 0; i < node.outputs.size(); ++i) absl::StrAppend(&text, i ? ", " : "", typed(graph, node.outputs[i]));
  absl::StrAppend(&text, " = ", node.op->name, "(");
  const char* comma = "";
  auto operand = [&](const std::string& written) {
    absl::StrAppend(&text, comma, written);
    comma = ", ";
  };
  for (ValueId id : node.inputs) operand(name(id));
  for (int64_t i : node.attrs.ints) operand(std::to_string(i));
  for (SymFloat number : node.attrs.floats) operand(exact_text(number.value()));
  return text + ")";
}

std::string to_string(const Graph& graph, Locations locations) {
  std::string text;
  for (ValueId id : graph.inputs) absl::StrAppend(&text, "input ", typed(graph, id), "\n");
  for (const GraphNode& node : graph.nodes) {
    text += to_string(graph, node);
    if (locations == Locations::kAsComments) absl::StrAppend(&text, "  # ", to_string(node.origin));
    text += "\n";
  }
  text += "return";
  for (ValueId id : graph.outputs) absl::StrAppend(&text, " ", name(id));
  return text + "\n";
}

ValueId Graph::written(ValueId id) const {
  while (value(id).producer >= 0) {
    const GraphNode& node = nodes[static_cast<size_t>(value(id).producer)];
    if (node.op->kind != OpKind::kView) break;
    id = node.inputs[0];
  }
  return id;
}

std::vector<bool> inputs_read(const Graph& graph) {
  ValueMap<bool> read(graph, false);
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.inputs)
      if (id != kNoValue) read[id] = true;
  for (ValueId id : graph.outputs) read[graph.value(id).root] = true;
  std::vector<bool> inputs;
  for (ValueId id : graph.inputs) inputs.push_back(read[id]);
  return inputs;
}

std::vector<WriteBack> write_backs(const Graph& recorded) {
  std::vector<WriteBack> backs;
  for (const Version& version : recorded.versions) {
    const auto known = std::find_if(backs.begin(), backs.end(),
                                    [&](const WriteBack& back) { return back.input == version.input; });
    WriteBack& back = known != backs.end() ? *known : backs.emplace_back(WriteBack{version.input, -1, 0});
    const auto at = std::find(recorded.outputs.begin(), recorded.outputs.end(), version.value);
    back.output = at == recorded.outputs.end() ? -1 : static_cast<int32_t>(at - recorded.outputs.begin());
    ++back.writes;
  }
  std::erase_if(backs, [](const WriteBack& back) { return back.input < 0 && back.output < 0; });
  for (const WriteBack& back : backs) invariant(back.output >= 0, "the last version of an input is an output");
  return backs;
}

std::vector<TensorMeta> infer_results(const Graph& graph, const GraphNode& node, Operands operands) {
  std::vector<Tensor> stand_ins(node.inputs.size());  // without memory: `infer` reads no data
  std::vector<const Tensor*> inputs;
  for (size_t i = 0; i < stand_ins.size(); ++i) {
    inputs.push_back(&stand_ins[i]);
    if (node.inputs[i] == kNoValue) continue;
    const Value& v = graph.value(node.inputs[i]);
    const bool dense = operands == Operands::kDense;
    auto* impl = new TensorImpl;
    impl->dtype = v.dtype;
    impl->sizes = v.sizes;
    impl->strides = dense ? contiguous_strides(v.sizes) : v.strides;
    impl->offset = dense ? 0 : v.offset;
    stand_ins[i] = Tensor(impl);
  }
  InferContext infer(*node.op, inputs, node.attrs, node.where);
  if (node.in_place) infer.set_in_place();
  node.op->infer(infer);
  return {infer.outputs().begin(), infer.outputs().end()};
}

// Infers with dense strides: sizes do not depend on strides, which a later pass may have changed.
std::string difference_from_inferred(const Graph& graph, const GraphNode& node) {
  const std::vector<TensorMeta> results = infer_results(graph, node, Operands::kDense);
  if (results.size() < node.outputs.size()) return absl::StrCat(node.op->name, " has too many results");
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const Value& v = graph.value(node.outputs[i]);
    if (v.dtype != results[i].dtype || !(v.sizes == results[i].sizes))
      return absl::StrCat("the dtype or the sizes of ", name(node.outputs[i]), " are not what ", node.op->name,
                          " gives");
  }
  return "";
}

void verify(const Graph& graph) {
  const auto n = static_cast<ValueId>(graph.values.size());
  ValueMap<bool> defined(graph, false);
  auto define = [&](ValueId id, int32_t producer) {
    invariant(id >= 0 && id < n && !defined[id], "graph: a value is defined twice or out of range");
    invariant(graph.value(id).producer == producer, "graph: a value names the wrong producer");
    defined[id] = true;
  };
  for (ValueId id : graph.inputs) define(id, -1);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphNode& node = graph.nodes[i];
    for (ValueId id : node.inputs)
      invariant(id == kNoValue || (id >= 0 && id < n && defined[id]), "graph: a value is used before it is defined");
    for (ValueId id : node.outputs) {
      define(id, static_cast<int32_t>(i));
      const Value& v = graph.value(id);
      invariant(v.root >= 0 && v.root < n, "graph: a view of nothing");
      const bool part = writes_parts(*node.op) && v.root > id;
      invariant(part || (node.op->kind == OpKind::kView) == (v.root != id), "graph: only views and parts share memory");
      invariant(graph.value(v.root).root == v.root, "graph: a root is itself a view");
    }
  }
  for (const GraphNode& node : graph.nodes)
    if (const std::string what = difference_from_inferred(graph, node); !what.empty()) throw_internal("graph: " + what);
  for (ValueId id : graph.outputs) invariant(id >= 0 && id < n && defined[id], "graph: an undefined output");
}

}  // namespace rondo::compile
