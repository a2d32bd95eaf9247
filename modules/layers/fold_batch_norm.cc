#include "rondo/modules/layers/fold_batch_norm.h"

#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rondo/modules/layers/channel_norm.h"
#include "rondo/modules/layers/convolution.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::nn {
namespace {

// What folding needs of a convolution; null pointers: the module is no convolution.
struct ConvolutionParts {
  Tensor* weight = nullptr;
  Tensor* bias = nullptr;
  int64_t groups = 1;
  bool transposed = false;  // weight (in, out / groups, ...), else (out, in / groups, ...)
};
ConvolutionParts convolution_parts(ModuleBase& module) {
  if (auto* conv = dynamic_cast<Conv1d*>(&module)) return {&conv->weight, &conv->bias, conv->options.groups, false};
  if (auto* conv = dynamic_cast<Conv2d*>(&module)) return {&conv->weight, &conv->bias, conv->options.groups, false};
  if (auto* conv = dynamic_cast<ConvTranspose2d*>(&module))
    return {&conv->weight, &conv->bias, conv->options.groups, true};
  return {};
}
struct NormParts {
  Tensor weight, bias, mean, var;
  double eps = 0;
};
template <int kSpatial> NormParts norm_parts(BatchNorm<kSpatial>& norm) {
  return {norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.options.eps};
}
// Returns the parts of a batch norm. `mean` is undefined if the module is no batch norm with running statistics.
NormParts norm_parts(ModuleBase& module) {
  if (auto* norm = dynamic_cast<BatchNorm1d*>(&module)) return norm_parts(*norm);
  if (auto* norm = dynamic_cast<BatchNorm2d*>(&module)) return norm_parts(*norm);
  return {};
}

struct Pair {
  ModuleBase* convolution;
  ModuleBase* norm;
};

// Notes what convolutions return and what norms read. For each pair in `hidden`, the model gets NaN as the
// convolution's result, while the norm still reads the real one. If the model's result is finite, only the norms read
// these convolutions' results.
class Probe {
 public:
  explicit Probe(std::vector<Pair> hidden = {}) : hidden_(std::move(hidden)) {}

  Tensor run(ModuleBase& model, absl::FunctionRef<Tensor()> call_model) {
    std::vector<std::pair<ModuleBase*, std::shared_ptr<CallHook>>> before;
    for (const NamedModule& named : model.named_modules()) {
      std::shared_ptr<CallHook> probe;
      if (convolution_parts(named.module).weight != nullptr || norm_parts(named.module).mean.defined())
        probe = std::make_shared<Hook>(*this);
      before.emplace_back(&named.module, std::exchange(named.module.call_hook, std::move(probe)));
    }
    struct Restore {
      decltype(before)& hooks;
      ~Restore() {
        for (auto& [module, hook] : hooks) module->call_hook = std::move(hook);
      }
    } const restore{before};
    const NoGrad off;
    return call_model();
  }

  std::vector<Pair> pairs() const {
    std::vector<Pair> found;
    for (const Call& norm : calls_) {
      const Call* from = nullptr;
      for (const Call& call : calls_)
        if (call.shown.defined() && call.shown.is_same(norm.input)) from = &call;
      if (from != nullptr && norm_parts(*norm.module).mean.defined() && calls_of(norm.module) == 1 &&
          calls_of(from->module) == 1)
        found.push_back({from->module, norm.module});
    }
    return found;
  }

 private:
  struct Call {
    ModuleBase* module;
    Tensor input;
    Tensor result, shown;  // of a convolution: what it computes, and what the model gets
  };
  class Hook final : public CallHook {
   public:
    explicit Hook(Probe& probe) : probe_(probe) {}
    void around(const ModuleCall& call, absl::FunctionRef<void()> forward) override { probe_.around(call, forward); }

   private:
    Probe& probe_;
  };

  void around(const ModuleCall& call, absl::FunctionRef<void()> forward) {
    for (const Pair& pair : hidden_)
      if (pair.norm == &call.module)
        for (const Call& made : calls_)
          if (made.module == pair.convolution) {
            *call.result = evaluate(call.module, made.result);
            return;
          }
    forward();
    Call& noted = calls_.emplace_back(Call{&call.module, *call.inputs[0], {}, {}});
    if (convolution_parts(call.module).weight == nullptr) return;
    noted.result = noted.shown = *call.result;
    for (const Pair& pair : hidden_)
      if (pair.convolution == &call.module)
        *call.result = noted.shown = Tensor::full(noted.result.sizes(), std::numeric_limits<double>::quiet_NaN(),
                                                  {noted.result.dtype(), noted.result.device()});
  }
  static Tensor evaluate(ModuleBase& norm, const Tensor& x) {
    if (auto* one = dynamic_cast<BatchNorm1d*>(&norm)) return one->forward(x);
    return dynamic_cast<BatchNorm2d&>(norm).forward(x);
  }
  int calls_of(const ModuleBase* module) const {
    int n = 0;
    for (const Call& call : calls_) n += call.module == module;
    return n;
  }

  std::vector<Pair> hidden_;
  std::vector<Call> calls_;
};

bool is_finite(const Tensor& t) { return ops::all(ops::isfinite(t)).item() != 0; }

void fold(const Pair& pair) {
  const NoGrad off;
  const ConvolutionParts conv = convolution_parts(*pair.convolution);
  const NormParts norm = norm_parts(*pair.norm);
  // Computes in f64, so that the folded weights are rounded only once.
  const auto wide = [](const Tensor& t) { return t.to(kF64); };
  Tensor scale = ops::rsqrt(wide(norm.var) + norm.eps);
  if (norm.weight.defined()) scale = scale * wide(norm.weight);
  Tensor bias = -wide(norm.mean);
  if (conv.bias->defined()) bias = bias + wide(*conv.bias);
  bias = bias * scale;
  if (norm.bias.defined()) bias = bias + wide(norm.bias);
  const Dims sizes = conv.weight->sizes();
  Dims parts = sizes, factors = Dims::filled(sizes.rank() + 1, 1);
  parts[0] = sizes[0] / conv.groups;
  parts.insert(0, conv.groups);
  factors[0] = conv.groups;
  factors[conv.transposed ? 2 : 1] = scale.numel() / conv.groups;
  conv.weight->copy_((wide(*conv.weight).reshape(parts) * scale.reshape(factors)).reshape(sizes));
  if (conv.bias->defined()) conv.bias->copy_(bias);
  else *conv.bias = bias.to(conv.weight->dtype()).requires_grad_(conv.weight->requires_grad());
  pair.norm->parent()->replace(pair.norm->name(), std::make_unique<Identity>());
}

}  // namespace

int64_t fold_batch_norm(ModuleBase& model, absl::FunctionRef<Tensor()> run) {
  if (model.is_training()) throw Error("fold_batch_norm: the model is in training, call eval() first");
  Probe first;
  if (!is_finite(first.run(model, run)))
    throw Error("fold_batch_norm: the model's result has values that are not finite");
  std::vector<Pair> pairs;
  for (const Pair& pair : first.pairs())
    if (pair.norm->parent() != nullptr) pairs.push_back(pair);
  const auto others_read = [&](std::vector<Pair> hidden) {
    return !is_finite(Probe(std::move(hidden)).run(model, run));
  };
  if (!pairs.empty() && others_read(pairs)) std::erase_if(pairs, [&](const Pair& pair) { return others_read({pair}); });
  for (const Pair& pair : pairs) fold(pair);
  return std::ssize(pairs);
}

}  // namespace rondo::nn
