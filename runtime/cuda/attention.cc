#include "rondo/runtime/cuda/attention.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/cuda/fused_attention.h"
#include "rondo/runtime/cuda/philox.h"
#include "rondo/runtime/cuda/product.h"
#include "rondo/runtime/cuda/scalar_text.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/random_state.h"
#include "rondo/runtime/storage.h"

namespace rondo::cuda {
namespace {

// A block for each row of scores. Scores are dense [B, H, rows, cols]; what the kernels write may be what they read:
// each thread reads an element before it overwrites it.
constexpr const char* kText = R"cuda(
using C = typename RondoCompute<T>::Type;

template <class Op> RONDO_DEVICE C block_reduce(C value, C (&parts)[8]) {
  value = warp_reduce<Op, 32>(value);
  __syncthreads();  // the last reduction has been read
  if (threadIdx.x % 32 == 0) put(parts[threadIdx.x / 32], value);
  __syncthreads();
  C all = get(parts[0]);
#pragma unroll
  for (int w = 1; w < 8; ++w) all = Op::combine(all, get(parts[w]));
  return all;
}
RONDO_DEVICE C lowest() { return static_cast<C>(__longlong_as_double(0xFFF0000000000000ull)); }

// Which keys a query may attend to.
struct Mask {
  const void* data;
  long long kind, batch, head, row, column;  // kind: 0 none, 1 bool, 2 the first key, 3 added; strides
  long long heads, queries, first_query, rows, causal;
};
struct Row {
  long long at_mask, first, end, logsumexp;
};
RONDO_DEVICE Row row_of(const Mask& mask, long long r, long long cols) {
  const long long i = r % mask.rows, head = r / mask.rows % mask.heads, batch = r / mask.rows / mask.heads;
  const long long query = mask.first_query + i;
  Row row = {batch * mask.batch + head * mask.head + query * mask.row, 0, cols,
             (batch * mask.heads + head) * mask.queries + query};
  if (mask.causal != 0 && query + 1 < cols) row.end = query + 1;
  if (mask.kind == 2) row.first = read(static_cast<const long long*>(mask.data) + row.at_mask);
  return row;
}
RONDO_DEVICE C masked(const Mask& mask, const Row& row, long long j, C score) {
  if (j < row.first || j >= row.end) return lowest();
  const long long at = row.at_mask + j * mask.column;
  if (mask.kind == 1) return read(static_cast<const bool*>(mask.data) + at) ? score : lowest();
  if (mask.kind == 3) return score + widen(read(static_cast<const T*>(mask.data) + at));
  return score;
}

// DROPOUT: 1 if there is one. What is kept is multiplied by the factor in the product with the weights.
RONDO_DEVICE bool is_kept(const Dropout& dropout, const Row& row, long long j) {
  return DROPOUT == 0 || (dropout.kept(row.logsumexp, j) >> j % 4 & 1u) != 0;
}

extern "C" __global__ void rondo_attention_softmax(const C* scores, T* weights, C* logsumexp, Mask mask,
                                                   Dropout dropout, long long n, long long cols) {
  __shared__ C parts[8];
  for (long long r = blockIdx.x; r < n; r += gridDim.x) {
    const Row row = row_of(mask, r, cols);
    const C* const from = scores + r * cols;
    C top = lowest();
    for (long long j = threadIdx.x; j < cols; j += blockDim.x)
      top = Max::combine(top, masked(mask, row, j, read(from + j)));
    top = block_reduce<Max>(top, parts);
    const bool none = top == lowest();
    C sum = 0;
    if (!none)
      for (long long j = threadIdx.x; j < cols; j += blockDim.x)
        sum = sum + rondo_exp(masked(mask, row, j, read(from + j)) - top);
    sum = block_reduce<Sum>(sum, parts);
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) {
      const bool zero = none || !is_kept(dropout, row, j);
      write(weights + r * cols + j,
            convert<T>(zero ? static_cast<C>(0) : rondo_exp(masked(mask, row, j, read(from + j)) - top) / sum));
    }
    if (threadIdx.x == 0) write(logsumexp + row.logsumexp, none ? lowest() : top + rondo_log(sum));
  }
}

struct Heads {
  const T* data;
  long long batch, head, row;
};
RONDO_DEVICE const T* line_of(const Heads& heads, const Mask& mask, long long r) {
  const long long i = r % mask.rows, head = r / mask.rows % mask.heads, batch = r / mask.rows / mask.heads;
  return heads.data + batch * heads.batch + head * heads.head + (mask.first_query + i) * heads.row;
}
// weights: the softmax again, dropped. d_scores: the gradient of q k^T.
extern "C" __global__ void rondo_attention_softmax_grad(const C* scores, const C* d_weights, T* weights, T* d_scores,
                                                        const C* logsumexp, Heads out, Heads grad, Mask mask,
                                                        Dropout dropout, long long n, long long cols,
                                                        long long head_dim, double scale) {
  __shared__ C parts[8];
  for (long long r = blockIdx.x; r < n; r += gridDim.x) {
    const Row row = row_of(mask, r, cols);
    const T *const o = line_of(out, mask, r), *const g = line_of(grad, mask, r);
    C delta = 0;
    for (long long d = threadIdx.x; d < head_dim; d += blockDim.x)
      delta = delta + widen(read(o + d)) * widen(read(g + d));
    delta = block_reduce<Sum>(delta, parts);
    const C total = read(logsumexp + row.logsumexp);
    const bool none = total == lowest();
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) {
      const long long at = r * cols + j;
      const C weight = none ? static_cast<C>(0) : rondo_exp(masked(mask, row, j, read(scores + at)) - total);
      const bool kept = is_kept(dropout, row, j);
      C d_weight = read(d_weights + at);
      if (DROPOUT != 0) d_weight = kept ? d_weight * static_cast<C>(dropout.factor) : static_cast<C>(0);
      const C slope = weight == 0 ? static_cast<C>(0) : weight * (d_weight - delta);
      write(weights + at, convert<T>(kept ? weight : static_cast<C>(0)));
      write(d_scores + at, convert<T>(slope * static_cast<C>(scale)));
    }
  }
}

// Where element i of [B, H, rows, D] lies in an array with these strides.
struct Place {
  long long batch, head, row, heads, rows, head_dim;
};
RONDO_DEVICE long long offset_of(const Place& place, long long i) {
  const long long d = i % place.head_dim, r = i / place.head_dim % place.rows;
  const long long head = i / place.head_dim / place.rows % place.heads;
  const long long batch = i / place.head_dim / place.rows / place.heads;
  return batch * place.batch + head * place.head + r * place.row + d;
}
// Dense sums of the compute type, as elements of a tensor.
extern "C" __global__ void rondo_attention_store(const C* from, T* to, Place place, long long n) {
  for (long long i = first_index(); i < n; i += index_step())
    write(to + offset_of(place, i), convert<T>(read(from + i)));
}
extern "C" __global__ void rondo_attention_clear(T* to, Place place, long long n) {
  for (long long i = first_index(); i < n; i += index_step())
    write(to + offset_of(place, i), convert<T>(static_cast<C>(0)));
}
)cuda";

// What the kernels take by value: the structs above.
struct MaskArgument {
  const void* data;
  long long kind, batch, head, row, column, heads, queries, first_query, rows, causal;
};
struct HeadsArgument {
  const void* data;
  long long batch, head, row;
};
struct PlaceArgument {
  long long batch, head, row, heads, rows, head_dim;
};

DType compute_of(DType dtype) { return dtype == kF64 ? kF64 : kF32; }

// One matrix for each head of each batch: element (row, column) of head h of batch b lies at
// b * batch + h * head + row * rows + column * columns.
struct Matrices {
  const void* data;
  int64_t batch, head, row, column;
};
Matrices dense(const void* data, int64_t heads, int64_t rows, int64_t columns) {
  return {data, heads * rows * columns, rows * columns, columns, 1};
}
Matrices of(const void* data, const HeadsStrides& s, int64_t first_row = 0, DType dtype = kF32) {
  const int64_t skipped = first_row * s.row * static_cast<int64_t>(size_of(dtype));
  return {static_cast<const std::byte*>(data) + skipped, s.batch, s.head, s.row, 1};
}
Matrices transposed(const Matrices& m) { return {m.data, m.batch, m.head, m.column, m.row}; }

// The products of one kind in a call.
class Multiplier {
 public:
  Multiplier(const AttentionCall& call) : call_(call) {}
  // The heads of an operand: those of queries, or of keys, each of which serves a group of queries' heads.
  enum Of { kQueries, kKeys };
  struct Options {
    bool wide = false;  // the result is of the compute type
    bool adds = false;  // to the result
    double alpha = 1;
  };
  // c (m, n) = a (m, k) b (k, n), head by head. If c's heads are those of keys, its groups add up, so `adds` must be
  // set.
  void run(int64_t m, int64_t n, int64_t k, const Matrices& a, Of of_a, const Matrices& b, Of of_b, const Matrices& c,
           Of of_c, Options options) const {
    if (m == 0 || n == 0 || k == 0) return;
    const int64_t groups = call_.heads / call_.kv_heads;
    MatmulCall product{
        .dtype = call_.dtype, .wide = options.wide && call_.dtype != compute_of(call_.dtype), .m = m, .n = n, .k = k};
    if (options.adds) {
      product.epilogues[0] = Epilogue::kAdd;
      product.in_place[0] = true;
    }
    set_matrix_strides(m, k, a.row, a.column, product.a_strides);
    set_matrix_strides(k, n, b.row, b.column, product.b_strides);
    product.c_strides[1] = m == 1 ? n : c.row;
    product.c_strides[2] = 1;
    // One product for all heads of keys; and for all batches, if that is one more step of the same kind.
    const auto step = [&](const Matrices& x, Of of) { return of == kQueries ? x.head * groups : x.head; };
    const auto merges = [&](const Matrices& x, Of of) { return x.batch == step(x, of) * call_.kv_heads; };
    const bool merged = call_.batch == 1 || (merges(a, of_a) && merges(b, of_b) && merges(c, of_c));
    product.batch = call_.kv_heads * (merged ? call_.batch : 1);
    product.a_strides[0] = step(a, of_a);
    product.b_strides[0] = step(b, of_b);
    product.c_strides[0] = step(c, of_c);
    if (product.batch == 1) product.a_strides[0] = product.b_strides[0] = product.c_strides[0] = 0;
    const std::shared_ptr<const Product> prepared = Product::get(call_.device, product);
    const auto at = [&](const Matrices& x, Of of, int64_t batch, int64_t group, DType dtype) {
      const int64_t elements = batch * x.batch + (of == kQueries ? group * x.head : 0);
      return const_cast<std::byte*>(static_cast<const std::byte*>(x.data)) +
             elements * static_cast<int64_t>(size_of(dtype));
    };
    for (int64_t batch = 0; batch < (merged ? 1 : call_.batch); ++batch)
      for (int64_t group = 0; group < groups; ++group) {
        MatmulOperands operands{.a = at(a, of_a, batch, group, call_.dtype),
                                .b = at(b, of_b, batch, group, call_.dtype),
                                .c = at(c, of_c, batch, group, product.result_dtype())};
        if (options.adds) operands.added[0] = operands.c;
        prepared->run(operands, options.alpha);
      }
  }

 private:
  const AttentionCall& call_;
};

// A chunk's queries, and the keys that any of them attends to.
struct Chunk {
  int64_t first, rows, columns;
};
template <class F> void for_each_chunk(const AttentionCall& call, F f) {
  const int64_t most = std::min(call.chunk > 0 ? call.chunk : chunk_of(call), call.queries);
  for (int64_t first = 0; first < call.queries; first += most) {
    const int64_t rows = std::min(most, call.queries - first);
    f(Chunk{first, rows, call.causal ? std::min(call.keys, first + rows) : call.keys});
  }
}

class Chunks {
 public:
  Chunks(const AttentionCall& call, const AttentionOperands& operands)
      : call_(call),
        operands_(operands),
        multiply_(call),
        narrow_(call.dtype != compute_of(call.dtype)),
        dropout_(dropout_of(call, operands)) {}

 protected:
  Storage scores_like(const Chunk& chunk, DType dtype) const {
    const int64_t elements = call_.batch * call_.heads * chunk.rows * chunk.columns;
    return memory(elements, dtype);
  }
  Storage memory(int64_t elements, DType dtype) const {
    return Storage::allocate(static_cast<size_t>(elements) * size_of(dtype), device());
  }
  Device device() const { return {Backend::kCUDA, static_cast<int8_t>(call_.device)}; }
  Matrices chunk_matrix(const Chunk& chunk, const Storage& storage) const {
    return rondo::cuda::dense(storage.data(), call_.heads, chunk.rows, chunk.columns);
  }
  // scores = scale q k^T, of the compute type.
  void score(const Chunk& chunk, const Storage& scores) const {
    if (call_.head_dim == 0) backend_of(device()).fill(call_.device, scores.data(), 0, scores.bytes());
    multiply_.run(chunk.rows, chunk.columns, call_.head_dim, of(operands_.q, call_.q, chunk.first, call_.dtype),
                  Multiplier::kQueries, transposed(of(operands_.k, call_.k)), Multiplier::kKeys,
                  chunk_matrix(chunk, scores), Multiplier::kQueries, {.wide = true, .alpha = call_.scale});
  }
  MaskArgument mask(const Chunk& chunk) const {
    const auto& s = call_.mask_strides;
    return {operands_.mask, static_cast<long long>(call_.mask),
            s[0],           s[1],
            s[2],           s[3],
            call_.heads,    call_.queries,
            chunk.first,    chunk.rows,
            call_.causal};
  }
  PlaceArgument place(const HeadsStrides& s, int64_t heads, int64_t rows) const {
    return {s.batch, s.head, s.row, heads, rows, call_.head_dim};
  }
  // Zeros in [B, heads, rows, D], which may be a part of a larger array: compiled code lets q, k and v share one.
  void clear(void* data, const HeadsStrides& s, int64_t heads, int64_t rows) const {
    const int64_t elements = call_.batch * heads * rows * call_.head_dim;
    if (elements == 0) return;
    const int64_t reach = (call_.batch - 1) * s.batch + (heads - 1) * s.head + (rows - 1) * s.row + call_.head_dim;
    if (reach == elements)
      backend_of(device()).fill(call_.device, data, 0, static_cast<size_t>(elements) * size_of(call_.dtype));
    else
      launch_threads(call_.device, kernel("rondo_attention_clear"), elements, data, place(s, heads, rows),
                     static_cast<long long>(elements));
  }
  int64_t rows(const Chunk& chunk) const { return call_.batch * call_.heads * chunk.rows; }
  Kernel kernel(const char* name) const {
    return kernel_of(call_.device, attention_source(), name,
                     {{"T", type_name(call_.dtype)}, {"DROPOUT", call_.dropout != 0 ? "1" : "0"}});
  }

  const AttentionCall& call_;
  const AttentionOperands& operands_;
  const Multiplier multiply_;
  const bool narrow_;  // elements are of fewer bits than sums
  const DropoutArgument dropout_;
};

class Forward : Chunks {
 public:
  using Chunks::Chunks;
  void run(void* out, const HeadsStrides& out_strides, void* logsumexp) const {
    if (call_.keys == 0) clear(out, out_strides, call_.heads, call_.queries);
    const Kernel softmax = kernel("rondo_attention_softmax");
    for_each_chunk(call_, [&](const Chunk& chunk) {
      const Storage scores = scores_like(chunk, compute_of(call_.dtype));
      const Storage weights = narrow_ ? scores_like(chunk, call_.dtype) : scores;
      score(chunk, scores);
      launch_blocks(call_.device, softmax, rows(chunk), kThreads, scores.data(), weights.data(), logsumexp, mask(chunk),
                    dropout_, static_cast<long long>(rows(chunk)), static_cast<long long>(chunk.columns));
      multiply_.run(chunk.rows, call_.head_dim, chunk.columns, chunk_matrix(chunk, weights), Multiplier::kQueries,
                    of(operands_.v, call_.v), Multiplier::kKeys, of(out, out_strides, chunk.first, call_.dtype),
                    Multiplier::kQueries, {.alpha = dropout_.factor});
    });
  }
};

class Backward : Chunks {
 public:
  Backward(const AttentionCall& call, const AttentionOperands& operands, const AttentionGradients& gradients)
      : Chunks(call, operands), g_(gradients) {}

  void run() const {
    const Sums sum_k(*this, g_.grad_k, g_.grad_k_strides), sum_v(*this, g_.grad_v, g_.grad_v_strides);
    if (call_.keys == 0) clear(g_.grad_q, g_.grad_q_strides, call_.heads, call_.queries);
    const Kernel softmax_grad = kernel("rondo_attention_softmax_grad");
    for_each_chunk(call_, [&](const Chunk& chunk) {
      const DType compute = compute_of(call_.dtype);
      const Storage scores = scores_like(chunk, compute), d_weights = scores_like(chunk, compute);
      const Storage weights = narrow_ ? scores_like(chunk, call_.dtype) : scores,
                    d_scores = narrow_ ? scores_like(chunk, call_.dtype) : d_weights;
      const Matrices grad = of(g_.grad, g_.grad_strides, chunk.first, call_.dtype);
      score(chunk, scores);
      multiply_.run(chunk.rows, chunk.columns, call_.head_dim, grad, Multiplier::kQueries,
                    transposed(of(operands_.v, call_.v)), Multiplier::kKeys, chunk_matrix(chunk, d_weights),
                    Multiplier::kQueries, {.wide = true});
      launch_blocks(call_.device, softmax_grad, rows(chunk), kThreads, scores.data(), d_weights.data(), weights.data(),
                    d_scores.data(), g_.logsumexp, heads(g_.out, g_.out_strides), heads(g_.grad, g_.grad_strides),
                    mask(chunk), dropout_, static_cast<long long>(rows(chunk)), static_cast<long long>(chunk.columns),
                    static_cast<long long>(call_.head_dim), call_.scale);
      multiply_.run(chunk.rows, call_.head_dim, chunk.columns, chunk_matrix(chunk, d_scores), Multiplier::kQueries,
                    of(operands_.k, call_.k), Multiplier::kKeys,
                    of(g_.grad_q, g_.grad_q_strides, chunk.first, call_.dtype), Multiplier::kQueries, {});
      const auto add = [&](const Sums& sums, const Storage& factors, const Matrices& lines, double alpha) {
        multiply_.run(chunk.columns, call_.head_dim, chunk.rows, transposed(chunk_matrix(chunk, factors)),
                      Multiplier::kQueries, lines, Multiplier::kQueries, sums.matrices(), Multiplier::kKeys,
                      {.wide = true, .adds = true, .alpha = alpha});
      };
      add(sum_v, weights, grad, dropout_.factor);
      add(sum_k, d_scores, of(operands_.q, call_.q, chunk.first, call_.dtype), 1);
    });
    sum_k.store();
    sum_v.store();
  }

 private:
  // A gradient of keys or values, to which every chunk adds, in the compute type.
  class Sums {
   public:
    Sums(const Backward& backward, void* out, const HeadsStrides& strides)
        : backward_(backward), out_(out), strides_(strides) {
      const AttentionCall& call = backward.call_;
      if (!backward.narrow_) {
        backward.clear(out, strides, call.kv_heads, call.keys);
        return;
      }
      wide_ = backward.memory(elements(), compute_of(call.dtype));
      backend_of(backward.device()).fill(call.device, wide_.data(), 0, wide_.bytes());
    }
    Matrices matrices() const {
      const AttentionCall& call = backward_.call_;
      return wide_ ? rondo::cuda::dense(wide_.data(), call.kv_heads, call.keys, call.head_dim) : of(out_, strides_);
    }
    void store() const {
      if (!wide_ || elements() == 0) return;
      const AttentionCall& call = backward_.call_;
      launch_threads(call.device, backward_.kernel("rondo_attention_store"), elements(), wide_.data(), out_,
                     backward_.place(strides_, call.kv_heads, call.keys), static_cast<long long>(elements()));
    }

   private:
    int64_t elements() const {
      const AttentionCall& call = backward_.call_;
      return call.batch * call.kv_heads * call.keys * call.head_dim;
    }
    const Backward& backward_;
    void* out_;
    HeadsStrides strides_;
    Storage wide_;
  };

  static HeadsArgument heads(const void* data, const HeadsStrides& s) { return {data, s.batch, s.head, s.row}; }

  const AttentionGradients& g_;
};

std::optional<AttentionTile> tile_of(const AttentionCall& call) {
  return call.chunk > 0 ? std::nullopt : attention_tile(call.dtype, call.head_dim);
}

}  // namespace

const Source& attention_source() {
  static const auto* const text = new std::string(absl::StrCat(
      scalar_function("rondo_exp", [](LoopValue x) { return scalar::exp(x); }),
      scalar_function("rondo_log", [](LoopValue x) { return scalar::log(x); }), kPhilox, kDroppedWeights, kText));
  static const Source source{"attention", *text};
  return source;
}

DropoutArgument dropout_of(const AttentionCall& call, const AttentionOperands& operands) {
  const DropoutRule rule(call.dropout);
  return {operands.state, call.increment, rule.threshold, (call.keys + 3) / 4, rule.factor};
}

int64_t chunk_of(const AttentionCall& call) {
  constexpr int64_t kMostBytes = int64_t{64} << 20, kFewest = 16;
  const int64_t query = std::max<int64_t>(1, call.batch * call.heads * call.keys) *
                        static_cast<int64_t>(size_of(compute_of(call.dtype)));
  return std::max(kFewest, kMostBytes / query / kFewest * kFewest);
}

void attention_forward(const AttentionCall& call, const AttentionOperands& operands, void* out,
                       const HeadsStrides& out_strides, void* logsumexp) {
  if (call.batch * call.heads * call.queries == 0) return;
  if (const auto tile = tile_of(call))
    return fused_attention_forward(call, *tile, operands, out, out_strides, logsumexp);
  Forward(call, operands).run(out, out_strides, logsumexp);
}

void attention_backward(const AttentionCall& call, const AttentionOperands& operands,
                        const AttentionGradients& gradients) {
  if (call.batch * call.heads == 0) return;
  if (const auto tile = tile_of(call)) return fused_attention_backward(call, *tile, operands, gradients);
  Backward(call, operands, gradients).run();
}

}  // namespace rondo::cuda
