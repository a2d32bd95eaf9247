#include "rondo/modules/layers/kv_cache.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/modules/layers/decode_step.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::nn {
namespace {

thread_local int decode_steps = 0;  // live passes of one token

void check_encoded(const KVCacheOptions& o) {
  const Tensor& encoded = o.encoded;
  if (o.encoded_width == 0 && encoded.defined())
    throw Error("KVCache: there is an encoder's output (encoded), but the model has no cross-attention");
  if (o.encoded_width == 0) return;
  if (!encoded.defined())
    throw Error(
        "KVCache: the model has cross-attention, so the cache needs the encoder's output that it attends to "
        "(KVCacheOptions::encoded, in generate() GenerationOptions::encoded)");
  if (encoded.rank() != 3 || encoded.size(2) != o.encoded_width || encoded.size(0) == 0 || encoded.size(1) == 0 ||
      o.batch % encoded.size(0) != 0)
    throw Error(absl::StrCat("KVCache: encoded must be (E, S, ", o.encoded_width, ") with an E that divides the ",
                             o.batch, " rows, got ", to_string(encoded.sizes())));
  if (!is_floating(encoded.dtype()))
    throw Error(absl::StrCat("KVCache: encoded must be floating, got ", std::string(name_of(encoded.dtype()))));
  if (encoded.device() != o.device)
    throw Error(absl::StrCat("KVCache: encoded is on ", to_string(encoded.device()), " and the cache on ",
                             to_string(o.device)));
}

}  // namespace

KVCache::KVCache(KVCacheOptions options) : options_(options) {
  for (const auto& [name, size] :
       {std::pair{"layers", options.layers}, std::pair{"batch", options.batch}, std::pair{"kv_heads", options.kv_heads},
        std::pair{"max_length", options.max_length}, std::pair{"head_dim", options.head_dim}})
    if (size <= 0) throw Error(absl::StrCat("KVCache: ", name, " must be positive, got ", size));
  if (!is_floating(options.dtype))
    throw Error(absl::StrCat("KVCache: the dtype must be floating, got ", std::string(name_of(options.dtype))));
  constexpr int64_t kMostLayers = 1 << 20;  // each layer has its own memory
  if (options.layers > kMostLayers)
    throw Error(absl::StrCat("KVCache: layers must be at most ", kMostLayers, ", got ", options.layers));
  const Dims all = {options.layers, 2, options.batch, options.kv_heads, options.max_length, options.head_dim};
  if (checked_numel(all) < 0)
    throw Error(
        absl::StrCat("KVCache: ", to_string(all),
                     " (layers, keys and values, batch, kv_heads, max_length, head_dim) is more than memory can "
                     "hold"));
  check_encoded(options);
  // Zeros, so that slots that were never written hold no NaN.
  const RecorderScope run(nullptr);
  for (int64_t i = 0; i < options.layers; ++i)
    for (std::vector<Tensor>* buffers : {&keys_, &values_})
      buffers->push_back(Tensor::zeros({options.batch, options.kv_heads, options.max_length, options.head_dim},
                                       {options.dtype, options.device}));
  encoded_.resize(static_cast<size_t>(options.layers));
  lengths_.assign(static_cast<size_t>(options.batch), 0);  // last: for a huge batch, the tensors above throw first
}

int64_t KVCache::length(int64_t row) const {
  if (row < 0 || row >= options_.batch)
    throw Error(absl::StrCat("KVCache: row ", row, " of ", options_.batch, " does not exist"));
  return lengths_[static_cast<size_t>(row)];
}

int64_t KVCache::bytes() const {
  int64_t sum = 2 * options_.layers * keys_[0].nbytes();
  for (const KeysAndValues& of : encoded_)
    if (of.keys.defined()) sum += of.keys.nbytes() + of.values.nbytes();
  return sum;
}

void KVCache::check_layer(int64_t layer) const {
  if (layer < 0 || layer >= options_.layers)
    throw Error(absl::StrCat("KVCache: layer ", layer, " of ", options_.layers, " does not exist"));
}
const Tensor& KVCache::keys(int64_t layer) const {
  check_layer(layer);
  return keys_[static_cast<size_t>(layer)];
}
const Tensor& KVCache::values(int64_t layer) const {
  check_layer(layer);
  return values_[static_cast<size_t>(layer)];
}

void KVCache::reset() { trim(0); }

void KVCache::trim(int64_t length) {
  for (int64_t row = 0; row < options_.batch; ++row) trim(row, length);
}

void KVCache::trim(int64_t row, int64_t length) {
  if (length < 0) throw Error(absl::StrCat("KVCache::trim: the length must not be negative, got ", length));
  const int64_t kept = std::min(this->length(row), length);
  lengths_[static_cast<size_t>(row)] = kept;
}

void KVCache::reorder(std::span<const int64_t> rows) {
  if (static_cast<int64_t>(rows.size()) != options_.batch)
    throw Error(absl::StrCat("KVCache::reorder: needs ", options_.batch, " rows, got ", rows.size()));
  int64_t longest = 0;
  std::vector<int64_t> lengths;
  for (const int64_t row : rows) {
    longest = std::max(longest, length(row));  // throws for a row that does not exist
    if (options_.encoded.defined()) {
      const int64_t beams = options_.batch / options_.encoded.size(0), to = std::ssize(lengths);
      if (row / beams != to / beams)
        throw Error(absl::StrCat("KVCache::reorder: row ", to, " cannot become row ", row,
                                 ", which attends to another example of `encoded`"));
    }
    lengths.push_back(length(row));
  }
  if (longest > 0) {
    const NoGrad off;
    const RecorderScope run(nullptr);
    const Tensor index = Tensor::from(rows, {options_.batch}, options_.device);
    for (std::vector<Tensor>* buffers : {&keys_, &values_})
      for (Tensor& buffer : *buffers) {
        Tensor used = buffer.slice(2, {0, longest});
        used.copy_(ops::index_select(used, 0, index));
      }
  }
  lengths_ = std::move(lengths);
}

// ---- KVCache::Pass: one forward of new tokens

namespace {

[[noreturn]] void throw_no_gradient() {
  throw Error(
      "KVCache: keys and values are stored without history, so a cached forward has no gradient; call the model under "
      "NoGrad");
}

}  // namespace

KVCache::Pass::Pass(KVCache& cache, int64_t T, std::span<const int64_t> counts, std::source_location where)
    : cache_(cache), T_(T), starts_(cache.lengths_) {
  const KVCacheOptions& o = cache.options_;
  const bool first_of_encoded = o.encoded.defined() && !cache.encoded_.back().keys.defined();
  if (T != 1 || first_of_encoded || active_recorder() != nullptr) eager_.emplace("a cached forward begins", where);
  if (T <= 0) throw Error(absl::StrCat("KVCache: a forward needs at least one new token, got ", T));
  if (!counts.empty() && static_cast<int64_t>(counts.size()) != o.batch)
    throw Error(absl::StrCat("KVCache: counts needs one entry for each of ", o.batch, " rows, got ", counts.size()));
  for (size_t row = 0; row < starts_.size(); ++row) {
    const int64_t count = counts.empty() ? T : counts[row];
    if (count < 0 || count > T)
      throw Error(absl::StrCat("KVCache: row ", row, " has ", T, " new tokens, but counts says ", count));
    if (count > o.max_length - starts_[row])
      throw KVCacheFullError(absl::StrCat("KVCache: row ", row, " holds ", starts_[row], " of at most ", o.max_length,
                                          " tokens, so ", count,
                                          " more do not fit; make the cache longer (max_length), "
                                          "if the model allows it, or shorten the text"));
    uniform_ = uniform_ && starts_[row] == starts_[0] && count == T;
    counts_.push_back(count);
  }
  if (T != 1) return;
  std::vector<int64_t> slots;
  for (size_t row = 0; row < starts_.size(); ++row) slots.push_back(counts_[row] > 0 ? starts_[row] : -1);
  slots_ = Tensor::from(slots, {o.batch, 1}, o.device);
  ++decode_steps;
}

KVCache::Pass::~Pass() {
  if (slots_.defined()) --decode_steps;
}
bool in_decode_step() { return decode_steps > 0; }

Tensor KVCache::Pass::positions() const {
  std::vector<int64_t> at;
  for (const int64_t start : starts_)
    for (int64_t t = 0; t < T_; ++t) at.push_back(std::min(start + t, cache_.options_.max_length - 1));
  return Tensor::from(at, {cache_.options_.batch, T_}, cache_.options_.device);
}

std::vector<int64_t> KVCache::Pass::lengths_after() const {
  std::vector<int64_t> ends;
  for (size_t row = 0; row < starts_.size(); ++row) ends.push_back(key_end(row));
  return ends;
}

void KVCache::Pass::finish() {
  for (size_t row = 0; row < starts_.size(); ++row) cache_.lengths_[row] = starts_[row] + counts_[row];
}

int64_t KVCache::Pass::key_end(size_t row) const { return starts_[row] + counts_[row]; }

void KVCache::Pass::store(int64_t layer, const Tensor& k, const Tensor& v) {
  const Tensor* const sources[] = {&k, &v};
  const Tensor targets[] = {cache_.keys(layer), cache_.values(layer)};
  for (int i = 0; i < 2; ++i) {
    if (uniform_) {
      targets[i].slice(2, {starts_[0], starts_[0] + T_}).copy_(*sources[i]);
      continue;
    }
    for (size_t row = 0; row < starts_.size(); ++row)
      if (counts_[row] > 0)
        targets[i][static_cast<int64_t>(row)]
            .slice(1, {starts_[row], key_end(row)})
            .copy_((*sources[i])[static_cast<int64_t>(row)].slice(1, {0, counts_[row]}));
  }
}

void KVCache::Pass::check_queries(const Tensor& q) const {
  const KVCacheOptions& o = cache_.options_;
  if (q.rank() != 4 || q.size(0) != o.batch || q.size(2) != T_ || q.size(3) != o.head_dim)
    throw Error(absl::StrCat("KVCache: queries must be (B, H, T, D) with B = ", o.batch, ", T = ", T_,
                             " and D = ", o.head_dim, ", got ", to_string(q.sizes())));
}

Tensor KVCache::Pass::attend(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
                             const CachedAttentionOptions& options) {
  const KVCacheOptions& o = cache_.options_;
  const Dims expected = {o.batch, o.kv_heads, T_, o.head_dim};
  if (!(k.sizes() == expected) || !(v.sizes() == expected))
    throw Error(absl::StrCat("KVCache: keys and values must be (B, H_kv, T, D) = ", to_string(expected), ", got ",
                             to_string(k.sizes()), " and ", to_string(v.sizes()),
                             "; the cache was made for another model or batch"));
  check_queries(q);
  if (options.window < 0) throw Error(absl::StrCat("KVCache: the window must not be negative, got ", options.window));
  if (grad_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad())) throw_no_gradient();
  if (T_ == 1) return step(layer, q, k, v, options);
  store(layer, k, v);
  // New tokens of empty rows see each other only. Padding comes after the real tokens, so no real token sees it.
  if (std::all_of(starts_.begin(), starts_.end(), [](int64_t start) { return start == 0; }))
    return attend_fresh(q, k, v, options);
  return attend_many(layer, q.to(o.dtype), options).to(q.dtype());
}

Tensor KVCache::Pass::step(int64_t layer, const Tensor& q, const Tensor& k, const Tensor& v,
                           const CachedAttentionOptions& options) {
  const DType dtype = cache_.options_.dtype;
  const Tensor &keys = cache_.keys(layer), &values = cache_.values(layer);
  ops::write_rows_(keys, k.to(dtype), slots_);
  ops::write_rows_(values, v.to(dtype), slots_);
  return ops::scaled_dot_product_attention(q.to(dtype), keys, values, keys_of_step(options.window),
                                           {.scale = options.scale})
      .to(q.dtype());
}

const Tensor& KVCache::Pass::keys_of_step(int64_t window) {
  Tensor& known = masks_[window];
  if (known.defined()) return known;
  std::vector<int64_t> bounds;
  for (size_t row = 0; row < starts_.size(); ++row) {
    const int64_t end = counts_[row] > 0 ? key_end(row) : 0;  // padding reads nothing
    bounds.insert(bounds.end(), {window == 0 ? 0 : std::max<int64_t>(0, end - window), end});
  }
  return known = Tensor::from(bounds, {cache_.options_.batch, 1, 1, 2}, cache_.options_.device);
}

namespace {

// Returns a mask, bool (rows, keys), true where a query may attend to a key. Query i has slot first_query + i, and key
// j has slot first_key + j.
Tensor causal_mask(int64_t rows, int64_t keys, int64_t first_query, int64_t first_key, int64_t window, Device device) {
  Tensor mask = Tensor::empty({rows, keys}, {kBool, kCPU});
  bool* allowed = mask.mutable_data<bool>();
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t back = first_query + i - (first_key + j);
      allowed[i * keys + j] = back >= 0 && (window == 0 || back < window);
    }
  return mask.to(device);
}

}  // namespace

Tensor KVCache::Pass::attend_fresh(const Tensor& q, const Tensor& k, const Tensor& v,
                                   const CachedAttentionOptions& options) {
  if (options.window == 0 || options.window >= T_)
    return ops::scaled_dot_product_attention(q, k, v, {}, {.causal = true, .scale = options.scale});
  Tensor& mask = masks_[options.window];
  if (!mask.defined()) mask = causal_mask(T_, T_, 0, 0, options.window, q.device());
  return ops::scaled_dot_product_attention(q, k, v, mask, {.scale = options.scale});
}

// Computes attention for several queries after cached keys. Rows at different slots are computed one by one, so that no
// row reads slots that it has not written.
Tensor KVCache::Pass::attend_many(int64_t layer, const Tensor& q, const CachedAttentionOptions& options) {
  const Tensor &keys = cache_.keys(layer), &values = cache_.values(layer);
  const auto attend = [&](const Tensor& queries, const Tensor& k, const Tensor& v, int64_t start, int64_t count) {
    const int64_t end = start + count;
    const int64_t first = options.window == 0 ? 0 : std::max<int64_t>(0, start + 1 - options.window);
    return ops::scaled_dot_product_attention(queries, k.slice(2, {first, end}), v.slice(2, {first, end}),
                                             causal_mask(count, end - first, start, first, options.window, q.device()),
                                             {.scale = options.scale});
  };
  if (uniform_) return attend(q, keys, values, starts_[0], T_);
  const int64_t B = q.size(0), H = q.size(1), D = q.size(3);
  Tensor out = Tensor::zeros({B, T_, H, D}, {q.dtype(), q.device()});
  for (int64_t row = 0; row < B; ++row) {
    const int64_t start = starts_[static_cast<size_t>(row)], count = counts_[static_cast<size_t>(row)];
    if (count == 0) continue;
    const auto of_row = [&](const Tensor& t) { return t.slice(0, {row, row + 1}); };
    out.slice(0, {row, row + 1})
        .slice(1, {0, count})
        .copy_(attend(of_row(q).slice(2, {0, count}), of_row(keys), of_row(values), start, count).transpose(1, 2));
  }
  return out.transpose(1, 2);
}

Tensor KVCache::Pass::attend_encoded(int64_t layer, const Tensor& q,
                                     absl::FunctionRef<KeysAndValues(const Tensor& encoded)> project) {
  const KVCacheOptions& o = cache_.options_;
  cache_.check_layer(layer);
  if (!o.encoded.defined())
    throw Error("KVCache: cross-attention needs a cache that was made with the encoder's output (encoded)");
  check_queries(q);
  if (grad_enabled() && q.requires_grad()) throw_no_gradient();
  const int64_t E = o.encoded.size(0), H = q.size(1), S = o.encoded.size(1), D = o.head_dim;
  KeysAndValues& held = cache_.encoded_[static_cast<size_t>(layer)];
  if (!held.keys.defined()) {
    const KeysAndValues made = project(o.encoded);
    if (grad_enabled() && (made.keys.requires_grad() || made.values.requires_grad())) throw_no_gradient();
    const Dims expected = {E, H, S, D};
    if (!(made.keys.sizes() == expected) || !(made.values.sizes() == expected))
      throw Error(absl::StrCat("KVCache: keys and values of `encoded` must be (E, H, S, D) = ", to_string(expected),
                               ", got ", to_string(made.keys.sizes()), " and ", to_string(made.values.sizes())));
    held = {made.keys.to(o.dtype).contiguous(), made.values.to(o.dtype).contiguous()};
  }
  if (held.keys.size(1) != H)
    throw Error(absl::StrCat("KVCache: queries have ", H, " heads, and the keys of `encoded` ", held.keys.size(1)));
  // The rows of one example count as more queries for it, so that its keys are stored once and read once.
  const Tensor queries = q.to(o.dtype).transpose(1, 2).reshape({E, o.batch / E * T_, H, D}).transpose(1, 2);
  const Tensor y = ops::scaled_dot_product_attention(queries, held.keys, held.values);
  return y.transpose(1, 2).reshape({o.batch, T_, H, D}).transpose(1, 2).to(q.dtype());
}

}  // namespace rondo::nn
