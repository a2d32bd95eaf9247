// KVCache: the keys and values of the tokens that a causal model has already seen, so that each new token costs one
// row instead of the whole sequence.
//
//   nn::KVCache cache({.layers = 12, .batch = 2, .kv_heads = 12, .max_length = 1024, .head_dim = 64});
//   const NoGrad off;
//   Tensor logits = model.next_logits(prompt, cache);      // i64 (2, 7) -> (2, V): the whole prompt
//   logits = model.next_logits(next_token, cache);         // i64 (2, 1) -> (2, V): one more token for each row
//
// Each row has a length of its own: its tokens lie in slots 0 to length - 1, without gaps, and the slot of a token is
// its position. Prompts of different lengths are padded on the RIGHT: `counts` says how many tokens of each row are
// real. A padding token is never stored, and no token attends to one, so a row's result does not depend on the rows
// beside it (up to the rounding of products, which may depend on the number of rows).
//
// Invariants: the buffers never move and never grow. A forward that throws leaves the lengths as they were. Values are
// stored without history: a cached forward has no gradient.
// Thread safety: one thread at a time uses a cache.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/modules/eager_scope.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// A row of a KVCache has no room for the tokens that are to come.
class KVCacheFullError : public Error {
 public:
  using Error::Error;
};

struct KVCacheOptions {
  int64_t layers = 0;                // attention layers of the model
  int64_t batch = 1;                 // B, rows
  int64_t kv_heads = 0;              // H_kv, heads of keys and values
  int64_t max_length = 0;            // T_max, tokens of each row
  int64_t head_dim = 0;              // D
  DType dtype = kF32;                // any floating type. Keys and values are converted; attention runs in this type
  Device device = default_device();  // the device of the model
  // For a model with cross-attention: the width of an encoder's output; 0: the model has none.
  int64_t encoded_width = 0;
  // The encoder's output (E, S, encoded_width). Each of its examples belongs to B / E neighbouring rows. Each layer
  // computes keys and values of it in its first forward, and keeps them even if rows are reset or trimmed.
  Tensor encoded = {};
};

// (B, H, T, D) each.
struct KeysAndValues {
  Tensor keys, values;
};

class KVCache {
 public:
  // Throws Error unless all sizes are positive, the dtype is floating, and `encoded` fits encoded_width.
  explicit KVCache(KVCacheOptions options);
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;

  const KVCacheOptions& options() const { return options_; }
  // Returns the number of tokens of each row.
  std::span<const int64_t> lengths() const { return lengths_; }
  int64_t length(int64_t row) const;
  // Returns the size of all buffers together, which hold layers * 2 * B * H_kv * T_max * D elements, and of the keys
  // and values of `encoded` that were computed so far.
  int64_t bytes() const;
  // Returns the cache's own memory, (B, H_kv, T_max, D). Slots from a row's length on hold values without meaning.
  const Tensor& keys(int64_t layer) const;
  const Tensor& values(int64_t layer) const;

  // Empties every row.
  void reset();
  // Shortens rows that are longer than `length`. Throws Error if `length` is negative.
  void trim(int64_t length);
  void trim(int64_t row, int64_t length);
  // Reorders rows, for beams: row i becomes a copy of the former row rows[i]. A row may be taken several times. Throws
  // Error unless there are B rows, each from 0 to B - 1, and of the same example of `encoded` as row i.
  void reorder(std::span<const int64_t> rows);

  class Pass;

 private:
  void check_layer(int64_t layer) const;
  KVCacheOptions options_;
  std::vector<int64_t> lengths_;
  std::vector<Tensor> keys_, values_;   // one tensor for each layer
  std::vector<KeysAndValues> encoded_;  // of each layer, made of options_.encoded: (E, H, S, D); undefined at first
};

struct CachedAttentionOptions {
  std::optional<double> scale = std::nullopt;  // default 1 / sqrt(D)
  int64_t window = 0;  // sliding window: a token sees the last `window` tokens, itself included. 0: all
};

// One forward of new tokens through all layers of a model. A Pass lives on the stack. finish() at its end adds the new
// tokens to the rows' lengths; without finish() (after an exception) rows keep their lengths.
//
//   KVCache::Pass pass(cache, idx.size(1), counts);
//   Tensor x = wte(idx) + wpe(pass.positions());
//   for (int64_t i = 0; i < h.size(); ++i) x = h[i](x, pass.layer(i));
//   pass.finish();
//
// Note [Decode steps]. In a pass of one token (T = 1), compiled blocks run compiled code, which is the same for all
//   lengths. The slots to write to (slots_) and the range of keys to read (keys_of_step()) are values of tensors, and
//   the cache never grows. So a block has the same shapes at every token, and is recorded anew only for another number
//   of rows or another max_length. Attention reads only the keys that exist, not max_length of them. Longer passes run
//   eagerly, also in compiled modules: each text has only one, its prompt, and a region would record each length of a
//   prompt anew. Two other passes run eagerly, too: one inside a recording that the program itself makes, and the first
//   pass with `encoded`, which has to keep the keys and values that it makes of `encoded`.
class KVCache::Pass {
 public:
  // Each row gets T new tokens, and the first counts[b] of row b are real; no counts: all are. Throws KVCacheFullError
  // if a row has no room for its real tokens, Error unless counts has B entries from 0 to T.
  Pass(KVCache& cache, int64_t T, std::span<const int64_t> counts = {},
       std::source_location where = std::source_location::current());
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  int64_t max_length() const { return cache_.options_.max_length; }
  // Return the number of tokens of each row: before this pass, and with its real new tokens.
  std::span<const int64_t> lengths_before() const { return starts_; }
  std::vector<int64_t> lengths_after() const;
  // Returns the position of each new token in its row, i64 (B, T). Positions of padding are below max_length, too.
  Tensor positions() const;
  // Stores k and v of one layer (B, H_kv, T, D) and returns the result of attention for q (B, H, T, D), with the shape
  // of q and the memory layout of scaled_dot_product_attention(). Token i of a row sees the row's cached tokens and its
  // new tokens up to i. Results for padding have no meaning. Throws Error for other shapes, or if q, k or v need a
  // gradient, which would be lost.
  Tensor attend(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
                const CachedAttentionOptions& options = {});
  // Cross-attention: q (B, H, T, D) attends to the keys and values (E, H, S, D) that `project` makes of the cache's
  // `encoded` in a layer's first call; later calls reuse them. Throws Error as attend() does.
  Tensor attend_encoded(int64_t layer, const Tensor& q,
                        absl::FunctionRef<KeysAndValues(const Tensor& encoded)> project);
  void finish();

  class Layer;
  Layer layer(int64_t index);

 private:
  void check_queries(const Tensor& q) const;
  void store(int64_t layer, const Tensor& k, const Tensor& v);
  Tensor attend_fresh(const Tensor& q, const Tensor& k, const Tensor& v, const CachedAttentionOptions& options);
  // Computes attend() for T = 1: Note [Decode steps].
  Tensor step(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v, const CachedAttentionOptions& options);
  const Tensor& keys_of_step(int64_t window);
  Tensor attend_many(int64_t layer, const Tensor& q, const CachedAttentionOptions& options);
  int64_t key_end(size_t row) const;

  KVCache& cache_;
  const int64_t T_;
  std::vector<int64_t> starts_, counts_;
  bool uniform_ = true;              // all rows start at the same slot and have T real tokens
  std::map<int64_t, Tensor> masks_;  // the masks of this pass, by window
  Tensor slots_;                     // T = 1: the slot of each row's token, i64 (B, 1); -1 for padding
  std::optional<EagerScope> eager_;
};

// The argument of an attention module: its layer's part of a pass. A default-constructed Layer means no cache.
class KVCache::Pass::Layer {
 public:
  Layer() = default;
  Layer(Pass& pass, int64_t index) : pass_(&pass), index_(index) {}
  explicit operator bool() const { return pass_ != nullptr; }
  Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const CachedAttentionOptions& options = {}) const {
    return pass_->attend(index_, q, k, v, options);
  }
  Tensor attend_encoded(const Tensor& q, absl::FunctionRef<KeysAndValues(const Tensor& encoded)> project) const {
    return pass_->attend_encoded(index_, q, project);
  }

 private:
  Pass* pass_ = nullptr;
  int64_t index_ = 0;
};
inline KVCache::Pass::Layer KVCache::Pass::layer(int64_t index) { return {*this, index}; }
using KVLayer = KVCache::Pass::Layer;

}  // namespace rondo::nn
#pragma GCC visibility pop
