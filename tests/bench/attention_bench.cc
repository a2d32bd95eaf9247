// CPU attention, causal, on slices of one [B, T, 3C] projection as a model lays them out. Counters: GFLOP/s of the
// unmasked tiles (64 x 64) and time per call. dropped: per cent.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/cpu/attention.h"

namespace rondo::cpu {
namespace {

template <class T> struct Problem {
  AttentionShape shape;
  int64_t channels, row;
  std::vector<T> qkv, out, grad_out, grad_qkv;
  std::vector<float> logsumexp;
  std::vector<int64_t> first_key;   // packed()
  std::unique_ptr<bool[]> allowed;  // packed()
  AttentionMask<T> mask;

  Problem(int64_t batch, int64_t heads, int64_t length, int64_t head_dim)
      : shape{batch, heads, heads, length, length, head_dim, true, 1 / std::sqrt(static_cast<double>(head_dim))},
        channels(heads * head_dim),
        row(3 * channels),
        qkv(batch * length * row),
        out(batch * length * channels),
        grad_out(out),
        grad_qkv(qkv),
        logsumexp(batch * heads * length) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (T& x : qkv) x = T(normal(rng));
    for (T& x : grad_out) x = T(normal(rng));
  }
  explicit Problem(const benchmark::State& state)
      : Problem(state.range(0), state.range(1), state.range(2), state.range(3)) {
    shape.dropout = {.p = static_cast<double>(state.range(4)) / 100, .seed = 1, .offset = 2};
  }
  template <class E> HeadsView<E> slice(std::vector<T>& x, int64_t part) {
    const int64_t stride = x.size() == qkv.size() ? row : channels;
    return {x.data() + part * channels, shape.queries * stride, shape.head_dim, stride};
  }
  void forward() {
    attention_forward<T>(shape, slice<const T>(qkv, 0), slice<const T>(qkv, 1), slice<const T>(qkv, 2), mask,
                         slice<T>(out, 0), logsumexp.data());
  }
  void backward() {
    attention_backward<T>(shape, slice<const T>(qkv, 0), slice<const T>(qkv, 1), slice<const T>(qkv, 2), mask,
                          slice<const T>(out, 0), logsumexp.data(), slice<const T>(grad_out, 0), slice<T>(grad_qkv, 0),
                          slice<T>(grad_qkv, 1), slice<T>(grad_qkv, 2));
  }
  // Sequences of `length` tokens in each row, told apart by a mask of T x T or by first keys.
  void pack(int64_t length, bool whole_mask) {
    const int64_t T_ = shape.queries;
    for (int64_t i = 0; i < T_; ++i) first_key.push_back(i / length * length);
    allowed.reset(new bool[T_ * T_]);
    for (int64_t i = 0; i < T_ * T_; ++i) allowed[i] = i % T_ >= first_key[i / T_];
    if (whole_mask) mask = {.allowed = allowed.get(), .strides = {0, 0, T_, 1}};
    else mask = {.first_key = first_key.data(), .strides = {0, 0, 1, 0}};
  }
  // The FLOPs of one product of scores, [Tq, D] x [D, Tk], over the tiles on and below the diagonal.
  double product_flops() const {
    double pairs = 0;
    for (int64_t begin = 0; begin < shape.queries; begin += 64) {
      const int64_t end = std::min<int64_t>(begin + 64, shape.queries);
      pairs += static_cast<double>(end - begin) * end;
    }
    return 2.0 * pairs * shape.head_dim * shape.batch * shape.heads;
  }
};

void report(benchmark::State& state, double flops) {
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

template <class T> void forward(benchmark::State& state) {
  Problem<T> problem(state);
  for (auto _ : state) problem.forward();
  report(state, 2 * problem.product_flops());
}
template <class T> void backward(benchmark::State& state) {
  Problem<T> problem(state);
  problem.forward();
  for (auto _ : state) problem.backward();
  report(state, 5 * problem.product_flops());
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"B", "H", "T", "D", "dropped"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (const int64_t dropped : {0, 20}) b->Args({8, 6, 256, 64, dropped});
  b->Args({4, 12, 64, 64, 0})->Args({12, 4, 64, 32, 0})->Args({1, 12, 1024, 64, 0});
}
BENCHMARK(forward<float>)->Apply(shapes);
BENCHMARK(backward<float>)->Apply(shapes);
BENCHMARK(forward<BFloat16>)->Apply(shapes);
BENCHMARK(backward<BFloat16>)->Apply(shapes);

// Forward and backward of packed rows. Mask: 0 none (one sequence), 1 bool of T x T, 2 first keys.
template <class T> void packed(benchmark::State& state) {
  Problem<T> problem(1, 12, state.range(0), 64);
  if (state.range(2) > 0) problem.pack(state.range(1), state.range(2) == 1);
  for (auto _ : state) {
    problem.forward();
    problem.backward();
  }
}
void packed_shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"T", "each", "mask"})->Unit(benchmark::kMicrosecond)->UseRealTime();
  for (const int64_t each : {32, 100, 300})
    for (const int64_t mask : {0, 1, 2}) b->Args({1024, each, mask});
}
BENCHMARK(packed<float>)->Apply(packed_shapes);
BENCHMARK(packed<BFloat16>)->Apply(packed_shapes);

}  // namespace
}  // namespace rondo::cpu
