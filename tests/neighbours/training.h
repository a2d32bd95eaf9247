// What the programs of this folder train.
#pragma once

#include <vector>

#include "rondo/modules/layers/convolution.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/modules/module.h"
#include "rondo/optim/adam.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"

namespace rondo::tests {

struct SmallNet : nn::Module<SmallNet> {
  nn::Conv2d conv = child("conv", 3, 16, 3, nn::Conv2dOptions{.padding = 1});
  nn::Linear out = child("out", 16 * 8 * 8, 10);
  // (B, 3, 8, 8) to (B, 10)
  Tensor forward(const Tensor& x) { return out(ops::relu(conv(x)).reshape({x.size(0), 16 * 8 * 8})); }
};

// A training that begins, goes on step by step, and has the same losses each time.
class Training {
 public:
  double step() {
    const Tensor error = net_(x_) - wanted_, loss = ops::mean(error * error);
    loss.backward();
    optimizer_.step();
    optimizer_.zero_grad();
    return loss.item();
  }

 private:
  const bool seeded_ = (manual_seed(7), true);  // before the network
  SmallNet net_;
  optim::AdamW optimizer_{net_.parameters(), {.lr = 1e-2}};
  const Tensor x_ = Tensor::randn({16, 3, 8, 8}), wanted_ = Tensor::randn({16, 10});
};

inline constexpr int kSteps = 20;
inline std::vector<double> losses() {
  Training training;
  std::vector<double> losses;
  for (int i = 0; i < kSteps; ++i) losses.push_back(training.step());
  return losses;
}

}  // namespace rondo::tests
