#include "rondo/tests/fake_cuda/dnn_compute.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "rondo/runtime/base/dtype.h"

namespace rondo::fake_cuda {
namespace {

using cuda::DnnData;
using cuda::DnnKind;
using cuda::DnnPointwise;
using cuda::DnnReduction;

double load(DnnData type, const void* data, int64_t i) {
  switch (type) {
    case DnnData::kF64: return static_cast<const double*>(data)[i];
    case DnnData::kF32: return static_cast<const float*>(data)[i];
    case DnnData::kBF16: return static_cast<float>(static_cast<const BFloat16*>(data)[i]);
    case DnnData::kF16: return static_cast<float>(static_cast<const Float16*>(data)[i]);
    case DnnData::kI32: return static_cast<const int32_t*>(data)[i];
    case DnnData::kI64: return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    case DnnData::kBool: return static_cast<const unsigned char*>(data)[i] != 0 ? 1 : 0;
  }
  std::abort();
}
void store(DnnData type, void* data, int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  switch (type) {
    case DnnData::kF64: static_cast<double*>(data)[i] = value; break;
    case DnnData::kF32: static_cast<float*>(data)[i] = narrow; break;
    case DnnData::kBF16: static_cast<BFloat16*>(data)[i] = BFloat16(narrow); break;
    case DnnData::kF16: static_cast<Float16*>(data)[i] = Float16(narrow); break;
    case DnnData::kI32: static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value); break;
    case DnnData::kI64: static_cast<int64_t*>(data)[i] = static_cast<int64_t>(value); break;
    case DnnData::kBool: static_cast<unsigned char*>(data)[i] = value != 0 ? 1 : 0; break;
  }
}
double rounded(DnnData type, double value) {
  alignas(8) std::byte bytes[8];
  store(type, bytes, 0, value);
  return load(type, bytes, 0);
}

using Index = std::vector<int64_t>;
// fn(index, position in row-major order) for each element.
template <class F> void each(const std::vector<int64_t>& sizes, F fn) {
  Index at(sizes.size(), 0);
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  for (int64_t i = 0; i < n; ++i) {
    fn(at, i);
    for (size_t d = sizes.size(); d-- > 0;) {
      if (++at[d] < sizes[d]) break;
      at[d] = 0;
    }
  }
}

class Evaluation {
 public:
  Evaluation(const Graph& graph, const std::map<int64_t, const void*>& addresses)
      : graph_(graph), addresses_(addresses) {}

  void run() {
    for (const GraphNode& node : graph_.nodes) {
      const GraphTensor& to = tensor(node.output);
      std::vector<double> result = evaluate(node, to);
      for (double& value : result) value = rounded(to.type, value);
      if (!to.is_virtual)
        each(to.sizes, [&](const Index& at, int64_t i) {
          store(to.type, const_cast<void*>(addresses_.at(to.id)), offset(to, at), result[static_cast<size_t>(i)]);
        });
      values_[to.id] = std::move(result);
    }
  }

 private:
  const GraphTensor& tensor(int64_t id) const { return graph_.tensors.at(id); }
  static int64_t offset(const GraphTensor& t, const Index& at) {
    int64_t sum = 0;
    for (size_t d = 0; d < at.size(); ++d) sum += at[d] * t.strides[d];
    return sum;
  }
  // The elements in row-major order.
  const std::vector<double>& values(int64_t id) {
    const auto found = values_.find(id);
    if (found != values_.end()) return found->second;
    const GraphTensor& t = tensor(id);
    std::vector<double> read(static_cast<size_t>(t.elements()));
    const void* const data = addresses_.at(id);
    each(t.sizes,
         [&](const Index& at, int64_t i) { read[static_cast<size_t>(i)] = load(t.type, data, offset(t, at)); });
    return values_[id] = std::move(read);
  }
  // The element at `at` of a larger array; dimensions of one element broadcast, and smaller ones are groups.
  double at(int64_t id, const Index& at, const std::vector<int64_t>& sizes) {
    const GraphTensor& t = tensor(id);
    int64_t position = 0;
    for (size_t d = 0; d < at.size(); ++d) position = position * t.sizes[d] + at[d] / (sizes[d] / t.sizes[d]);
    return values(id)[static_cast<size_t>(position)];
  }

  std::vector<double> evaluate(const GraphNode& node, const GraphTensor& to) {
    switch (node.kind) {
      case DnnKind::kConvolutionForward:
      case DnnKind::kConvolutionBackwardData:
      case DnnKind::kConvolutionBackwardFilter: return convolution(node, to);
      case DnnKind::kPointwiseOperation: return pointwise(node, to);
      case DnnKind::kMatmulOperation: return matmul(node, to);
      case DnnKind::kReductionOperation: return reduction(node, to);
      default: return reshape(node, to);
    }
  }

  std::vector<double> convolution(const GraphNode& node, const GraphTensor& to) {
    const bool forward = node.kind == DnnKind::kConvolutionForward,
               data = node.kind == DnnKind::kConvolutionBackwardData;
    const GraphTensor &x = forward ? tensor(node.inputs[0])
                           : data  ? to
                                   : tensor(node.inputs[1]),
                      &w = forward || data ? tensor(node.inputs[1]) : to, &y = forward ? to : tensor(node.inputs[0]);
    std::vector<double> result(static_cast<size_t>(to.elements()), 0.0);
    const std::vector<double>&a = values(node.inputs[0]), &b = values(node.inputs[1]);
    const int64_t each_group = w.sizes[1], outputs_of_group = w.sizes[0] / (x.sizes[1] / each_group);
    for (int64_t n = 0; n < y.sizes[0]; ++n)
      for (int64_t o = 0; o < y.sizes[1]; ++o)
        for (int64_t c = 0; c < each_group; ++c) {
          const int64_t channel = o / outputs_of_group * each_group + c;
          for (int64_t i = 0; i < y.sizes[2]; ++i)
            for (int64_t j = 0; j < y.sizes[3]; ++j)
              for (int64_t p = 0; p < w.sizes[2]; ++p)
                for (int64_t q = 0; q < w.sizes[3]; ++q) {
                  const int64_t row = i * node.stride[0] + p * node.dilation[0] - node.before[0],
                                column = j * node.stride[1] + q * node.dilation[1] - node.before[1];
                  if (row < 0 || column < 0 || row >= x.sizes[2] || column >= x.sizes[3]) continue;
                  const auto at_x = static_cast<size_t>(((n * x.sizes[1] + channel) * x.sizes[2] + row) * x.sizes[3] +
                                                        column);
                  const auto at_w = static_cast<size_t>(((o * each_group + c) * w.sizes[2] + p) * w.sizes[3] + q);
                  const auto at_y = static_cast<size_t>(((n * y.sizes[1] + o) * y.sizes[2] + i) * y.sizes[3] + j);
                  if (forward) result[at_y] += a[at_x] * b[at_w];
                  else if (data) result[at_x] += a[at_y] * b[at_w];
                  else result[at_w] += a[at_y] * b[at_x];
                }
        }
    return result;
  }

  std::vector<double> pointwise(const GraphNode& node, const GraphTensor& to) {
    std::vector<double> result(static_cast<size_t>(to.elements()));
    each(to.sizes, [&](const Index& index, int64_t i) {
      const auto in = [&](size_t k) { return at(node.inputs.at(k), index, to.sizes); };
      double& y = result[static_cast<size_t>(i)];
      switch (static_cast<DnnPointwise>(node.function)) {
        case DnnPointwise::kAdd: y = in(0) + in(1); break;
        case DnnPointwise::kMul: y = in(0) * in(1); break;
        case DnnPointwise::kDiv: y = in(0) / in(1); break;
        case DnnPointwise::kSub: y = in(0) - in(1); break;
        case DnnPointwise::kExp: y = std::exp(in(0)); break;
        case DnnPointwise::kLog: y = std::log(in(0)); break;
        case DnnPointwise::kIdentity: y = in(0); break;
        case DnnPointwise::kRelu: y = in(0) < 0 ? 0 : in(0); break;
        case DnnPointwise::kGreaterEqual: y = in(0) >= in(1) ? 1 : 0; break;
        case DnnPointwise::kIndex: y = static_cast<double>(index[static_cast<size_t>(node.axis)]); break;
        case DnnPointwise::kSelect: y = in(2) != 0 ? in(0) : in(1); break;
      }
    });
    return result;
  }

  std::vector<double> matmul(const GraphNode& node, const GraphTensor& to) {
    const GraphTensor &a = tensor(node.inputs[0]), &b = tensor(node.inputs[1]);
    std::vector<double> result(static_cast<size_t>(to.elements()), 0.0);
    std::vector<int64_t> sizes_a = to.sizes, sizes_b = to.sizes;
    const int64_t k = a.sizes[3];
    sizes_a[3] = k, sizes_b[2] = k;
    each(to.sizes, [&](const Index& index, int64_t i) {
      Index in_a = index, in_b = index;
      double sum = 0;
      for (int64_t t = 0; t < k; ++t) {
        in_a[3] = t, in_b[2] = t;
        sum += at(a.id, in_a, sizes_a) * at(b.id, in_b, sizes_b);
      }
      result[static_cast<size_t>(i)] = sum;
    });
    return result;
  }

  std::vector<double> reduction(const GraphNode& node, const GraphTensor& to) {
    const GraphTensor& x = tensor(node.inputs[0]);
    const bool adds = static_cast<DnnReduction>(node.function) == DnnReduction::kAdd;
    std::vector<double> result(static_cast<size_t>(to.elements()), adds ? 0.0 : -INFINITY);
    const std::vector<double>& from = values(x.id);
    each(x.sizes, [&](const Index& index, int64_t i) {
      int64_t position = 0;
      for (size_t d = 0; d < index.size(); ++d)
        position = position * to.sizes[d] + index[d] / (x.sizes[d] / to.sizes[d]);
      double& y = result[static_cast<size_t>(position)];
      const double value = from[static_cast<size_t>(i)];
      if (adds) y += value;
      else if (std::isnan(value) || value > y) y = value;
    });
    return result;
  }

  // The same memory with other sizes and strides.
  std::vector<double> reshape(const GraphNode& node, const GraphTensor& to) {
    const GraphTensor& x = tensor(node.inputs[0]);
    std::vector<double> memory(static_cast<size_t>(x.extent())), result(static_cast<size_t>(to.elements()));
    const std::vector<double>& from = values(x.id);
    each(x.sizes, [&](const Index& at, int64_t i) {
      memory[static_cast<size_t>(offset(x, at))] = from[static_cast<size_t>(i)];
    });
    each(to.sizes, [&](const Index& at, int64_t i) {
      result[static_cast<size_t>(i)] = memory.at(static_cast<size_t>(offset(to, at)));
    });
    return result;
  }

  const Graph& graph_;
  const std::map<int64_t, const void*>& addresses_;
  std::map<int64_t, std::vector<double>> values_;
};

}  // namespace

int64_t GraphTensor::elements() const {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}
int64_t GraphTensor::extent() const {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
  return last + 1;
}

size_t dnn_bytes(DnnData type) {
  switch (type) {
    case DnnData::kF64:
    case DnnData::kI64: return 8;
    case DnnData::kF32:
    case DnnData::kI32: return 4;
    case DnnData::kF16:
    case DnnData::kBF16: return 2;
    case DnnData::kBool: return 1;
  }
  return 0;
}

void compute(const Graph& graph, const std::map<int64_t, const void*>& addresses) {
  Evaluation(graph, addresses).run();
}

}  // namespace rondo::fake_cuda
