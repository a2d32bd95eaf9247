#include "rondo/runtime/cuda/fused_attention.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/attention_tiles.h"
#include "rondo/runtime/cuda/philox.h"
#include "rondo/runtime/cuda/scalar_text.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::cuda {
namespace {

// Arguments that the kernels take by value: a call, and an operand's strides.
// clang-format off
RONDO_TEXT_AND_CODE(kTileArguments,
struct CallArgument {
  long long batch, heads, kv_heads, queries, keys, head_dim, causal;
  double scale;
  long long mask_batch, mask_head, mask_row, mask_column;
};
struct TileHeadsArgument {
  long long batch, head, row;
};
)
// clang-format on

constexpr const char* kForward = R"cuda(
// The last tile of queries first: a causal one has the most keys.
extern "C" __global__ void __launch_bounds__(THREADS)
    rondo_attention(const T* q, const T* k, const T* v, const void* mask, T* out, C* logsumexp, Call call,
                    Dropout dropout, Heads at_q, Heads at_k, Heads at_v, Heads at_out, long long blocks) {
  __shared__ Vector q_tile[ROWS * kStride / kVector], k_tile[ROWS * kStride / kVector],
      v_tile[ROWS * kStride / kVector],
      weight_tile[ROWS * kAcross / kVector];
  T *const queries = reinterpret_cast<T*>(q_tile), *const keys = reinterpret_cast<T*>(k_tile),
    *const values = reinterpret_cast<T*>(v_tile);
  const int row = static_cast<int>(threadIdx.x) / 32 * kWarpRows;  // the warp's first
  T *const mine = queries + row * kStride, *const weights = reinterpret_cast<T*>(weight_tile) + row * kAcross;
  const int head_dim = static_cast<int>(call.head_dim);
  const long long tiles = (call.queries + ROWS - 1) / ROWS, all_heads = call.batch * call.heads;
  for (long long block = blockIdx.x; block < blocks; block += gridDim.x) {
    const long long first = (tiles - 1 - block / all_heads) * ROWS, head = block % all_heads % call.heads,
                    batch = block % all_heads / call.heads, kv_head = head / (call.heads / call.kv_heads);
    const long long end = call.causal != 0 ? least(call.keys, first + ROWS) : call.keys;
    load_rows(queries, q + batch * at_q.batch + head * at_q.head + first * at_q.row, at_q.row, call.queries - first,
              head_dim);
    const KeysRead some = keys_read(call, mask, batch, head, first, end);
    C sums[kOutputs][4] = {}, top[2] = {lowest(), lowest()}, total[2] = {0, 0};
    for (long long key = some.begin / ROWS * ROWS; key < some.end; key += ROWS) {
      __syncthreads();  // the last tiles have been used
      load_keys(keys, values, k + batch * at_k.batch + kv_head * at_k.head,
                v + batch * at_v.batch + kv_head * at_v.head, at_k.row, at_v.row, call, key, some);
      const Kept kept = kept_in_rows(dropout, (batch * call.heads + head) * call.queries + first + row, key);
      __syncthreads();
      C scores[kScores][4] = {};
      product<kScores, HEAD_DIM, true>(scores, mine, kStride, keys, kStride);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long query = first + row + row_of(2 * half);
        const Columns columns = keys_of(call, query, key);
        C most = top[half];
#pragma unroll
        for (int n = 0; n < kScores; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const int column = column_of(n, e);
            scores[n][e] = masked(call, mask, columns, column, batch, head, query, key + column, scores[n][e]);
            most = Max::combine(most, scores[n][e]);
          }
        most = row_reduce<Max>(most);
        const bool none = most == lowest();
        const C shrinks = none ? static_cast<C>(1) : exp_or_zero(top[half] - most);
        C part = 0;
#pragma unroll
        for (int n = 0; n < kScores; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            scores[n][e] = none ? static_cast<C>(0) : exp_or_zero(scores[n][e] - most);
            part = part + scores[n][e];
            if (!kept.at(n, e)) scores[n][e] = 0;
          }
        total[half] = fma_of(total[half], shrinks, row_reduce<Sum>(part));
        top[half] = most;
#pragma unroll
        for (int n = 0; n < kOutputs; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) sums[n][e] = sums[n][e] * shrinks;
      }
      put_rows(weights, kAcross, scores);
      product<kOutputs, ROWS, false>(sums, weights, kAcross, values, kStride);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool none = top[half] == lowest();
#pragma unroll
      for (int n = 0; n < kOutputs; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e)
          sums[n][e] = none ? static_cast<C>(0) : raised(dropout, sums[n][e] / total[half]);
      const long long query = first + row + row_of(2 * half);
      if (place_in_group() == 0 && query < call.queries)
        write(logsumexp + (batch * call.heads + head) * call.queries + query,
              none ? lowest() : top[half] + rondo_log(total[half]));
    }
    __syncthreads();  // without keys, the tile of queries is still being loaded
    put_rows(mine, kStride, sums);
    store_rows(out + batch * at_out.batch + head * at_out.head + (first + row) * at_out.row, mine, at_out.row,
               call.queries - first - row, head_dim);
    __syncthreads();  // before the next tile of queries
  }
}
)cuda";

constexpr const char* kBackward = R"cuda(
constexpr bool kRescales = MASK == 3;  // by the factors of rondo_attention_rescale

// The arrays of queries that the backward reads: q, the gradient of the output, the output, the logsumexp, and what
// rondo_attention_rescale writes.
struct Queries {
  const T *q, *grad, *out;
  const C *logsumexp, *rescale;
  Heads at_q, at_grad, at_out;
  RONDO_DEVICE void load(const Call& call, long long batch, long long head, long long first, T* q_rows,
                         T* grad_rows) const {
    const int head_dim = static_cast<int>(call.head_dim);
    load_rows(q_rows, q + batch * at_q.batch + head * at_q.head + first * at_q.row, at_q.row, call.queries - first,
              head_dim);
    load_rows(grad_rows, grad + batch * at_grad.batch + head * at_grad.head + first * at_grad.row, at_grad.row,
              call.queries - first, head_dim);
  }
  // `deltas` becomes the sum over d of grad out, which the gradients of all scores of a query are reduced by.
  RONDO_DEVICE void facts(const Call& call, long long batch, long long head, long long first, const T* grad_rows,
                          C* deltas, C* totals, C* rescales) const {
    const long long row = (batch * call.heads + head) * call.queries + first;
    row_facts(deltas, totals, grad_rows, out + batch * at_out.batch + head * at_out.head + first * at_out.row,
              at_out.row, logsumexp + row, call.queries - first, static_cast<int>(call.head_dim));
    if (kRescales && static_cast<int>(threadIdx.x) < ROWS)
      put(rescales[threadIdx.x], first + threadIdx.x < call.queries ? read(rescale + row + threadIdx.x) : 1);
  }
};
struct Shared {
  T *own, *own_values, *other, *other_values, *weights;
  C *deltas, *totals, *rescales;
  unsigned* kept;  // of each thread; in registers they would be too many
  RONDO_DEVICE void put_kept(const Kept& mine) const {
    if (DROPOUT != 0) put(kept[threadIdx.x], mine.bits);
  }
  RONDO_DEVICE C rescale(int row) const { return kRescales ? get(rescales[row]) : static_cast<C>(1); }
  RONDO_DEVICE Kept drawn() const { return {DROPOUT == 0 ? 0u : get(kept[threadIdx.x])}; }
  // Dropped values become 0. The __syncwarp() here and in grad_of_keys is for ptxas: it then reads the bits, and the
  // numbers of rows, again, instead of keeping them or what follows from them in registers.
  RONDO_DEVICE void drop(C (&values)[kScores][4]) const {
    if (DROPOUT == 0) return;
    __syncwarp();
    const Kept mine = drawn();
#pragma unroll
    for (int n = 0; n < kScores; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!mine.at(n, e)) values[n][e] = 0;
  }
};

// A score and the gradient of its weight, without the factor of dropout, become the weight and the gradient of the
// product q k.
RONDO_DEVICE void weight_and_slope(const Call& call, const Dropout& dropout, C allowed, C delta, C total, C rescale,
                                   C& score, C& grad) {
  score = total == lowest() ? static_cast<C>(0) : exp_or_zero(allowed - total) * rescale;
  grad = raised(dropout, grad);
  grad = score == 0 ? static_cast<C>(0) : score * (grad - delta) * static_cast<C>(call.scale);
}

RONDO_DEVICE void grad_of_queries(const Shared& s, const Call& call, const Dropout& dropout, const Queries& queries,
                                  const void* mask, const T* k, const T* v, Heads at_k, Heads at_v, T* grad_q,
                                  Heads at_grad_q, int block) {
  const int row = static_cast<int>(threadIdx.x) / 32 * kWarpRows, head_dim = static_cast<int>(call.head_dim);
  const int heads = static_cast<int>(call.heads), all_heads = static_cast<int>(call.batch) * heads,
            head = block % all_heads % heads, batch = block % all_heads / heads,
            kv_head = head / (heads / static_cast<int>(call.kv_heads));
  const long long first = ((call.queries + ROWS - 1) / ROWS - 1 - block / all_heads) * ROWS;
  const long long end = call.causal != 0 ? least(call.keys, first + ROWS) : call.keys;
  queries.load(call, batch, head, first, s.own, s.own_values);
  __syncthreads();
  queries.facts(call, batch, head, first, s.own_values, s.deltas, s.totals, s.rescales);
  __syncthreads();
  const KeysRead some = keys_read(call, mask, batch, head, first, end);
  C sums[kOutputs][4] = {};
  for (long long key = some.begin / ROWS * ROWS; key < some.end; key += ROWS) {
    __syncthreads();  // the last tiles have been used
    load_keys(s.other, s.other_values, k + batch * at_k.batch + kv_head * at_k.head,
              v + batch * at_v.batch + kv_head * at_v.head, at_k.row, at_v.row, call, key, some);
    s.put_kept(kept_in_rows(dropout, (batch * call.heads + head) * call.queries + first + row, key));
    __syncthreads();
    C scores[kScores][4] = {}, grads[kScores][4] = {};
    product<kScores, HEAD_DIM, true>(scores, s.own + row * kStride, kStride, s.other, kStride);
    product<kScores, HEAD_DIM, true>(grads, s.own_values + row * kStride, kStride, s.other_values, kStride);
    s.drop(grads);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = row + row_of(2 * half);
      const Columns columns = keys_of(call, first + at, key);
      const C delta = get(s.deltas[at]), total = get(s.totals[at]), rescale = s.rescale(at);
#pragma unroll
      for (int n = 0; n < kScores; ++n)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int column = column_of(n, e);
          const C allowed =
              masked(call, mask, columns, column, batch, head, first + at, key + column, scores[n][e]);
          weight_and_slope(call, dropout, allowed, delta, total, rescale, scores[n][e], grads[n][e]);
        }
    }
    put_rows(s.weights + row * kAcross, kAcross, grads);
    product<kOutputs, ROWS, false>(sums, s.weights + row * kAcross, kAcross, s.other, kStride);
  }
  put_rows(s.own + row * kStride, kStride, sums);
  store_rows(grad_q + batch * at_grad_q.batch + head * at_grad_q.head + (first + row) * at_grad_q.row,
             s.own + row * kStride, at_grad_q.row, call.queries - first - row, head_dim);
}

RONDO_DEVICE void grad_of_keys(const Shared& s, const Call& call, const Dropout& dropout, const Queries& queries,
                               const void* mask, const T* k, const T* v, Heads at_k, Heads at_v, T* grad_k,
                               Heads at_grad_k, T* grad_v, Heads at_grad_v, int block) {
  const int row = static_cast<int>(threadIdx.x) / 32 * kWarpRows, head_dim = static_cast<int>(call.head_dim);
  const int kv_heads = static_cast<int>(call.kv_heads), all_heads = static_cast<int>(call.batch) * kv_heads,
            groups = static_cast<int>(call.heads) / kv_heads, kv_head = block % all_heads % kv_heads,
            batch = block % all_heads / kv_heads;
  const long long first = static_cast<long long>(block / all_heads) * ROWS;
  load_rows(s.own, k + batch * at_k.batch + kv_head * at_k.head + first * at_k.row, at_k.row, call.keys - first,
            head_dim);
  load_rows(s.own_values, v + batch * at_v.batch + kv_head * at_v.head + first * at_v.row, at_v.row, call.keys - first,
            head_dim);
  C sums[kOutputs][4] = {}, value_sums[kOutputs][4] = {};
  for (int head = kv_head * groups; head < (kv_head + 1) * groups; ++head)
    for (long long query = call.causal != 0 ? first : 0; query < call.queries; query += ROWS) {
      __syncthreads();  // the last tiles have been used
      s.put_kept(kept_in_columns(dropout, (batch * call.heads + head) * call.queries + query, first + row));
      queries.load(call, batch, head, query, s.other, s.other_values);
      __syncthreads();
      queries.facts(call, batch, head, query, s.other_values, s.deltas, s.totals, s.rescales);
      __syncthreads();
      C scores[kScores][4] = {}, grads[kScores][4] = {};
      product<kScores, HEAD_DIM, true>(scores, s.own + row * kStride, kStride, s.other, kStride);
      product<kScores, HEAD_DIM, true>(grads, s.own_values + row * kStride, kStride, s.other_values, kStride);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long key = first + row + row_of(2 * half);
        const Columns columns = queries_of(call, key, query);
        if ((DROPOUT != 0 && HEAD_DIM > 112) || kRescales) __syncwarp();
        const Kept mine = s.drawn();  // not drop(): with another walk over the scores, the kernel would spill
#pragma unroll
        for (int n = 0; n < kScores; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const int column = column_of(n, e);
            const C allowed = masked(call, mask, columns, column, batch, head, query + column, key, scores[n][e]);
            if (!mine.at(n, e)) grads[n][e] = 0;
            weight_and_slope(call, dropout, allowed, get(s.deltas[column]), get(s.totals[column]), s.rescale(column),
                             scores[n][e], grads[n][e]);
            if (!mine.at(n, e)) scores[n][e] = 0;
          }
      }
      put_rows(s.weights + row * kAcross, kAcross, scores);
      product<kOutputs, ROWS, false>(value_sums, s.weights + row * kAcross, kAcross, s.other_values, kStride);
      put_rows(s.weights + row * kAcross, kAcross, grads);
      product<kOutputs, ROWS, false>(sums, s.weights + row * kAcross, kAcross, s.other, kStride);
    }
  __syncthreads();  // without queries, the tiles are still being loaded
  put_rows(s.own + row * kStride, kStride, sums);
  store_rows(grad_k + batch * at_grad_k.batch + kv_head * at_grad_k.head + (first + row) * at_grad_k.row,
             s.own + row * kStride, at_grad_k.row, call.keys - first - row, head_dim);
#pragma unroll
  for (int n = 0; n < kOutputs; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) value_sums[n][e] = raised(dropout, value_sums[n][e]);
  put_rows(s.own_values + row * kStride, kStride, value_sums);
  store_rows(grad_v + batch * at_grad_v.batch + kv_head * at_grad_v.head + (first + row) * at_grad_v.row,
             s.own_values + row * kStride, at_grad_v.row, call.keys - first - row, head_dim);
}

// The blocks of keys come first: they have more to do. Each block of threads has one: a loop over them would spill.
// The second bound: ptxas would otherwise spill for the sake of a third block.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rondo_attention_grad(const T* q, const T* k, const T* v, const void* mask, const T* out, const C* logsumexp,
                         const T* grad, T* grad_q, T* grad_k, T* grad_v, Call call, Dropout dropout, Heads at_q,
                         Heads at_k, Heads at_v, Heads at_out, Heads at_grad, Heads at_grad_q, Heads at_grad_k,
                         Heads at_grad_v, int key_blocks, const C* rescale) {
  __shared__ Vector own[ROWS * kStride / kVector], own_values[ROWS * kStride / kVector],
      other[ROWS * kStride / kVector], other_values[ROWS * kStride / kVector], weights[ROWS * kAcross / kVector];
  __shared__ C deltas[ROWS], totals[ROWS], rescales[kRescales ? ROWS : 1];
  __shared__ unsigned kept[DROPOUT == 0 ? 1 : THREADS];
  const Shared s = {reinterpret_cast<T*>(own),          reinterpret_cast<T*>(own_values), reinterpret_cast<T*>(other),
                    reinterpret_cast<T*>(other_values), reinterpret_cast<T*>(weights),    deltas,
                    totals,                             rescales,                           kept};
  const Queries queries = {q, grad, out, logsumexp, rescale, at_q, at_grad, at_out};
  const int block = static_cast<int>(blockIdx.x);
  if (block < key_blocks)
    grad_of_keys(s, call, dropout, queries, mask, k, v, at_k, at_v, grad_k, at_grad_k, grad_v, at_grad_v, block);
  else
    grad_of_queries(s, call, dropout, queries, mask, k, v, at_k, at_v, grad_q, at_grad_q, block - key_blocks);
}
)cuda";

constexpr const char* kRescale = R"cuda(
// Note [Large logsumexp]: for each query, 1 over the sum of its weights if its logsumexp is large, otherwise 1. Tiles
// without such a query read nothing else.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rondo_attention_rescale(const T* q, const T* k, const void* mask, const C* logsumexp, C* rescale, Call call,
                            Heads at_q, Heads at_k, long long blocks) {
  __shared__ Vector q_tile[ROWS * kStride / kVector], k_tile[ROWS * kStride / kVector];
  T *const queries = reinterpret_cast<T*>(q_tile), *const keys = reinterpret_cast<T*>(k_tile);
  const int row = static_cast<int>(threadIdx.x) / 32 * kWarpRows, head_dim = static_cast<int>(call.head_dim);
  const long long tiles = (call.queries + ROWS - 1) / ROWS;
  for (long long block = blockIdx.x; block < blocks; block += gridDim.x) {
    const long long first = block % tiles * ROWS, head = block / tiles % call.heads,
                    batch = block / tiles / call.heads, kv_head = head / (call.heads / call.kv_heads),
                    at = (batch * call.heads + head) * call.queries;
    int large = 0;  // for all warps alike
    for (long long query = first + threadIdx.x % 32; query < call.queries && query < first + ROWS; query += 32)
      if (is_large(read(logsumexp + at + query))) large = 1;
    large = warp_reduce<Max, 32>(large);
    C totals[2], sums[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long query = first + row + row_of(2 * half);
      totals[half] = query < call.queries ? read(logsumexp + at + query) : static_cast<C>(0);
    }
    if (large != 0)
      load_rows(queries, q + batch * at_q.batch + head * at_q.head + first * at_q.row, at_q.row, call.queries - first,
                head_dim);
    const long long end = large == 0 ? 0 : call.causal != 0 ? least(call.keys, first + ROWS) : call.keys;
    for (long long key = 0; key < end; key += ROWS) {
      __syncthreads();  // the last tile has been used
      load_rows(keys, k + batch * at_k.batch + kv_head * at_k.head + key * at_k.row, at_k.row, call.keys - key,
                head_dim);
      __syncthreads();
      C scores[kScores][4] = {};
      product<kScores, HEAD_DIM, true>(scores, queries + row * kStride, kStride, keys, kStride);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const long long query = first + row + row_of(2 * half);
        const Columns columns = keys_of(call, query, key);
#pragma unroll
        for (int n = 0; n < kScores; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            const int column = column_of(n, e);
            sums[half] = sums[half] + exp_or_zero(masked(call, mask, columns, column, batch, head, query, key + column,
                                                         scores[n][e]) - totals[half]);
          }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const long long query = first + row + row_of(2 * half);
      const C sum = row_reduce<Sum>(sums[half]);
      if (place_in_group() == 0 && query < call.queries)
        write(rescale + at + query, is_large(totals[half]) ? 1 / sum : static_cast<C>(1));
    }
    __syncthreads();  // before the next tile of queries
  }
}
)cuda";

CallArgument argument(const AttentionCall& c) {
  return {c.batch, c.heads,           c.kv_heads,        c.queries,         c.keys,           c.head_dim, c.causal,
          c.scale, c.mask_strides[0], c.mask_strides[1], c.mask_strides[2], c.mask_strides[3]};
}
TileHeadsArgument argument(const HeadsStrides& s) { return {s.batch, s.head, s.row}; }

Kernel kernel(const AttentionCall& call, const AttentionTile& tile, const Source& source, const char* name) {
  return kernel_of(call.device, source, name,
                   {{"T", type_name(call.dtype)},
                    {"HEAD_DIM", absl::StrCat(tile.head_dim)},
                    {"ROWS", absl::StrCat(tile.rows)},
                    {"THREADS", absl::StrCat(tile.threads())},
                    {"MASK", absl::StrCat(static_cast<int>(call.mask))},
                    {"DROPOUT", call.dropout != 0 ? "1" : "0"}});
}
std::string text_of_kernels(const char* kernels) {
  return absl::StrCat(scalar_function("rondo_exp", [](LoopValue x) { return scalar::exp(x); }),
                      scalar_function("rondo_log", [](LoopValue x) { return scalar::log(x); }), kWarpProduct,
                      kDropoutText, kDroppedWeights, kLargeLogsumexp, kTileArguments, kAttentionTiles, kernels);
}
int64_t tiles_of(int64_t rows, const AttentionTile& tile) { return (rows + tile.rows - 1) / tile.rows; }

// Returns the factors of Note [Large logsumexp]: [B, H, Tq] of the compute dtype. Empty without an added mask.
Storage rescale_of(const AttentionCall& call, const AttentionTile& tile, const AttentionOperands& o,
                   const void* logsumexp) {
  const int64_t rows = call.batch * call.heads * call.queries;
  if (call.mask != AttentionMask::kBias || rows == 0) return {};
  Storage rescale = Storage::allocate(static_cast<size_t>(rows) * size_of(compute_dtype(call.dtype)),
                                      {Backend::kCUDA, static_cast<int8_t>(call.device)});
  const int64_t blocks = call.batch * call.heads * tiles_of(call.queries, tile);
  launch_blocks(call.device, kernel(call, tile, fused_attention_rescale_source(), "rondo_attention_rescale"), blocks,
                static_cast<unsigned>(tile.threads()), o.q, o.k, o.mask, logsumexp, rescale.data(), argument(call),
                argument(call.q), argument(call.k), static_cast<long long>(blocks));
  return rescale;
}

}  // namespace

const Source& fused_attention_source() {
  static const auto* const text = new std::string(text_of_kernels(kForward));
  static const Source source{"fused_attention", *text};
  return source;
}
const Source& fused_attention_rescale_source() {
  static const auto* const text = new std::string(text_of_kernels(kRescale));
  static const Source source{"fused_attention_rescale", *text};
  return source;
}
const Source& fused_attention_grad_source() {
  static const auto* const text = new std::string(text_of_kernels(kBackward));
  static const Source source{"fused_attention_grad", *text};
  return source;
}

std::optional<AttentionTile> attention_tile(DType dtype, int64_t head_dim) {
  // The backward needs four tiles, one tile of weights, and three numbers for each row. Together they take at most the
  // 48 KiB of shared memory that every launch may have.
  constexpr size_t kSharedBytes = 48 << 10;
  if (head_dim < 1 || head_dim > 128) return std::nullopt;
  const size_t element = size_of(dtype), pad = 16 / element, width = (static_cast<size_t>(head_dim) + 15) / 16 * 16;
  for (const size_t rows : {64, 32, 16}) {
    const size_t bytes = rows * (4 * (width + pad) + rows + pad) * element + 3 * rows * size_of(compute_dtype(dtype));
    if (bytes <= kSharedBytes) return AttentionTile{static_cast<int>(width), static_cast<int>(rows)};
  }
  return std::nullopt;
}

void fused_attention_forward(const AttentionCall& call, const AttentionTile& tile, const AttentionOperands& o,
                             void* out, const HeadsStrides& out_strides, void* logsumexp) {
  const int64_t blocks = call.batch * call.heads * tiles_of(call.queries, tile);
  if (blocks == 0) return;
  launch_blocks(call.device, kernel(call, tile, fused_attention_source(), "rondo_attention"), blocks,
                static_cast<unsigned>(tile.threads()), o.q, o.k, o.v, o.mask, out, logsumexp, argument(call),
                dropout_of(call, o), argument(call.q), argument(call.k), argument(call.v), argument(out_strides),
                static_cast<long long>(blocks));
}

void fused_attention_backward(const AttentionCall& call, const AttentionTile& tile, const AttentionOperands& o,
                              const AttentionGradients& g) {
  const int64_t key_blocks = call.batch * call.kv_heads * tiles_of(call.keys, tile),
                blocks = key_blocks + call.batch * call.heads * tiles_of(call.queries, tile);
  if (blocks == 0) return;
  const Storage rescale = rescale_of(call, tile, o, g.logsumexp);
  launch_every_block(call.device, kernel(call, tile, fused_attention_grad_source(), "rondo_attention_grad"), blocks,
                     static_cast<unsigned>(tile.threads()), o.q, o.k, o.v, o.mask, g.out, g.logsumexp, g.grad, g.grad_q,
                     g.grad_k, g.grad_v, argument(call), dropout_of(call, o), argument(call.q), argument(call.k),
                     argument(call.v), argument(g.out_strides), argument(g.grad_strides), argument(g.grad_q_strides),
                     argument(g.grad_k_strides), argument(g.grad_v_strides), static_cast<int>(key_blocks),
                     rescale ? rescale.data() : nullptr);
}

}  // namespace rondo::cuda
