#include "rondo/runtime/cpu/tiled_product.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/gemm_tile.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/ops/scalar_math.h"

// Note [Tiles]. C is cut into tiles, and a task computes some of them. For each block of the depth it packs a tile's
// rows of A, which then stay in the L2 cache, and its columns of B, in panels of kTileColumns. A panel stays in the L1
// cache while it is multiplied by all those rows. Packing reads an operand once, so its strides do not slow the product
// down, and it widens 16-bit numbers. Packing a number costs about as much as 9 multiplications with it. So tiles that
// share columns of B are computed together, in a strip: for each block of the depth, these columns are packed once. If
// C has only one row of tiles, the tiles of a strip share their rows of A. Sums are kept in C itself if possible. Tiles
// do not affect bits (Note [Tiled order]), so their size may depend on the number of threads.
//
// Measured on 2 threads of Zen 3, whose L2 cache has 512 KiB, f32: tiles of 240 rows instead of 120 take 1.03 of the
// time where other processes use the caches, too, and are as fast elsewhere. Sums in C take 0.97 of the time of sums
// that are copied at the end.

namespace rondo::cpu {
namespace {

constexpr int64_t kDepth = 256;          // the depth of a block: Note [Tiled order]
constexpr int64_t kTaskRows = 120;       // most rows of a tile: a multiple of all kTileRows
constexpr int64_t kTaskColumns = 512;    // most columns of a tile
constexpr int64_t kStrip = 10;           // most tiles of a strip
constexpr int64_t kTaskFlops = 1 << 20;  // least work of a task for which waking a thread is worthwhile
constexpr int64_t kTasksOfThread = 4;    // several tasks per thread, so that all threads end at about the same time
constexpr int64_t kPanel = kTileColumns<float>;
constexpr int64_t kLine = 16;  // numbers in a cache line
constexpr int64_t kAhead = 4;  // packing prefetches this many rows ahead, because each may be in another page

struct Tiling {
  int64_t rows, columns;         // of a tile: multiples of kTileRows and of kPanel
  int64_t down = 1, across = 1;  // number of tiles in each direction
  // Returns the number of tiles in a line, whose tiles share columns of B, or, in the only row of tiles, rows of A.
  int64_t line() const { return down == 1 ? across : down; }
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
  return t;
}

// Returns tiles with one row or one column more, if then the thread with the most work has at least 2% less of it.
Tiling balanced(const MatmulCall& call, const Tiling& first, int64_t threads) {
  const auto most_work = [&](const Tiling& t) {
    return (call.batch * t.down * t.across + threads - 1) / threads * t.rows * t.columns;
  };
  Tiling best = first;
  for (const auto& [down, across] : {std::pair(first.down, first.across + 1), {first.down + 1, first.across}}) {
    const Tiling t = tiles(call, (call.m + down - 1) / down, (call.n + across - 1) / across);
    if (100 * most_work(t) <= 98 * most_work(best)) best = t;
  }
  return best;
}

Tiling tiling_of(const MatmulCall& call) {
  Tiling best = tiles(call, kTaskRows, kTaskColumns);
  const int64_t worth = 2 * call.batch * call.m * call.n * call.k / kTaskFlops,
                threads = in_parallel() ? 1 : num_threads();
  const int64_t wanted = threads == 1 ? 1 : std::min(kTasksOfThread * threads, worth);
  while (call.batch * best.down * best.across < wanted) {
    const bool few_rows = best.rows <= 8 * kTileRows;
    if (best.columns > (few_rows ? kPanel : 128)) best = tiles(call, best.rows, best.columns / 2);
    else if (best.rows > kTileRows) best = tiles(call, best.rows / 2, best.columns);
    else break;
  }
  return balanced(call, best, threads);
}

// Rows [row, row + rows) and columns [column, column + columns) of one matrix of the batch.
struct Tile {
  int64_t matrix, row, rows, column, columns;
};

// One thread's part of a product.
template <class T> class TiledProduct {
 public:
  TiledProduct(const MatmulCall& call, const MatmulOperands& operands, const Tiling& t)
      : call_(call),
        operands_(operands),
        tiling_(t),
        sums_in_c_((std::is_same_v<T, float> || call.wide) && call.n % kWidth<float> == 0 &&
                   std::find(call.in_place.begin(), call.in_place.end(), true) == call.in_place.end()),
        left_size_(t.rows / kTileRows * group(kDepth)),
        right_size_(t.columns / kPanel * panel(kDepth)),
        sums_size_(sums_in_c_ ? 0 : std::min(kStrip, t.line()) * t.rows * t.columns),
        scratch_(left_size_ + right_size_ + sums_size_),
        left_(scratch_.take(left_size_)),
        right_(scratch_.take(right_size_)),
        sums_(scratch_.take(sums_size_)) {}

  // Computes tiles [begin, end), which are numbered down the columns of C.
  void compute(int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t next = std::min({end, begin + kStrip, (begin / tiling_.line() + 1) * tiling_.line()});
      compute_strip(begin, next);
      begin = next;
    }
  }

 private:
  Tile tile(int64_t i) const {
    const int64_t row = i % tiling_.down * tiling_.rows, column = i / tiling_.down % tiling_.across * tiling_.columns;
    return {.matrix = i / tiling_.down / tiling_.across,
            .row = row,
            .rows = std::min(tiling_.rows, call_.m - row),
            .column = column,
            .columns = std::min(tiling_.columns, call_.n - column)};
  }

  void compute_strip(int64_t begin, int64_t end) {
    const int64_t stride = sums_in_c_ ? call_.c.row : tiling_.columns;
    const auto sums_of = [&](int64_t i, const Tile& t) {
      return sums_in_c_ ? static_cast<float*>(operands_.c) + at_c(t) : sums_ + (i - begin) * tiling_.rows * stride;
    };
    const T* const a = static_cast<const T*>(operands_.a);
    const T* const b = static_cast<const T*>(operands_.b);
    for (int64_t k = 0; k < call_.k; k += kDepth) {
      const int64_t depth = std::min(kDepth, call_.k - k);
      for (int64_t i = begin; i < end; ++i) {
        const Tile t = tile(i);
        if (i == begin || tiling_.down > 1)
          pack_left(a + t.matrix * call_.a.batch + t.row * call_.a.row + k * call_.a.column, t.rows, depth);
        if (i == begin || tiling_.down == 1)
          pack_right(b + t.matrix * call_.b.batch + t.column * call_.b.column + k * call_.b.row, t.columns, depth);
        if (k == 0) multiply<Start::kZero>(t, depth, sums_of(i, t), stride);
        else multiply<Start::kTotal>(t, depth, sums_of(i, t), stride);
      }
    }
    if (sums_in_c_ && !call_.bias && call_.epilogues[0] == Epilogue::kNone) return;
    for (int64_t i = begin; i < end; ++i) {
      const Tile t = tile(i);
      if (call_.wide) finish(t, sums_of(i, t), stride, static_cast<float*>(operands_.c));
      else finish(t, sums_of(i, t), stride, static_cast<T*>(operands_.c));
    }
  }

  int64_t at_c(const Tile& t) const { return t.matrix * call_.c.batch + t.row * call_.c.row + t.column; }

  // Return the distance between panels of B, and between groups of kTileRows rows of A. For whole blocks it is an odd
  // number of cache lines, so that neighbours do not share a set of the L1 cache.
  static constexpr int64_t panel(int64_t depth) { return depth * kPanel + kLine; }
  static constexpr int64_t group(int64_t depth) { return round_up(depth * kTileRows + kWidth<float>, kLine) | kLine; }

  static void fetch(const T* from, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(from + i);
  }

  // Packs B into panels, each [depth, kPanel].
  void pack_right(const T* b, int64_t columns, int64_t depth) const {
    const auto at = [&](int64_t column, int64_t k) {
      return right_ + column / kPanel * panel(depth) + k * kPanel + column % kPanel;
    };
    if (call_.b.column != 1) {
      for (int64_t j = 0; j < columns; j += kPanel)
        pack_lines<kPanel>(b + j * call_.b.column, call_.b.column, columns - j, kPanel, depth, at(j, 0));
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

  // Returns the size of the next group of rows. A micro-kernel of two rows is limited by latency, so eight rows are two
  // groups of four.
  static int64_t next_group(int64_t rows_left) {
    if (kTileRows == 6 && rows_left == 8) return 4;
    return std::min<int64_t>(kTileRows, rows_left);
  }

  // Packs A into groups, each [depth, kTileRows]. A vector is at least as long as a row of a group. What it writes
  // after this row is overwritten by the next row.
  void pack_left(const T* a, int64_t rows, int64_t depth) const {
    float* to = left_;
    if (call_.a.column == 1) {
      for (int64_t i = 0, size = 0; i < rows; i += size, to += group(depth)) {
        size = next_group(rows - i);
        pack_lines<kTileRows>(a + i * call_.a.row, call_.a.row, rows - i, size, depth, to);
      }
      return;
    }
    for (int64_t k = 0; k < depth; ++k, to += kTileRows) {
      const T* const from = a + k * call_.a.column;
      if (k + kAhead < depth) fetch(from + kAhead * call_.a.column, rows);
      float* at = to;
      int64_t i = 0;
      for (int64_t size = 0; i + kWidth<float> <= rows; i += size, at += group(depth)) {
        size = next_group(rows - i);
        store(at, load(from + i));
      }
      for (; i < rows; i += kTileRows, at += group(depth)) store(at, load(from + i, rows - i));
    }
  }

  // Packs rows of A or columns of B whose numbers are adjacent along the depth: writes the first `count` of `lines`
  // such lines to `to`, [depth, kSize]. It takes a vector's width of lines at a time, and fetches the next ones to the
  // L2 cache: lines may be a multiple of 4 KiB apart, and then twice as many do not fit into a set of the L1 cache.
  template <int64_t kSize>
  static void pack_lines(const T* from, int64_t stride, int64_t lines, int64_t count, int64_t depth, float* to) {
    constexpr int64_t kN = kWidth<float>, kBlock = std::min(kN, kSize);
    count = std::min(count, lines);
    for (int64_t first = 0; first < kSize; first += kBlock) {
      const bool fetches = lines - first >= 2 * kBlock;
      for (int64_t k = 0; k < depth; k += kN) {
        const T* const at = from + first * stride + k;
        const int64_t width = std::min(kN, depth - k);
        Vector<float> block[kN] = {};
        if (count == kSize && width == kN) {
#pragma GCC unroll 16
          for (int64_t i = 0; i < kBlock; ++i) {
            if (fetches) __builtin_prefetch(at + (i + kBlock) * stride, 0, 2);
            block[i] = load(at + i * stride);
          }
        } else {
          for (int64_t i = 0; i < std::min(kBlock, count - first); ++i) block[i] = load(at + i * stride, width);
        }
        transpose<float>(block);
#pragma GCC unroll 16
        for (int64_t i = 0; i < kN; ++i)
          if (i < width) store(to + (k + i) * kSize + first, block[i]);
      }
    }
  }

  // Adds the product of the packed operands to `sums`. kStart is kZero for the first block of the depth.
  template <Start kStart> void multiply(const Tile& tile, int64_t depth, float* sums, int64_t stride) const {
    for (int64_t j = 0; j < tile.columns; j += kPanel) {
      const int vectors = tile.columns - j > kWidth<float> ? kTileVectors : 1;
      const float* const b = right_ + j / kPanel * panel(depth);
      const float* a = left_;
      for (int64_t i = 0, size = 0; i < tile.rows; i += size, a += group(depth)) {
        size = next_group(tile.rows - i);
        multiply_panel<kStart>(size, vectors, depth, LeftOperand<float, true>{a, kTileRows}, b, kPanel,
                               sums + i * stride + j, stride);
      }
    }
  }

  // Applies bias and epilogues to `sums` in f32, then writes C.
  template <class C> void finish(const Tile& tile, float* tile_sums, int64_t stride, C* c) const {
    for (int64_t r = 0; r < tile.rows; ++r) {
      float* const sums = tile_sums + r * stride;
      const int64_t at = at_c(tile) + r * call_.c.row;
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
  const bool sums_in_c_;
  const int64_t left_size_, right_size_, sums_size_;
  Scratch<float> scratch_;
  float *const left_, *const right_, *const sums_;
};

template <class T> void run(const MatmulCall& call, const MatmulOperands& operands) {
  const Tiling t = tiling_of(call);
  const int64_t flops = 2 * std::min(call.m, t.rows) * std::min(call.n, t.columns) * call.k;
  parallel_for(call.batch * t.down * t.across, std::max<int64_t>(1, kTaskFlops / flops),
               [&](int64_t begin, int64_t end) { TiledProduct<T>(call, operands, t).compute(begin, end); });
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
