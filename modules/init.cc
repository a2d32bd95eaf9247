#include "rondo/modules/init.h"

#include "rondo/modules/layers.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/random.h"

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

}  // namespace rondo::nn
