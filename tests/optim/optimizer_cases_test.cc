// Optimizers against values recorded from PyTorch (tests/reference/README.md), or against the algorithm of their paper
// where PyTorch has none. A new optimizer is a new case in this list. compiled_test.cc compiles those with a paper.
#include "rondo/tests/optim/optimizer_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "rondo/optim/optimizers.h"
#include "rondo/tests/optim/recorded_run.h"

namespace rondo::optim {

const std::vector<OptimizerCase>& optimizer_cases() {
  static const std::vector<OptimizerCase> all = {
      {"sgd", make<SGD>(SGDOptions{.lr = 0.1})},
      {"sgd_momentum", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9})},
      {"sgd_dampening", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5})},
      {"sgd_nesterov", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true})},
      {"sgd_decay", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1})},
      {"sgd_maximize", make<SGD>(SGDOptions{.lr = 0.1, .maximize = true})},
      {"sgd_all",
       make<SGD>(SGDOptions{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true, .maximize = true})},
      {"adam", make<Adam>(AdamOptions{.lr = 0.01})},
      {"adam_decay", make<Adam>(AdamOptions{.lr = 0.01, .weight_decay = 0.1})},
      {"adam_amsgrad", make<Adam>(AdamOptions{.lr = 0.01, .amsgrad = true})},
      {"adam_maximize", make<Adam>(AdamOptions{.lr = 0.01, .maximize = true})},
      {"adam_all", make<Adam>(AdamOptions{
                       .lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1, .amsgrad = true, .maximize = true})},
      {"adamw", make<AdamW>(AdamWOptions{.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1})},
      {"adamw_amsgrad",
       make<AdamW>(AdamWOptions{.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1, .amsgrad = true})},
      {"adamw_maximize",
       make<AdamW>(AdamWOptions{.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1, .maximize = true})},
      {"adamw_all", make<AdamW>(AdamWOptions{
                        .lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1, .amsgrad = true, .maximize = true})},
      {"rmsprop", make<RMSprop>(RMSpropOptions{.lr = 0.01})},
      {"rmsprop_centered", make<RMSprop>(RMSpropOptions{.lr = 0.01, .weight_decay = 0.1, .centered = true})},
      {"rmsprop_momentum", make<RMSprop>(RMSpropOptions{.lr = 0.01, .alpha = 0.9, .momentum = 0.9, .maximize = true})},
      {"rmsprop_both", make<RMSprop>(RMSpropOptions{.lr = 0.01, .momentum = 0.9, .centered = true})},
      {"rmsprop_all", make<RMSprop>(RMSpropOptions{
                          .lr = 0.01, .weight_decay = 0.1, .momentum = 0.9, .centered = true, .maximize = true})},
      {"adagrad_maximize", make<Adagrad>(AdagradOptions{.lr = 0.1, .maximize = true})},
      {"adagrad", make<Adagrad>(AdagradOptions{.lr = 0.1})},
      {"adagrad_decay", make<Adagrad>(AdagradOptions{
                            .lr = 0.1, .lr_decay = 0.1, .weight_decay = 0.1, .initial_accumulator_value = 0.5})},
      {"adafactor", make<Adafactor>(AdafactorOptions{.lr = 0.1, .eps1 = 0x1p-23})},
      {"adafactor_decay", make<Adafactor>(AdafactorOptions{
                              .lr = 0.1, .eps1 = 1e-4, .eps2 = 1e-2, .d = 1.5, .weight_decay = 0.1, .maximize = true})},
      {"lion", make<Lion>(LionOptions{.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1}),
       [](std::vector<double>& p, const std::vector<std::vector<double>>& grads) {
         std::vector<double> m(p.size(), 0.0);
         for (const std::vector<double>& g : grads)
           for (size_t i = 0; i < p.size(); ++i) {
             const double c = 0.9 * m[i] + 0.1 * g[i];
             p[i] -= 0.01 * ((c > 0) - (c < 0) + 0.1 * p[i]);
             m[i] = 0.95 * m[i] + 0.05 * g[i];
           }
       }},
  };
  return all;
}

namespace {

class Recorded : public testing::TestWithParam<std::string> {
 protected:
  static const OptimizerCase& this_case() {
    const auto& all = optimizer_cases();
    return *std::find_if(all.begin(), all.end(), [](const OptimizerCase& c) { return c.name == GetParam(); });
  }
  static std::unique_ptr<Optimizer> make_case(const std::vector<Tensor>& params) {
    return this_case().make(params, StateFormat::kFull);
  }
  // The parameter after ten steps: PyTorch's values, or those of the paper's algorithm.
  static Tensor wanted(const std::string& name) {
    const OptimizerCase& c = this_case();
    if (c.paper == nullptr) return reference().at(c.name + "." + name);
    const Tensor& begin = reference().at("param." + name);
    std::vector<double> values = begin.to_vector<double>();
    std::vector<std::vector<double>> grads;
    for (int step = 0; step < 10; ++step) grads.push_back(reference().at("grads." + name)[step].to_vector<double>());
    c.paper(values, grads);
    return Tensor::from(values, begin.sizes());
  }
};

TEST_P(Recorded, TenSteps) {
  for (DType dtype : {kF64, kF32}) {
    std::vector<Tensor> params = start(dtype);
    const auto optimizer = make_case(params);
    train(*optimizer, params, 0, 10);
    const double tolerance = dtype == kF64 ? 1e-13 : 1e-6;
    expect_close(params[0], wanted("w"), tolerance, "w");
    expect_close(params[1], wanted("b"), tolerance, "b");
  }
}

TEST_P(Recorded, StateDictContinuesBitExactly) {
  std::vector<Tensor> params = start(kF32);
  const auto whole = make_case(params);
  train(*whole, params, 0, 5);
  whole->set_lr(0.05);
  nn::StateDict saved;
  for (const auto& [name, tensor] : whole->state_dict()) saved[name] = tensor.clone();
  std::vector<Tensor> copies;
  for (const Tensor& p : params) copies.push_back(p.detach().clone().requires_grad_());
  train(*whole, params, 5, 10);

  const auto resumed = make_case(copies);
  resumed->load_state_dict(saved);
  EXPECT_EQ(resumed->lr(), 0.05);
  train(*resumed, copies, 5, 10);
  for (size_t i = 0; i < params.size(); ++i) EXPECT_EQ(params[i].to_vector<float>(), copies[i].to_vector<float>());
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const OptimizerCase& c : optimizer_cases()) names.push_back(c.name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Optimizers, Recorded, testing::ValuesIn(case_names()), [](const auto& i) { return i.param; });

}  // namespace
}  // namespace rondo::optim
