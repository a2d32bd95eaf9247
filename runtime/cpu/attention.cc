#include "rondo/runtime/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "rondo/runtime/cpu/attention_decode.h"
#include "rondo/runtime/cpu/gemm_tile.h"
#include "rondo/runtime/cpu/philox.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/cpu/simd.h"
#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/random_state.h"
#include "rondo/runtime/storage.h"

// Note [Transposed scores]. Scores live as S^T, [keys, queries]: a vector is 16 queries. Then softmax needs no sums
// across lanes, k and v are read in place as the broadcast operand of both products, and only q (and the output) are
// transposed, once per query tile.
//
// Note [Base 2]. q is packed times scale * log2(e), so that exp is exp2; maxima are kept in base 2 and logsumexp is
// converted when it is stored and loaded.

namespace rondo::cpu {
namespace {

// Queries and keys per tile. Part of the summation order: changing them changes bits.
constexpr int64_t kQueryTile = 64;
constexpr int64_t kKeyTile = 64;

// Tasks per piece of a parallel_for, so that waking a thread pays: 2^20 FLOPs are about 5 us.
int64_t grain_of(double flops_per_task) { return static_cast<int64_t>(0x1p20 / std::max(1.0, flops_per_task)) + 1; }

template <class T> T* row_of(const HeadsView<T>& view, int64_t batch, int64_t head, int64_t row) {
  return view.data + batch * view.batch_stride + head * view.head_stride + row * view.row_stride;
}

// A panel of S^T: `vectors` vectors of queries from `query`, by `keys` keys from `key`.
template <class A> struct Panel {
  A* scores;  // [keys, stride]
  int64_t stride;
  int vectors;  // 1 or 2.
  int64_t query, valid_queries, key, keys;
};

// ---- Masks

// Writes the mask of a panel as an addend in base 2, [keys, kTileColumns]; queries beyond valid_queries get 0.
template <class T, class A = Compute<T>>
void load_mask(const AttentionMask<T>& mask, int64_t batch, int64_t head, const Panel<A>& panel, A* rows, A* addend) {
  const int64_t offset = batch * mask.strides[0] + head * mask.strides[1];
  const int64_t step = mask.strides[3];
  for (int64_t i = 0; i < panel.valid_queries; ++i) {
    const int64_t at = offset + (panel.query + i) * mask.strides[2] + panel.key * step;
    A* row = rows + i * kKeyTile;
    if (mask.first_key) {
      const int64_t masked = std::clamp<int64_t>(mask.first_key[at - panel.key * step] - panel.key, 0, panel.keys);
      std::fill_n(row, masked, -kInfinity<A>);
      std::fill_n(row + masked, panel.keys - masked, A(0));
    } else if (mask.allowed) {
      const bool* allowed = mask.allowed + at;
      for (int64_t j = 0; j < panel.keys; ++j) row[j] = allowed[j * step] ? A(0) : -kInfinity<A>;
    } else if (step == 1) {
      pack_rows<T>(mask.bias + at, 0, 1, panel.keys, row, kKeyTile);
    } else {
      for (int64_t j = 0; j < panel.keys; ++j) row[j] = static_cast<A>(mask.bias[at + j * step]);
    }
  }
  pack_transposed<A>(rows, kKeyTile, panel.valid_queries, panel.keys, static_cast<A>(kLog2E), addend, kTileColumns<A>);
}

// The keys that a tile of queries reads: whole key tiles from `begin` on; those from `clear` on need no mask.
struct KeyRange {
  int64_t begin = 0, clear = 0;
};
template <class T>
KeyRange key_range(const AttentionMask<T>& mask, int64_t batch, int64_t head, int64_t query, int64_t queries,
                   int64_t keys) {
  if (!mask) return {};
  if (mask.first_key == nullptr) return {.begin = 0, .clear = keys};
  const int64_t* const first = mask.first_key + batch * mask.strides[0] + head * mask.strides[1];
  int64_t least = keys, most = 0;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t key = std::clamp<int64_t>(first[(query + i) * mask.strides[2]], 0, keys);
    least = std::min(least, key);
    most = std::max(most, key);
  }
  return {.begin = least / kKeyTile * kKeyTile, .clear = most};
}

template <class A> void add_mask(const Panel<A>& panel, const A* addend) {
  const int64_t columns = round_up(panel.valid_queries, kWidth<A>);
  for (int64_t j = 0; j < panel.keys; ++j) {
    for (int64_t i = 0; i < columns; i += kWidth<A>) {
      A* s = panel.scores + j * panel.stride + i;
      store(s, load(s) + load(addend + j * kTileColumns<A> + i));
    }
  }
}

// Sets the scores of keys after their query to -inf.
template <class A> void apply_causal(const Panel<A>& panel) {
  const IntegerVector<A> lanes = lane_numbers<A>();
  for (int64_t j = std::max<int64_t>(0, panel.query - panel.key + 1); j < panel.keys; ++j) {
    using Integer = typename VectorOf<A>::Integer;
    const Integer first_allowed = static_cast<Integer>(panel.key + j - panel.query);
    for (int i = 0; i < panel.vectors; ++i) {
      A* s = panel.scores + j * panel.stride + i * kWidth<A>;
      store(s, lanes + i * kWidth<A> < first_allowed ? broadcast(-kInfinity<A>) : load(s));
    }
  }
}

// ---- Dropout

// The factors by which dropout multiplies the weights of a vector of queries. Each query has a counter for four keys,
// so the words of a vector of counters are for four rows of S^T.
template <class A> class WeightFactors {
 public:
  WeightFactors(const AttentionShape& shape, int64_t batch, int64_t head, int64_t query)
      : dropout_(shape.dropout), rule_(shape.dropout.p) {
    const auto counters = static_cast<uint64_t>((shape.keys + 3) / 4);
    first_ = counters_from<kWidth<A>>(
        static_cast<uint64_t>((batch * shape.heads + head) * shape.queries + query) * counters, counters);
  }
  // The factors of four keys from `key` on, which is a multiple of 4.
  void draw(int64_t key, Vector<A> (&factors)[4]) const {
    PhiloxWords<kWidth<A>> words[4];
    cpu::draw<kWidth<A>>(dropout_.seed, dropout_.offset, first_ + static_cast<uint64_t>(key / 4), words);
    const Vector<A> factor = broadcast(static_cast<A>(rule_.factor));
    for (int k = 0; k < 4; ++k)
      factors[k] = __builtin_convertvector(words[k] >= rule_.threshold, IntegerVector<A>) ? factor : Vector<A>{};
  }

 private:
  const AttentionDropout& dropout_;
  const DropoutRule rule_;
  PhiloxCounters<kWidth<A>> first_;
};

// Multiplies the weights of a panel by their factors.
template <class A> void drop(const AttentionShape& shape, int64_t batch, int64_t head, const Panel<A>& panel) {
  static_assert(kKeyTile % 4 == 0);
  for (int i = 0; i < panel.vectors; ++i) {
    const WeightFactors<A> dropout(shape, batch, head, panel.query + i * kWidth<A>);
    for (int64_t j = 0; j < panel.keys; j += 4) {
      Vector<A> factors[4];
      dropout.draw(panel.key + j, factors);
      for (int64_t k = 0; k < std::min<int64_t>(4, panel.keys - j); ++k) {
        A* const s = panel.scores + (j + k) * panel.stride + i * kWidth<A>;
        store(s, load(s) * factors[k]);
      }
    }
  }
}

// ---- Forward

// Row j of a reduction goes to chain j % kChains, to hide the latency of an addition; left-over rows to chain 0, so
// that chains stay in registers.
constexpr int kChains = 4;
template <class F> inline void for_rows(int64_t rows, F&& f) {
  int64_t j = 0;
  for (; j + kChains <= rows; j += kChains) {
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) f(j + chain, chain);
  }
  for (; j < rows; ++j) f(j, 0);
}

// One step of online softmax on a panel: scores become exp2(score - maximum), maximum and sum are brought up to date,
// and factors is what earlier sums must be multiplied by.
template <int N, class A> void online_softmax(const Panel<A>& panel, A* maximum, A* sum, A* factors) {
  constexpr int kW = kWidth<A>;
  Vector<A> shift[N], total[kChains][N] = {};
  Vector<A> top[kChains][N];
  for (auto& chain : top)
    for (int i = 0; i < N; ++i) chain[i] = load(maximum + i * kW);
  for_rows(panel.keys, [&](int64_t j, int chain) {
    for (int i = 0; i < N; ++i) top[chain][i] = larger(load(panel.scores + j * panel.stride + i * kW), top[chain][i]);
  });
  for (int i = 0; i < N; ++i) {
    const Vector<A> last = larger(larger(top[0][i], top[1][i]), larger(top[2][i], top[3][i]));
    // With no key allowed so far the maximum is -inf: subtract 0 then, so that exp2 sees -inf and not NaN.
    shift[i] = last == -kInfinity<A> ? Vector<A>{} : last;
    store(factors + i * kW, exp2<A>(load(maximum + i * kW) - shift[i]));
    store(maximum + i * kW, last);
  }
  for_rows(panel.keys, [&](int64_t j, int chain) {
    for (int i = 0; i < N; ++i) {
      A* s = panel.scores + j * panel.stride + i * kW;
      const Vector<A> p = exp2<A>(load(s) - shift[i]);
      store(s, p);
      total[chain][i] += p;
    }
  });
  for (int i = 0; i < N; ++i) {
    const Vector<A> sum_here = (total[0][i] + total[1][i]) + (total[2][i] + total[3][i]);
    store(sum + i * kW, fma(load(sum + i * kW), load(factors + i * kW), sum_here));
  }
}

// Computes tiles of queries, one after the other, on one thread.
template <class T> struct ForwardTask {
  using A = Compute<T>;
  // k and v of compute type are read where they are.
  static constexpr bool kDirect = std::is_same_v<T, A>;
  static constexpr int64_t kColumns = kTileColumns<A>;

  struct Tile {
    int64_t batch, head, query;
  };

  const AttentionShape& shape;
  const HeadsView<const T>&q, &k, &v;
  const AttentionMask<T>& mask;
  const HeadsView<T>& out;
  A* logsumexp;

  const int64_t d = shape.head_dim, d_padded = round_up(d, kWidth<A>);
  A *q_t = nullptr, *out_t = nullptr;                        // [kQueryTile / kColumns, D, kColumns]
  A *k_tile = nullptr, *v_tile = nullptr;                    // [kKeyTile, d_padded], unless kDirect
  A* scores = nullptr;                                       // [kKeyTile, kColumns]
  A *mask_rows = nullptr, *addend = nullptr;                 // [kColumns, kKeyTile] and its transpose
  A *maximum = nullptr, *sum = nullptr, *factors = nullptr;  // [kQueryTile]

  int64_t kv_head_of(const Tile& tile) const { return tile.head / (shape.heads / shape.kv_heads); }

  // Writes the output and logsumexp of `tile`.
  void run(const Tile& tile) {
    Scratch<A> scratch(2 * d * kQueryTile + 2 * kKeyTile * d_padded + 3 * kKeyTile * kColumns + 3 * kQueryTile);
    q_t = scratch.take(d * kQueryTile);
    out_t = scratch.take(d * kQueryTile);
    scores = scratch.take(kKeyTile * kColumns);
    mask_rows = scratch.take(kKeyTile * kColumns);
    addend = scratch.take(kKeyTile * kColumns);
    maximum = scratch.take(kQueryTile);
    sum = scratch.take(kQueryTile);
    factors = scratch.take(kQueryTile);
    k_tile = scratch.take(kKeyTile * d_padded);
    v_tile = scratch.take(kKeyTile * d_padded);

    std::fill_n(maximum, kQueryTile, -kInfinity<A>);
    std::fill_n(sum, kQueryTile, A(0));
    const int64_t queries = std::min(kQueryTile, shape.queries - tile.query);
    for (int64_t i = 0; i < queries; i += kColumns) {
      pack_transposed<T>(row_of(q, tile.batch, tile.head, tile.query + i), q.row_stride,
                         std::min(kColumns, queries - i), d, static_cast<A>(shape.scale * kLog2E), q_t + i * d,
                         kColumns);
    }
    const int64_t key_end = shape.causal ? std::min(shape.keys, tile.query + queries) : shape.keys;
    const KeyRange range = key_range(mask, tile.batch, tile.head, tile.query, queries, shape.keys);
    if (key_end <= range.begin) std::fill_n(out_t, d * kQueryTile, A(0));
    for (int64_t key = range.begin; key < key_end; key += kKeyTile) {
      attend(tile, queries, key, std::min(kKeyTile, key_end - key), range);
    }
    finish(tile, queries);
  }

  // One step of online softmax with a tile of keys.
  void attend(const Tile& tile, int64_t queries, int64_t key, int64_t tile_keys, const KeyRange& range) {
    const T* const k_rows = row_of(k, tile.batch, kv_head_of(tile), key);
    const T* const v_rows = row_of(v, tile.batch, kv_head_of(tile), key);
    LeftOperand<A, false> k_left{k_tile, d_padded};
    LeftOperand<A, true> v_left{v_tile, d_padded};
    if constexpr (kDirect) {
      k_left = {k_rows, k.row_stride};
      v_left = {v_rows, v.row_stride};
    } else {
      pack_rows<T>(k_rows, k.row_stride, tile_keys, d, k_tile, d_padded);
      pack_rows<T>(v_rows, v.row_stride, tile_keys, d, v_tile, d_padded);
    }
    for (int64_t i = 0; i < queries; i += kColumns) {
      const int64_t query = tile.query + i, valid = std::min(kColumns, queries - i);
      const int64_t keys = shape.causal ? std::min(tile_keys, query + valid - key) : tile_keys;
      if (keys <= 0) continue;
      const int vectors = valid > kWidth<A> ? 2 : 1;
      const Panel<A> panel{scores, kColumns, vectors, query, valid, key, keys};
      multiply_panel<Start::kZero>(keys, vectors, d, k_left, q_t + i * d, kColumns, scores, kColumns);
      if (key < range.clear) {
        load_mask(mask, tile.batch, tile.head, panel, mask_rows, addend);
        add_mask(panel, addend);
      }
      if (shape.causal) apply_causal(panel);
      if (vectors == 2) {
        online_softmax<2>(panel, maximum + i, sum + i, factors + i);
      } else {
        online_softmax<1>(panel, maximum + i, sum + i, factors + i);
      }
      if (shape.dropout) drop(shape, tile.batch, tile.head, panel);
      A* const to = out_t + i * d;
      if (key == range.begin) {
        multiply_panel<Start::kZero>(d, vectors, keys, v_left, scores, kColumns, to, kColumns);
      } else {
        multiply_panel<Start::kScale>(d, vectors, keys, v_left, scores, kColumns, to, kColumns, factors + i);
      }
    }
  }

  void finish(const Tile& tile, int64_t queries) {
    A* const lse = logsumexp + (tile.batch * shape.heads + tile.head) * shape.queries + tile.query;
    for (int64_t i = 0; i < queries; i += kWidth<A>) {
      const Vector<A> total = load(sum + i);
      const auto empty = total == A(0);
      const Vector<A> value = (load(maximum + i) + log2<A>(total)) * static_cast<A>(kLn2);
      store(lse + i, empty ? broadcast(-kInfinity<A>) : value, queries - i);
      store(factors + i, empty ? Vector<A>{} : A(1) / total);
    }
    for (int64_t i = 0; i < queries; i += kColumns) {
      unpack_transposed<T>(out_t + i * d, kColumns, d, std::min(kColumns, queries - i), factors + i,
                           row_of(out, tile.batch, tile.head, tile.query + i), out.row_stride);
    }
  }
};

// ---- Backward

// A share of one (batch, key and value head): some of the query tiles of the query heads that read it.
template <class T> struct BackwardTask {
  using A = Compute<T>;
  static constexpr int64_t kColumns = kTileColumns<A>;

  const AttentionShape& shape;
  const HeadsView<const T>&q, &k, &v;
  const AttentionMask<T>& mask;
  const HeadsView<const T>& out;
  const A* logsumexp;
  const HeadsView<const T>& grad_out;
  const HeadsView<T>& grad_q;

  // Adds share `share` of `shares` to grad_k / scale and grad_v, dense [Tk, D padded]; writes the share's rows of
  // grad_q.
  void run(int64_t pair, int64_t share, int64_t shares, A* grad_k_sum, A* grad_v_sum) {
    const int64_t batch = pair / shape.kv_heads, kv_head = pair % shape.kv_heads;
    Scratch<A> scratch(2 * shape.keys * d_padded + 2 * d * kQueryTile + 3 * kQueryTile * d_padded +
                       2 * kKeyTile * kQueryTile + 2 * kKeyTile * kColumns + 2 * kQueryTile);
    k_rows = scratch.take(shape.keys * d_padded);
    v_rows = scratch.take(shape.keys * d_padded);
    q_t = scratch.take(d * kQueryTile);
    grad_out_t = scratch.take(d * kQueryTile);
    q_rows = scratch.take(kQueryTile * d_padded);
    grad_out_rows = scratch.take(kQueryTile * d_padded);
    grad_q_sum = scratch.take(kQueryTile * d_padded);
    probabilities = scratch.take(kKeyTile * kQueryTile);
    grad_scores = scratch.take(kKeyTile * kQueryTile);
    mask_rows = scratch.take(kKeyTile * kColumns);
    addend = scratch.take(kKeyTile * kColumns);
    shift = scratch.take(kQueryTile);
    delta = scratch.take(kQueryTile);

    pack_rows<T>(row_of(k, batch, kv_head, 0), k.row_stride, shape.keys, d, k_rows, d_padded);
    pack_rows<T>(row_of(v, batch, kv_head, 0), v.row_stride, shape.keys, d, v_rows, d_padded);
    const int64_t group = shape.heads / shape.kv_heads;
    const int64_t tiles = (shape.queries + kQueryTile - 1) / kQueryTile;
    // Shares take turns, since the causal cost of a tile grows with its number.
    for (int64_t item = share; item < group * tiles; item += shares) {
      query_tile(batch, kv_head * group + item / tiles, item % tiles * kQueryTile, grad_k_sum, grad_v_sum);
    }
  }

  const int64_t d = shape.head_dim, d_padded = round_up(d, kWidth<A>);
  A *k_rows = nullptr, *v_rows = nullptr;                                // [Tk, d_padded]
  A *q_t = nullptr, *grad_out_t = nullptr;                               // [D, kQueryTile]; see Note [Base 2]
  A *q_rows = nullptr, *grad_out_rows = nullptr, *grad_q_sum = nullptr;  // [kQueryTile, d_padded]
  A *probabilities = nullptr, *grad_scores = nullptr;                    // [kKeyTile, kQueryTile]
  A *mask_rows = nullptr, *addend = nullptr;                             // [kColumns, kKeyTile] and its transpose
  A *shift = nullptr, *delta = nullptr;                                  // [kQueryTile]

  void query_tile(int64_t batch, int64_t head, int64_t query_begin, A* grad_k_sum, A* grad_v_sum) {
    const int64_t queries = std::min(kQueryTile, shape.queries - query_begin);
    load_queries(batch, head, query_begin, queries);
    std::fill_n(grad_q_sum, queries * d_padded, A(0));
    const int64_t key_end = shape.causal ? std::min(shape.keys, query_begin + queries) : shape.keys;
    const KeyRange range = key_range(mask, batch, head, query_begin, queries, shape.keys);
    for (int64_t key = range.begin; key < key_end; key += kKeyTile) {
      const int64_t keys = std::min(kKeyTile, key_end - key);
      for (int64_t i = 0; i < queries; i += kColumns)
        score_panel(batch, head, query_begin, i, std::min(kColumns, queries - i), key, keys, key < range.clear);
      accumulate(query_begin, queries, key, keys, grad_k_sum + key * d_padded, grad_v_sum + key * d_padded);
    }
    unpack_rows<T>(grad_q_sum, d_padded, queries, d, static_cast<A>(shape.scale),
                   row_of(grad_q, batch, head, query_begin), grad_q.row_stride);
  }

  // Packs q and grad_out both ways; shift = logsumexp in base 2; delta = sum_d grad_out * out.
  void load_queries(int64_t batch, int64_t head, int64_t query_begin, int64_t queries) {
    const T* const q_tile = row_of(q, batch, head, query_begin);
    const T* const grad_tile = row_of(grad_out, batch, head, query_begin);
    pack_rows<T>(q_tile, q.row_stride, queries, d, q_rows, d_padded);
    pack_rows<T>(grad_tile, grad_out.row_stride, queries, d, grad_out_rows, d_padded);
    pack_transposed<T>(q_tile, q.row_stride, queries, d, static_cast<A>(shape.scale * kLog2E), q_t, kQueryTile);
    pack_transposed<T>(grad_tile, grad_out.row_stride, queries, d, A(1), grad_out_t, kQueryTile);
    load_delta(row_of(out, batch, head, query_begin), queries);
    const A* const lse = logsumexp + (batch * shape.heads + head) * shape.queries + query_begin;
    for (int64_t i = 0; i < kQueryTile; ++i) {
      // exp2(score - inf) = 0: no probability where no key was allowed, nor in the padding.
      shift[i] = i < queries && lse[i] != -kInfinity<A> ? lse[i] * static_cast<A>(kLog2E) : kInfinity<A>;
    }
  }

  // In the order of Note [Row order], a vector of rows at a time: the tree of lanes is vertical after a transposition.
  void load_delta(const T* out_tile, int64_t queries) {
    constexpr int kN = kWidth<A>;
    static_assert(kLanes % kN == 0);
    for (int64_t i = 0; i < queries; i += kN) {
      Vector<A> lanes[kLanes];
      for (int first = 0; first < kLanes; first += kN) {
        Vector<A> rows[kN];
        for (int r = 0; r < kN; ++r) {
          rows[r] = Vector<A>{};
          if (i + r >= queries) continue;
          const A* const g = grad_out_rows + (i + r) * d_padded;
          const T* const o = out_tile + (i + r) * out.row_stride;
          for (int64_t c = first; c < d; c += kLanes) rows[r] = fma(load(g + c), load(o + c, d - c), rows[r]);
        }
        transpose<A>(rows);
        std::copy_n(rows, kN, lanes + first);
      }
      store(delta + i, combine_lanes(lanes, [](Vector<A> x, Vector<A> y) { return x + y; }));
    }
  }

  // probabilities and grad_scores for the panel at column `i`.
  void score_panel(int64_t batch, int64_t head, int64_t query_begin, int64_t i, int64_t valid, int64_t key,
                   int64_t keys, bool masked) {
    const int64_t query = query_begin + i;
    // Whole blocks of rows: `accumulate` reads blocks that straddle the diagonal.
    if (shape.causal) keys = std::min(keys, round_up(query + valid - key, kTileRows));
    if (keys <= 0) return;
    const int vectors = valid > kWidth<A> ? 2 : 1;
    const Panel<A> panel{probabilities + i, kQueryTile, vectors, query, valid, key, keys};
    const auto left = [&](const A* rows) { return LeftOperand<A, false>{rows + key * d_padded, d_padded}; };
    multiply_panel<Start::kZero>(keys, vectors, d, left(k_rows), q_t + i, kQueryTile, panel.scores, kQueryTile);
    if (masked) {
      load_mask(mask, batch, head, panel, mask_rows, addend);
      add_mask(panel, addend);
    }
    if (shape.causal) apply_causal(panel);
    multiply_panel<Start::kZero>(keys, vectors, d, left(v_rows), grad_out_t + i, kQueryTile, grad_scores + i,
                                 kQueryTile);
    if (shape.dropout) return weights_and_slopes(batch, head, panel, i);
    for (int64_t column = i; column < i + vectors * kWidth<A>; column += kWidth<A>) {
      const Vector<A> row_shift = load(shift + column), row_delta = load(delta + column);
      for (int64_t j = 0; j < keys; ++j) {
        A* const s = probabilities + j * kQueryTile + column;
        A* const g = grad_scores + j * kQueryTile + column;
        const Vector<A> p = exp2<A>(load(s) - row_shift);
        store(s, p);
        store(g, p * (load(g) - row_delta));
      }
    }
  }

  // The same with dropout, for the panel at column `i`: the weights are dropped, and their gradients.
  void weights_and_slopes(int64_t batch, int64_t head, const Panel<A>& panel, int64_t i) {
    for (int64_t at = 0; at < panel.vectors * kWidth<A>; at += kWidth<A>) {
      const Vector<A> row_shift = load(shift + i + at), row_delta = load(delta + i + at);
      const WeightFactors<A> dropout(shape, batch, head, panel.query + at);
      for (int64_t j = 0; j < panel.keys; j += 4) {
        Vector<A> factors[4];
        dropout.draw(panel.key + j, factors);
        for (int64_t k = 0; k < std::min<int64_t>(4, panel.keys - j); ++k) {
          A* const s = panel.scores + (j + k) * kQueryTile + at;
          A* const g = grad_scores + (j + k) * kQueryTile + i + at;
          const Vector<A> p = exp2<A>(load(s) - row_shift);
          store(s, p * factors[k]);
          store(g, p * (load(g) * factors[k] - row_delta));
        }
      }
    }
  }

  // grad_v += P^T grad_out, grad_k += dS^T q, grad_q += dS k for a tile of queries and keys. Causal: the sums of a
  // block of rows leave out what is masked for all of it.
  void accumulate(int64_t query_begin, int64_t queries, int64_t key, int64_t keys, A* grad_k_tile, A* grad_v_tile) {
    for (int64_t j = 0; j < keys; j += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, keys - j);
      const int64_t first = shape.causal ? std::max<int64_t>(0, key + j - query_begin) : 0;
      add_product<false>(rows, queries - first, probabilities + j * kQueryTile + first,
                         grad_out_rows + first * d_padded, grad_v_tile + j * d_padded);
      add_product<false>(rows, queries - first, grad_scores + j * kQueryTile + first, q_rows + first * d_padded,
                         grad_k_tile + j * d_padded);
    }
    for (int64_t i = 0; i < queries; i += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, queries - i);
      const int64_t depth = shape.causal ? std::min(keys, query_begin + i + rows - key) : keys;
      if (depth > 0)
        add_product<true>(rows, depth, grad_scores + i, k_rows + key * d_padded, grad_q_sum + i * d_padded);
    }
  }

  // c[rows, D] += a b, with b and c of row stride d_padded and `a` a block of [kKeyTile, kQueryTile], transposed or
  // not.
  template <bool kRowsAdjacent> void add_product(int64_t rows, int64_t depth, const A* a, const A* b, A* c) {
    for (int64_t column = 0; column < d_padded; column += kColumns) {
      const int vectors = d_padded - column > kWidth<A> ? 2 : 1;
      multiply_panel<Start::kAdd>(rows, vectors, depth, LeftOperand<A, kRowsAdjacent>{a, kQueryTile}, b + column,
                                  d_padded, c + column, d_padded);
    }
  }
};

}  // namespace

template <class T>
void attention_forward(const AttentionShape& shape, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
                       const AttentionMask<T>& mask, HeadsView<T> out, AttentionAccumulator<T>* logsumexp) {
  if (shape.queries == 1 && !shape.dropout) return attention_decode(shape, q, k, v, mask, out, logsumexp);
  const int64_t tiles = (shape.queries + kQueryTile - 1) / kQueryTile;
  const double flops = 4.0 * std::min(kQueryTile, shape.queries) * shape.keys * shape.head_dim;
  parallel_for(shape.batch * shape.heads * tiles, grain_of(flops), [&](int64_t begin, int64_t end) {
    ForwardTask<T> task{shape, q, k, v, mask, out, logsumexp};
    const auto tile_at = [&](int64_t n) {
      // 0, last, 1, last - 1, ...: contiguous pieces then cost the same under a causal mask.
      const int64_t head = n / tiles, m = n % tiles, tile = m % 2 ? tiles - 1 - m / 2 : m / 2;
      return typename ForwardTask<T>::Tile{head / shape.heads, head % shape.heads, tile * kQueryTile};
    };
    for (int64_t n = begin; n < end; ++n) task.run(tile_at(n));
  });
}

template <class T>
void attention_backward(const AttentionShape& shape, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
                        const AttentionMask<T>& mask, HeadsView<const T> out, const AttentionAccumulator<T>* logsumexp,
                        HeadsView<const T> grad_out, HeadsView<T> grad_q, HeadsView<T> grad_k, HeadsView<T> grad_v) {
  using A = Compute<T>;
  const int64_t pairs = shape.batch * shape.kv_heads;
  if (pairs == 0) return;
  const int64_t items = shape.heads / shape.kv_heads * ((shape.queries + kQueryTile - 1) / kQueryTile);
  // Few heads: several tasks share one, each with sums of its own that are added in order. By shape only, never by the
  // number of threads.
  constexpr int64_t kTasks = 16;
  const int64_t shares = std::clamp<int64_t>(kTasks / pairs, 1, std::max<int64_t>(1, items));
  const int64_t d_padded = round_up(shape.head_dim, kWidth<A>), size = shape.keys * d_padded;

  const auto write = [&](int64_t pair, const A* grad_k_sum, const A* grad_v_sum) {
    const int64_t batch = pair / shape.kv_heads, head = pair % shape.kv_heads;
    unpack_rows<T>(grad_k_sum, d_padded, shape.keys, shape.head_dim, static_cast<A>(shape.scale),
                   row_of(grad_k, batch, head, 0), grad_k.row_stride);
    unpack_rows<T>(grad_v_sum, d_padded, shape.keys, shape.head_dim, A(1), row_of(grad_v, batch, head, 0),
                   grad_v.row_stride);
  };
  std::vector<A> sums(shares > 1 ? pairs * shares * size * 2 : 0);
  const double flops = 10.0 * shape.queries * shape.keys * shape.head_dim * (shape.heads / shape.kv_heads) / shares;
  parallel_for(pairs * shares, grain_of(flops), [&](int64_t begin, int64_t end) {
    const Storage memory = shares == 1 ? Storage::allocate(static_cast<size_t>(2 * size) * sizeof(A)) : Storage();
    A* const own = shares == 1 ? reinterpret_cast<A*>(memory.data()) : nullptr;
    BackwardTask<T> task{shape, q, k, v, mask, out, logsumexp, grad_out, grad_q};
    for (int64_t n = begin; n < end; ++n) {
      const int64_t pair = n / shares;
      if (shares == 1) std::fill_n(own, 2 * size, A(0));
      A* const sum = shares == 1 ? own : sums.data() + n * size * 2;
      task.run(pair, n % shares, shares, sum, sum + size);
      if (shares == 1) write(pair, sum, sum + size);
    }
  });
  if (shares == 1) return;
  parallel_for(pairs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      A* const sum = sums.data() + pair * shares * size * 2;
      for (int64_t share = 1; share < shares; ++share)
        for (int64_t i = 0; i < 2 * size; ++i) sum[i] += sum[share * size * 2 + i];
      write(pair, sum, sum + size);
    }
  });
}

#define RONDO_ATTENTION(T)                                                                                            \
  template void attention_forward<T>(const AttentionShape&, HeadsView<const T>, HeadsView<const T>,                   \
                                     HeadsView<const T>, const AttentionMask<T>&, HeadsView<T>,                       \
                                     AttentionAccumulator<T>*);                                                       \
  template void attention_backward<T>(const AttentionShape&, HeadsView<const T>, HeadsView<const T>,                  \
                                      HeadsView<const T>, const AttentionMask<T>&, HeadsView<const T>,                \
                                      const AttentionAccumulator<T>*, HeadsView<const T>, HeadsView<T>, HeadsView<T>, \
                                      HeadsView<T>);
RONDO_ATTENTION(float)
RONDO_ATTENTION(double)
RONDO_ATTENTION(BFloat16)
RONDO_ATTENTION(Float16)
#undef RONDO_ATTENTION

}  // namespace rondo::cpu
