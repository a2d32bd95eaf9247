// Starting weights of whole models.
#pragma once

#include <cstdint>

#include "rondo/modules/module.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// Fills every parameter of a tree: those of rank >= 2 from N(0, std), biases (by name) with 0, gains with 1. The same
// seed gives the same values on any machine and with any number of threads. Under SkipInit::Memory::kNone nothing
// happens.
void init_normal(ModuleBase& module, uint64_t seed, double std = 0.02);
// Fills the convolutions of a tree as torchvision does for its networks with ReLU (He et al., "Delving deep into
// rectifiers", 2015, kaiming_normal_ with fan_out): N(0, sqrt(2 / (out kh kw))), biases of convolutions with 0. Also
// linear layers, as PyTorch does: weight and bias uniform in +-1/sqrt(in). Everything else stays. Deterministic as
// above.
void init_convolutions(ModuleBase& module, uint64_t seed);

}  // namespace rondo::nn
#pragma GCC visibility pop
