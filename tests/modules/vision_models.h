// Weights and images by the formula of tests/reference/record_vision.py, for models that are too large to record.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/modules/module.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::nn {

// n numbers in [-1, 1): FNV-1a of the name starts a SplitMix64, of which the upper 24 bits count.
inline std::vector<double> formula_uniform(std::string_view name, int64_t n) {
  uint64_t seed = 0xCBF29CE484222325ull;
  for (const char c : name) seed = (seed ^ static_cast<uint8_t>(c)) * 0x100000001B3ull;
  std::vector<double> values(static_cast<size_t>(n));
  for (double& value : values) {
    seed += 0x9E3779B97F4A7C15ull;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    value = static_cast<double>(z >> 40) * 0x1p-23 - 1.0;
  }
  return values;
}

inline void fill_by_formula(ModuleBase& model) {
  const NoGrad off;
  for (auto& [name, tensor] : model.state_dict()) {
    if (!is_floating(tensor.dtype())) continue;
    const Dims& sizes = tensor.sizes();
    const std::vector<double> u = formula_uniform(name, sizes.numel());
    std::vector<float> values(u.size());
    double scale = 0.125, center = 0;
    if (sizes.rank() >= 2) scale = std::sqrt(3.0 / static_cast<double>(sizes.numel() / sizes[0]));
    else if (name.ends_with("running_var") || name.ends_with("weight")) scale = 0.25, center = 1;
    for (size_t i = 0; i < u.size(); ++i) values[i] = static_cast<float>(center + u[i] * scale);
    Tensor(tensor).copy_(Tensor::from(values, sizes));
  }
}

// (B, 3, size, size) f64.
inline Tensor formula_images(int64_t B, int64_t size) {
  return Tensor::from(formula_uniform("images", B * 3 * size * size), {B, 3, size, size});
}

}  // namespace rondo::nn
