#include "rondo/runtime/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/attention_decode.h"
#include "rondo/runtime/cpu/attention_operands.h"
#include "rondo/runtime/cpu/attention_panel.h"
#include "rondo/runtime/cpu/scratch.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/ops/reduction_order.h"

// Note [Transposed scores]. Scores are stored as S^T, [keys, queries]: a vector holds 16 queries. Then softmax needs no
// sums across lanes, k and v are read in place as the broadcast operand of both products, and only q (and the output)
// are transposed, once per query tile.
//
// Note [Base 2]. Scores are q k^T times scale * log2(e), so that exp becomes exp2. Maxima are kept in base 2; logsumexp
// is converted when it is stored and loaded.

namespace rondo::cpu {
namespace {

// Returns how many tasks make a piece of a parallel_for. A piece has at least about 2^20 FLOPs (5 us), so that waking a
// thread is worthwhile.
int64_t grain_of(double flops_per_task) { return static_cast<int64_t>(0x1p20 / std::max(1.0, flops_per_task)) + 1; }

// Returns the number of operand elements that hold a depth of `n` numbers.
template <class T> int64_t elements(int64_t n) { return (n + TileOperands<T>::kDepth - 1) / TileOperands<T>::kDepth; }

// Returns the end of the keys that a tile of queries reads. The tile ends at query_end.
int64_t key_end_of(const AttentionShape& shape, int64_t query_end, const KeyRange& range) {
  return std::min(range.end, shape.causal ? std::min(shape.keys, query_end) : shape.keys);
}

// ---- Forward

// Computes tiles of queries, one after the other, on one thread.
template <class T> struct ForwardTask {
  using A = Compute<T>;
  using O = TileOperands<T>;
  using E = typename O::Element;
  static constexpr int64_t kColumns = kTileColumns<A>;

  struct Tile {
    int64_t batch, head, query;
  };

  const AttentionShape& shape;
  const HeadsView<const T>&q, &k, &v;
  const AttentionMask<T>& mask;
  const HeadsView<T>& out;
  A* logsumexp;

  const int64_t d = shape.head_dim, d_padded = round_up(d, kWidth<A>), depth = elements<T>(d);
  const A score_factor = static_cast<A>(shape.scale * kLog2E);
  E* q_t = nullptr;                                          // [kQueryTile / kColumns, D in elements, kColumns]
  A* out_t = nullptr;                                        // [kQueryTile / kColumns, D, kColumns]
  E *k_tile = nullptr, *v_tile = nullptr;                    // [kKeyTile, d_padded]: room for packed rows
  A* scores = nullptr;                                       // [kKeyTile, kColumns]
  E* weights = nullptr;                                      // [kKeyTile, kColumns]: room for packed scores
  A *mask_rows = nullptr, *addend = nullptr;                 // [kColumns, kKeyTile] and its transpose
  A *maximum = nullptr, *sum = nullptr, *factors = nullptr;  // [kQueryTile]

  int64_t kv_head_of(const Tile& tile) const { return tile.head / (shape.heads / shape.kv_heads); }

  // Writes the output and logsumexp of `tile`.
  void run(const Tile& tile) {
    Scratch<A> scratch(2 * d * kQueryTile + 2 * kKeyTile * d_padded + 4 * kKeyTile * kColumns + 3 * kQueryTile);
    q_t = scratch.template take<E>(depth * kQueryTile);
    out_t = scratch.take(d * kQueryTile);
    scores = scratch.take(kKeyTile * kColumns);
    weights = scratch.template take<E>(kKeyTile * kColumns);
    mask_rows = scratch.take(kKeyTile * kColumns);
    addend = scratch.take(kKeyTile * kColumns);
    maximum = scratch.take(kQueryTile);
    sum = scratch.take(kQueryTile);
    factors = scratch.take(kQueryTile);
    k_tile = scratch.template take<E>(kKeyTile * d_padded);
    v_tile = scratch.template take<E>(kKeyTile * d_padded);

    std::fill_n(maximum, kQueryTile, -kInfinity<A>);
    std::fill_n(sum, kQueryTile, A(0));
    const int64_t queries = std::min(kQueryTile, shape.queries - tile.query);
    for (int64_t i = 0; i < queries; i += kColumns) {
      O::right_columns(row_of(q, tile.batch, tile.head, tile.query + i), q.row_stride, std::min(kColumns, queries - i),
                       d, score_factor, q_t + i * depth, kColumns);
    }
    const KeyRange range = key_range(mask, tile.batch, tile.head, tile.query, queries, shape.keys);
    const int64_t key_end = key_end_of(shape, tile.query + queries, range);
    if (key_end <= range.begin) std::fill_n(out_t, d * kQueryTile, A(0));
    for (int64_t key = range.begin; key < key_end; key += kKeyTile) {
      attend(tile, queries, key, std::min(kKeyTile, key_end - key), range);
    }
    finish(tile, queries);
  }

  // Processes a tile of keys: computes their scores, takes one step of online softmax, and adds the weighted values.
  void attend(const Tile& tile, int64_t queries, int64_t key, int64_t tile_keys, const KeyRange& range) {
    const T* const k_rows = row_of(k, tile.batch, kv_head_of(tile), key);
    const T* const v_rows = row_of(v, tile.batch, kv_head_of(tile), key);
    const LeftOperand<E, false> k_left = O::left_rows(k_rows, k.row_stride, tile_keys, d, k_tile);
    const LeftOperand<E, true> v_left = O::left_columns(v_rows, v.row_stride, tile_keys, d, v_tile);
    for (int64_t i = 0; i < queries; i += kColumns) {
      const int64_t query = tile.query + i, valid = std::min(kColumns, queries - i);
      const int64_t keys = shape.causal ? std::min(tile_keys, query + valid - key) : tile_keys;
      if (keys <= 0) continue;
      const int vectors = valid > kWidth<A> ? 2 : 1;
      const Panel<A> panel{scores, kColumns, vectors, query, valid, key, keys};
      multiply_panel<O::kScores>(keys, vectors, depth, k_left, q_t + i * depth, kColumns, scores, kColumns,
                                 &score_factor);
      if (range.masks(key, keys)) {
        load_mask(mask, tile.batch, tile.head, panel, mask_rows, addend);
        add_mask(panel, addend);
      }
      if (shape.causal) apply_causal(panel);
      if (vectors == 2) weigh<2>(tile, panel, i);
      else weigh<1>(tile, panel, i);
      const E* const packed = O::by_keys(scores, kColumns, keys, vectors, weights);
      A* const to = out_t + i * d;
      if (key == range.begin) {
        multiply_panel<Start::kZero>(d, vectors, elements<T>(keys), v_left, packed, kColumns, to, kColumns);
      } else {
        multiply_panel<Start::kScale>(d, vectors, elements<T>(keys), v_left, packed, kColumns, to, kColumns,
                                      factors + i);
      }
    }
  }

  // Replaces the scores of the panel at column `i` by weights, and applies dropout.
  template <int N> void weigh(const Tile& tile, const Panel<A>& panel, int64_t i) {
    online_softmax<N>(panel, maximum + i, sum + i, factors + i);
    if (shape.dropout) drop<N>(shape, tile.batch, tile.head, panel);
  }

  void finish(const Tile& tile, int64_t queries) {
    A* const lse = logsumexp + (tile.batch * shape.heads + tile.head) * shape.queries + tile.query;
    for (int64_t i = 0; i < queries; i += kWidth<A>) {
      const Vector<A> total = load(sum + i);
      const auto empty = total == A(0);
      const Vector<A> value = (load(maximum + i) + log2<A>(total)) * static_cast<A>(kLn2);
      store(lse + i, empty ? broadcast(-kInfinity<A>) : value, queries - i);
      store(factors + i, empty ? Vector<A>{} : dropout_factor<A>(shape) / total);
    }
    for (int64_t i = 0; i < queries; i += kColumns) {
      unpack_transposed<T>(out_t + i * d, kColumns, d, std::min(kColumns, queries - i), factors + i,
                           row_of(out, tile.batch, tile.head, tile.query + i), out.row_stride);
    }
  }
};

// ---- Backward

// Computes one share of the backward of a pair (batch row, key-value head). A share is some of the query tiles of the
// query heads that use this key-value head.
template <class T> struct BackwardTask {
  using A = Compute<T>;
  using O = TileOperands<T>;
  using E = typename O::Element;
  static constexpr int64_t kColumns = kTileColumns<A>;

  const AttentionShape& shape;
  const HeadsView<const T>&q, &k, &v;
  const AttentionMask<T>& mask;
  const HeadsView<const T>& out;
  const A* logsumexp;
  const HeadsView<const T>& grad_out;
  const HeadsView<T>& grad_q;
  A* all_grad_scores;  // [B, H, Tq, Tk], or null

  // Adds the sums of share `share` of `shares` to grad_k_sum and grad_v_sum, which are dense [Tk, d_padded] and lack
  // the factors scale and dropout_factor(). Writes the share's rows of grad_q.
  void run(int64_t pair, int64_t share, int64_t shares, A* grad_k_sum, A* grad_v_sum) {
    const int64_t batch = pair / shape.kv_heads, kv_head = pair % shape.kv_heads;
    constexpr int64_t kScores = kKeyTile * kQueryTile;
    Scratch<A> scratch(3 * shape.keys * d_padded + 2 * d * kQueryTile + 3 * kQueryTile * d_padded + 5 * kScores +
                       2 * kKeyTile * kColumns + 3 * kQueryTile);
    take_memory(scratch);
    k_left = O::left_rows(row_of(k, batch, kv_head, 0), k.row_stride, shape.keys, d, k_rows);
    v_left = O::left_rows(row_of(v, batch, kv_head, 0), v.row_stride, shape.keys, d, v_rows);
    O::right_rows(row_of(k, batch, kv_head, 0), k.row_stride, shape.keys, d, k_right);
    const int64_t group = shape.heads / shape.kv_heads;
    const int64_t tiles = (shape.queries + kQueryTile - 1) / kQueryTile;
    // Shares take tiles in turn, because with a causal mask the cost of a tile grows with its number.
    for (int64_t item = share; item < group * tiles; item += shares) {
      query_tile(batch, kv_head * group + item / tiles, item % tiles * kQueryTile, grad_k_sum, grad_v_sum);
    }
  }

  const int64_t d = shape.head_dim, d_padded = round_up(d, kWidth<A>), depth = elements<T>(d);
  const A score_factor = static_cast<A>(shape.scale * kLog2E);
  LeftOperand<E, false> k_left = {}, v_left = {};
  E *k_rows = nullptr, *v_rows = nullptr;              // [Tk, d_padded]: room for packed rows
  E* k_right = nullptr;                                // [Tk in elements, d_padded]
  E *q_t = nullptr, *grad_out_t = nullptr;             // [D in elements, kQueryTile]; Note [Base 2]
  E *q_rows = nullptr, *grad_out_rows = nullptr;       // [kQueryTile in elements, d_padded]
  A* grad_q_sum = nullptr;                             // [kQueryTile, d_padded]
  A *probabilities = nullptr, *grad_scores = nullptr;  // [kKeyTile, kQueryTile]
  // Probabilities and grad_scores, packed as left operands: by_queries() of both, and by_keys() of grad_scores.
  E *weight_rows = nullptr, *slope_rows = nullptr, *slope_columns = nullptr;
  A *mask_rows = nullptr, *addend = nullptr;                 // [kColumns, kKeyTile] and its transpose
  A *shift = nullptr, *rescale = nullptr, *delta = nullptr;  // [kQueryTile]

  void take_memory(Scratch<A>& scratch) {
    constexpr int64_t kScores = kKeyTile * kQueryTile;
    for (E** rows : {&k_rows, &v_rows, &k_right}) *rows = scratch.template take<E>(shape.keys * d_padded);
    for (E** columns : {&q_t, &grad_out_t}) *columns = scratch.template take<E>(depth * kQueryTile);
    for (E** rows : {&q_rows, &grad_out_rows}) *rows = scratch.template take<E>(kQueryTile * d_padded);
    grad_q_sum = scratch.take(kQueryTile * d_padded);
    for (A** scores : {&probabilities, &grad_scores}) *scores = scratch.take(kScores);
    if constexpr (O::kDepth == 1) {  // needs no packing
      weight_rows = probabilities;
      slope_rows = slope_columns = grad_scores;
    } else {
      for (E** packed : {&weight_rows, &slope_rows, &slope_columns}) *packed = scratch.template take<E>(kScores);
    }
    for (A** tile : {&mask_rows, &addend}) *tile = scratch.take(kKeyTile * kColumns);
    for (A** row : {&shift, &rescale, &delta}) *row = scratch.take(kQueryTile);
  }

  void query_tile(int64_t batch, int64_t head, int64_t query_begin, A* grad_k_sum, A* grad_v_sum) {
    const int64_t queries = std::min(kQueryTile, shape.queries - query_begin);
    load_queries(batch, head, query_begin, queries);
    std::fill_n(grad_q_sum, queries * d_padded, A(0));
    const KeyRange range = key_range(mask, batch, head, query_begin, queries, shape.keys);
    const int64_t key_end = key_end_of(shape, query_begin + queries, range);
    load_rescale(batch, head, query_begin, queries, key_end, range);
    for (int64_t key = range.begin; key < key_end; key += kKeyTile) {
      const int64_t keys = std::min(kKeyTile, key_end - key);
      for (int64_t i = 0; i < queries; i += kColumns)
        score_panel(batch, head, query_begin, i, std::min(kColumns, queries - i), key, keys, range.masks(key, keys));
      accumulate(query_begin, queries, key, keys, grad_k_sum + key * d_padded, grad_v_sum + key * d_padded);
    }
    unpack_rows<T>(grad_q_sum, d_padded, queries, d, static_cast<A>(shape.scale),
                   row_of(grad_q, batch, head, query_begin), grad_q.row_stride);
  }

  // Packs q and grad_out by rows and by columns. shift = logsumexp in base 2; delta = sum over D of grad_out * out.
  void load_queries(int64_t batch, int64_t head, int64_t query_begin, int64_t queries) {
    const T* const q_tile = row_of(q, batch, head, query_begin);
    const T* const grad_tile = row_of(grad_out, batch, head, query_begin);
    O::right_rows(q_tile, q.row_stride, queries, d, q_rows);
    O::right_rows(grad_tile, grad_out.row_stride, queries, d, grad_out_rows);
    O::right_columns(q_tile, q.row_stride, queries, d, score_factor, q_t, kQueryTile);
    O::right_columns(grad_tile, grad_out.row_stride, queries, d, A(1), grad_out_t, kQueryTile);
    load_delta(grad_tile, row_of(out, batch, head, query_begin), queries);
    const A* const lse = logsumexp + (batch * shape.heads + head) * shape.queries + query_begin;
    for (int64_t i = 0; i < kQueryTile; ++i) {
      // A shift of infinity gives exp2(score - inf) = 0: probability 0 for queries without keys, and in the padding.
      shift[i] = i < queries && lse[i] != -kInfinity<A> ? lse[i] * static_cast<A>(kLog2E) : kInfinity<A>;
    }
  }

  // rescale = 1 / sum_j exp2(score_j - shift) for rows with a large shift, 1 for other rows. The sum is 1 up to
  // rounding, unless the shift is so large that its rounding loses log2 of the sum. Example: if a row is masked
  // entirely by the lowest finite number, log2(keys) is too small to change the logsumexp.
  void load_rescale(int64_t batch, int64_t head, int64_t query_begin, int64_t queries, int64_t key_end,
                    const KeyRange& range) {
    constexpr A kLargest = 256;  // In f32 a shift of 256 has an error of 2^-16: a relative error of 1e-5 in weights.
    std::fill_n(rescale, kQueryTile, A(1));
    const auto is_large = [](A x) { return std::abs(x) > kLargest && x != kInfinity<A>; };
    if (std::none_of(shift, shift + queries, is_large)) return;
    A sums[kQueryTile] = {};
    for (int64_t key = range.begin; key < key_end; key += kKeyTile) {
      for (int64_t i = 0; i < queries; i += kColumns) {
        const Panel<A> panel = panel_at(query_begin, i, std::min(kColumns, queries - i), key,
                                        std::min(kKeyTile, key_end - key));
        if (panel.keys <= 0) continue;
        load_scores(batch, head, panel, i, range.masks(key, panel.keys));
        for (int64_t column = i; column < i + panel.vectors * kWidth<A>; column += kWidth<A>) {
          Vector<A> sum = load(sums + column);
          for (int64_t j = 0; j < panel.keys; ++j)
            sum += exp2<A>(load(probabilities + j * kQueryTile + column) - load(shift + column));
          store(sums + column, sum);
        }
      }
    }
    for (int64_t i = 0; i < queries; ++i)
      if (is_large(shift[i])) rescale[i] = 1 / sums[i];
  }

  // Computes delta for a vector of rows at a time. The sums are in the order of Note [Row order]
  // (ops/reduction_order.h). The products are transposed first, so that the tree of lanes needs only vertical
  // additions.
  void load_delta(const T* grad_tile, const T* out_tile, int64_t queries) {
    constexpr int kN = kWidth<A>;
    static_assert(kLanes % kN == 0);
    for (int64_t i = 0; i < queries; i += kN) {
      Vector<A> lanes[kLanes];
      for (int first = 0; first < kLanes; first += kN) {
        Vector<A> rows[kN];
        for (int r = 0; r < kN; ++r) {
          rows[r] = Vector<A>{};
          if (i + r >= queries) continue;
          const T* const g = grad_tile + (i + r) * grad_out.row_stride;
          const T* const o = out_tile + (i + r) * out.row_stride;
          for (int64_t c = first; c < d; c += kLanes) rows[r] = fma(load(g + c, d - c), load(o + c, d - c), rows[r]);
        }
        transpose<A>(rows);
        std::copy_n(rows, kN, lanes + first);
      }
      store(delta + i, combine_lanes(lanes, [](Vector<A> x, Vector<A> y) { return x + y; }));
    }
  }

  // Returns the panel of probabilities at column `i`. Its number of keys may be 0 or negative.
  Panel<A> panel_at(int64_t query_begin, int64_t i, int64_t valid, int64_t key, int64_t keys) const {
    const int64_t query = query_begin + i;
    // Rounds the number of keys up to whole blocks of kTileRows, because accumulate() reads blocks that cross the
    // diagonal.
    if (shape.causal) keys = std::min(keys, round_up(query + valid - key, kTileRows));
    return {probabilities + i, kQueryTile, valid > kWidth<A> ? 2 : 1, query, valid, key, keys};
  }

  static LeftOperand<E, false> rows_from(const LeftOperand<E, false>& rows, int64_t key) {
    return {rows.at(key, 0), rows.stride};
  }

  // Computes the masked scores of the panel at column `i`.
  void load_scores(int64_t batch, int64_t head, const Panel<A>& panel, int64_t i, bool masked) {
    multiply_panel<O::kScores>(panel.keys, panel.vectors, depth, rows_from(k_left, panel.key), q_t + i, kQueryTile,
                               panel.scores, kQueryTile, &score_factor);
    if (masked) {
      load_mask(mask, batch, head, panel, mask_rows, addend);
      add_mask(panel, addend);
    }
    if (shape.causal) apply_causal(panel);
  }

  // Computes probabilities and grad_scores for the panel at column `i`.
  void score_panel(int64_t batch, int64_t head, int64_t query_begin, int64_t i, int64_t valid, int64_t key,
                   int64_t most_keys, bool masked) {
    const Panel<A> panel = panel_at(query_begin, i, valid, key, most_keys);
    const auto [keys, vectors] = std::pair(panel.keys, panel.vectors);
    if (keys <= 0) return;
    load_scores(batch, head, panel, i, masked);
    multiply_panel<Start::kZero>(keys, vectors, depth, rows_from(v_left, key), grad_out_t + i, kQueryTile,
                                 grad_scores + i, kQueryTile);
    if (!shape.dropout) weights_and_slopes(panel, i);
    else if (vectors == 2) dropped_weights_and_slopes<2>(batch, head, panel, i);
    else dropped_weights_and_slopes<1>(batch, head, panel, i);
    if (all_grad_scores != nullptr) store_grad_scores(batch, head, panel, i);
    O::by_queries(probabilities + i, kQueryTile, keys, vectors, weight_rows + i / O::kDepth);
    O::by_queries(grad_scores + i, kQueryTile, keys, vectors, slope_rows + i / O::kDepth);
    O::by_keys(grad_scores + i, kQueryTile, keys, vectors, slope_columns + i);
  }

  void store_grad_scores(int64_t batch, int64_t head, const Panel<A>& panel, int64_t i) {
    const int64_t row = (batch * shape.heads + head) * shape.queries + panel.query;
    A ones[kColumns];
    std::fill_n(ones, kColumns, A(1));
    unpack_transposed<A>(grad_scores + i, kQueryTile, panel.keys, panel.valid_queries, ones,
                         all_grad_scores + row * shape.keys + panel.key, shape.keys);
  }

  // Replaces scores by weights, and the gradients of weights by the gradients of scores.
  void weights_and_slopes(const Panel<A>& panel, int64_t i) {
    for (int64_t column = i; column < i + panel.vectors * kWidth<A>; column += kWidth<A>) {
      const Vector<A> row_shift = load(shift + column), row_rescale = load(rescale + column),
                      row_delta = load(delta + column);
      for (int64_t j = 0; j < panel.keys; ++j) {
        A* const s = probabilities + j * kQueryTile + column;
        A* const g = grad_scores + j * kQueryTile + column;
        const Vector<A> p = exp2<A>(load(s) - row_shift) * row_rescale;
        store(s, p);
        store(g, p * (load(g) - row_delta));
      }
    }
  }

  // Does the same as weights_and_slopes(), with dropout of the weights and of their gradients.
  template <int N> void dropped_weights_and_slopes(int64_t batch, int64_t head, const Panel<A>& panel, int64_t i) {
    const Vector<A> factor = broadcast(dropout_factor<A>(shape));
    Vector<A> row_shift[N], row_rescale[N], row_delta[N];
    for (int n = 0; n < N; ++n) {
      row_shift[n] = load(shift + i + n * kWidth<A>);
      row_rescale[n] = load(rescale + i + n * kWidth<A>);
      row_delta[n] = load(delta + i + n * kWidth<A>);
    }
    for_kept<N>(shape, batch, head, panel, [&](int64_t j, int n, IntegerVector<A> kept) {
      A* const s = panel.scores + j * kQueryTile + n * kWidth<A>;
      A* const g = grad_scores + j * kQueryTile + i + n * kWidth<A>;
      const Vector<A> p = exp2<A>(load(s) - row_shift[n]) * row_rescale[n];
      store(s, kept ? p : Vector<A>{});
      store(g, p * ((kept ? load(g) * factor : Vector<A>{}) - row_delta[n]));
    });
  }

  // grad_v += P^T grad_out, grad_k += dS^T q, grad_q += dS k for a tile of queries and keys. With a causal mask, the
  // products of a block of rows skip the queries or keys that are masked for the whole block.
  void accumulate(int64_t query_begin, int64_t queries, int64_t key, int64_t keys, A* grad_k_tile, A* grad_v_tile) {
    for (int64_t j = 0; j < keys; j += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, keys - j);
      const int64_t first = shape.causal ? std::max<int64_t>(0, key + j - query_begin) : 0;
      const int64_t at = first / O::kDepth, row = j * (kQueryTile / O::kDepth) + at;
      add_product(rows, queries - first, LeftOperand<E, false>{weight_rows + row, kQueryTile / O::kDepth},
                  grad_out_rows + at * d_padded, grad_v_tile + j * d_padded);
      add_product(rows, queries - first, LeftOperand<E, false>{slope_rows + row, kQueryTile / O::kDepth},
                  q_rows + at * d_padded, grad_k_tile + j * d_padded);
    }
    for (int64_t i = 0; i < queries; i += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, queries - i);
      const int64_t count = shape.causal ? std::min(keys, query_begin + i + rows - key) : keys;
      if (count > 0)
        add_product(rows, count, LeftOperand<E, true>{slope_columns + i, kQueryTile},
                    k_right + key / O::kDepth * d_padded, grad_q_sum + i * d_padded);
    }
  }

  // c[rows, D] += a b with a depth of `count` numbers; b and c have the row stride d_padded.
  template <bool kRowsAdjacent>
  void add_product(int64_t rows, int64_t count, LeftOperand<E, kRowsAdjacent> a, const E* b, A* c) {
    for (int64_t column = 0; column < d_padded; column += kColumns) {
      const int vectors = d_padded - column > kWidth<A> ? 2 : 1;
      multiply_panel<Start::kAdd>(rows, vectors, elements<T>(count), a, b + column, d_padded, c + column, d_padded);
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
      // The order is 0, last, 1, last - 1, ..., so that contiguous pieces have equal cost with a causal mask.
      const int64_t head = n / tiles, m = n % tiles, tile = m % 2 ? tiles - 1 - m / 2 : m / 2;
      return typename ForwardTask<T>::Tile{head / shape.heads, head % shape.heads, tile * kQueryTile};
    };
    for (int64_t n = begin; n < end; ++n) task.run(tile_at(n));
  });
}

template <class T>
void attention_backward(const AttentionShape& shape, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
                        const AttentionMask<T>& mask, HeadsView<const T> out, const AttentionAccumulator<T>* logsumexp,
                        HeadsView<const T> grad_out, HeadsView<T> grad_q, HeadsView<T> grad_k, HeadsView<T> grad_v,
                        AttentionAccumulator<T>* grad_scores) {
  using A = Compute<T>;
  const int64_t pairs = shape.batch * shape.kv_heads;
  if (pairs == 0) return;
  if (grad_scores != nullptr && (shape.causal || mask.first_key != nullptr))  // skipped tiles keep a gradient of 0
    std::fill_n(grad_scores, shape.batch * shape.heads * shape.queries * shape.keys, A(0));
  const int64_t items = shape.heads / shape.kv_heads * ((shape.queries + kQueryTile - 1) / kQueryTile);
  // If there are few heads, several tasks share a head. Each task has its own sums, and these are added in order. The
  // number of shares depends only on the shape, not on the number of threads.
  constexpr int64_t kTasks = 16;
  const int64_t shares = std::clamp<int64_t>(kTasks / pairs, 1, std::max<int64_t>(1, items));
  const int64_t d_padded = round_up(shape.head_dim, kWidth<A>), size = shape.keys * d_padded;

  const auto write = [&](int64_t pair, const A* grad_k_sum, const A* grad_v_sum) {
    const int64_t batch = pair / shape.kv_heads, head = pair % shape.kv_heads;
    unpack_rows<T>(grad_k_sum, d_padded, shape.keys, shape.head_dim, static_cast<A>(shape.scale),
                   row_of(grad_k, batch, head, 0), grad_k.row_stride);
    unpack_rows<T>(grad_v_sum, d_padded, shape.keys, shape.head_dim, dropout_factor<A>(shape),
                   row_of(grad_v, batch, head, 0), grad_v.row_stride);
  };
  std::vector<A> sums(shares > 1 ? pairs * shares * size * 2 : 0);
  const double flops = 10.0 * shape.queries * shape.keys * shape.head_dim * (shape.heads / shape.kv_heads) / shares;
  parallel_for(pairs * shares, grain_of(flops), [&](int64_t begin, int64_t end) {
    const Storage memory = shares == 1 ? Storage::allocate(static_cast<size_t>(2 * size) * sizeof(A)) : Storage();
    A* const own = shares == 1 ? reinterpret_cast<A*>(memory.data()) : nullptr;
    BackwardTask<T> task{shape, q, k, v, mask, out, logsumexp, grad_out, grad_q, grad_scores};
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
                                      HeadsView<T>, AttentionAccumulator<T>*);
RONDO_ATTENTION(float)
RONDO_ATTENTION(double)
RONDO_ATTENTION(BFloat16)
RONDO_ATTENTION(Float16)
#undef RONDO_ATTENTION

}  // namespace rondo::cpu
