#include "rondo/runtime/cpu/thin_product.h"

#include <algorithm>
#include <type_traits>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/simd.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/ops/reduction_order.h"

// Note [Thin order]. An inner product of k elements has two chains of kLanes accumulators. It adds kStep elements at a
// time by FMA, in increasing order. f32: the first kLanes elements of a step go to chain 0, the others to chain 1.
// bf16: even elements go to chain 0 and odd ones to chain 1, because a 32-bit word holds one of each, and one
// instruction converts either to f32. Missing elements of the last step count as 0. At the end the two chains are
// added, then the lanes in the tree of Note [Row order] (ops/reduction_order.h).

namespace rondo::cpu {
namespace {

constexpr int kDotChains = 2;
constexpr int64_t kStep = kDotChains * kLanes;
constexpr int kParts = kLanes / kWidth<float>;  // vectors that hold the lanes of one chain

// One vector of lanes for each of the two chains. load_step() loads vector `part` of the lanes from a step of elements.
template <class T> struct Chains { Vector<float> of[kDotChains]; };
[[gnu::always_inline]] inline Chains<float> load_step(const float* p, int part) {
  return {{load(p + part * kWidth<float>), load(p + kLanes + part * kWidth<float>)}};
}
[[gnu::always_inline]] inline Chains<BFloat16> load_step(const BFloat16* p, int part) {
  BitVector<float> words;
  __builtin_memcpy(&words, p + 2 * part * kWidth<float>, sizeof(words));
  return {{vector_cast<Vector<float>>(words << 16), vector_cast<Vector<float>>(words & 0xFFFF0000u)}};
}
// Returns the position of element i in a packed row of A. Packed rows store each step chain by chain.
template <class T> constexpr int64_t packed_at(int64_t i) {
  return std::is_same_v<T, float> ? i : i / kStep * kStep + i % 2 * kLanes + i % kStep / 2;
}

// Sets sums[m][j] to (row m of a) . (row j of b), for M packed rows of A and N adjacent rows of B. `next`: rows to
// prefetch.
template <class T, int M, int N>
[[gnu::always_inline]] inline void inner_products(int64_t k, const float* a, int64_t a_stride, const T* b,
                                                  int64_t b_stride, const T* next, float (&sums)[M][N]) {
  Vector<float> total[M][N][kDotChains][kParts] = {};
  const auto add = [&](int64_t i, const T* from, int64_t stride) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) {
        const Chains<T> w = load_step(from + j * stride, part);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          const float* const x = a + m * a_stride + i + part * kWidth<float>;
          total[m][j][0][part] = fma(load(x), w.of[0], total[m][j][0][part]);
          total[m][j][1][part] = fma(load(x + kLanes), w.of[1], total[m][j][1][part]);
        }
      }
    }
  };
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j)
      for (int64_t line = 0; line < kStep; line += kLine) __builtin_prefetch(next + j * b_stride + i + line, 0, 2);
    add(i, b + i, b_stride);
  }
  if (i < k) {
    T rest[N][kStep] = {};
    for (int j = 0; j < N; ++j) std::copy_n(b + j * b_stride + i, k - i, rest[j]);
    add(i, rest[0], kStep);
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      float lanes[kLanes];
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part)
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
  // Adds bias and addends in the order of the call, and stores the sum as R.
  template <class T, class R> void write(int64_t row, int64_t column, float value) const {
    if (call.bias) value += read<T>(operands.bias, column);
    const int64_t at = row * call.c.row + column;
    for (size_t e = 0; e < kMaxEpilogues; ++e)
      if (call.epilogues[e] == Epilogue::kAdd) value += read<R>(call.in_place[e] ? operands.c : operands.added[e], at);
    static_cast<R*>(operands.c)[at] = static_cast<R>(value);
  }
};

// Computes columns [begin, end) of C, N at a time.
template <class T, class R, int M, int N>
void columns(const MatmulCall& call, const float* a, int64_t a_stride, const MatmulOperands& operands, int64_t begin,
             int64_t end) {
  const T* const b = static_cast<const T*>(operands.b);
  const int64_t stride = call.b.column;
  const Output output{call, operands};
  int64_t n = begin;
  for (; n + N <= end; n += N) {
    float sums[M][N];
    const T* const rows = b + n * stride;
    inner_products<T, M, N>(call.k, a, a_stride, rows, stride, n + 2 * N <= end ? rows + N * stride : rows, sums);
    for (int m = 0; m < M; ++m)
      for (int j = 0; j < N; ++j) output.write<T, R>(m, n + j, sums[m][j]);
  }
  if constexpr (N > 1) {
    if (n < end) columns<T, R, M, 1>(call, a, a_stride, operands, n, end);
  }
}

template <class T, class R> void run(const MatmulCall& call, const MatmulOperands& operands) {
  // Packs A in f32, with rows padded with 0 to whole steps.
  const int64_t stride = round_up(call.k, kStep);
  const Storage packed = Storage::allocate(static_cast<size_t>(call.m * stride) * sizeof(float));
  float* const a = reinterpret_cast<float*>(packed.data());
  for (int64_t m = 0; m < call.m; ++m) {
    const T* const row = static_cast<const T*>(operands.a) + m * call.a.row;
    std::fill(a + (m + 1) * stride - kStep, a + (m + 1) * stride, 0.0f);
    int64_t i = 0;
    if (call.a.column == 1) {
      for (; i + kStep <= call.k; i += kStep)
        for (int part = 0; part < kParts; ++part) {
          const Chains<T> step = load_step(row + i, part);
          float* const to = a + m * stride + i + part * kWidth<float>;
          store(to, step.of[0]);
          store(to + kLanes, step.of[1]);
        }
    }
    for (; i < call.k; ++i) a[m * stride + packed_at<T>(i)] = static_cast<float>(row[i * call.a.column]);
  }
  constexpr int64_t kBytes = 1 << 16;  // least bytes of B in a piece for which waking a thread is worthwhile
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
  if (call.batch != 1 || call.m > kThinRows || call.b.row != 1) return false;
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
