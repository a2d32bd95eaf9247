// Gathers and scatters: embedding's gradient and scatter_add of whole rows beside the machine's stream, and a training
// step of a graph network.
//
//   bench_index --rounds=7              each beside a stream that reads and writes as many bytes, in turns
//   bench_index --graph --rounds=5      eager and compiled in turns, and the kernels of the compiled step
//   bench_index --serve --mode=...      answers lines "N" with the times of N steps of the graph network
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "rondo/compile/compile.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;

double ms_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Reads `read` bytes of `from` and writes `written` bytes of `to`, on all threads.
void stream(const Tensor& from, int64_t read, const Tensor& to, int64_t written) {
  constexpr int64_t kPieces = 256;
  const auto* in = reinterpret_cast<const uint64_t*>(from.impl()->data());
  std::byte* out = to.impl()->data();
  parallel_for(kPieces, 1, [&](int64_t begin, int64_t end) {
    const auto share = [&](int64_t of, int64_t piece) { return of * piece / kPieces; };
    for (int64_t piece = begin; piece < end; ++piece) {
      uint64_t sum = 0;
      for (int64_t i = share(read / 8, piece); i < share(read / 8, piece + 1); ++i) sum += in[i];
      std::memset(out + share(written, piece), static_cast<int>(sum & 1),
                  static_cast<size_t>(share(written, piece + 1) - share(written, piece)));
    }
  });
}

struct Case {
  std::string name;
  std::function<Tensor()> run;
  int64_t read, written;
};

// Bytes: each row of values and each index is read once, each row of the result written once.
void compare_with_stream(int64_t rounds) {
  const NoGrad off;
  std::vector<Case> cases;
  {
    const int64_t rows = 50257, cols = 768, n = 8192;
    const Tensor grad = Tensor::randn({n, cols}), index = Tensor::randint(0, rows, {n});
    cases.push_back({"embedding's gradient (50257, 768), 8192 tokens",
                     [=] {
                       return call(ops::kEmbeddingGrad, {grad, index}, {.ints = {rows}});
                     },
                     n * (cols * 4 + 8), rows * cols * 4});
  }
  for (const int64_t rows : {100'000, 1'000'000}) {
    const int64_t cols = 32, n = 10'000'000;
    const Tensor values = Tensor::randn({n, cols});
    const Tensor index = ops::expand(ops::reshape(Tensor::randint(0, rows, {n}), {n, 1}), {n, cols});
    cases.push_back({"scatter_add of 10 million rows of 32 to " + std::to_string(rows),
                     [=] {
                       return ops::scatter_add(Tensor::zeros({rows, cols}), 0, index, values);
                     },
                     n * (cols * 4 + 8) + rows * cols * 4, 2 * rows * cols * 4});
  }
  for (const Case& c : cases) {
    const Tensor from = Tensor::zeros({c.read / 4 + 2}), to = Tensor::zeros({c.written / 4 + 2});
    c.run();
    stream(from, c.read, to, c.written);
    std::vector<double> own, streams, shares;
    for (int64_t r = 0; r < rounds; ++r) {
      own.push_back(ms_of([&] { c.run(); }));
      streams.push_back(ms_of([&] { stream(from, c.read, to, c.written); }));
      shares.push_back(streams.back() / own.back());
    }
    std::printf("%-56s %8.1f ms, stream %8.1f ms: %3.0f%%\n", c.name.c_str(), median(own), median(streams),
                100 * median(shares));
  }
}

// ---- The graph network: 2 layers h = relu(sum of w h[src] over the edges into a node, W; plus h U).

struct Graph {
  Tensor source, target, weight;  // (E), (E), (E, 1)
};

struct GraphLayer : nn::Module<GraphLayer> {
  Tensor neighbours, own;
  const Graph& graph;
  GraphLayer(int64_t in, int64_t out, const Graph& graph) : graph(graph) {
    neighbours = parameter("neighbours", Tensor::randn({in, out}) * 0.1);
    own = parameter("own", Tensor::randn({in, out}) * 0.1);
  }
  Tensor forward(const Tensor& h) {
    const Tensor messages = ops::index_select(h, 0, graph.source) * graph.weight;
    const Tensor sums = ops::index_add(Tensor::zeros(h.sizes()), 0, graph.target, messages);
    return ops::relu(ops::matmul(sums, neighbours) + ops::matmul(h, own));
  }
};

struct GraphNetwork {
  static constexpr int64_t kNodes = 100'000, kEdges = 1'000'000, kFeatures = 64;
  Graph graph;
  Tensor x, y;
  GraphLayer first, second;
  std::vector<compile::Regions> regions;

  explicit GraphNetwork(const std::string& mode)
      : graph{Tensor::randint(0, kNodes, {kEdges}), Tensor::randint(0, kNodes, {kEdges}), Tensor::rand({kEdges, 1})},
        x(Tensor::randn({kNodes, kFeatures})),
        y(Tensor::randn({kNodes, kFeatures})),
        first(kFeatures, kFeatures, graph),
        second(kFeatures, kFeatures, graph) {
    if (mode == "eager") return;
    for (GraphLayer* layer : {&first, &second})
      regions.push_back(compile::compile_module(*layer, {.exact = mode == "exact"}));
  }
  double step() {
    for (GraphLayer* layer : {&first, &second}) layer->zero_grad();
    const Tensor loss = ops::mse_loss(second(first(x)), y);
    loss.backward();
    const NoGrad off;
    for (GraphLayer* layer : {&first, &second})
      for (Tensor* p : {&layer->neighbours, &layer->own}) ops::sub_(*p, p->grad() * 0.01);
    return loss.item<float>();
  }
};

void compare_graph(int64_t rounds) {
  manual_seed(1);
  GraphNetwork eager("eager");
  manual_seed(1);
  GraphNetwork compiled("exact");
  std::vector<double> times[2], ratios;
  bool same = true;
  for (int64_t r = -1; r < rounds; ++r) {
    double losses[2] = {};
    const double a = ms_of([&] { losses[0] = eager.step(); }), b = ms_of([&] { losses[1] = compiled.step(); });
    same = same && losses[0] == losses[1];
    if (r < 0) continue;
    times[0].push_back(a);
    times[1].push_back(b);
    ratios.push_back(a / b);
  }
  for (const compile::Regions& regions : compiled.regions)
    for (const compile::RegionReport& report : regions.report())
      std::printf("%s: %d kernels, %d library calls, forward and backward\n", report.name.c_str(), report.kernels,
                  report.library_calls);
  std::printf("graph network: eager %.1f ms, compiled (exact) %.1f ms: %.2f times; losses %s\n", median(times[0]),
              median(times[1]), median(ratios), same ? "equal in every bit" : "DIFFER");
}

void serve(const std::string& mode) {
  manual_seed(1);
  GraphNetwork network(mode);
  for (int64_t n; std::cin >> n;) {
    std::vector<double> times;
    for (int64_t i = 0; i < std::max<int64_t>(n, 1); ++i) times.push_back(ms_of([&] { network.step(); }));
    std::cout << nlohmann::json{{"step_ms_median", median(times)}}.dump() << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options(argc, argv);
  const int64_t rounds = options.integer("rounds", 7);
  if (options.has("serve")) serve(options.text("mode", "compiled"));
  else if (options.has("graph")) compare_graph(rounds);
  else compare_with_stream(rounds);
}
