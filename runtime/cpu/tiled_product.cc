#include "rondo/runtime/cpu/tiled_product.h"

#include <algorithm>
#include <atomic>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/gemm_tile.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/ops/scalar_math.h"

// Note [Tiles]. A task computes a tile of C. For each block of the depth it packs its rows of A, which then stay in the
// L2 cache, and its columns of B, in panels of kTileColumns. A panel stays in the L1 cache while it is multiplied by
// all those rows. Packing reads an operand once, so its strides do not slow the product down, and it widens 16-bit
// numbers. Packing a number costs about as much as 4 to 8 multiplications with it. So tiles are large, tasks go down
// the rows first, and a thread keeps packed operands for its next tile. Tiles do not affect bits (Note [Tiled order]),
// so their size may depend on the number of threads.

namespace rondo::cpu {
namespace {

constexpr int64_t kDepth = 256;          // the depth of a block: Note [Tiled order]
constexpr int64_t kTaskRows = 240;       // most rows of a tile: 240 KiB with kDepth; a multiple of all kTileRows
constexpr int64_t kTaskColumns = 512;    // most columns of a tile
constexpr int64_t kKept = 1 << 19;       // most numbers of A or B that a thread keeps: 2 MiB
constexpr int64_t kTaskFlops = 1 << 20;  // least work of a task for which waking a thread is worthwhile
constexpr int64_t kTasksOfThread = 4;    // several tasks per thread, so that all threads end at about the same time
constexpr int64_t kPanel = kTileColumns<float>;
constexpr int64_t kLine = 16;  // numbers in a cache line
constexpr int64_t kAhead = 4;  // packing prefetches this many rows ahead, because each may be in another page

int64_t blocks_of(int64_t depth) { return (depth + kDepth - 1) / kDepth; }

struct Tiling {
  int64_t rows, columns;                         // of a tile: multiples of kTileRows and of kPanel
  int64_t down = 1, across = 1;                  // number of tiles in each direction
  bool keeps_left = false, keeps_right = false;  // a thread keeps A's rows or B's columns of a tile for the whole depth
};

// Cuts C into tiles of equal size, which are as large as `rows` and `columns` allow.
Tiling tiles(const MatmulCall& call, int64_t rows, int64_t columns) {
  const auto part = [](int64_t size, int64_t most, int64_t block) {
    const int64_t parts = (size + most - 1) / most;
    return round_up((size + parts - 1) / parts, block);
  };
  Tiling t{.rows = part(call.m, rows, kTileRows), .columns = part(call.n, columns, kPanel)};
  t.down = (call.m + t.rows - 1) / t.rows;
  t.across = (call.n + t.columns - 1) / t.columns;
  t.keeps_left = t.down == 1 && blocks_of(call.k) * kDepth * t.rows <= kKept;
  t.keeps_right = blocks_of(call.k) * kDepth * t.columns <= kKept;
  return t;
}

Tiling tiling_of(const MatmulCall& call) {
  // The number of elements that are packed. A transposed A is read in short pieces, so it counts twice.
  const auto packed = [&](const Tiling& t) {
    const int64_t left = call.m * (t.keeps_left ? 1 : t.across), right = call.n * (t.keeps_right ? 1 : t.down);
    return (call.a.column == 1 ? left : 2 * left) + right;
  };
  Tiling best = tiles(call, kTaskRows, kTaskColumns);
  if (const int64_t columns = kKept / kDepth / blocks_of(call.k) / kPanel * kPanel; !best.keeps_right && columns > 0)
    if (const Tiling narrow = tiles(call, kTaskRows, columns); packed(narrow) < packed(best)) best = narrow;
  const int64_t worth = 2 * call.batch * call.m * call.n * call.k / kTaskFlops,
                threads = in_parallel() ? 1 : num_threads();
  const int64_t wanted = threads == 1 ? 1 : std::min(kTasksOfThread * threads, worth);
  while (call.batch * best.down * best.across < wanted) {
    const bool few_rows = best.rows <= 8 * kTileRows;
    if (best.columns > (few_rows ? kPanel : 128)) best = tiles(call, best.rows, best.columns / 2);
    else if (best.rows > kTileRows) best = tiles(call, best.rows / 2, best.columns);
    else break;
  }
  return best;
}

// Rows [row, row + rows) and columns [column, column + columns) of one matrix of the batch.
struct Tile {
  int64_t matrix, row, rows, column, columns;
};

// The operands that are packed in this thread's memory, and the product that they belong to. They stay valid from one
// tile of that product to the next, because the thread runs nothing else in between.
struct Packed {
  uint64_t product = 0;
  const void *left = nullptr, *right = nullptr;
  int64_t columns = 0;  // columns of `right`: overlapping matrices may begin at the same address
};
thread_local Packed packed_here;
std::atomic<uint64_t> products{1};

// One thread's part of a product.
template <class T> class TiledProduct {
 public:
  // `product`: a number that no other product has.
  TiledProduct(uint64_t product, const MatmulCall& call, const MatmulOperands& operands, const Tiling& t)
      : call_(call),
        operands_(operands),
        tiling_(t),
        blocks_(blocks_of(call.k)),
        left_block_(round_up(t.rows / kTileRows * group(kDepth), kLine)),
        right_block_(t.columns / kPanel * panel(kDepth)),
        scratch_((t.keeps_left ? blocks_ : 1) * left_block_ + (t.keeps_right ? blocks_ : 1) * right_block_ +
                 t.rows * t.columns),
        left_(scratch_.take((t.keeps_left ? blocks_ : 1) * left_block_)),
        right_(scratch_.take((t.keeps_right ? blocks_ : 1) * right_block_)),
        sums_(scratch_.take(t.rows * t.columns)) {
    if (packed_here.product != product || !scratch_.lasts()) packed_here = {.product = product};
  }

  void compute(const Tile& tile) {
    const T* const a = static_cast<const T*>(operands_.a) + tile.matrix * call_.a.batch + tile.row * call_.a.row;
    const T* const b = static_cast<const T*>(operands_.b) + tile.matrix * call_.b.batch + tile.column * call_.b.column;
    const bool packs_left = !tiling_.keeps_left || packed_here.left != a;
    const bool packs_right = !tiling_.keeps_right || packed_here.right != b || packed_here.columns < tile.columns;
    for (int64_t block = 0; block < blocks_; ++block) {
      const int64_t k = block * kDepth, depth = std::min(kDepth, call_.k - k);
      float* const left = left_ + (tiling_.keeps_left ? block * left_block_ : 0);
      float* const right = right_ + (tiling_.keeps_right ? block * right_block_ : 0);
      if (packs_left) pack_left(a + k * call_.a.column, tile.rows, depth, left);
      if (packs_right) pack_right(b + k * call_.b.row, tile.columns, depth, right);
      if (k == 0) multiply<Start::kZero>(tile, depth, left, right);
      else multiply<Start::kTotal>(tile, depth, left, right);
    }
    packed_here.left = a;
    if (packs_right) packed_here.right = b, packed_here.columns = tile.columns;
    if (call_.wide) finish(tile, static_cast<float*>(operands_.c));
    else finish(tile, static_cast<T*>(operands_.c));
  }

 private:
  // Return the distance between panels of B, and between groups of kTileRows rows of A. For whole blocks it is an odd
  // number of cache lines, so that neighbours do not share a set of the L1 cache.
  static constexpr int64_t panel(int64_t depth) { return depth * kPanel + kLine; }
  static constexpr int64_t group(int64_t depth) { return round_up(depth * kTileRows + kWidth<float>, kLine) | kLine; }

  static void fetch(const T* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(from + i);
  }

  // Packs B into panels, each [depth, kPanel].
  void pack_right(const T* b, int64_t columns, int64_t depth, float* to) const {
    const auto at = [&](int64_t column, int64_t k) {
      return to + column / kPanel * panel(depth) + k * kPanel + column % kPanel;
    };
    if (call_.b.column != 1) {
      for (int64_t j = 0; j < columns; j += kPanel)
        pack_transposed(b + j * call_.b.column, call_.b.column, std::min(kPanel, columns - j), depth, 1.0f, at(j, 0),
                        kPanel);
      return;
    }
    for (int64_t k = 0; k < depth; ++k) {
      const T* const from = b + k * call_.b.row;
      if (k + kAhead < depth) fetch(from + kAhead * call_.b.row, columns);
      int64_t j = 0;
      for (; j + kPanel <= columns; j += kPanel)
        for (int64_t v = 0; v < kPanel; v += kWidth<float>) store(at(j, k) + v, load(from + j + v));
      for (; j < columns; j += kWidth<float>) store(at(j, k), load(from + j, columns - j));
    }
  }

  // Packs A into rows, or, if A is transposed, into groups, each [depth, kTileRows].
  void pack_left(const T* a, int64_t rows, int64_t depth, float* to) const {
    if (call_.a.column == 1) return pack_rows(a, call_.a.row, rows, depth, to, kDepth);
    for (int64_t k = 0; k < depth; ++k) {
      const T* const from = a + k * call_.a.column;
      if (k + kAhead < depth) fetch(from + kAhead * call_.a.column, rows);
      // A vector is at least as long as a group. What it writes after the group is overwritten by the next k.
      const auto at = [&](int64_t row) { return to + row / kTileRows * group(depth) + k * kTileRows; };
      int64_t i = 0;
      for (; i + kWidth<float> <= rows; i += kTileRows) store(at(i), load(from + i));
      for (; i < rows; i += kTileRows) store(at(i), load(from + i, rows - i));
    }
  }

  template <Start kStart> void multiply(const Tile& tile, int64_t depth, const float* left, const float* right) const {
    for (int64_t j = 0; j < tile.columns; j += kPanel) {
      const int vectors = tile.columns - j > kWidth<float> ? kTileVectors : 1;
      const float* const b = right + j / kPanel * panel(depth);
      if (call_.a.column == 1) {
        multiply_panel<kStart>(tile.rows, vectors, depth, LeftOperand<float, false>{left, kDepth}, b, kPanel, sums_ + j,
                               tiling_.columns);
        continue;
      }
      for (int64_t i = 0; i < tile.rows; i += kTileRows)
        multiply_panel<kStart>(std::min<int64_t>(kTileRows, tile.rows - i), vectors, depth,
                               LeftOperand<float, true>{left + i / kTileRows * group(depth), kTileRows}, b, kPanel,
                               sums_ + i * tiling_.columns + j, tiling_.columns);
    }
  }

  // Applies bias and epilogues in f32, then writes C.
  template <class C> void finish(const Tile& tile, C* c) const {
    for (int64_t r = 0; r < tile.rows; ++r) {
      float* const sums = sums_ + r * tiling_.columns;
      const int64_t at = tile.matrix * call_.c.batch + (tile.row + r) * call_.c.row + tile.column;
      const auto add = [&](const auto* numbers) {
        for (int64_t j = 0; j < tile.columns; j += kWidth<float>)
          store(sums + j, load(sums + j) + load(numbers + j, tile.columns - j));
      };
      if (call_.bias) add(static_cast<const T*>(operands_.bias) + tile.column);
      for (size_t e = 0; e < kMaxEpilogues; ++e) {
        switch (call_.epilogues[e]) {
          case Epilogue::kNone:
          case Epilogue::kWiden: break;  // call.wide requests it already
          case Epilogue::kAdd: add((call_.in_place[e] ? c : static_cast<const C*>(operands_.added[e])) + at); break;
          case Epilogue::kGelu:
            for (int64_t j = 0; j < tile.columns; ++j) sums[j] = scalar::gelu_erf(sums[j]);
            break;
          case Epilogue::kGeluTanh:
            for (int64_t j = 0; j < tile.columns; ++j) sums[j] = scalar::gelu_tanh(sums[j]);
            break;
        }
      }
      for (int64_t j = 0; j < tile.columns; j += kWidth<float>) store(c + at + j, load(sums + j), tile.columns - j);
    }
  }

  const MatmulCall& call_;
  const MatmulOperands& operands_;
  const Tiling& tiling_;
  const int64_t blocks_, left_block_, right_block_;  // blocks of the depth; sizes of a block of A and of B
  Scratch<float> scratch_;
  float *const left_, *const right_, *const sums_;
};

template <class T> void run(const MatmulCall& call, const MatmulOperands& operands) {
  const uint64_t number = products.fetch_add(1, std::memory_order_relaxed);
  const Tiling t = tiling_of(call);
  const int64_t flops = 2 * std::min(call.m, t.rows) * std::min(call.n, t.columns) * call.k;
  parallel_for(call.batch * t.down * t.across, std::max<int64_t>(1, kTaskFlops / flops),
               [&](int64_t begin, int64_t end) {
                 TiledProduct<T> product(number, call, operands, t);
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t row = i % t.down * t.rows, column = i / t.down % t.across * t.columns;
                   product.compute({.matrix = i / t.down / t.across,
                                    .row = row,
                                    .rows = std::min(t.rows, call.m - row),
                                    .column = column,
                                    .columns = std::min(t.columns, call.n - column)});
                 }
               });
}

}  // namespace

void tiled_product(const MatmulCall& call, const MatmulOperands& operands) {
  switch (call.dtype) {
    case kF32: return run<float>(call, operands);
    case kBF16: return run<BFloat16>(call, operands);
    default: return run<Float16>(call, operands);
  }
}

}  // namespace rondo::cpu
