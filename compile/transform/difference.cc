#include "rondo/compile/transform/difference.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "rondo/compile/ir/scanner.h"
#include "rondo/runtime/base/hash_map.h"

namespace rondo::compile {
namespace {

const char* yes_no(bool b) { return b ? "true" : "false"; }

std::string location(const GraphNode& node) { return absl::StrCat(" (", location_of(node.origin), ")"); }

bool same_float(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

// Compares both recordings side by side, in the order of the program. Inputs are compared where they are first read, so
// a cause is reported before its consequences.
class Comparison {
 public:
  Comparison(const Graph& before, const Graph& now, std::span<const std::string> names)
      : before_(before), now_(now), names_(names), old_inputs_(positions(before)), new_inputs_(positions(now)) {}

  Difference run() {
    met_.assign(now_.inputs.size(), false);
    const size_t shared = std::min(before_.nodes.size(), now_.nodes.size());
    for (size_t i = 0; i < shared; ++i) compare_nodes(i);
    if (now_.nodes.size() > shared)
      differ(absl::StrCat("op ", shared, " is new: ", now_.nodes[shared].op->name, location(now_.nodes[shared])),
             now_.nodes.size() - shared);
    if (before_.nodes.size() > shared)
      differ(absl::StrCat("the recording ends after ", shared, " ops; before, ", before_.nodes[shared].op->name,
                          location(before_.nodes[shared]), " came next"),
             before_.nodes.size() - shared);
    const size_t inputs = std::min(before_.inputs.size(), now_.inputs.size());
    for (size_t i = 0; i < inputs; ++i)
      if (!met_[i]) compare_inputs(i, i);
    const size_t unpaired = std::max(before_.inputs.size(), now_.inputs.size()) - inputs;
    if (unpaired > 0) differ(absl::StrCat("inputs: ", before_.inputs.size(), " -> ", now_.inputs.size()), unpaired);
    if (result_.text.empty()) compare_outputs();
    return std::move(result_);
  }

 private:
  using Positions = HashMap<ValueId, size_t>;
  static Positions positions(const Graph& graph) {
    Positions result;
    for (size_t i = 0; i < graph.inputs.size(); ++i) result[graph.inputs[i]] = i;
    return result;
  }

  void differ(std::string text, size_t count = 1) {
    if (result_.text.empty()) result_.text = std::move(text);
    result_.count += static_cast<int64_t>(count);
  }

  std::string name(size_t input) const {
    if (input < names_.size() && !names_[input].empty()) return names_[input];
    std::string text = absl::StrCat("input #", input);
    for (const GraphNode& node : now_.nodes)
      for (ValueId id : node.inputs)
        if (id == now_.inputs[input]) return absl::StrCat(text, " (read by ", node.op->name, location(node), ")");
    return text;
  }

  void compare_inputs(size_t old_at, size_t new_at) {
    met_[new_at] = true;
    const Value &a = before_.value(before_.inputs[old_at]), &b = now_.value(now_.inputs[new_at]);
    auto changed = [&](const std::string& what, const std::string& from, const std::string& to) {
      differ(absl::StrCat(what, " of ", name(new_at), ": ", from, " -> ", to));
    };
    if (a.dtype != b.dtype) return changed("dtype", std::string(name_of(a.dtype)), std::string(name_of(b.dtype)));
    if (a.sizes.rank() != b.sizes.rank()) return changed("shape", rondo::to_string(a.sizes), rondo::to_string(b.sizes));
    for (int d = 0; d < a.sizes.rank(); ++d)
      if (a.sizes[d] != b.sizes[d])
        return changed(absl::StrCat("dim ", d), std::to_string(a.sizes[d]), std::to_string(b.sizes[d]));
    if (!(a.strides == b.strides)) return changed("strides", rondo::to_string(a.strides), rondo::to_string(b.strides));
    if (a.requires_grad != b.requires_grad)
      return changed("requires_grad", yes_no(a.requires_grad), yes_no(b.requires_grad));
    if (a.leaf != b.leaf) return changed("is_leaf", yes_no(a.leaf), yes_no(b.leaf));
  }

  // Describes an operand in words, without ids of values.
  std::string describe(const Graph& graph, const Positions& inputs, ValueId id) const {
    if (id == kNoValue) return "nothing";
    if (const auto at = inputs.find(id); at != inputs.end())
      return &graph == &now_ ? name(at->second) : absl::StrCat("input #", at->second);
    const int32_t producer = graph.value(id).producer;
    const GraphNode& node = graph.node(producer);
    const auto result = std::find(node.outputs.begin(), node.outputs.end(), id) - node.outputs.begin();
    return absl::StrCat(result == 0 ? "the result" : absl::StrCat("result ", result), " of op ", producer, ", ",
                        node.op->name);
  }

  // True if the operands are the same: inputs at the same position, or the same result of the same op.
  bool same_source(ValueId a, ValueId b) const {
    if (a == kNoValue || b == kNoValue) return a == b;
    const auto x = old_inputs_.find(a), y = new_inputs_.find(b);
    if (x != old_inputs_.end() || y != new_inputs_.end())
      return x != old_inputs_.end() && y != new_inputs_.end() && x->second == y->second;
    const int32_t from = before_.value(a).producer, to = now_.value(b).producer;
    if (from != to) return false;
    const auto& outs = before_.node(from).outputs;
    const auto& nows = now_.node(to).outputs;
    return std::find(outs.begin(), outs.end(), a) - outs.begin() ==
           std::find(nows.begin(), nows.end(), b) - nows.begin();
  }

  void compare_nodes(size_t i) {
    const GraphNode &a = before_.nodes[i], &b = now_.nodes[i];
    if (a.op != b.op)
      return differ(absl::StrCat("op ", i, " is ", b.op->name, location(b), ", was ", a.op->name, location(a)));
    const std::string op = absl::StrCat("op ", i, ", ", b.op->name, location(b));
    if (a.inputs.size() != b.inputs.size())
      return differ(absl::StrCat(op, ": ", a.inputs.size(), " -> ", b.inputs.size(), " operands"));
    for (size_t k = 0; k < a.inputs.size(); ++k) {
      const ValueId x = a.inputs[k], y = b.inputs[k];
      if (!same_source(x, y)) {
        // Reported in full, because "another tensor" is how aliasing and tied weights appear.
        differ(absl::StrCat("operand ", k, " of ", op, " is ", describe(now_, new_inputs_, y), ", was ",
                            describe(before_, old_inputs_, x)));
        continue;
      }
      if (const auto at = new_inputs_.find(y); y != kNoValue && at != new_inputs_.end() && !met_[at->second])
        compare_inputs(old_inputs_.at(x), at->second);
    }
    compare_attributes(a, b, op);
    if (a.outputs.size() != b.outputs.size())
      return differ(absl::StrCat(op, ": ", a.outputs.size(), " -> ", b.outputs.size(), " results"));
    for (size_t k = 0; k < a.outputs.size(); ++k) {
      const bool was = before_.value(a.outputs[k]).requires_grad, is = now_.value(b.outputs[k]).requires_grad;
      if (was == is) continue;
      differ(absl::StrCat("the result of ", op,
                          is ? " requires a gradient, and did not" : " requires no gradient, and did"));
    }
  }

  void compare_attributes(const GraphNode& a, const GraphNode& b, const std::string& op) {
    const auto &from = a.attrs, &to = b.attrs;
    if (from.ints.size() != to.ints.size() || from.floats.size() != to.floats.size())
      return differ(absl::StrCat("the number of attributes of ", op, " changed"));
    for (size_t k = 0; k < from.ints.size(); ++k)
      if (from.ints[k] != to.ints[k])
        return differ(absl::StrCat("integer ", k, " of ", op, ": ", from.ints[k], " -> ", to.ints[k]));
    for (size_t k = 0; k < from.floats.size(); ++k)
      if (const double was = from.floats[k].value(), is = to.floats[k].value(); !same_float(was, is))
        return differ(absl::StrCat("scalar ", k, " of ", op, ": ", exact_text(was), " -> ", exact_text(is)));
  }

  // The ops are equal, so both graphs have the same value ids.
  void compare_outputs() {
    auto missing = [](const std::vector<ValueId>& from, const std::vector<ValueId>& in) {
      std::vector<ValueId> result;
      for (ValueId id : from)
        if (std::find(in.begin(), in.end(), id) == in.end()) result.push_back(id);
      return result;
    };
    const std::vector<ValueId> more = missing(now_.outputs, before_.outputs),
                               less = missing(before_.outputs, now_.outputs);
    if (more.empty() && less.empty()) {
      if (before_.outputs != now_.outputs) return differ("outputs alive come in another order");
      for (ValueId id : now_.outputs)
        if (before_.value(id).hidden != now_.value(id).hidden)
          return differ(absl::StrCat(
              "outputs alive differ: ", describe(now_, new_inputs_, id),
              now_.value(id).hidden ? " is held by its views only, and was not" : " is held, and only its views were"));
      return;
    }
    const bool is_more = !more.empty();
    const ValueId id = is_more ? more[0] : less[0];
    const Graph& graph = is_more ? now_ : before_;
    const int32_t producer = graph.value(id).producer;
    std::string text = absl::StrCat("outputs alive differ: ", describe(graph, is_more ? new_inputs_ : old_inputs_, id));
    if (producer >= 0) text += location(graph.node(producer));
    differ(absl::StrCat(text, is_more ? " is kept, and was not" : " is not kept any more"), more.size() + less.size());
  }

  const Graph &before_, &now_;
  std::span<const std::string> names_;
  const Positions old_inputs_, new_inputs_;
  std::vector<bool> met_;  // inputs of `now` that were compared
  Difference result_;
};

}  // namespace

Difference difference(const Graph& before, const Graph& now, std::span<const std::string> input_names) {
  return Comparison(before, now, input_names).run();
}

std::string nearest_difference(std::span<const Graph* const> before, const Graph& now,
                               std::span<const std::string> input_names) {
  Difference nearest;
  bool first = true;
  for (const Graph* graph : before) {
    Difference d = difference(*graph, now, input_names);
    if (first || d.count <= nearest.count) nearest = std::move(d);
    first = false;
  }
  return nearest.text;
}

std::vector<std::string> name_inputs(const nn::ModuleBase& module, std::span<const Tensor> inputs) {
  HashMap<const TensorImpl*, std::string> names;
  for (const nn::NamedTensor& p : module.named_parameters())
    names[p.tensor.impl()] = absl::StrCat("parameter \"", p.name, "\"");
  for (const nn::NamedTensor& b : module.named_buffers())
    names[b.tensor.impl()] = absl::StrCat("buffer \"", b.name, "\"");
  std::vector<std::string> result;
  for (const Tensor& input : inputs) {
    const auto found = names.find(input.impl());
    result.push_back(found == names.end() ? "" : found->second);
  }
  return result;
}

}  // namespace rondo::compile
