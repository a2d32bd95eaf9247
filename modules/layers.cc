#include "rondo/modules/layers.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd.h"

namespace rondo::nn {
namespace {

// Uniform in [-bound, bound).
Tensor uniform(const Dims& sizes, double bound) {
  if (SkipInit::active()) return Tensor::empty(sizes);
  const NoGrad off;
  return Tensor::rand(sizes).mul_(2 * bound).add_(-bound);
}

void require_positive(const char* layer, std::initializer_list<int64_t> sizes) {
  for (int64_t size : sizes)
    if (size <= 0) throw Error(absl::StrCat(layer, ": sizes must be positive, got ", size));
}

double linear_bound(int64_t in_features, int64_t out_features) {
  require_positive("Linear", {in_features, out_features});
  return 1.0 / std::sqrt(static_cast<double>(in_features));
}

}  // namespace

Linear::Linear(int64_t in_features, int64_t out_features, LinearOptions options)
    : weight(parameter("weight", uniform({out_features, in_features}, linear_bound(in_features, out_features)))),
      bias(parameter("bias",
                     options.bias ? uniform({out_features}, linear_bound(in_features, out_features)) : Tensor())) {}
Tensor Linear::forward(const Tensor& x) { return ops::linear(x, weight, bias); }

Embedding::Embedding(int64_t num_embeddings, int64_t embedding_dim)
    : weight(parameter("weight", SkipInit::active() ? Tensor::empty({num_embeddings, embedding_dim})
                                                    : Tensor::randn({num_embeddings, embedding_dim}))) {
  require_positive("Embedding", {num_embeddings, embedding_dim});
}
Tensor Embedding::forward(const Tensor& indices) { return ops::embedding(weight, indices); }

LayerNorm::LayerNorm(int64_t size, LayerNormOptions options)
    : weight(parameter("weight", Tensor::ones({size}))),
      bias(options.bias ? parameter("bias", Tensor::zeros({size})) : buffer("bias", Tensor::zeros({size}), false)),
      eps(options.eps) {
  require_positive("LayerNorm", {size});
}
Tensor LayerNorm::forward(const Tensor& x) { return ops::layer_norm(x, weight, bias, eps); }

Dropout::Dropout(double p) : p(p) {
  if (!(p >= 0 && p <= 1)) throw Error(absl::StrCat("Dropout: p must be in [0, 1], got ", p));
}
Tensor Dropout::forward(const Tensor& x) { return is_training() && p > 0 ? ops::dropout(x, p) : x; }

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

}  // namespace rondo::nn
