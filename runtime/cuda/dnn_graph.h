// DnnGraph: a computation for cuDNN as plain data: tensors and the operations between them. The text of a graph is its
// key in caches; dnn_plan.h makes a plan of a graph.
//
//   DnnGraph graph = convolution_graph({...});
//   const std::shared_ptr<const DnnPlan> plan = DnnPlan::get(device, graph, "a convolution");   // see usable()
//
// Note [Addresses of a graph]. Tensors of kind kOperand have addresses: DnnPlan::enqueue() takes one for each, in the
//   order in which the tensors were added. Intermediate values (kBetween) have no address. A scratch tensor (kScratch)
//   lies in the workspace, and a number (kNumber) in host memory.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/cuda/cudnn.h"

namespace rondo::cuda {

DnnData dnn_type(DType dtype);
size_t element_bytes(DnnData type);

struct DnnTensor {
  enum class Place : uint8_t { kOperand, kBetween, kScratch, kNumber };
  Place place = Place::kOperand;
  DnnData type = DnnData::kF32;
  std::vector<int64_t> sizes, strides;
  double number = 0;  // the value, if the tensor is a kNumber

  int64_t elements() const;
};

struct DnnNode {
  enum class Does : uint8_t {
    kConvolve,            // inputs x, w
    kConvolveGradInput,   // inputs dy, w
    kConvolveGradWeight,  // inputs dy, x
    kPointwise,           // inputs x, b, t, as the function takes them
    kMatmul,              // inputs a, b
    kReduce,              // input x; reduces it to the sizes of the output
    kReshape,             // input x
  };
  Does does = Does::kPointwise;
  int function = 0;  // a DnnPointwise or DnnReduction
  DnnData computes = DnnData::kF32;
  std::array<int, 3> inputs = {-1, -1, -1};  // indices of tensors
  int output = -1;
  int64_t axis = -1;  // the dimension of DnnPointwise::kIndex
  std::array<int64_t, 2> stride = {1, 1}, dilation = {1, 1}, before = {0, 0}, after = {0, 0};
};

struct DnnGraph {
  std::vector<DnnTensor> tensors;
  std::vector<DnnNode> nodes;
  // Limits on the engines that may serve the graph. In any case an engine must give the same results in every run, and
  // sum in f32.
  bool fast = false;                   // f32 operands may be rounded to TF32
  int64_t most_workspace = 1ll << 30;  // bytes that an engine may ask for

  // Add a tensor, and a number (kNumber). Both return the index of the new tensor.
  int add(DnnTensor tensor);
  int number(double value, DnnData type = DnnData::kF32);
  // Adds an intermediate value, which is dense. Returns its index.
  int between(std::vector<int64_t> sizes, DnnData type = DnnData::kF32);
  // Adds an operation whose result is the tensor `output`.
  void pointwise(DnnPointwise function, int output, int x, int b = -1, int t = -1, DnnData computes = DnnData::kF32);
  // Adds an i32 value: the index of each element of `x` along `axis`. Returns the index of the new tensor.
  int index_along(int x, int64_t axis);
  void matmul(int output, int a, int b);
  void reduce(DnnReduction function, int output, int x);
  void reshape(int output, int x);

  // Returns the whole graph as text: equal graphs have equal texts.
  std::string text() const;
};

// ---- Convolutions of (B, C, H, W) by (O, C / groups, kh, kw) to (B, O, oh, ow)

struct DnnConvolution {
  enum class Computes : uint8_t { kOutput, kInput, kWeight };
  Computes computes = Computes::kOutput;
  DType dtype = kF32;
  bool bias = false, relu = false;  // kOutput: adds a bias, then max(y, 0); sums are rounded once, after both
  bool fast = false;
  // Layouts in memory. False: (B, C, H, W); true: channels last.
  bool input_last = false, weight_last = false, output_last = false;
  std::array<int64_t, 4> input = {}, weight = {}, output = {};
  std::array<int64_t, 2> stride = {1, 1}, dilation = {1, 1}, before = {0, 0}, after = {0, 0};

  friend bool operator==(const DnnConvolution&, const DnnConvolution&) = default;
  std::string describe() const;  // "conv2d of [8, 3, 32, 32] with a weight [16, 3, 3, 3] in bf16"
};
// Returns the graph of a convolution. Its operands are, for kOutput: x, w, the bias if there is one, y; for kInput: dy,
// w, dx; for kWeight: dy, x, dw.
DnnGraph convolution_graph(const DnnConvolution& convolution);

}  // namespace rondo::cuda
