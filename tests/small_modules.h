// Modules for tests that need one, whatever it computes. A test whose module matters, by its name, its lines or its
// formula, writes its own.
//
//   test::OneLinear net(24);  optim::AdamW optimizer(net.parameters());  ops::sum(net(x)).backward();
#pragma once

#include <cstdint>

#include "rondo/modules/layers/layers.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::test {

struct OneLinear : nn::Module<OneLinear> {
  explicit OneLinear(int64_t width) : OneLinear(width, width) {}
  OneLinear(int64_t in, int64_t out) : fc(child("fc", in, out)) {}
  nn::Linear fc;
  Tensor forward(const Tensor& x) { return fc(x); }
};

// A norm, a product and two elementwise ops.
struct Gate : nn::Module<Gate> {
  explicit Gate(int64_t width) : norm(child("norm", width)), gate(child("gate", width, width)) {}
  nn::LayerNorm norm;
  nn::Linear gate;
  Tensor forward(const Tensor& x) { return ops::sigmoid(gate(norm(x))) * x; }
};

}  // namespace rondo::test
