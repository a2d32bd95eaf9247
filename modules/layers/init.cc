#include "rondo/modules/layers/init.h"

#include <cmath>

#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/random/random.h"

namespace rondo::nn {

void init_normal(ModuleBase& module, uint64_t seed, double std) {
  if (SkipInit::without_memory()) return;
  const NoGrad off;
  Generator generator(seed);
  for (auto& [name, parameter] : module.named_parameters()) {
    if (parameter.rank() >= 2)
      parameter.copy_(Tensor::randn(parameter.sizes(), parameter.device(), &generator).mul_(std));
    else parameter.fill_(name.ends_with("bias") ? 0.0 : 1.0);
  }
}

void init_convolutions(ModuleBase& module, uint64_t seed) {
  if (SkipInit::without_memory()) return;
  const FloatingPointScope floating_point;
  const NoGrad off;
  Generator generator(seed);
  for (const NamedModule& named : module.named_modules()) {
    Tensor weight, bias;
    for (const ModuleBase::Slot& slot : named.module.own_slots()) {
      if (slot.name == "weight") weight = *slot.tensor;
      if (slot.name == "bias") bias = *slot.tensor;
    }
    if (!weight.defined()) continue;
    const Dims& s = weight.sizes();
    if (s.rank() == 4) {
      const double fan_out = static_cast<double>(s[0] * s[2] * s[3]);
      weight.copy_(Tensor::randn(s, weight.device(), &generator).mul_(std::sqrt(2 / fan_out)));
      if (bias.defined()) bias.fill_(0.0);
    } else if (s.rank() == 2) {
      const double bound = 1 / std::sqrt(static_cast<double>(s[1]));
      for (Tensor* t : {&weight, &bias})
        if (t->defined()) t->copy_(Tensor::rand(t->sizes(), t->device(), &generator).mul_(2 * bound).add_(-bound));
    }
  }
}

}  // namespace rondo::nn
