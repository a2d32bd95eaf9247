#include "rondo/runtime/cpu/tiled_product.h"

#include <algorithm>

#include "rondo/runtime/cpu/gemm_tile.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/parallel.h"

namespace rondo::cpu {
namespace {

constexpr int64_t kDepth = 256;                    // of a block
constexpr int64_t kTileM = 64, kTileN = 128;       // of C, for one task
constexpr int64_t kSums = kTileM * kTileN;         // kTileN is whole vectors at every width
constexpr int64_t kTaskFlops = 2 * 64 * 128 * 64;  // a task that pays for a thread

// Rows [row, row + rows) and columns [column, column + columns) of one matrix of the batch.
struct Tile {
  int64_t matrix, row, rows, column, columns;
};

// sums (rows, kTileN) = the products of one block of the depth. `packed`: room for the block of B.
void multiply_block(const MatmulCall& call, const Tile& tile, const float* a, const float* b, int64_t depth,
                    float* packed, float* sums) {
  if (call.b.column == 1) pack_rows(b, call.b.row, depth, tile.columns, packed, kTileN);
  else pack_transposed(b, call.b.column, tile.columns, depth, 1.0f, packed, kTileN);
  const int64_t vectors = round_up(tile.columns, kWidth<float>) / kWidth<float>;
  for (int64_t v = 0; v < vectors; v += kTileVectors) {
    const int64_t at = v * kWidth<float>;
    const int wide = static_cast<int>(std::min<int64_t>(kTileVectors, vectors - v));
    if (call.a.column == 1) {
      multiply_panel<Start::kZero>(tile.rows, wide, depth, LeftOperand<float, false>{a, call.a.row}, packed + at,
                                   kTileN, sums + at, kTileN);
    } else {
      multiply_panel<Start::kZero>(tile.rows, wide, depth, LeftOperand<float, true>{a, call.a.column}, packed + at,
                                   kTileN, sums + at, kTileN);
    }
  }
}

template <class F> Vector<float> each_lane(Vector<float> v, F f) {
  for (int i = 0; i < kWidth<float>; ++i) v[i] = f(v[i]);
  return v;
}

// Bias and epilogues, then C.
void finish(const MatmulCall& call, const Tile& tile, const MatmulOperands& operands, const float* sums) {
  auto* const c = static_cast<float*>(operands.c);
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t j = 0; j < tile.columns; j += kWidth<float>) {
      const int64_t count = std::min<int64_t>(kWidth<float>, tile.columns - j);
      const int64_t at = tile.matrix * call.c.batch + (tile.row + r) * call.c.row + tile.column + j;
      Vector<float> v = load(sums + r * kTileN + j);
      if (call.bias) v += load(static_cast<const float*>(operands.bias) + tile.column + j, count);
      for (size_t e = 0; e < kMaxEpilogues; ++e) {
        switch (call.epilogues[e]) {
          case Epilogue::kNone:
          case Epilogue::kWiden: break;
          case Epilogue::kAdd:
            v += load((call.in_place[e] ? c : static_cast<const float*>(operands.added[e])) + at, count);
            break;
          case Epilogue::kGelu: v = each_lane(v, [](float x) { return scalar::gelu_erf(x); }); break;
          case Epilogue::kGeluTanh: v = each_lane(v, [](float x) { return scalar::gelu_tanh(x); }); break;
        }
      }
      store(c + at, v, count);
    }
  }
}

void compute(const MatmulCall& call, const Tile& tile, const MatmulOperands& operands) {
  Scratch<float> scratch(kDepth * kTileN + 2 * kSums);
  float* const packed = scratch.take(kDepth * kTileN);
  float* const total = scratch.take(kSums);
  float* const block = scratch.take(kSums);
  const float* const a = static_cast<const float*>(operands.a) + tile.matrix * call.a.batch + tile.row * call.a.row;
  const float* const b = static_cast<const float*>(operands.b) + tile.matrix * call.b.batch +
                         tile.column * call.b.column;
  const int64_t columns = round_up(tile.columns, kWidth<float>);
  for (int64_t k = 0; k < call.k; k += kDepth) {
    const int64_t depth = std::min(kDepth, call.k - k);
    multiply_block(call, tile, a + k * call.a.column, b + k * call.b.row, depth, packed, k == 0 ? total : block);
    if (k == 0) continue;
    for (int64_t r = 0; r < tile.rows; ++r)
      for (int64_t j = r * kTileN; j < r * kTileN + columns; j += kWidth<float>)
        store(total + j, load(total + j) + load(block + j));
  }
  finish(call, tile, operands, total);
}

}  // namespace

void tiled_product(const MatmulCall& call, const MatmulOperands& operands) {
  const int64_t down = (call.m + kTileM - 1) / kTileM, across = (call.n + kTileN - 1) / kTileN;
  const int64_t flops = 2 * std::min(call.m, kTileM) * std::min(call.n, kTileN) * call.k;
  parallel_for(call.batch * down * across, std::max<int64_t>(1, kTaskFlops / flops), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / across % down * kTileM, column = i % across * kTileN;
      compute(call,
              {.matrix = i / across / down,
               .row = row,
               .rows = std::min(kTileM, call.m - row),
               .column = column,
               .columns = std::min(kTileN, call.n - column)},
              operands);
    }
  });
}

}  // namespace rondo::cpu
