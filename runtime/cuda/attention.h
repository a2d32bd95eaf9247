// Scaled dot-product attention on CUDA, forward and backward: what cpu/attention.h says.
//
// Note [Chunks of queries]. The way that always works: a chunk of queries at a time, the scores of the chunk are a
//   product (cuBLASLt), their softmax is a kernel, the output another product. The backward computes the scores of a
//   chunk again, from the logsumexp. Memory is that of one chunk's scores, linear in the number of keys, and of dense
//   copies of operands whose batches and heads are not one row of matrices (those of packed projections), so that a
//   product is one launch for all of them (one for each query head of a group). Sums over chunks run in f32 (f64 for
//   f64), in the order of the chunks, and chunks follow from the shape: bits do too.
// Note [Keys that are not read]. A masked key has weight 0, but 0 * NaN is NaN, so its k and v must be finite. Some
//   masked keys may hold anything, as the slots of a KVCache behind a row's end do: those before the least first key
//   of the queries and behind the greatest end, and those that a mask of bool forbids to all queries at once (a call of
//   one query, or a mask with stride 0 over queries).
// Note [Large logsumexp]. The backward computes a weight as exp(score - logsumexp). A row that a mask lowers whole, by
//   -1e9 or the lowest finite number, has a logsumexp of that size. The logarithm of its sum is rounded away, and each
//   weight would be 1, not 1 / keys. So where the logsumexp is large, the backward divides the weights by their sum.
//   The fused kernels do so for added masks only: without one a logsumexp is large only if the scores are, and weights
//   of f32 are off by 2^-24 times the logsumexp.
// Heads of at most 128 elements take another way, without scores in memory (fused_attention.h). The way is chosen at
// the top of the two functions below, and AttentionCall is all that the choice depends on. A third is a plan of cuDNN,
// where a program asks for it (dnn_attention.h).
//
// Thread safe: free functions, which enqueue on the compute stream and return.
#pragma once

#include <cstdint>

#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/cuda/status.h"

namespace rondo::cuda {

struct Source;

// The strides of a [B, H, T, D] array whose last dimension is dense, in elements.
struct HeadsStrides {
  int64_t batch = 0, head = 0, row = 0;
};

enum class AttentionMask : int32_t {
  kNone,
  kAllowed,   // bool: true if the query may attend to the key
  kFirstKey,  // i64: the first key to which a query may attend
  kBias,      // of q's dtype: added to the scaled score
  kKeys,      // i64 pairs: the first key to which a query may attend, and the end of its keys
};

struct AttentionCall {
  int device = 0;
  DType dtype = kF32;
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0;
  bool causal = false;  // query i attends to keys j <= i
  double scale = 1;
  HeadsStrides q = {}, k = {}, v = {};
  AttentionMask mask = AttentionMask::kNone;
  int64_t mask_strides[4] = {};  // over [B, H, Tq, Tk]
  int64_t chunk = 0;             // above 0: in chunks of so many queries. 0: the best way, or chunks of chunk_of()
  double dropout = 0;            // Note [Dropped weights] in ops/attention.cc: the probability, and which numbers
  int64_t increment = 0;
};

// As many queries as have 64 MiB of scores, but at least 16.
int64_t chunk_of(const AttentionCall& call);

// Addresses of the device.
struct AttentionOperands {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *mask = nullptr;
  const void* state = nullptr;  // of dropout: i64 [2]
};
// The dropout of a call, which the kernels of both ways take by value. counters: one for each four keys of a query.
// factor: multiplies the weights that are kept.
// clang-format off
RONDO_TEXT_AND_CODE(kDropoutText,
struct DropoutArgument {
  const unsigned long long* state;
  long long increment;
  long long threshold;
  long long counters;
  double factor;
};
)
// clang-format on
DropoutArgument dropout_of(const AttentionCall& call, const AttentionOperands& operands);

// Text of the backward's kernels of both ways. In f32, a logsumexp of 256 is off by 2^-16, and so are the weights.
// False for -inf, a row without a key.
inline constexpr const char* kLargeLogsumexp = R"cuda(
template <class C> RONDO_DEVICE bool is_large(C logsumexp) {
  return (logsumexp > 256 || logsumexp < -256) &&
         logsumexp > static_cast<C>(__longlong_as_double(0xFFF0000000000000ull));
}
)cuda";

// Overwrites out [B, H, Tq, D] and logsumexp [B, H, Tq] (dense, of the compute dtype; -inf where no key is allowed).
void attention_forward(const AttentionCall& call, const AttentionOperands& operands, void* out,
                       const HeadsStrides& out_strides, void* logsumexp);

struct AttentionGradients {
  const void *out = nullptr, *logsumexp = nullptr, *grad = nullptr;
  HeadsStrides out_strides, grad_strides;
  void *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;  // overwritten; may be parts of one array
  HeadsStrides grad_q_strides, grad_k_strides, grad_v_strides;
};
void attention_backward(const AttentionCall& call, const AttentionOperands& operands,
                        const AttentionGradients& gradients);

// Its kernels.
const Source& attention_source();

}  // namespace rondo::cuda
