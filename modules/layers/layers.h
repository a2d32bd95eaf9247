// The layers: Linear, Embedding, LayerNorm, Dropout, activations, MLP, and the containers ModuleList and Sequential.
// Weights start as in PyTorch, drawn from default_generator(). Shapes: (..., C) means any leading dimensions.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rondo/modules/module.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/ops/ops.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// While a SkipInit is alive on this thread, layers do not initialise their weights: the code that makes the layers
// fills the weights.
class SkipInit {
 public:
  enum class Memory {
    kUninitialised,
    // Parameters have sizes but no memory. load_state_dict(state, true, /*assign=*/true) must give them memory before
    // anything reads them.
    kNone,
  };
  explicit SkipInit(Memory memory = Memory::kUninitialised) : memory_(memory) {
    ++depth_;
    if (memory_ == Memory::kNone) ++without_memory_;
  }
  ~SkipInit() {
    --depth_;
    if (memory_ == Memory::kNone) --without_memory_;
  }
  SkipInit(const SkipInit&) = delete;
  SkipInit& operator=(const SkipInit&) = delete;
  static bool active() { return depth_ > 0; }
  static bool without_memory() { return without_memory_ > 0; }

 private:
  const Memory memory_;
  static inline thread_local int depth_ = 0;
  static inline thread_local int without_memory_ = 0;
};

// For constructors of layers: makes a parameter of this value. Under SkipInit::Memory::kNone it has no memory.
Tensor constant_parameter(const Dims& sizes, double value);
// Makes a parameter with values uniform in [-bound, bound). Under SkipInit its values are unspecified.
Tensor uniform_parameter(const Dims& sizes, double bound);

struct LinearOptions {
  bool bias = true;
};
// y = x weight^T + bias. weight (out, in) and bias (out) start uniform in +-1/sqrt(in).
struct Linear : Module<Linear> {
  Linear(int64_t in_features, int64_t out_features, LinearOptions options = {});
  Tensor& weight;
  Tensor& bias;                     // undefined without a bias
  Tensor forward(const Tensor& x);  // (..., in) -> (..., out)
};

struct EmbeddingOptions {
  // This row starts at zero and gets no gradient, so it stays zero.
  std::optional<int64_t> padding_idx = std::nullopt;
};
// Looks up rows of weight (V, C), which starts N(0, 1).
struct Embedding : Module<Embedding> {
  Embedding(int64_t num_embeddings, int64_t embedding_dim, EmbeddingOptions options = {});
  EmbeddingOptions options;
  Tensor& weight;
  Tensor forward(const Tensor& indices);  // i64 (...) -> (..., C)
  // Sets the row of padding_idx, if there is one, to zero.
  void zero_padding();
};

struct LayerNormOptions {
  double eps = 1e-5;
  bool bias = true;
};
// Ba et al., "Layer normalization" (2016), over the last dimension. weight (C) starts at 1, bias (C) at 0.
struct LayerNorm : Module<LayerNorm> {
  explicit LayerNorm(int64_t size, LayerNormOptions options = {});
  Tensor& weight;
  Tensor& bias;  // without a bias: a buffer of zeros, not in state_dict()
  double eps;
  Tensor forward(const Tensor& x);  // (..., C) -> (..., C)
};

// Zeroes elements with probability p and scales the others by 1/(1-p); the identity in eval mode and for p = 0.
struct Dropout : Module<Dropout> {
  explicit Dropout(double p = 0.5);
  double p;
  // Returns the current probability, for ops with built-in dropout.
  double rate() const {
    const Dropout& now = current();
    return now.is_training() ? now.p : 0;
  }
  Tensor forward(const Tensor& x);
};

// Stochastic depth (Huang et al., "Deep networks with stochastic depth", 2016), for the branch of a residual block:
// zeroes whole examples with probability p and scales the others by 1/(1-p). The identity in eval mode and for p = 0.
struct DropPath : Module<DropPath> {
  explicit DropPath(double p = 0);
  double p;
  Tensor forward(const Tensor& x);  // (B, ...) -> (B, ...)
};

struct GELU : Module<GELU> {
  explicit GELU(ops::GeluKind kind = ops::GeluKind::kErf) : kind(kind) {}
  ops::GeluKind kind;
  Tensor forward(const Tensor& x) { return ops::gelu(x, kind); }
};
struct ReLU : Module<ReLU> {
  Tensor forward(const Tensor& x) { return ops::relu(x); }
};
struct Tanh : Module<Tanh> {
  Tensor forward(const Tensor& x) { return ops::tanh(x); }
};

struct MLPOptions {
  bool bias = true;
  double dropout = 0;
  ops::GeluKind gelu = ops::GeluKind::kTanh;
};
// c_proj(gelu(c_fc(x))), the feed-forward layer of a transformer block with GPT-2's names.
struct MLP : Module<MLP> {
  MLP(int64_t n_embd, int64_t hidden, MLPOptions options = {});
  MLPOptions options;
  Linear c_fc;
  Linear c_proj;
  Dropout dropout;
  Tensor forward(const Tensor& x);  // (..., C) -> (..., C)
};

[[noreturn]] void throw_no_layer(const char* list, int64_t i, int64_t size);

// Throws OutOfMemoryError if `n` modules like `first`, of `bytes` each besides its parameters, need more memory than
// this process may use. So a list fails at once, not after hours of making modules.
void check_room(const ModuleBase& first, size_t bytes, int64_t n);

// Modules of one type, named "0", "1", ...; the parent's forward loops over them.
//   nn::ModuleList<Block> h = child("h", 12, C, heads);   // twelve Block(C, heads)
//   for (Block& block : h) x = block(x);
template <class M> class ModuleList : public ModuleBase {
 public:
  ModuleList() : ModuleBase(typeid(ModuleList), sizeof(ModuleList)) {}
  ModuleList(const ModuleList&) : ModuleList() {
    static_assert(kModulesMove<M>, "a ModuleList cannot be copied or moved, because its parent refers to it");
  }
  template <class... Args> explicit ModuleList(int64_t n, const Args&... args) : ModuleList() {
    if (n < 0) throw Error("ModuleList: the number of modules must not be negative, got " + std::to_string(n));
    for (int64_t i = 0; i < n; ++i) {
      emplace_back(args...);
      if (i == 0) check_room(*items_.front(), sizeof(M), n);
    }
  }
  template <class... Args> M& emplace_back(Args&&... args) {
    return within_memory("ModuleList", [&]() -> M& {
      items_.push_back(child(std::to_string(size()), std::forward<Args>(args)...).template make<M>());
      return *items_.back();
    });
  }
  bool is_block_list() const override { return true; }
  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  // Returns module i. Throws Error unless 0 <= i < size().
  M& operator[](int64_t i) {
    if (i < 0 || i >= size()) throw_no_layer("ModuleList", i, size());
    return *items_[static_cast<size_t>(i)];
  }

  class Iterator {
   public:
    using Base = typename std::vector<std::unique_ptr<M>>::iterator;
    explicit Iterator(Base at) : at_(at) {}
    M& operator*() const { return **at_; }
    Iterator& operator++() { return ++at_, *this; }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    Base at_;
  };
  Iterator begin() { return Iterator(items_.begin()); }
  Iterator end() { return Iterator(items_.end()); }

 private:
  std::vector<std::unique_ptr<M>> items_;
};

class Sequential;
// One layer of a Sequential, to be built: nn::layer<nn::Linear>(2, 16).
struct SequentialLayer {
  std::function<void(Sequential&)> add_to;
};

// A chain of modules of any types, named "0", "1", ..., each from one Tensor to one Tensor. It is one unit, not a list
// of blocks. A chain of repeated blocks derives from it and overrides ModuleBase::is_block_list() (ResNetStage).
//   nn::Sequential net(nn::layer<nn::Linear>(2, 16), nn::layer<nn::Tanh>(), nn::layer<nn::Linear>(16, 1));
class Sequential : public Module<Sequential> {
 public:
  template <std::same_as<SequentialLayer>... Layers> explicit Sequential(const Layers&... layers) {
    (layers.add_to(*this), ...);
  }
  template <class M, class... Args> M& add(Args&&... args) {
    return within_memory("Sequential", [&]() -> M& {
      auto made = child(std::to_string(links_.size()), std::forward<Args>(args)...).template make<M>();
      M& module = *made;
      links_.push_back(
          {std::move(made), [](ModuleBase& m, const Tensor& x) -> Tensor { return static_cast<M&>(m)(x); }});
      return module;
    });
  }
  Tensor forward(const Tensor& x);
  int64_t size() const { return static_cast<int64_t>(links_.size()); }
  // Returns module i. Throws Error unless 0 <= i < size().
  ModuleBase& operator[](int64_t i) {
    if (i < 0 || i >= size()) throw_no_layer("Sequential", i, size());
    return *links_[static_cast<size_t>(i)].module;
  }

 private:
  struct Link {
    std::unique_ptr<ModuleBase> module;
    Tensor (*call)(ModuleBase&, const Tensor&);
  };
  std::vector<Link> links_;
};

template <class M, class... Args> SequentialLayer layer(Args... args) {
  return within_memory("layer", [&] { return SequentialLayer{[args...](Sequential& s) { s.add<M>(args...); }}; });
}

}  // namespace rondo::nn
#pragma GCC visibility pop
