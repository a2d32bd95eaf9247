// What the verifier of graphs refuses: each rule, by a graph that breaks only this one.
#include "rondo/compile/ir/graph.h"

#include <gtest/gtest.h>

#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo::compile {
namespace {

// %1 = tanh(%0), %2 = exp(%1), %3 = %1 + %2
Graph three_ops() {
  const Tensor x = Tensor::ones({2, 3});
  return record([&] {
    const Tensor y = ops::tanh(x), z = ops::exp(y);
    return std::vector<Tensor>{y + z};
  });
}

// The message of verify() after `damage`.
template <class F> std::string refused(F damage) {
  Graph graph = three_ops();
  verify(graph);
  damage(graph);
  return test::error_of<InternalError>([&] { verify(graph); });
}

void expect_refused(const std::string& message, const char* why) {
  EXPECT_NE(message.find(why), std::string::npos) << "\"" << message << "\" has no \"" << why << "\"";
}

TEST(VerifyGraph, ValuesAreDefinedBeforeTheyAreUsed) {
  expect_refused(refused([](Graph& g) { g.nodes[0].inputs[0] = g.nodes[1].outputs[0]; }), "used before it is defined");
  expect_refused(refused([](Graph& g) { g.nodes[0].inputs[0] = 99; }), "used before it is defined");
  expect_refused(refused([](Graph& g) { g.outputs[0] = 99; }), "an undefined output");
}
TEST(VerifyGraph, ValuesAreDefinedOnce) {
  expect_refused(refused([](Graph& g) { g.nodes[1].outputs[0] = g.nodes[0].outputs[0]; }), "defined twice");
}
TEST(VerifyGraph, ValuesNameTheirProducer) {
  expect_refused(refused([](Graph& g) { g.value(g.nodes[1].outputs[0]).producer = 0; }), "the wrong producer");
  expect_refused(refused([](Graph& g) { g.value(g.inputs[0]).producer = 0; }), "the wrong producer");
}
TEST(VerifyGraph, ResultsAreWhatTheOpGives) {
  expect_refused(refused([](Graph& g) { g.value(g.nodes[2].outputs[0]).dtype = kF64; }), "are not what add gives");
  expect_refused(refused([](Graph& g) { g.value(g.nodes[2].outputs[0]).sizes = {3, 2}; }), "are not what add gives");
}
TEST(VerifyGraph, OnlyViewsShareMemory) {
  expect_refused(refused([](Graph& g) { g.value(g.nodes[1].outputs[0]).root = g.nodes[0].outputs[0]; }),
                 "only views and parts share memory");
}

}  // namespace
}  // namespace rondo::compile
