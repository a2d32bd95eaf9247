#include "rondo/runtime/cpu/attention_decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/simd.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::cpu {
namespace {

constexpr int64_t kChunk = 256;  // keys per task; determines the order of sums
constexpr int64_t kTile = 32;    // keys whose rows stay in the L1 cache while all query heads of a group read them

template <class A> A sum_lanes(const A* values) {
  A lanes[kLanes];
  std::copy_n(values, kLanes, lanes);
  return combine_lanes(lanes, [](A x, A y) { return x + y; });
}

template <class T> class Decode {
 public:
  using A = Compute<T>;
  static constexpr int kN = kWidth<A>;

  Decode(const AttentionShape& shape, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
         const AttentionMask<T>& mask)
      : shape_(shape), q_(q), k_(k), v_(v), mask_(mask) {}

  int64_t chunks() const { return chunks_; }
  // Returns the number of elements in the result of one task. For each query head of the task's group, the result has
  // the maximum of the scores, the total of the weights 2^(score - maximum), and the sum of the values times these
  // weights (D padded).
  int64_t partial_size() const { return group_ * (kHeader + d_padded_); }

  // Processes the keys of chunk `chunk` for batch row `pair` / kv_heads and the query heads that read key-value head
  // `pair` % kv_heads.
  void run(int64_t pair, int64_t chunk, A* results) const {
    const int64_t batch = pair / shape_.kv_heads, kv_head = pair % shape_.kv_heads;
    int64_t begin = chunk * kChunk, end = std::min(keys_, begin + kChunk);
    shrink(batch, kv_head, begin, end);
    for (int64_t member = 0; member < group_; ++member) {
      A* const at = results + member * (kHeader + d_padded_);
      at[0] = -kInfinity<A>;
      std::fill(at + 1, at + kHeader + d_padded_, A(0));
    }
    if (begin >= end) return;
    const Storage memory = Storage::allocate(static_cast<size_t>(group_ * (kChunk + d_padded_)) * sizeof(A));
    A* const weights = reinterpret_cast<A*>(memory.data());  // (group, kChunk)
    A* const queries = weights + group_ * kChunk;            // (group, D padded)
    for (int64_t member = 0; member < group_; ++member)
      load_query(batch, kv_head * group_ + member, queries + member * d_padded_);

    const T* const k_rows = k_.data + batch * k_.batch_stride + kv_head * k_.head_stride;
    for (int64_t key = begin; key < end; key += kTile)
      for (int64_t member = 0; member < group_; ++member)
        for (int64_t j = key; j < std::min(end, key + kTile); j += kN)
          store(weights + member * kChunk + (j - begin),
                products(k_rows + j * k_.row_stride, std::min<int64_t>(kN, end - j), queries + member * d_padded_));
    for (int64_t member = 0; member < group_; ++member)
      softmax(batch, kv_head * group_ + member, begin, end, weights + member * kChunk,
              results + member * (kHeader + d_padded_));

    const T* const v_rows = v_.data + batch * v_.batch_stride + kv_head * v_.head_stride;
    for (int64_t key = begin; key < end; key += kTile)
      for (int64_t member = 0; member < group_; ++member)
        add_values(v_rows + key * v_.row_stride, std::min(kTile, end - key), weights + member * kChunk + (key - begin),
                   results + member * (kHeader + d_padded_) + kHeader);
  }

  // Combines the results of the chunks for one query head.
  void finish(int64_t pair, int64_t member, A* results, int64_t task_stride, HeadsView<T> out, A* logsumexp) const {
    const int64_t batch = pair / shape_.kv_heads, head = pair % shape_.kv_heads * group_ + member;
    A* const first = results + member * (kHeader + d_padded_);
    A maximum = -kInfinity<A>;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const A here = first[chunk * task_stride];
      maximum = here > maximum || here != here ? here : maximum;
    }
    const A shift = maximum == -kInfinity<A> ? A(0) : maximum;
    T* const to = out.data + batch * out.batch_stride + head * out.head_stride;
    A total = 0;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      A* const at = first + chunk * task_stride;
      const Vector<A> factor = exp2<A>(broadcast(at[0] - shift));
      total += at[1] * factor[0];
      if (chunk == 0)
        for (int64_t c = 0; c < d_padded_; c += kN) store(at + kHeader + c, load(at + kHeader + c) * factor);
      else
        for (int64_t c = 0; c < d_padded_; c += kN)
          store(first + kHeader + c, fma(load(at + kHeader + c), factor, load(first + kHeader + c)));
    }
    logsumexp[batch * shape_.heads + head] = total == A(0)
                                                 ? -kInfinity<A>
                                                 : (maximum + log2<A>(broadcast(total))[0]) * static_cast<A>(kLn2);
    const Vector<A> scale = broadcast(total == A(0) ? A(0) : A(1) / total);
    for (int64_t c = 0; c < shape_.head_dim; c += kN)
      store(to + c, load(first + kHeader + c) * scale, std::min<int64_t>(kN, shape_.head_dim - c));
  }

 private:
  static constexpr int64_t kHeader = 64 / sizeof(A);  // maximum and total, padded: the sum begins at a cache line

  bool allowed(int64_t batch, int64_t head, int64_t key) const {
    return mask_.allowed[batch * mask_.strides[0] + head * mask_.strides[1] + key * mask_.strides[3]];
  }
  // Returns the first key, clamped to [0, keys]. A mask may contain any number, so subtracting a number that is not
  // clamped could overflow.
  int64_t first_key(int64_t batch, int64_t head) const {
    return std::clamp<int64_t>(mask_.first_key[offset_of(batch, head)], 0, keys_);
  }
  int64_t end_key(int64_t batch, int64_t head) const {
    return mask_.end_key == nullptr ? keys_ : std::clamp<int64_t>(mask_.end_key[offset_of(batch, head)], 0, keys_);
  }
  int64_t offset_of(int64_t batch, int64_t head) const { return batch * mask_.strides[0] + head * mask_.strides[1]; }
  bool allowed_to_some(int64_t batch, int64_t kv_head, int64_t key) const {
    if (mask_.strides[1] == 0) return allowed(batch, 0, key);
    for (int64_t member = 0; member < group_; ++member)
      if (allowed(batch, kv_head * group_ + member, key)) return true;
    return false;
  }
  // Removes keys at both ends that no query head of the group may read.
  void shrink(int64_t batch, int64_t kv_head, int64_t& begin, int64_t& end) const {
    if (mask_.first_key != nullptr) {
      int64_t first = end, last = begin;
      for (int64_t member = 0; member < group_; ++member) {
        first = std::min(first, first_key(batch, kv_head * group_ + member));
        last = std::max(last, end_key(batch, kv_head * group_ + member));
      }
      begin = std::max(begin, first);
      end = std::min(end, last);
    }
    if (mask_.allowed == nullptr) return;
    while (begin < end && !allowed_to_some(batch, kv_head, begin)) ++begin;
    while (begin < end && !allowed_to_some(batch, kv_head, end - 1)) --end;
  }

  // Loads a query times the factor for scores in base 2 (Note [Base 2] in attention.cc).
  void load_query(int64_t batch, int64_t head, A* to) const {
    const T* const from = q_.data + batch * q_.batch_stride + head * q_.head_stride;
    for (int64_t c = 0; c < d_padded_; c += kN)
      store(to + c,
            load(from + c, std::clamp<int64_t>(shape_.head_dim - c, 0, kN)) * static_cast<A>(shape_.scale * kLog2E));
  }

  // Returns the dot products of a query with kN adjacent keys. Only the first `valid` keys exist; the lanes of the
  // others are -inf. Each sum is in the order of Note [Row order] (ops/reduction_order.h). The products are transposed
  // first, so that the tree of lanes needs only vertical additions.
  Vector<A> products(const T* keys, int64_t valid, const A* query) const {
    const int64_t d = shape_.head_dim;
    Vector<A> lanes[kLanes];
    for (int first = 0; first < kLanes; first += kN) {
      Vector<A> rows[kN];
      for (int r = 0; r < kN; ++r) {
        const T* const row = keys + std::min<int64_t>(r, valid - 1) * k_.row_stride;
        rows[r] = Vector<A>{};
        int64_t c = first;
        for (; c + kN <= d; c += kLanes) rows[r] = fma(load(query + c), load(row + c), rows[r]);
        if (c < d) rows[r] = fma(load(query + c), load(row + c, d - c), rows[r]);
      }
      transpose<A>(rows);
      std::copy_n(rows, kN, lanes + first);
    }
    const Vector<A> sums = combine_lanes(lanes, [](Vector<A> x, Vector<A> y) { return x + y; });
    using Integer = typename VectorOf<A>::Integer;
    return valid == kN ? sums : (lane_numbers<A>() < static_cast<Integer>(valid) ? sums : broadcast(-kInfinity<A>));
  }

  // Replaces the scores of keys [begin, end) by weights; writes the scores' maximum and the weights' total to `result`.
  void softmax(int64_t batch, int64_t head, int64_t begin, int64_t end, A* weights, A* result) const {
    const int64_t n = end - begin, padded = round_up(n, kLanes);
    std::fill(weights + round_up(n, kN), weights + padded, -kInfinity<A>);
    if (mask_.first_key != nullptr) {
      std::fill_n(weights, std::clamp<int64_t>(first_key(batch, head) - begin, 0, n), -kInfinity<A>);
      std::fill(weights + std::clamp<int64_t>(end_key(batch, head) - begin, 0, n), weights + n, -kInfinity<A>);
    } else if (mask_.allowed != nullptr) {
      for (int64_t j = 0; j < n; ++j)
        if (!allowed(batch, head, begin + j)) weights[j] = -kInfinity<A>;
    } else if (mask_.bias != nullptr) {
      const T* const bias = mask_.bias + batch * mask_.strides[0] + head * mask_.strides[1] + begin * mask_.strides[3];
      for (int64_t j = 0; j < n; ++j)
        weights[j] += bounded_addend(static_cast<A>(bias[j * mask_.strides[3]])) * static_cast<A>(kLog2E);
    }
    A maximum = -kInfinity<A>;
    for (int64_t j = 0; j < n; ++j) maximum = weights[j] > maximum || weights[j] != weights[j] ? weights[j] : maximum;
    const Vector<A> shift = broadcast(maximum == -kInfinity<A> ? A(0) : maximum);
    Vector<A> total[kLanes / kN] = {};
    for (int64_t j = 0; j < padded; j += kLanes)
      for (int part = 0; part < kLanes / kN; ++part) {
        const Vector<A> p = exp2<A>(load(weights + j + part * kN) - shift);
        store(weights + j + part * kN, p);
        total[part] += p;
      }
    A lanes[kLanes];
    for (int part = 0; part < kLanes / kN; ++part) store(lanes + part * kN, total[part]);
    result[0] = maximum;
    result[1] = sum_lanes(lanes);
  }

  // Adds the values of `n` keys, times their weights, to `sum`.
  void add_values(const T* values, int64_t n, const A* weights, A* sum) const {
    int64_t c = 0;
    for (; c + 4 * kN <= shape_.head_dim; c += 4 * kN) add_columns<4>(values + c, n, weights, sum + c);
    for (; c + kN <= shape_.head_dim; c += kN) add_columns<1>(values + c, n, weights, sum + c);
    if (c == shape_.head_dim) return;
    Vector<A> total = load(sum + c);
    for (int64_t j = 0; j < n; ++j)
      total = fma(broadcast(weights[j]), load(values + j * v_.row_stride + c, shape_.head_dim - c), total);
    store(sum + c, total);
  }
  template <int N> void add_columns(const T* values, int64_t n, const A* weights, A* sum) const {
    Vector<A> total[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) total[i] = load(sum + i * kN);
    for (int64_t j = 0; j < n; ++j) {
      const Vector<A> weight = broadcast(weights[j]);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) total[i] = fma(weight, load(values + j * v_.row_stride + i * kN), total[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) store(sum + i * kN, total[i]);
  }

  const AttentionShape& shape_;
  const HeadsView<const T> q_, k_, v_;
  const AttentionMask<T>& mask_;
  const int64_t group_ = shape_.heads / shape_.kv_heads;
  // A causal mask is aligned at the top left, so the single query then attends only to the first key.
  const int64_t keys_ = shape_.causal ? std::min<int64_t>(1, shape_.keys) : shape_.keys;
  const int64_t chunks_ = std::max<int64_t>(1, (keys_ + kChunk - 1) / kChunk);
  const int64_t d_padded_ = round_up(shape_.head_dim, kLanes);
};

}  // namespace

namespace {

// Returns the shape without the keys from the largest `end_key` of all rows on, so that no tasks are made for them.
template <class T> AttentionShape without_unused_keys(AttentionShape shape, const AttentionMask<T>& mask) {
  if (mask.end_key == nullptr) return shape;
  int64_t end = 0;
  for (int64_t b = 0; b < (mask.strides[0] == 0 ? 1 : shape.batch); ++b)
    for (int64_t h = 0; h < (mask.strides[1] == 0 ? 1 : shape.heads); ++h)
      end = std::max(end, mask.end_key[b * mask.strides[0] + h * mask.strides[1]]);
  shape.keys = std::min(shape.keys, end);
  return shape;
}

}  // namespace

template <class T>
void attention_decode(const AttentionShape& all, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
                      const AttentionMask<T>& mask, HeadsView<T> out, AttentionAccumulator<T>* logsumexp) {
  using A = Compute<T>;
  const AttentionShape shape = without_unused_keys(all, mask);
  const Decode<T> decode(shape, q, k, v, mask);
  const int64_t pairs = shape.batch * shape.kv_heads, chunks = decode.chunks(), size = decode.partial_size();
  if (pairs == 0) return;
  const Storage memory = Storage::allocate(static_cast<size_t>(pairs * chunks * size) * sizeof(A));
  A* const results = reinterpret_cast<A*>(memory.data());
  // A piece reads at least about 64 KB, so that waking a thread is worthwhile.
  const int64_t bytes = 2 * std::min(kChunk, shape.keys) * shape.head_dim * static_cast<int64_t>(sizeof(T)) + 1;
  parallel_for(pairs * chunks, (int64_t{1} << 16) / bytes + 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) decode.run(task / chunks, task % chunks, results + task * size);
  });
  const int64_t group = shape.heads / shape.kv_heads;
  for (int64_t pair = 0; pair < pairs; ++pair)
    for (int64_t member = 0; member < group; ++member)
      decode.finish(pair, member, results + pair * chunks * size, size, out, logsumexp);
}

#define RONDO_DECODE(T)                                                                                                \
  template void attention_decode<T>(const AttentionShape&, HeadsView<const T>, HeadsView<const T>, HeadsView<const T>, \
                                    const AttentionMask<T>&, HeadsView<T>, AttentionAccumulator<T>*);
RONDO_DECODE(float)
RONDO_DECODE(double)
RONDO_DECODE(BFloat16)
RONDO_DECODE(Float16)
#undef RONDO_DECODE

}  // namespace rondo::cpu
