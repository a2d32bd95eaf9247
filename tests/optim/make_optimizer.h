// Optimizers for tests that run over several kinds of them.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "rondo/optim/optimizer.h"

namespace rondo::optim {

// Makes an optimizer of these parameters that keeps its state in this format.
using Make = std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>, StateFormat)>;
template <class O, class Options> Make make(Options options) {
  return [options](std::vector<Tensor> params, StateFormat format) {
    Options with = options;
    with.state = format;
    return std::make_unique<O>(std::move(params), with);
  };
}

}  // namespace rondo::optim
