// The blocks whose entry is measured (region_bench.cc, host_time_bench.cc).
#pragma once

#include <cstdint>
#include <string>

#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::bench {

// 30 ops, 12 parameters.
struct PointwiseBlock : nn::Module<PointwiseBlock> {
  explicit PointwiseBlock(int64_t C) {
    for (int i = 0; i < 6; ++i) {
      weight[i] = &parameter("weight" + std::to_string(i), Tensor::ones({C}));
      bias[i] = &parameter("bias" + std::to_string(i), Tensor::zeros({C}));
    }
  }
  Tensor* weight[6];
  Tensor* bias[6];
  double factor = 0.5;
  Tensor forward(const Tensor& x_) {  // (B, C)
    Tensor x = x_;
    for (int i = 0; i < 6; ++i) x = ops::relu(x * *weight[i] + *bias[i]) * factor + 0.25;
    return x;
  }
};

template <class Block> struct Stack : nn::Module<Stack<Block>> {
  template <class... Args> explicit Stack(int64_t depth, const Args&... args) : h(this->child("h", depth, args...)) {}
  nn::ModuleList<Block> h;
  Tensor forward(const Tensor& x) { return x; }
};

}  // namespace rondo::bench
