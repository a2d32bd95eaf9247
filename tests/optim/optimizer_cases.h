// The list of optimizers under test: optimizer_cases_test.cc.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rondo/tests/optim/make_optimizer.h"

namespace rondo::optim {

// The algorithm as its paper has it, on one parameter in f64: changes `param` by one step for each gradient.
using PaperAlgorithm = std::function<void(std::vector<double>& param, const std::vector<std::vector<double>>& grads)>;

struct OptimizerCase {
  std::string name;
  Make make;
  PaperAlgorithm paper = nullptr;  // null: PyTorch has it, and its values under `name` are recorded
};

const std::vector<OptimizerCase>& optimizer_cases();

}  // namespace rondo::optim
