#include "rondo/runtime/cpu/thin_product.h"

#include <algorithm>

#include "rondo/runtime/cpu/simd.h"
#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/storage.h"

// Note [Thin order]. An inner product of k elements keeps kChains accumulators of kLanes lanes: element i goes to lane
// i % kLanes of chain i / kLanes % kChains by FMA, in increasing i. The chains meet first, then the lanes in the tree
// of Note [Row order].

namespace rondo::cpu {
namespace {

constexpr int kChains = 2;
constexpr int kPerLine = kLanes / kWidth<float>;  // vectors of one line of lanes

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// sums[m][j] = a row m . b row j, for M rows of f32 (padded with 0 to whole steps) and N adjacent rows of b.
template <class T, int M, int N>
[[gnu::always_inline]] inline void inner_products(int64_t k, const float* a, int64_t a_stride, const T* b,
                                                  int64_t b_stride, float (&sums)[M][N]) {
  constexpr int64_t kStep = kChains * kLanes;
  Vector<float> total[M][N][kChains][kPerLine] = {};
  const auto add = [&](int64_t i, int chain, int64_t left) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int part = 0; part < kPerLine; ++part) {
      const int64_t at = i + part * kWidth<float>;
      Vector<float> x[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) x[m] = load(a + m * a_stride + at);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        const int64_t here = left - part * kWidth<float>;
        const Vector<float> w = left >= kLanes ? load(b + j * b_stride + at)
                                : here > 0     ? load(b + j * b_stride + at, here)
                                               : Vector<float>{};
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) total[m][j][chain][part] = fma(x[m], w, total[m][j][chain][part]);
      }
    }
  };
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep) {
#pragma GCC unroll 2
    for (int chain = 0; chain < kChains; ++chain) add(i + chain * kLanes, chain, kLanes);
  }
  for (int chain = 0; i < k; i += kLanes, ++chain) {
    // Whole lines first; a constant chain keeps the accumulators in registers.
    if (chain == 0) add(i, 0, k - i);
    else add(i, 1, k - i);
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      float lanes[kLanes];
#pragma GCC unroll 4
      for (int part = 0; part < kPerLine; ++part)
        store(lanes + part * kWidth<float>, total[m][j][0][part] + total[m][j][1][part]);
      sums[m][j] = combine_lanes(lanes, [](float x, float y) { return x + y; });
    }
  }
}

struct Output {
  const MatmulCall& call;
  const MatmulOperands& operands;

  template <class T> static float read(const void* data, int64_t at) {
    return static_cast<float>(static_cast<const T*>(data)[at]);
  }
  // Bias and addends in the order of the call; stored in R.
  template <class T, class R> void write(int64_t row, int64_t column, float value) const {
    if (call.bias) value += read<T>(operands.bias, column);
    const int64_t at = row * call.c_strides[1] + column;
    for (size_t e = 0; e < kMaxEpilogues; ++e)
      if (call.epilogues[e] == Epilogue::kAdd) value += read<R>(call.in_place[e] ? operands.c : operands.added[e], at);
    static_cast<R*>(operands.c)[at] = static_cast<R>(value);
  }
};

// Columns of C in [begin, end), N at a time.
template <class T, class R, int M, int N>
void columns(const MatmulCall& call, const float* a, int64_t a_stride, const MatmulOperands& operands, int64_t begin,
             int64_t end) {
  const T* const b = static_cast<const T*>(operands.b);
  const int64_t stride = call.b_strides[2];
  const Output output{call, operands};
  int64_t n = begin;
  for (; n + N <= end; n += N) {
    float sums[M][N];
    inner_products<T, M, N>(call.k, a, a_stride, b + n * stride, stride, sums);
    for (int m = 0; m < M; ++m)
      for (int j = 0; j < N; ++j) output.write<T, R>(m, n + j, sums[m][j]);
  }
  if constexpr (N > 1) {
    if (n < end) columns<T, R, M, 1>(call, a, a_stride, operands, n, end);
  }
}

template <class T, class R> void run(const MatmulCall& call, const MatmulOperands& operands) {
  // A in f32, dense, its rows padded with 0 to whole steps.
  const int64_t stride = round_up(call.k, kChains * kLanes);
  const Storage packed = Storage::allocate(static_cast<size_t>(call.m * stride) * sizeof(float));
  float* const a = reinterpret_cast<float*>(packed.data());
  for (int64_t m = 0; m < call.m; ++m) {
    const T* const row = static_cast<const T*>(operands.a) + m * call.a_strides[1];
    for (int64_t i = 0; i < call.k; ++i) a[m * stride + i] = static_cast<float>(row[i * call.a_strides[2]]);
    std::fill(a + m * stride + call.k, a + (m + 1) * stride, 0.0f);
  }
  constexpr int64_t kBytes = 1 << 16;  // of B, for a piece that pays for a thread
  const int64_t grain = std::max<int64_t>(8, kBytes / (call.k * static_cast<int64_t>(sizeof(T))));
  parallel_for(call.n, grain, [&](int64_t begin, int64_t end) {
    switch (call.m) {
      case 1: return columns<T, R, 1, 4>(call, a, stride, operands, begin, end);
      case 2: return columns<T, R, 2, 4>(call, a, stride, operands, begin, end);
      case 3: return columns<T, R, 3, 2>(call, a, stride, operands, begin, end);
      default: return columns<T, R, 4, 2>(call, a, stride, operands, begin, end);
    }
  });
}

}  // namespace

bool is_thin_product(const MatmulCall& call) {
  if (call.dtype != kF32 && call.dtype != kBF16) return false;
  if (call.batch != 1 || call.m > kThinRows || call.b_strides[1] != 1) return false;
  for (const Epilogue epilogue : call.epilogues)
    if (epilogue != Epilogue::kNone && epilogue != Epilogue::kAdd && epilogue != Epilogue::kWiden) return false;
  return true;
}

void thin_product(const MatmulCall& call, const MatmulOperands& operands) {
  if (call.dtype == kF32) run<float, float>(call, operands);
  else if (call.wide) run<BFloat16, float>(call, operands);
  else run<BFloat16, BFloat16>(call, operands);
}

}  // namespace rondo::cpu
