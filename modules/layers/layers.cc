#include "rondo/modules/layers/layers.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/device/memory.h"

namespace rondo::nn {
namespace {

Tensor without_memory(const Dims& sizes) {
  constexpr int64_t kMostElements = int64_t{1} << 57;  // the limit of Tensor::empty for f64
  const int64_t numel = checked_numel(sizes);
  if (numel < 0 || numel > kMostElements)
    throw Error(absl::StrCat("a parameter of shape ", to_string(sizes), " is more than memory can hold"));
  return Tensor::over(Storage::allocate(0), 0, sizes, contiguous_strides(sizes), kF32);
}

int64_t positive(const char* layer, int64_t size) {
  if (size <= 0) throw Error(absl::StrCat(layer, ": sizes must be positive, got ", size));
  return size;
}

Tensor normal_rows(int64_t num_embeddings, int64_t embedding_dim) {
  const Dims sizes = {positive("Embedding", num_embeddings), positive("Embedding", embedding_dim)};
  if (SkipInit::without_memory()) return without_memory(sizes);
  return SkipInit::active() ? Tensor::empty(sizes) : Tensor::randn(sizes);
}

double linear_bound(int64_t in_features, int64_t out_features) {
  positive("Linear", in_features);
  positive("Linear", out_features);
  const FloatingPointScope floating_point;
  return floating_point.here(1.0 / std::sqrt(static_cast<double>(floating_point.here(in_features))));
}

// Compares in a scope, because a comparison with NaN raises a flag: Note [The host's floating-point state].
bool is_probability(double p) {
  const FloatingPointScope floating_point;
  p = floating_point.here(p);
  return floating_point.here(p >= 0 && p <= 1);
}

}  // namespace

void check_room(const ModuleBase& first, size_t bytes, int64_t n) {
  double each = static_cast<double>(bytes);
  for (const NamedTensor& p : first.named_parameters()) {
    constexpr double kHandle = 256;  // bytes of a tensor without its elements
    const bool counts = p.tensor.device() == kCPU && !SkipInit::without_memory();
    each += kHandle +
            (counts ? static_cast<double>(p.tensor.numel()) * static_cast<double>(size_of(p.tensor.dtype())) : 0);
  }
  const double all = each * static_cast<double>(n), most = static_cast<double>(memory::usable());
  if (all > most)
    throw OutOfMemoryError(
        formatted("ModuleList: %d modules take %.3g MB each, %.3g MB together; this process may use %.3g MB", n,
                  each * 1e-6, all * 1e-6, most * 1e-6));
}

Tensor constant_parameter(const Dims& sizes, double value) {
  return SkipInit::without_memory() ? without_memory(sizes) : Tensor::full(sizes, value);
}
Tensor uniform_parameter(const Dims& sizes, double bound) {
  if (SkipInit::without_memory()) return without_memory(sizes);
  if (SkipInit::active()) return Tensor::empty(sizes);
  const NoGrad off;
  return Tensor::rand(sizes).mul_(2 * bound).add_(-bound);
}

Linear::Linear(int64_t in_features, int64_t out_features, LinearOptions options)
    : weight(
          parameter("weight", uniform_parameter({out_features, in_features}, linear_bound(in_features, out_features)))),
      bias(parameter("bias", options.bias ? uniform_parameter({out_features}, linear_bound(in_features, out_features))
                                          : Tensor())) {}
Tensor Linear::forward(const Tensor& x) { return ops::linear(x, weight, bias); }

Embedding::Embedding(int64_t num_embeddings, int64_t embedding_dim, EmbeddingOptions options)
    : options(options), weight(parameter("weight", normal_rows(num_embeddings, embedding_dim))) {
  if (options.padding_idx && (*options.padding_idx < 0 || *options.padding_idx >= num_embeddings))
    throw Error(
        absl::StrCat("Embedding: padding_idx must be in [0, ", num_embeddings, "), got ", *options.padding_idx));
  zero_padding();
}
Tensor Embedding::forward(const Tensor& indices) {
  const Tensor rows = ops::embedding(weight, indices);
  if (!options.padding_idx) return rows;
  const Tensor is_padding = ops::equal(indices, *options.padding_idx).unsqueeze(-1);
  return ops::where(is_padding, rows.detach(), rows);
}
void Embedding::zero_padding() {
  const NoGrad off;
  if (options.padding_idx && !SkipInit::without_memory()) weight.select(0, *options.padding_idx).zero_();
}

LayerNorm::LayerNorm(int64_t size, LayerNormOptions options)
    : weight(parameter("weight", constant_parameter({positive("LayerNorm", size)}, 1.0))),
      bias(options.bias ? parameter("bias", constant_parameter({size}, 0.0))
                        : buffer("bias", Tensor::zeros({size}), false)),
      eps(options.eps) {}
Tensor LayerNorm::forward(const Tensor& x) { return ops::layer_norm(x, weight, bias, eps); }

Dropout::Dropout(double p) : p(p) {
  if (!is_probability(p)) throw Error(absl::StrCat("Dropout: p must be in [0, 1], got ", p));
}
Tensor Dropout::forward(const Tensor& x) { return rate() > 0 ? ops::dropout(x, rate()) : x; }

DropPath::DropPath(double p) : p(p) {
  if (!is_probability(p)) throw Error(absl::StrCat("DropPath: p must be in [0, 1], got ", p));
}
Tensor DropPath::forward(const Tensor& x) {
  if (!is_training() || p == 0) return x;
  Dims examples = Dims::filled(x.rank(), 1);
  if (examples.empty()) throw_op_error("DropPath", "needs x (B, ...), got a scalar", std::source_location::current());
  examples[0] = x.size(0);
  // The mask is in the compute dtype, so that its values 1/(1-p) are not rounded to 16 bits.
  const Tensor kept = Tensor::ones(examples, {compute_dtype(x.dtype()), x.device()});
  return (x * ops::dropout(kept, p)).to(x.dtype());
}

MLP::MLP(int64_t n_embd, int64_t hidden, MLPOptions options)
    : options(options),
      c_fc(child("c_fc", n_embd, hidden, LinearOptions{.bias = options.bias})),
      c_proj(child("c_proj", hidden, n_embd, LinearOptions{.bias = options.bias})),
      dropout(child("dropout", options.dropout)) {}
Tensor MLP::forward(const Tensor& x) { return dropout(c_proj(ops::gelu(c_fc(x), options.gelu))); }

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (Link& link : links_) y = link.call(*link.module, y);
  return y;
}

void throw_no_layer(const char* list, int64_t i, int64_t size) {
  throw Error(absl::StrCat(list, ": there is no module ", i, "; there are ", size));
}

}  // namespace rondo::nn
