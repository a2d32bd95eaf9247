// Operations on a panel of scores in the forward and backward of attention: masks, dropout, online softmax. Only kernel
// sources include this.
#pragma once

#include <algorithm>
#include <limits>
#include <tuple>

#include "rondo/runtime/cpu/attention_call.h"
#include "rondo/runtime/cpu/attention_decode.h"
#include "rondo/runtime/cpu/gemm_tile.h"
#include "rondo/runtime/cpu/philox.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::cpu {

// Queries and keys per tile. They determine the order of sums, so a change changes bits of the result.
inline constexpr int64_t kQueryTile = 64;
inline constexpr int64_t kKeyTile = 64;

template <class T> T* row_of(const HeadsView<T>& view, int64_t batch, int64_t head, int64_t row) {
  return view.data + batch * view.batch_stride + head * view.head_stride + row * view.row_stride;
}

// A panel of the transposed scores S^T: `vectors` vectors of queries from `query` on, by `keys` keys from `key` on.
template <class A> struct Panel {
  A* scores;  // [keys, stride]
  int64_t stride;
  int vectors;  // 1 or 2.
  int64_t query, valid_queries, key, keys;
};

// ---- Masks

// Writes the mask of a panel as addends in base 2, [keys, kTileColumns]; queries beyond valid_queries get 0.
template <class T, class A = Compute<T>>
void load_mask(const AttentionMask<T>& mask, int64_t batch, int64_t head, const Panel<A>& panel, A* rows, A* addend) {
  const int64_t offset = batch * mask.strides[0] + head * mask.strides[1];
  const int64_t step = mask.strides[3];
  for (int64_t i = 0; i < panel.valid_queries; ++i) {
    const int64_t at = offset + (panel.query + i) * mask.strides[2] + panel.key * step;
    A* row = rows + i * kKeyTile;
    if (mask.first_key) {
      const auto place = [&](const int64_t* key) {
        // Clamps before subtracting, because a mask may contain the smallest int64.
        return std::clamp<int64_t>(key[at - panel.key * step], panel.key, panel.key + panel.keys) - panel.key;
      };
      const int64_t masked = place(mask.first_key);
      std::fill_n(row, masked, -kInfinity<A>);
      std::fill_n(row + masked, panel.keys - masked, A(0));
      if (mask.end_key) std::fill(row + place(mask.end_key), row + panel.keys, -kInfinity<A>);
    } else if (mask.allowed) {
      const bool* allowed = mask.allowed + at;
      for (int64_t j = 0; j < panel.keys; ++j) row[j] = allowed[j * step] ? A(0) : -kInfinity<A>;
    } else {
      if (step == 1) {
        pack_rows<T>(mask.bias + at, 0, 1, panel.keys, row, kKeyTile);
      } else {
        for (int64_t j = 0; j < panel.keys; ++j) row[j] = static_cast<A>(mask.bias[at + j * step]);
      }
      for (int64_t j = 0; j < panel.keys; ++j) row[j] = bounded_addend(row[j]);
    }
  }
  pack_transposed<A>(rows, kKeyTile, panel.valid_queries, panel.keys, static_cast<A>(kLog2E), addend, kTileColumns<A>);
}

// The keys that a tile of queries reads: whole key tiles from `begin` on, up to `end`. No key in [clear, open) is
// masked for any of these queries.
struct KeyRange {
  int64_t begin = 0, clear = 0;
  int64_t open = std::numeric_limits<int64_t>::max(), end = std::numeric_limits<int64_t>::max();
  bool masks(int64_t key, int64_t keys) const { return key < clear || key + keys > open; }
};
template <class T>
KeyRange key_range(const AttentionMask<T>& mask, int64_t batch, int64_t head, int64_t query, int64_t queries,
                   int64_t keys) {
  if (!mask) return {};
  if (mask.first_key == nullptr) return {.begin = 0, .clear = keys};
  const auto bounds = [&](const int64_t* of) {  // the least and the greatest value over the queries
    const int64_t* const row = of + batch * mask.strides[0] + head * mask.strides[1];
    int64_t least = keys, most = 0;
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t key = std::clamp<int64_t>(row[(query + i) * mask.strides[2]], 0, keys);
      least = std::min(least, key);
      most = std::max(most, key);
    }
    return std::pair(least, most);
  };
  const auto [least, most] = bounds(mask.first_key);
  KeyRange range = {.begin = least / kKeyTile * kKeyTile, .clear = most};
  if (mask.end_key != nullptr) std::tie(range.open, range.end) = bounds(mask.end_key);
  return range;
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

// Calls visit(j, i, kept) for each row j of a panel and each vector i of its queries: `kept` is the mask of the weights
// that dropout keeps. Each query has one counter of the random generator for four keys, so a vector of counters gives
// the random words for four rows of S^T. Both vectors of a panel are drawn together, so that the processor works on one
// while the other waits for results.
template <int N, class A, class Visit>
[[gnu::always_inline]] inline void for_kept(const AttentionShape& shape, int64_t batch, int64_t head,
                                            const Panel<A>& panel, Visit visit) {
  static_assert(kKeyTile % 4 == 0);
  constexpr int kCounters = N * kWidth<A>;
  const DropoutRule rule(shape.dropout.p);
  const auto of_query = static_cast<uint64_t>((shape.keys + 3) / 4);
  const auto row = static_cast<uint64_t>((batch * shape.heads + head) * shape.queries + panel.query);
  const PhiloxCounters<kCounters> first = counters_from<kCounters>(row * of_query, of_query);
  for (int64_t j = 0; j < panel.keys; j += 4) {
    PhiloxWords<kCounters> words[4];
    draw<kCounters>(shape.dropout.seed, shape.dropout.offset, first + static_cast<uint64_t>((panel.key + j) / 4),
                    words);
#pragma GCC unroll 4
    for (int64_t k = 0; k < 4; ++k) {
      if (j + k >= panel.keys) break;
#pragma GCC unroll 2
      for (int i = 0; i < N; ++i) {
        PhiloxWords<kWidth<A>> part;
        __builtin_memcpy(&part, reinterpret_cast<const char*>(&words[k]) + static_cast<size_t>(i) * sizeof(part),
                         sizeof(part));
        visit(j + k, i, __builtin_convertvector(part >= rule.threshold, IntegerVector<A>));
      }
    }
  }
}

// Sets the dropped weights of a panel to 0. Dropout's factor is the same for all kept weights, so it multiplies their
// sum, not each weight: a weight that is rounded to bf16 before the sum is then rounded only once.
template <int N, class A> void drop(const AttentionShape& shape, int64_t batch, int64_t head, const Panel<A>& panel) {
  for_kept<N>(shape, batch, head, panel, [&](int64_t j, int i, IntegerVector<A> kept) {
    A* const s = panel.scores + j * panel.stride + i * kWidth<A>;
    store(s, kept ? load(s) : Vector<A>{});
  });
}
// Returns the factor by which a sum over weights after drop() is multiplied.
template <class A> A dropout_factor(const AttentionShape& shape) {
  return shape.dropout ? static_cast<A>(DropoutRule(shape.dropout.p).factor) : A(1);
}

// ---- Forward

// Row j of a reduction goes to accumulator (chain) j % kChains, to hide the latency of additions. The last
// rows % kChains rows go to chain 0, so that chain indices are constants and chains stay in registers.
inline constexpr int kChains = 4;
template <class F> inline void for_rows(int64_t rows, F&& f) {
  int64_t j = 0;
  for (; j + kChains <= rows; j += kChains) {
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) f(j + chain, chain);
  }
  for (; j < rows; ++j) f(j, 0);
}

// Takes one step of online softmax on a panel: replaces scores by exp2(score - maximum), updates maximum and sum, and
// writes the factors by which earlier sums must be multiplied.
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
    // If no key was allowed so far, the maximum is -inf. Then 0 is subtracted, so that exp2 gets -inf and not NaN.
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

}  // namespace rondo::cpu
