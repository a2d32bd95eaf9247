#include "rondo/runtime/cuda/dnn_graph.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"

namespace rondo::cuda {
namespace {

std::vector<int64_t> dense_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t n = 1;
  for (size_t d = sizes.size(); d-- > 0; n *= sizes[d]) strides[d] = n;
  return strides;
}

// Returns the strides of a dense (B, C, H, W) array. `last`: its layout in memory is channels last.
std::vector<int64_t> strides_of(const std::array<int64_t, 4>& s, bool last) {
  if (!last) return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1};
  return {s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]};
}

std::string bracketed(const std::array<int64_t, 4>& sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

}  // namespace

DnnData dnn_type(DType dtype) {
  switch (dtype) {
    case kF64: return DnnData::kF64;
    case kF32: return DnnData::kF32;
    case kF16: return DnnData::kF16;
    case kBF16: return DnnData::kBF16;
    case kI64: return DnnData::kI64;
    case kI32: return DnnData::kI32;
    default: return DnnData::kBool;
  }
}
size_t element_bytes(DnnData type) {
  switch (type) {
    case DnnData::kF64:
    case DnnData::kI64: return 8;
    case DnnData::kF32:
    case DnnData::kI32: return 4;
    case DnnData::kF16:
    case DnnData::kBF16: return 2;
    case DnnData::kBool: return 1;
  }
  throw_internal("a type of cuDNN without a size");
}

int64_t DnnTensor::elements() const {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

int DnnGraph::add(DnnTensor tensor) {
  tensors.push_back(std::move(tensor));
  return static_cast<int>(tensors.size()) - 1;
}
int DnnGraph::number(double value, DnnData type) {
  return add({.place = DnnTensor::Place::kNumber,
              .type = type,
              .sizes = {1, 1, 1, 1},
              .strides = {1, 1, 1, 1},
              .number = value});
}
int DnnGraph::between(std::vector<int64_t> sizes, DnnData type) {
  std::vector<int64_t> strides = dense_strides(sizes);
  return add({DnnTensor::Place::kBetween, type, std::move(sizes), std::move(strides)});
}
void DnnGraph::pointwise(DnnPointwise function, int output, int x, int b, int t, DnnData computes) {
  nodes.push_back({.does = DnnNode::Does::kPointwise,
                   .function = static_cast<int>(function),
                   .computes = computes,
                   .inputs = {x, b, t},
                   .output = output});
}
int DnnGraph::index_along(int x, int64_t axis) {
  const int index = between(tensors[static_cast<size_t>(x)].sizes, DnnData::kI32);
  pointwise(DnnPointwise::kIndex, index, x, -1, -1, DnnData::kI32);
  nodes.back().axis = axis;
  return index;
}
void DnnGraph::matmul(int output, int a, int b) {
  nodes.push_back({.does = DnnNode::Does::kMatmul, .inputs = {a, b, -1}, .output = output});
}
void DnnGraph::reduce(DnnReduction function, int output, int x) {
  nodes.push_back({.does = DnnNode::Does::kReduce,
                   .function = static_cast<int>(function),
                   .inputs = {x, -1, -1},
                   .output = output});
}
void DnnGraph::reshape(int output, int x) {
  nodes.push_back({.does = DnnNode::Does::kReshape, .inputs = {x, -1, -1}, .output = output});
}

std::string DnnGraph::text() const {
  std::string text = absl::StrCat("cuDNN graph ", fast ? "fast " : "", "workspace ", most_workspace, "\n");
  for (const DnnTensor& t : tensors)
    absl::StrAppend(&text, "tensor ", static_cast<int>(t.place), " ", static_cast<int>(t.type), " [",
                    absl::StrJoin(t.sizes, " "), "] [", absl::StrJoin(t.strides, " "), "]",
                    t.place == DnnTensor::Place::kNumber ? formatted(" %a", t.number) : "", "\n");
  for (const DnnNode& n : nodes) {
    absl::StrAppend(&text, "node ", static_cast<int>(n.does), " ", n.function, " ", static_cast<int>(n.computes), " (",
                    absl::StrJoin(n.inputs, " "), ") ", n.output, " ", n.axis);
    if (n.does <= DnnNode::Does::kConvolveGradWeight)
      for (const auto* numbers : {&n.stride, &n.dilation, &n.before, &n.after})
        absl::StrAppend(&text, " ", (*numbers)[0], "x", (*numbers)[1]);
    text += '\n';
  }
  return text;
}

std::string DnnConvolution::describe() const {
  const char* const what = computes == Computes::kOutput  ? "conv2d"
                           : computes == Computes::kInput ? "conv2d_grad_input"
                                                          : "conv2d_grad_weight";
  return absl::StrCat(what, " of ", bracketed(input), " with a weight ", bracketed(weight), bias ? " + bias" : "",
                      relu ? ", relu" : "", input_last ? ", channels last," : "", " in ", std::string(name_of(dtype)));
}

DnnGraph convolution_graph(const DnnConvolution& c) {
  DnnGraph graph;
  graph.fast = c.fast;
  const DnnData type = dnn_type(c.dtype);
  const auto tensor = [&](const std::array<int64_t, 4>& sizes, bool last) {
    return graph.add({.type = type, .sizes = {sizes.begin(), sizes.end()}, .strides = strides_of(sizes, last)});
  };
  DnnNode node{.stride = c.stride, .dilation = c.dilation, .before = c.before, .after = c.after};
  using Computes = DnnConvolution::Computes;
  if (c.computes == Computes::kInput) {
    const int dy = tensor(c.output, c.output_last), w = tensor(c.weight, c.weight_last);
    node.does = DnnNode::Does::kConvolveGradInput;
    node.inputs = {dy, w, -1};
    node.output = tensor(c.input, c.input_last);
    graph.nodes.push_back(node);
    return graph;
  }
  if (c.computes == Computes::kWeight) {
    const int dy = tensor(c.output, c.output_last), x = tensor(c.input, c.input_last);
    node.does = DnnNode::Does::kConvolveGradWeight;
    node.inputs = {dy, x, -1};
    node.output = tensor(c.weight, c.weight_last);
    graph.nodes.push_back(node);
    return graph;
  }
  node.does = DnnNode::Does::kConvolve;
  const int x = tensor(c.input, c.input_last), w = tensor(c.weight, c.weight_last);
  node.inputs = {x, w, -1};
  const int64_t outputs = c.output[1];
  const int bias = c.bias ? graph.add({.type = type, .sizes = {1, outputs, 1, 1}, .strides = {outputs, 1, 1, 1}}) : -1;
  const int y = tensor(c.output, c.output_last);
  // Intermediate values are f32 and have y's layout.
  const auto between = [&] {
    DnnTensor t = graph.tensors[static_cast<size_t>(y)];
    t.place = DnnTensor::Place::kBetween;
    t.type = DnnData::kF32;
    return graph.add(std::move(t));
  };
  int now = c.bias || c.relu ? between() : y;
  node.output = now;
  graph.nodes.push_back(node);
  if (c.bias) {
    const int sum = c.relu ? between() : y;
    graph.pointwise(DnnPointwise::kAdd, sum, now, bias);
    now = sum;
  }
  if (c.relu) graph.pointwise(DnnPointwise::kRelu, y, now);
  return graph;
}

}  // namespace rondo::cuda
