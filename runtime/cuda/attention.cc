#include "rondo/runtime/cuda/attention.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/block_reduce.h"
#include "rondo/runtime/cuda/dnn_attention.h"
#include "rondo/runtime/cuda/fused_attention.h"
#include "rondo/runtime/cuda/philox.h"
#include "rondo/runtime/cuda/product.h"
#include "rondo/runtime/cuda/scalar_text.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::cuda {
namespace {

// Arguments that the kernels take by value. MaskArgument: a mask and its strides; its kind is 0 none, 1 bool, 2 the
// first key, 3 added, 4 the first key and the end. HeadsArgument: the heads of an operand. PlaceArgument: the heads of
// a result that lies in a larger array.
// clang-format off
RONDO_TEXT_AND_CODE(kAttentionArguments,
struct MaskArgument {
  const void* data;
  long long kind, batch, head, row, column;
  long long heads, queries, first_query, rows, causal;
};
struct HeadsArgument {
  const void* data;
  long long batch, head, row;
};
struct PlaceArgument {
  long long batch, head, row, heads, rows, head_dim;
};
)
// clang-format on

// Each block of threads computes one row of scores. Scores are dense [B, H, rows, cols]. The kernels may write into the
// arrays that they read: each thread reads an element before it overwrites it.
constexpr const char* kAttentionText = R"cuda(
using C = typename RondoCompute<T>::Type;

struct Least {
  static RONDO_DEVICE long long combine(long long a, long long b) { return b < a ? b : a; }
};
RONDO_DEVICE C lowest() { return static_cast<C>(__longlong_as_double(0xFFF0000000000000ull)); }

using Mask = MaskArgument;
using Heads = HeadsArgument;
using Place = PlaceArgument;

struct Row {
  long long at_mask, first, end, logsumexp;
};
RONDO_DEVICE Row row_of(const Mask& mask, long long r, long long cols) {
  const long long i = r % mask.rows, head = r / mask.rows % mask.heads, batch = r / mask.rows / mask.heads;
  const long long query = mask.first_query + i;
  Row row = {batch * mask.batch + head * mask.head + query * mask.row, 0, cols,
             (batch * mask.heads + head) * mask.queries + query};
  if (mask.causal != 0 && query + 1 < cols) row.end = query + 1;
  const long long* const keys = static_cast<const long long*>(mask.data) + row.at_mask;
  if (mask.kind == 2 || mask.kind == 4) row.first = read(keys);
  if (mask.kind == 4) row.end = Least::combine(row.end, read(keys + 1));
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

RONDO_DEVICE const T* line_of(const Heads& heads, const Mask& mask, long long r) {
  const long long i = r % mask.rows, head = r / mask.rows % mask.heads, batch = r / mask.rows / mask.heads;
  return static_cast<const T*>(heads.data) + batch * heads.batch + head * heads.head + (mask.first_query + i) * heads.row;
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
    C rescale = 1;  // Note [Large logsumexp]
    if (is_large(total)) {
      C sum = 0;
      for (long long j = threadIdx.x; j < cols; j += blockDim.x)
        sum = sum + rondo_exp(masked(mask, row, j, read(scores + r * cols + j)) - total);
      rescale = 1 / block_reduce<Sum>(sum, parts);
    }
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) {
      const long long at = r * cols + j;
      const C weight = none ? static_cast<C>(0) : rondo_exp(masked(mask, row, j, read(scores + at)) - total) * rescale;
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
// The keys of a head that may be read: Note [Keys that are not read].
struct KeysRead {
  const Mask& mask;
  long long batch, first_head, end_head, begin, end;  // heads of queries; keys
  RONDO_DEVICE bool operator()(long long key) const {
    if (mask.kind != 1) return key >= begin && key < end;
    for (long long head = first_head; head < end_head; ++head)
      if (read(static_cast<const bool*>(mask.data) + batch * mask.batch + head * mask.head + key * mask.column))
        return true;
    return false;
  }
};
// The least of all queries' numbers in column `column` of the mask, times `sign`. All threads of the block get it.
RONDO_DEVICE long long least_of(const Mask& mask, const KeysRead& of, int column, int sign, long long (&parts)[8]) {
  long long least = 0x7FFFFFFFFFFFFFFFll;
  for (long long i = threadIdx.x; i < (of.end_head - of.first_head) * mask.queries; i += blockDim.x) {
    const long long at = of.batch * mask.batch + (of.first_head + i / mask.queries) * mask.head +
                         i % mask.queries * mask.row;
    least = Least::combine(least, sign * read(static_cast<const long long*>(mask.data) + at + column));
  }
  return block_reduce<Least>(least, parts);
}
// [B, heads, rows, D] with these strides becomes dense. A row that the mask lets no query attend to is not read, and
// becomes 0. A block for each kPackedRows rows of a head. mask.kind: 0, 1 with a stride of 0 over queries, 2 or 4.
constexpr int kPackedRows = 32;
extern "C" __global__ void rondo_attention_pack(const T* from, T* to, Place place, Mask mask, long long blocks) {
  __shared__ long long parts[8];
  const long long tiles = (place.rows + kPackedRows - 1) / kPackedRows, groups = mask.heads / place.heads;
  for (long long block = blockIdx.x; block < blocks; block += gridDim.x) {
    const long long head = block / tiles % place.heads, batch = block / tiles / place.heads;
    KeysRead wanted = {mask, batch, head * groups, (head + 1) * groups, 0, place.rows};
    if (mask.kind == 2 || mask.kind == 4) wanted.begin = least_of(mask, wanted, 0, 1, parts);
    if (mask.kind == 4) wanted.end = -least_of(mask, wanted, 1, -1, parts);
    const long long first = block % tiles * kPackedRows;
    const T* const lines = from + batch * place.batch + head * place.head;
    T* const dense = to + (batch * place.heads + head) * place.rows * place.head_dim;
    for (long long i = threadIdx.x; i < kPackedRows * place.head_dim; i += blockDim.x) {
      const long long row = first + i / place.head_dim, d = i % place.head_dim;
      if (row >= place.rows) break;
      const bool skipped = mask.kind != 0 && !wanted(row);
      write(dense + row * place.head_dim + d, skipped ? T() : read(lines + row * place.row + d));
    }
  }
}
extern "C" __global__ void rondo_attention_clear(T* to, Place place, long long n) {
  for (long long i = first_index(); i < n; i += index_step())
    write(to + offset_of(place, i), convert<T>(static_cast<C>(0)));
}
)cuda";

DType compute_of(DType dtype) { return dtype == kF64 ? kF64 : kF32; }

// One matrix for each head of each batch: element (r, c) of head h of batch b lies at (b * heads + h) * head + r * row
// + c * column.
struct Matrices {
  const void* data;
  int64_t head, row, column;
};
Matrices of(const void* data, const HeadsStrides& s, int64_t first_row = 0, DType dtype = kF32) {
  const int64_t skipped = first_row * s.row * static_cast<int64_t>(size_of(dtype));
  return {static_cast<const std::byte*>(data) + skipped, s.head, s.row, 1};
}
Matrices transposed(const Matrices& m) { return {m.data, m.head, m.column, m.row}; }

// Returns equivalent strides with batch == head * heads, if there are any: then all matrices are evenly spaced.
HeadsStrides normal(HeadsStrides s, int64_t batch, int64_t heads) {
  if (heads == 1) s.head = s.batch;
  if (batch == 1) s.batch = s.head * heads;
  return s;
}
HeadsStrides dense_strides(int64_t heads, int64_t rows, int64_t head_dim) {
  return {heads * rows * head_dim, rows * head_dim, head_dim};
}

// Runs the products of a call: with one launch for all heads of all batches, or with one launch for each query head of
// a group.
class Multiplier {
 public:
  Multiplier(const AttentionCall& call) : call_(call) {}
  // Which heads an operand has: one for each query head, or one for each key head, which serves a group of query heads.
  enum Of { kQueries, kKeys };
  struct Options {
    bool wide = false;  // the result is of the compute type
    bool adds = false;  // adds to the result instead of overwriting it
    double alpha = 1;
  };
  // c (m, n) = a (m, k) b (k, n), head by head. If c has key heads, the products of a group's query heads are added up
  // in it, so `adds` must be set.
  void run(int64_t m, int64_t n, int64_t k, const Matrices& a, Of of_a, const Matrices& b, Of of_b, const Matrices& c,
           Of of_c, Options options) const {
    if (m == 0 || n == 0 || k == 0) return;
    const int64_t groups = call_.heads / call_.kv_heads;
    const auto strides = [&](const Matrices& x, Of of) {
      return MatrixStrides(x.row, x.column, of == kQueries ? x.head * groups : x.head);
    };
    MatmulCall product(call_.dtype, m, n, k, strides(a, of_a), strides(b, of_b), strides(c, of_c),
                       call_.kv_heads * call_.batch);
    product.wide = options.wide && call_.dtype != compute_of(call_.dtype);
    if (options.adds) {
      product.epilogues[0] = Epilogue::kAdd;
      product.in_place[0] = true;
    }
    const std::shared_ptr<const Product> prepared = Product::get(call_.device, product);
    const auto at = [&](const Matrices& x, Of of, int64_t group, DType dtype) {
      const int64_t elements = of == kQueries ? group * x.head : 0;
      return const_cast<std::byte*>(static_cast<const std::byte*>(x.data)) +
             elements * static_cast<int64_t>(size_of(dtype));
    };
    for (int64_t group = 0; group < groups; ++group) {
      MatmulOperands operands{.a = at(a, of_a, group, call_.dtype),
                              .b = at(b, of_b, group, call_.dtype),
                              .c = at(c, of_c, group, product.result_dtype())};
      if (options.adds) operands.added[0] = operands.c;
      prepared->run(operands, options.alpha);
    }
  }

 private:
  const AttentionCall& call_;
};

// One chunk: `rows` queries from query `first` on. They attend only to the first `columns` keys.
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
  static Matrices chunk_matrix(const Chunk& chunk, const Storage& storage) {
    return {storage.data(), chunk.rows * chunk.columns, chunk.columns, 1};
  }
  // An operand of products, [B, heads, rows, D]: the caller's array itself, or a dense copy of it.
  class Lines {
   public:
    // `masked`: the operand is the keys or the values, and its rows that the mask forbids to all queries may hold
    // anything.
    Lines(const Chunks& chunks, const void* data, const HeadsStrides& strides, int64_t heads, int64_t rows, bool masked)
        : data_(data), dtype_(chunks.call_.dtype), strides_(normal(strides, chunks.call_.batch, heads)) {
      const AttentionCall& call = chunks.call_;
      const int64_t elements = call.batch * heads * rows * call.head_dim;
      if (elements == 0 || (!masked && strides_.batch == strides_.head * heads)) return;
      copy_ = chunks.memory(elements, dtype_);
      MaskArgument mask = chunks.mask({});
      if (!masked) mask.kind = 0;
      constexpr int64_t kPackedRows = 32;
      const int64_t blocks = call.batch * heads * ((rows + kPackedRows - 1) / kPackedRows);
      launch_blocks(call.device, chunks.kernel("rondo_attention_pack"), blocks, kThreads, data, copy_.data(),
                    chunks.place(strides, heads, rows), mask, static_cast<long long>(blocks));
      data_ = copy_.data();
      strides_ = dense_strides(heads, rows, call.head_dim);
    }
    Matrices from(int64_t row = 0) const { return of(data_, strides_, row, dtype_); }

   private:
    const void* data_;
    DType dtype_;
    HeadsStrides strides_;
    Storage copy_;
  };
  Lines queries(const void* data, const HeadsStrides& strides) const {
    return {*this, data, strides, call_.heads, call_.queries, false};
  }
  Lines keys(const void* data, const HeadsStrides& strides, bool masked) const {
    return {*this, data, strides, call_.kv_heads, call_.keys, masked};
  }
  // True if the mask may have keys that are not read: Note [Keys that are not read].
  bool some_are_not_read() const {
    return call_.mask == AttentionMask::kKeys || call_.mask == AttentionMask::kFirstKey ||
           (call_.mask == AttentionMask::kAllowed && (call_.queries == 1 || call_.mask_strides[2] == 0));
  }

  // A result of products, [B, heads, rows, D]: in its final place, or dense and in the compute type until store().
  class Result {
   public:
    // `sums`: the results of several products are added up.
    Result(const Chunks& chunks, void* out, const HeadsStrides& strides, int64_t heads, int64_t rows, bool sums)
        : chunks_(chunks),
          out_(out),
          strides_(strides),
          heads_(heads),
          rows_(rows),
          elements_(chunks.call_.batch * heads * rows * chunks.call_.head_dim) {
      const HeadsStrides s = normal(strides, chunks.call_.batch, heads);
      wide_ = elements_ > 0 && ((sums && chunks.narrow_) || s.batch != s.head * heads);
      if (wide_) dense_ = chunks.memory(elements_, compute());
      if (sums || chunks.call_.keys == 0) clear();
    }
    bool wide() const { return wide_; }
    Matrices from(int64_t row = 0) const {
      const AttentionCall& call = chunks_.call_;
      if (wide_) return of(dense_.data(), dense_strides(heads_, rows_, call.head_dim), row, compute());
      return of(out_, normal(strides_, call.batch, heads_), row, call.dtype);
    }
    void store() const {
      if (!wide_) return;
      launch_threads(chunks_.call_.device, chunks_.kernel("rondo_attention_store"), elements_, dense_.data(), out_,
                     chunks_.place(strides_, heads_, rows_), static_cast<long long>(elements_));
    }

   private:
    DType compute() const { return compute_of(chunks_.call_.dtype); }
    void clear() const {
      if (!wide_) return chunks_.clear(out_, strides_, heads_, rows_);
      backend_of(chunks_.device()).fill(chunks_.call_.device, dense_.data(), 0, dense_.bytes());
    }
    const Chunks& chunks_;
    void* out_;
    HeadsStrides strides_;
    int64_t heads_, rows_, elements_;
    bool wide_ = false;
    Storage dense_;
  };

  // Computes scores = scale q k^T in the compute type.
  void score(const Chunk& chunk, const Lines& q, const Lines& k, const Storage& scores) const {
    if (call_.head_dim == 0) backend_of(device()).fill(call_.device, scores.data(), 0, scores.bytes());
    multiply_.run(chunk.rows, chunk.columns, call_.head_dim, q.from(chunk.first), Multiplier::kQueries,
                  transposed(k.from()), Multiplier::kKeys, chunk_matrix(chunk, scores), Multiplier::kQueries,
                  {.wide = true, .alpha = call_.scale});
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
  // Writes zeros to [B, heads, rows, D], which may be a part of a larger array: in compiled code, the gradients of q, k
  // and v may be parts of one array.
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
  const bool narrow_;  // elements have fewer bits than sums
  const DropoutArgument dropout_;
};

class Forward : Chunks {
 public:
  using Chunks::Chunks;
  void run(void* out, const HeadsStrides& out_strides, void* logsumexp) const {
    const Lines q = queries(operands_.q, call_.q), k = keys(operands_.k, call_.k, false),
                v = keys(operands_.v, call_.v, some_are_not_read());
    const Result result(*this, out, out_strides, call_.heads, call_.queries, false);
    const Kernel softmax = kernel("rondo_attention_softmax");
    for_each_chunk(call_, [&](const Chunk& chunk) {
      const Storage scores = scores_like(chunk, compute_of(call_.dtype));
      const Storage weights = narrow_ ? scores_like(chunk, call_.dtype) : scores;
      score(chunk, q, k, scores);
      launch_blocks(call_.device, softmax, rows(chunk), kThreads, scores.data(), weights.data(), logsumexp, mask(chunk),
                    dropout_, static_cast<long long>(rows(chunk)), static_cast<long long>(chunk.columns));
      multiply_.run(chunk.rows, call_.head_dim, chunk.columns, chunk_matrix(chunk, weights), Multiplier::kQueries,
                    v.from(), Multiplier::kKeys, result.from(chunk.first), Multiplier::kQueries,
                    {.wide = result.wide(), .alpha = dropout_.factor});
    });
    result.store();
  }
};

class Backward : Chunks {
 public:
  Backward(const AttentionCall& call, const AttentionOperands& operands, const AttentionGradients& gradients)
      : Chunks(call, operands), g_(gradients) {}

  void run() const {
    const Lines q = queries(operands_.q, call_.q), k = keys(operands_.k, call_.k, some_are_not_read()),
                v = keys(operands_.v, call_.v, false), grad = queries(g_.grad, g_.grad_strides);
    const Result grad_q(*this, g_.grad_q, g_.grad_q_strides, call_.heads, call_.queries, false),
        sum_k(*this, g_.grad_k, g_.grad_k_strides, call_.kv_heads, call_.keys, true),
        sum_v(*this, g_.grad_v, g_.grad_v_strides, call_.kv_heads, call_.keys, true);
    const Kernel softmax_grad = kernel("rondo_attention_softmax_grad");
    for_each_chunk(call_, [&](const Chunk& chunk) {
      const DType compute = compute_of(call_.dtype);
      const Storage scores = scores_like(chunk, compute), d_weights = scores_like(chunk, compute);
      const Storage weights = narrow_ ? scores_like(chunk, call_.dtype) : scores,
                    d_scores = narrow_ ? scores_like(chunk, call_.dtype) : d_weights;
      score(chunk, q, k, scores);
      multiply_.run(chunk.rows, chunk.columns, call_.head_dim, grad.from(chunk.first), Multiplier::kQueries,
                    transposed(v.from()), Multiplier::kKeys, chunk_matrix(chunk, d_weights), Multiplier::kQueries,
                    {.wide = true});
      launch_blocks(call_.device, softmax_grad, rows(chunk), kThreads, scores.data(), d_weights.data(), weights.data(),
                    d_scores.data(), g_.logsumexp, heads(g_.out, g_.out_strides), heads(g_.grad, g_.grad_strides),
                    mask(chunk), dropout_, static_cast<long long>(rows(chunk)), static_cast<long long>(chunk.columns),
                    static_cast<long long>(call_.head_dim), call_.scale);
      multiply_.run(chunk.rows, call_.head_dim, chunk.columns, chunk_matrix(chunk, d_scores), Multiplier::kQueries,
                    k.from(), Multiplier::kKeys, grad_q.from(chunk.first), Multiplier::kQueries,
                    {.wide = grad_q.wide()});
      const auto add = [&](const Result& sums, const Storage& factors, const Matrices& lines, double alpha) {
        multiply_.run(chunk.columns, call_.head_dim, chunk.rows, transposed(chunk_matrix(chunk, factors)),
                      Multiplier::kQueries, lines, Multiplier::kQueries, sums.from(), Multiplier::kKeys,
                      {.wide = sums.wide(), .adds = true, .alpha = alpha});
      };
      add(sum_v, weights, grad.from(chunk.first), dropout_.factor);
      add(sum_k, d_scores, q.from(chunk.first), 1);
    });
    for (const Result* result : {&grad_q, &sum_k, &sum_v}) result->store();
  }

 private:
  static HeadsArgument heads(const void* data, const HeadsStrides& s) { return {data, s.batch, s.head, s.row}; }

  const AttentionGradients& g_;
};

std::optional<AttentionTile> tile_of(const AttentionCall& call) {
  return call.chunk > 0 ? std::nullopt : attention_tile(call.dtype, call.head_dim);
}

}  // namespace

const Source& attention_source() {
  static const auto* const text = new std::string(
      absl::StrCat(scalar_function("rondo_exp", [](LoopValue x) { return scalar::exp(x); }),
                   scalar_function("rondo_log", [](LoopValue x) { return scalar::log(x); }), kDropoutText,
                   kDroppedWeights, kLargeLogsumexp, kBlockReduce, kAttentionArguments, kAttentionText));
  static const Source source{"attention", *text};
  return source;
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
  if (attention_forward_by_cudnn(call, operands, out, out_strides, logsumexp)) return;
  if (const auto tile = tile_of(call))
    return fused_attention_forward(call, *tile, operands, out, out_strides, logsumexp);
  Forward(call, operands).run(out, out_strides, logsumexp);
}

void attention_backward(const AttentionCall& call, const AttentionOperands& operands,
                        const AttentionGradients& gradients) {
  if (call.batch * call.heads == 0) return;
  if (attention_backward_by_cudnn(call, operands, gradients)) return;
  if (const auto tile = tile_of(call)) return fused_attention_backward(call, *tile, operands, gradients);
  Backward(call, operands, gradients).run();
}

}  // namespace rondo::cuda
