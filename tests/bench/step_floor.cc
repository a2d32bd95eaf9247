#include "rondo/tests/bench/step_floor.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/capture/trace.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/transform/joint.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/bench/stream.h"

namespace rondo::bench {
namespace {

using compile::Graph, compile::GraphNode, compile::Value, compile::ValueId;

// Leaves out writes in place, of running statistics and counters: no product reads them.
class StepTrace final : public compile::Trace {
  void append(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override {
    if (!in_place) Trace::append(op, inputs, attrs, outputs, in_place, where);
  }
};

bool is_product(std::string_view op) {
  for (const std::string_view family : {"conv2d", "linear", "matmul", "attention"})
    if (op.starts_with(family)) return true;
  return false;
}

// Numbers with the value's sizes, dense in the order of its strides.
Tensor like(const Value& value) {
  const int rank = value.sizes.rank();
  std::vector<int64_t> order(static_cast<size_t>(rank)), back(order);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return value.strides[static_cast<int>(a)] > value.strides[static_cast<int>(b)];
  });
  Dims sizes = value.sizes, places = value.sizes;
  for (int i = 0; i < rank; ++i) {
    const int64_t from = order[static_cast<size_t>(i)];
    sizes[i] = value.sizes[static_cast<int>(from)];
    places[static_cast<int>(from)] = i;
  }
  return Tensor::randn(sizes).to(value.dtype).permute(places);
}

double ms_of(auto step) {
  const auto start = std::chrono::steady_clock::now();
  step();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}
double median_ms(int runs, auto step) {
  step();  // warms up
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) times.push_back(ms_of(step));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Equal for calls that do the same work.
std::string key_of(const Graph& graph, const GraphNode& node) {
  std::string key = node.op->name;
  for (const ValueId id : node.inputs) {
    if (id == compile::kNoValue) continue;
    const Value& v = graph.value(id);
    absl::StrAppend(&key, " ", std::string(name_of(v.dtype)), to_string(v.sizes), to_string(v.strides));
  }
  for (const int64_t n : node.attrs.ints) absl::StrAppend(&key, ",", n);
  return key;
}

int64_t rest_bytes_of(const std::function<Tensor()>& loss) {
  auto whole = compile::compile([&](const Tensor&) { return loss(); });
  whole(Tensor::zeros({1})).backward();
  int64_t bytes = 0;
  const compile::Explanation explanation = compile::explain(whole.regions());
  const compile::RegionExplanation& region = explanation.regions.at(0);
  if (region.report.graph_breaks > 0 || region.entries.size() != 1) return 0;
  for (const compile::ProgramExplanation& program : region.entries[0].programs)
    for (const compile::LaunchExplanation& launch : program.launches)
      if (launch.generated || !is_product(launch.name)) bytes += launch.bytes_read + launch.bytes_written;
  return bytes;
}

}  // namespace

StepFloor::StepFloor(const std::function<Tensor()>& loss) {
  const auto add_products = [&](const Graph& graph) {
    for (const GraphNode& node : graph.nodes) {
      if (!is_product(node.op->name)) continue;
      const auto [at, is_new] = products_.try_emplace(key_of(graph, node));
      Product& product = at->second;
      ++product.count;
      if (!is_new) continue;
      product.op = node.op;
      product.attrs = node.attrs;
      product.outputs.resize(node.outputs.size());
      for (const ValueId id : node.inputs)
        product.inputs.push_back(id == compile::kNoValue ? Tensor() : like(graph.value(id)));
    }
  };
  StepTrace trace;
  {
    const RecorderScope recording(&trace);
    trace.graph.outputs = {trace.value_of(loss())};
  }
  add_products(trace.graph);
  add_products(compile::derive_backward(trace.graph).graph);
  rest_bytes_ = rest_bytes_of(loss);
}

double StepFloor::products_ms() {
  const NoGrad off;
  ms_of_.clear();
  double total = 0;
  for (auto& [key, product] : products_) {
    const std::vector<TensorArg> arguments(product.inputs.begin(), product.inputs.end());
    const double ms = static_cast<double>(product.count) *
                      median_ms(3, [&] { call(*product.op, arguments, product.attrs, product.outputs); });
    ms_of_[product.op->name] += ms;
    total += ms;
  }
  return total;
}

int64_t StepFloor::products() const {
  int64_t n = 0;
  for (const auto& [key, product] : products_) n += product.count;
  return n;
}

double stream_gb_per_s() {
  constexpr int64_t kNumbers = int64_t{32} << 20;  // 128 MiB, beyond any cache
  const Tensor from = Tensor::zeros({kNumbers});
  Tensor to = Tensor::zeros({kNumbers});
  const double ms = median_ms(5, [&] { copy_all(from.data<float>(), to.mutable_data<float>(), kNumbers); });
  return 2.0 * sizeof(float) * kNumbers / ms / 1e6;
}

}  // namespace rondo::bench
