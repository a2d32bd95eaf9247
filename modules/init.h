// Starting weights of whole models.
#pragma once

#include <cstdint>

#include "rondo/modules/module.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

// Fills every parameter of a tree: those of rank >= 2 from N(0, std), biases (by name) with 0, gains with 1. The same
// for the same seed on any machine and any number of threads. Under SkipInit::Memory::kNone nothing happens.
void init_normal(ModuleBase& module, uint64_t seed, double std = 0.02);

}  // namespace rondo::nn
#pragma GCC visibility pop
