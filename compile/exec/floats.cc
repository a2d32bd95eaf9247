#include "rondo/compile/exec/floats.h"

#include <algorithm>

namespace rondo::compile {

namespace {

// Calls scalars(float) for each scalar of a kernel, in order; then calls(attrs) for each library call that has floats.
template <class Scalars, class Calls> void visit(const Plan& plan, const Graph& graph, Scalars scalars, Calls calls) {
  for (const LoweredUnit& unit : plan.kernels)
    for (const Scalar& scalar : unit.scalars)
      if (scalar.kind == Scalar::Kind::kArgument)
        scalars(graph.node(scalar.node).attrs.floats[static_cast<size_t>(scalar.position)]);
  for (const Launch& launch : plan.launches)
    if (launch.floats >= 0) calls(graph.node(launch.op()).attrs);
}

}  // namespace

Floats floats_for(const Plan& plan, const Graph& graph) {
  Floats floats;
  visit(
      plan, graph, [&](SymFloat scalar) { floats.scalars.push_back(scalar.value()); },
      [&](const Attrs& attrs) {
        Attrs& plain = floats.attrs.emplace_back(attrs);
        for (size_t i = 0; i < attrs.floats.size(); ++i) plain.floats[i] = attrs.floats[i].value();
      });
  return floats;
}

FloatFormulas formulas_for(const Plan& plan) {
  std::vector<SymFloat> numbers;
  visit(
      plan, plan.graph, [&](SymFloat scalar) { numbers.push_back(scalar); },
      [&](const Attrs& attrs) { numbers.insert(numbers.end(), attrs.floats.begin(), attrs.floats.end()); });
  return formulas_of(numbers);
}

Floats floats_at(const Plan& plan, const FloatFormulas& formulas, std::span<const double> recorded) {
  FloatFormulas::Registers registers;
  formulas.evaluate(recorded, registers);
  const int32_t* result = formulas.results.data();
  const auto next = [&] { return registers[static_cast<size_t>(*result++)]; };
  Floats floats;
  size_t attributes = 0;
  for (const Launch& launch : plan.launches)
    if (launch.floats >= 0) attributes += plan.graph.node(launch.op()).attrs.floats.size();
  floats.scalars.resize(formulas.results.size() - attributes);
  for (double& scalar : floats.scalars) scalar = next();
  if (attributes == 0) return floats;
  for (const Launch& launch : plan.launches) {
    if (launch.floats < 0) continue;
    Attrs& attrs = floats.attrs.emplace_back(plan.graph.node(launch.op()).attrs);
    for (size_t i = 0; i < attrs.floats.size(); ++i) attrs.floats[i] = next();
  }
  return floats;
}

Graph with_floats(const Plan& plan, const Floats& floats) {
  Graph graph = plan.graph;
  size_t next = 0;
  for (const LoweredUnit& unit : plan.kernels)
    for (const Scalar& scalar : unit.scalars)
      if (scalar.kind == Scalar::Kind::kArgument)
        graph.node(scalar.node).attrs.floats[static_cast<size_t>(scalar.position)] = floats.scalars[next++];
  for (const Launch& launch : plan.launches)
    if (launch.floats >= 0) graph.node(launch.op()).attrs = floats.attrs[static_cast<size_t>(launch.floats)];
  return graph;
}

bool same_but_floats(const Graph& a, const Graph& b) {
  const auto same_value = [](const Value& x, const Value& y) {
    return x.dtype == y.dtype && x.requires_grad == y.requires_grad && x.leaf == y.leaf && x.grad_mode == y.grad_mode &&
           x.hidden == y.hidden && x.producer == y.producer && x.root == y.root && x.offset == y.offset &&
           x.sizes == y.sizes && x.strides == y.strides;
  };
  const auto same_node = [](const GraphNode& x, const GraphNode& y) {
    return x.op == y.op && x.inputs == y.inputs && x.outputs == y.outputs && x.attrs.ints == y.attrs.ints &&
           x.attrs.floats.size() == y.attrs.floats.size();
  };
  return a.inputs == b.inputs && a.outputs == b.outputs &&
         std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(), same_node) &&
         std::equal(a.values.begin(), a.values.end(), b.values.begin(), b.values.end(), same_value);
}

}  // namespace rondo::compile
