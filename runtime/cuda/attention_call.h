// The arguments of an attention call on CUDA (shape, strides, mask, addresses), and code that two kinds of kernels
// share: those that work in chunks (attention.h) and the fused ones (fused_attention.h).
#pragma once

#include <cstdint>

#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/cuda/status.h"

namespace rondo::cuda {

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
  int64_t chunk = 0;      // above 0: works in chunks of that many queries. 0: fused kernels, or chunks of chunk_of()
  double dropout = 0;     // the probability: Note [Dropped weights] in ops/attention.cc
  int64_t increment = 0;  // the increment of dropout's random state: random/random_state.h
};

// The inputs of a call, as addresses on the device.
struct AttentionOperands {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *mask = nullptr;
  const void* state = nullptr;  // the random state of dropout: i64 [2]
};
struct AttentionGradients {
  const void *out = nullptr, *logsumexp = nullptr, *grad = nullptr;
  HeadsStrides out_strides, grad_strides;
  void *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;  // overwritten; may be parts of one array
  HeadsStrides grad_q_strides, grad_k_strides, grad_v_strides;
};

// The dropout of a call, which both kinds of kernels take by value. `counters`: how many counters of the random
// generator each query has; one counter serves four keys. `factor`: multiplies the weights that are kept.
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

// Source text for both kinds of backward kernels. is_large(): true if |logsumexp| > 256. In f32, rounding can change
// such a logsumexp by 2^-16 or more, and then the weights have this relative error. False for -inf, which means a row
// without a key.
inline constexpr const char* kLargeLogsumexp = R"cuda(
template <class C> RONDO_DEVICE bool is_large(C logsumexp) {
  return (logsumexp > 256 || logsumexp < -256) &&
         logsumexp > static_cast<C>(__longlong_as_double(0xFFF0000000000000ull));
}
)cuda";

}  // namespace rondo::cuda
