#include "rondo/compile/ir/parse.h"

#include "absl/strings/str_cat.h"

namespace rondo::compile {
namespace {

// Far above any recording; prevents damaged text from allocating all memory.
constexpr int64_t kMaxValues = 1 << 20;
// The largest size, stride or offset that is accepted: larger than any memory, and a product of two is exact
// in an absl::int128.
constexpr int64_t kMost = int64_t{1} << 48;

class GraphParser {
 public:
  GraphParser(Scanner& in, OpList own) : in_(in), own_(own) {}

  Graph run() {
    while (in_.accept("input")) {
      graph_.inputs.push_back(define(-1));
      in_.end_line();
    }
    while (!in_.accept("return")) node();
    while (!in_.at_end_of_line()) graph_.outputs.push_back(value());
    in_.end_line();
    for (ValueId id : graph_.outputs) require(id);
    for (size_t i = 0; i < defined_.size(); ++i)
      if (defined_[i]) require(graph_.values[i].root);
    return std::move(graph_);
  }

 private:
  void require(ValueId id) {
    if (id >= 0 && id < std::ssize(graph_.values) && defined_[static_cast<size_t>(id)]) return;
    in_.fail(absl::StrCat("%", id, " is not defined"));
  }

  ValueId value() {
    if (in_.accept("none")) return kNoValue;
    in_.expect("%");
    const int64_t id = in_.integer();
    if (id < 0 || id >= kMaxValues) in_.fail("a value's number is out of range");
    return static_cast<ValueId>(id);
  }

  int64_t number() {
    const int64_t value = in_.integer();
    if (value <= -kMost || value >= kMost) in_.fail(absl::StrCat(value, " is out of range"));
    return value;
  }

  Dims dims() {
    Dims dims;
    in_.expect("[");
    while (!in_.accept("]")) {
      if (dims.rank() > 0) in_.expect(",");
      if (dims.rank() == kMaxRank) in_.fail("too many dimensions");
      dims.push_back(number());
    }
    return dims;
  }

  ValueId define(int32_t producer) {
    const ValueId id = value();
    if (id == kNoValue) in_.fail("\"none\" cannot be defined");
    if (id >= std::ssize(graph_.values)) {
      // The ids up to this one get empty values, whose root is the value itself. They may be defined later, or never.
      for (auto next = static_cast<ValueId>(graph_.values.size()); next <= id; ++next)
        graph_.values.emplace_back().root = next;
      defined_.resize(graph_.values.size());
    }
    if (defined_[static_cast<size_t>(id)]) in_.fail(absl::StrCat("%", id, " is defined twice"));
    defined_[static_cast<size_t>(id)] = true;
    Value v;
    v.producer = producer;
    v.root = id;
    in_.expect(":");
    v.dtype = in_.dtype();
    v.sizes = dims();
    if (const int64_t numel = checked_numel(v.sizes); numel < 0 || numel >= kMost) in_.fail("sizes are out of range");
    v.strides = contiguous_strides(v.sizes);
    if (in_.accept("strides")) v.strides = dims();
    if (v.strides.rank() != v.sizes.rank()) in_.fail("as many strides as sizes are needed");
    if (in_.accept("of")) v.root = value();
    if (in_.accept("at")) v.offset = number();
    v.requires_grad = in_.accept("grad");
    v.leaf = in_.accept("leaf");
    graph_.value(id) = v;
    return id;
  }

  void node() {
    GraphNode node;
    const auto index = static_cast<int32_t>(graph_.nodes.size());
    do node.outputs.push_back(define(index));
    while (in_.accept(","));
    in_.expect("=");
    const std::string_view name = in_.word();
    node.op = op_named(name);
    if (node.op == nullptr) in_.fail(absl::StrCat("no op \"", std::string(name), "\""));
    in_.expect("(");
    for (bool first = true; !in_.accept(")"); first = false) {
      if (!first) in_.expect(",");
      operand(node);
    }
    if (node.op->kind == OpKind::kView && (node.inputs.empty() || node.inputs[0] == kNoValue))
      in_.fail("a view of nothing");
    in_.end_line();
    graph_.nodes.push_back(std::move(node));
  }

  const OpDef* op_named(std::string_view name) const {
    for (const OpDef* op : own_)
      if (name == op->name) return op;
    return find_op(name);
  }

  void operand(GraphNode& node) {
    if (in_.next_is("%") || in_.next_is("none")) {
      node.inputs.push_back(value());
      if (node.inputs.back() != kNoValue) require(node.inputs.back());
      return;
    }
    if (in_.next_is_integer()) add(node.attrs.ints, in_.integer());
    else add(node.attrs.floats, in_.real());
  }

  template <class List, class T> void add(List& list, T value) {
    try {
      list.push_back(value);
    } catch (const Error& e) {  // more attributes than a node can hold
      in_.fail(e.what());
    }
  }

  Scanner& in_;
  OpList own_;
  Graph graph_;
  std::vector<bool> defined_;
};

}  // namespace

Graph parse_graph(Scanner& in, OpList own) { return GraphParser(in, own).run(); }

Graph parse_graph(std::string_view text, OpList own) {
  Scanner in(text);
  if (in.at_end()) in.fail("no graph");
  Graph graph = parse_graph(in, own);
  if (!in.at_end()) in.fail("nothing more was expected");
  return graph;
}

}  // namespace rondo::compile
