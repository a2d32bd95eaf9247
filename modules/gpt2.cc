#include "rondo/modules/gpt2.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/random.h"

namespace rondo::nn {
namespace {

// An index in [0, V) drawn from softmax(logits / temperature) over the top_k largest.
int64_t sample(const float* logits, int64_t vocab_size, double temperature, int64_t top_k, double uniform) {
  if (temperature == 0) return std::max_element(logits, logits + vocab_size) - logits;
  std::vector<int64_t> order(static_cast<size_t>(vocab_size));
  std::iota(order.begin(), order.end(), 0);
  if (top_k > 0 && top_k < vocab_size) {
    // Ties go to the lower index, so that the choice is the same everywhere.
    std::nth_element(order.begin(), order.begin() + top_k, order.end(),
                     [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    order.resize(static_cast<size_t>(top_k));
    std::sort(order.begin(), order.end());
  }
  double highest = -INFINITY, total = 0;
  for (int64_t i : order) highest = std::max<double>(highest, logits[i]);
  std::vector<double> weights;
  weights.reserve(order.size());
  for (int64_t i : order) total += weights.emplace_back(std::exp((logits[i] - highest) / temperature));
  double left = uniform * total;
  for (size_t i = 0; i < order.size(); ++i)
    if ((left -= weights[i]) < 0) return order[i];
  return order.back();
}

}  // namespace

GPT2::GPT2(GPT2Config config, uint64_t seed, const SkipInit&) : config(config) {
  if (SkipInit::without_memory()) return;
  const NoGrad off;
  Generator generator(seed);
  const double residual_std = 0.02 / std::sqrt(2.0 * static_cast<double>(config.n_layer));
  for (auto& [name, parameter] : named_parameters()) {
    if (parameter.rank() >= 2)
      parameter.copy_(
          Tensor::randn(parameter.sizes(), {}, &generator).mul_(name.ends_with("c_proj.weight") ? residual_std : 0.02));
    else parameter.fill_(name.ends_with("bias") ? 0.0 : 1.0);
  }
}

Tensor GPT2::features(const Tensor& idx) {
  const auto fail = [&](std::string_view what) {
    throw_op_error("GPT2",
                   absl::StrCat(std::string(what), ", got ", std::string(name_of(idx.dtype())), to_string(idx.sizes())),
                   std::source_location::current());
  };
  if (idx.rank() != 2 || idx.dtype() != kI64) fail("idx must be i64 (B, T)");
  if (idx.size(1) > config.block_size) fail(absl::StrCat("T must be at most block_size = ", config.block_size));
  Tensor x = drop(wte(idx) + wpe(Tensor::arange(idx.size(1))));  // (B, T, C)
  for (TransformerBlock& block : h) x = block(x);
  return ln_f(x);
}

Tensor GPT2::forward(const Tensor& idx) { return ops::linear(features(idx), wte.weight, Tensor()); }

Tensor GPT2::loss(const Tensor& idx, const Tensor& targets, std::source_location where) {
  const auto logits = [&] { return (*this)({idx, where}); };
  const auto below = [&] { return features(idx); };
  return NextTokenLoss{*this, wte.weight, config.whole_logits, logits, below}(idx, targets, where);
}

Tensor GPT2::generate(const Tensor& idx, int64_t max_new_tokens, double temperature, int64_t top_k,
                      Generator* generator) {
  if (!idx.defined() || idx.rank() != 2 || idx.dtype() != kI64 || idx.size(0) == 0 || idx.size(1) == 0)
    throw Error("GPT2::generate: idx must be i64 (B, T) and not empty");
  if (!(temperature >= 0))
    throw Error(absl::StrCat("GPT2::generate: temperature must not be negative, got ", temperature));
  const NoGrad off;
  // Evaluation mode here; afterwards each module has its own mode again. train() reaches what is below a module, so the
  // outer ones come first.
  struct EvalScope {
    std::vector<std::pair<ModuleBase*, bool>> modes;
    explicit EvalScope(GPT2& model) {
      for (const NamedModule& m : model.named_modules()) modes.push_back({&m.module, m.module.is_training()});
      model.eval();
    }
    ~EvalScope() {
      for (const auto& [module, training] : modes) module->train(training);
    }
  } eval_scope(*this);
  Generator& source = generator ? *generator : default_generator();
  const int64_t B = idx.size(0), T = idx.size(1), total = T + std::max<int64_t>(max_new_tokens, 0);
  Tensor tokens = Tensor::empty({B, total}, {kI64});
  tokens.slice(1, {0, T}).copy_(idx);
  for (int64_t t = T; t < total; ++t) {
    const Tensor seen = tokens.slice(1, {std::max<int64_t>(0, t - config.block_size), t}).contiguous();
    const Tensor last = features(seen).select(1, -1);                                              // (B, C)
    const std::vector<float> logits = ops::linear(last, wte.weight, Tensor()).to_vector<float>();  // (B, V)
    const uint64_t offset = source.next_offset();
    int64_t* out = tokens.mutable_data<int64_t>();
    for (int64_t b = 0; b < B; ++b) {
      const double uniform = uniform_from_bits(philox(source.seed(), static_cast<uint64_t>(b), offset)[0]);
      out[b * total + t] = sample(&logits[b * config.vocab_size], config.vocab_size, temperature, top_k, uniform);
    }
  }
  return tokens;
}

}  // namespace rondo::nn
