// Ten steps on the parameters and gradients that tests/reference/record.py has recorded from PyTorch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "rondo/optim/optimizer.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/tests/close.h"
#include "rondo/tests/fake_device/test_device.h"
#include "rondo/tests/paths.h"

namespace rondo::optim {

inline const io::TensorMap& reference() {
  static const io::TensorMap file = [] {
    io::TensorMap tensors = io::load_safetensors(std::string(tests::kReferenceDir) + "/optim.safetensors").tensors;
    for (auto& [name, tensor] : tensors) tensor = tensor.to(test::test_device());
    return tensors;
  }();
  return file;
}

// `tolerance` is relative, and absolute below 1.
inline void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  EXPECT_TRUE(test::is_close(got.to(kF64), want.to(kF64), test::relative_above_1(tolerance))) << what;
}

// Copies of the recorded parameters {w, b}.
inline std::vector<Tensor> start(DType dtype = kF64) {
  std::vector<Tensor> params;
  for (const char* name : {"w", "b"})
    params.push_back(reference().at("param." + std::string(name)).to(dtype).clone().requires_grad_());
  return params;
}
inline void set_grads(std::vector<Tensor>& params, int64_t step) {
  const char* names[] = {"w", "b"};
  for (size_t i = 0; i < 2; ++i)
    params[i].set_grad(reference().at("grads." + std::string(names[i]))[step].to(params[i].dtype()).clone());
}
inline void train(Optimizer& optimizer, std::vector<Tensor>& params, int first, int last) {
  for (int step = first; step < last; ++step) {
    set_grads(params, step);
    optimizer.step();
  }
}

}  // namespace rondo::optim
