// The arguments of an attention call on CPU: its shape, its arrays and its mask. Plain data.
//
//   AttentionShape shape{.batch = B, .heads = H, .kv_heads = H, .queries = T, .keys = T, .head_dim = D, .causal = true,
//                        .scale = 1 / std::sqrt(D)};
//   HeadsView<const float> q{qkv, T * 3 * C, D, 3 * C};  // One slice of a [B, T, 3C] projection.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace rondo::cpu {

// A [B, H, T, D] array: element (b, h, t, d) at data[b * batch_stride + h * head_stride + t * row_stride + d].
template <class T> struct HeadsView {
  T* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

// Dropout of attention weights: Note [Dropped weights] in ops/attention.cc.
struct AttentionDropout {
  double p = 0;                   // probability of a weight to be dropped
  uint64_t seed = 0, offset = 0;  // random stream (random.h)
  explicit operator bool() const { return p != 0; }
};

struct AttentionShape {
  int64_t batch = 0;
  int64_t heads = 0;     // Query heads H.
  int64_t kv_heads = 0;  // Divides `heads`: query head h reads key and value head h / (heads / kv_heads).
  int64_t queries = 0;   // Tq.
  int64_t keys = 0;      // Tk.
  int64_t head_dim = 0;  // D, of q, k, v and out.
  bool causal = false;   // Query i attends to keys j <= i: aligned at the top left, like PyTorch's is_causal.
  double scale = 1;
  AttentionDropout dropout = {};
};

// An optional mask, broadcast over [B, H, Tq, Tk] by strides of 0. At most one of `allowed`, `bias` and `first_key` is
// set, and `end_key` only together with `first_key`. The mask may be combined with `causal`. Tiles of keys that
// `first_key` and `end_key` mask for all queries of a tile are skipped; `allowed` and `bias` skip no tiles. A key that
// is masked for a query gets probability 0; a query without any key gets output 0 and gradient 0. Masked keys are still
// multiplied by 0, so their k and v must be finite.
template <class T> struct AttentionMask {
  const bool* allowed = nullptr;       // True: the query may attend to the key.
  const T* bias = nullptr;             // Added to the scaled score; -inf masks the key.
  const int64_t* first_key = nullptr;  // [B, H, Tq]: the query attends to no key before it. May be negative.
  const int64_t* end_key = nullptr;    // [B, H, Tq], with first_key only: the query attends to no key from this one on.
  std::array<int64_t, 4> strides = {};
  explicit operator bool() const { return allowed != nullptr || bias != nullptr || first_key != nullptr; }
};

// The type of logsumexp: double for double, else float.
template <class T> using AttentionAccumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace rondo::cpu
