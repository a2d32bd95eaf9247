// Compiled steps against eager ones: equal to the bit, for every optimizer, dtype, state format and what joins the pass.
#include "rondo/optim/compile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adagrad.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/lamb.h"
#include "rondo/optim/lion.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/rmsprop.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/random.h"
#include "rondo/tests/errors.h"

namespace rondo::optim {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>, StateFormat)>;
template <class O, class Options>
Make make(Options options) {
  return [options](std::vector<Tensor> params, StateFormat format) {
    Options with = options;
    with.state = format;
    return std::make_unique<O>(std::move(params), with);
  };
}

const std::map<std::string, Make>& cases() {
  static const std::map<std::string, Make> all = {
      {"sgd", make<SGD>(SGDOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"sgd_nesterov", make<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true})},
      {"adam", make<Adam>(AdamOptions{.lr = 0.01, .weight_decay = 0.1})},
      {"adam_amsgrad", make<Adam>(AdamOptions{.lr = 0.01, .amsgrad = true, .maximize = true})},
      {"adamw", make<AdamW>(AdamWOptions{.lr = 0.01, .betas = {0.9, 0.95}, .weight_decay = 0.1})},
      {"rmsprop", make<RMSprop>(RMSpropOptions{.weight_decay = 0.1})},
      {"rmsprop_both", make<RMSprop>(RMSpropOptions{.momentum = 0.9, .centered = true})},
      {"adagrad", make<Adagrad>(AdagradOptions{.lr_decay = 0.1, .initial_accumulator_value = 0.1})},
      {"adafactor", make<Adafactor>(AdafactorOptions{.lr = 0.1, .weight_decay = 0.1})},
      {"lion", make<Lion>(LionOptions{.lr = 0.01, .weight_decay = 0.1})},
      {"lamb", make<LAMB>(LAMBOptions{.lr = 0.01, .weight_decay = 0.1})},
      {"muon", make<Muon>(MuonOptions{.lr = 0.02})},
  };
  return all;
}

// Matrices for Muon only; for the others vectors of odd lengths, an empty one, and a batch of matrices.
std::vector<Tensor> parameters(bool matrices, DType dtype) {
  std::vector<Tensor> list;
  Generator generator(7);
  for (const Dims& sizes : matrices ? std::vector<Dims>{{5, 3}, {64, 80}, {100, 70}}
                                    : std::vector<Dims>{{1}, {0}, {1000}, {70, 130}, {3, 40, 37}, {20011}, {17}})
    list.push_back(Tensor::randn(sizes, {dtype}, &generator).requires_grad_());
  return list;
}
void set_grads(std::vector<Tensor>& params, uint64_t seed, double scale = 1) {
  Generator generator(seed);
  for (Tensor& p : params)
    p.set_grad((Tensor::randn(p.sizes(), {kF32}, &generator) * scale).to(p.dtype()));
}

std::vector<std::byte> bytes(const Tensor& t) {
  const auto* data = static_cast<const std::byte*>(t.raw_data());
  return {data, data + t.nbytes()};
}
bool same(const Tensor& a, const Tensor& b) { return bytes(a) == bytes(b); }

struct Trained {
  std::vector<Tensor> params;
  std::unique_ptr<Optimizer> optimizer;
};
void expect_same(const Trained& a, const Trained& b, const std::string& what) {
  for (size_t i = 0; i < a.params.size(); ++i) {
    EXPECT_TRUE(same(a.params[i], b.params[i])) << what << ": parameter " << i;
    if (!a.params[i].grad().defined()) continue;
    EXPECT_TRUE(same(a.params[i].grad(), b.params[i].grad())) << what << ": gradient " << i;
  }
  const nn::StateDict x = a.optimizer->state_dict(), y = b.optimizer->state_dict();
  ASSERT_EQ(x.size(), y.size());
  for (const auto& [name, tensor] : x) EXPECT_TRUE(same(tensor, y.at(name))) << what << ": " << name;
  const std::vector<Tensor> copies = a.optimizer->copies(), others = b.optimizer->copies();
  for (size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].defined()) continue;
    EXPECT_TRUE(same(copies[i], others[i])) << what << ": copy " << i;
  }
}

class Compiled : public testing::TestWithParam<std::string> {};

TEST_P(Compiled, EqualsEagerToTheBit) {
  for (DType dtype : {kF32, kBF16, kF16, kF64}) {
    for (StateFormat format : {StateFormat::kFull, StateFormat::kBF16, StateFormat::k8Bit}) {
      if (dtype == kF64 && format != StateFormat::kFull) continue;
      for (bool joined : {false, true}) {
        std::vector<Trained> runs(2);
        for (size_t r = 0; r < 2; ++r) {
          set_num_threads(r == 0 ? 1 : 2);
          runs[r].params = parameters(GetParam() == "muon", dtype);
          runs[r].optimizer = cases().at(GetParam())(runs[r].params, format);
          Optimizer& optimizer = *runs[r].optimizer;
          if (r == 1) compile(optimizer);
          if (joined) optimizer.track_average({.decay = 0.9});
          if (joined) optimizer.keep_copies(kBF16);
          for (uint64_t step = 0; step < 4; ++step) {
            set_grads(runs[r].params, step, joined ? 8.0 : 1.0);
            if (joined)
              optimizer.step({.grad_scale = 8, .max_norm = 3, .zero_grad = true});
            else
              optimizer.step();
          }
          EXPECT_EQ(optimizer.kernels().late, 0);
        }
        set_num_threads(2);
        expect_same(runs[0], runs[1], GetParam() + " " + std::string(name_of(dtype)) + " format " +
                                          std::to_string(static_cast<int>(format)) + (joined ? " joined" : ""));
      }
    }
  }
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : cases()) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Optimizers, Compiled, testing::ValuesIn(case_names()), [](const auto& i) { return i.param; });

}  // namespace
}  // namespace rondo::optim
