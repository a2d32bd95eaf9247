// The arithmetic behind the fake's cudnnBackendExecute: a graph is evaluated node by node in f64, and each value is
// rounded to the type of its tensor. Its loops are its own, so that they check the graphs that the runtime builds.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rondo/runtime/cuda/cudnn.h"

namespace rondo::fake_cuda {

struct GraphTensor {
  int64_t id = 0, alignment = 0;
  cuda::DnnData type{};
  std::vector<int64_t> sizes, strides;
  bool is_virtual = false, by_value = false;
  int64_t elements() const;
  int64_t extent() const;  // elements from the first to behind the last, as they lie in memory
};

struct GraphNode {
  cuda::DnnKind kind{};
  int function = 0;
  cuda::DnnData computes{};
  std::vector<int64_t> inputs = {};  // ids
  int64_t output = 0, axis = -1;
  std::vector<int64_t> stride = {}, dilation = {}, before = {}, after = {};
};

struct Graph {
  std::map<int64_t, GraphTensor> tensors;
  std::vector<GraphNode> nodes;
};

size_t dnn_bytes(cuda::DnnData type);
// `addresses`: of all tensors that are not virtual.
void compute(const Graph& graph, const std::map<int64_t, const void*>& addresses);

}  // namespace rondo::fake_cuda
