// Recording a graph outside of any region.
#pragma once

#include <vector>

#include "rondo/compile/capture/trace.h"

namespace rondo::compile {

// The computation of `body` as a graph; its outputs are the tensors that `body` returns.
template <class Body> Graph record(Body body) {
  Trace trace;
  RecorderScope scope(&trace);
  const std::vector<Tensor> outputs = body();
  for (const Tensor& out : outputs) trace.graph.outputs.push_back(trace.value_of(out));
  return std::move(trace.graph);
}

}  // namespace rondo::compile
