// Groups that come later, and a schedule for each.
#include <gtest/gtest.h>

#include <memory>

#include "rondo/compile/jit/executable.h"
#include "rondo/optim/adafactor.h"
#include "rondo/optim/adagrad.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/lamb.h"
#include "rondo/optim/lion.h"
#include "rondo/optim/muon.h"
#include "rondo/optim/rmsprop.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo::optim {
namespace {

using test::error_of;
using test::same_bits;

std::vector<Tensor> matrices() {
  Generator generator(1);
  std::vector<Tensor> params;
  for (int i = 0; i < 3; ++i) params.push_back(Tensor::randn({4, 6}, {}, &generator).requires_grad_());
  return params;
}
void set_grads(std::vector<Tensor>& params, int step) {
  Generator generator(static_cast<uint64_t>(100 + step));
  for (Tensor& p : params) p.set_grad(Tensor::randn({4, 6}, {}, &generator));
}

// A group that is added before the first step is as one that was there from the start, bit for bit.
template <class O, class Options> void expect_the_same(Options first, Options second, bool compiled) {
  std::vector<Tensor> a = matrices(), b = matrices();
  O whole(std::vector<ParamGroup<Options>>{{{a[0]}, first}, {{a[1], a[2]}, second}});
  O grown({b[0]}, first);
  grown.track_average();
  whole.track_average();
  grown.keep_copies(kBF16);
  whole.keep_copies(kBF16);
  grown.add_param_group({{b[1], b[2]}, second});
  EXPECT_EQ(grown.n_groups(), 2);
  if (compiled && compile::jit_available()) {
    optim::compile(whole);
    optim::compile(grown);
  }
  for (int step = 0; step < 4; ++step) {
    set_grads(a, step);
    set_grads(b, step);
    whole.step();
    grown.step();
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(a[i].detach(), b[i].detach())) << i;
    EXPECT_TRUE(same_bits(whole.copies()[i], grown.copies()[i])) << i;
  }
  const nn::StateDict x = whole.state_dict(), y = grown.state_dict();
  ASSERT_EQ(x.size(), y.size());
  for (const auto& [name, tensor] : x) EXPECT_TRUE(same_bits(tensor, y.at(name))) << name;
}

TEST(ParamGroups, LaterOnesAreAsThoseFromTheStart) {
  for (const bool compiled : {false, true}) {
    expect_the_same<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9}, SGDOptions{.lr = 0.01}, compiled);
    expect_the_same<Adam>(AdamOptions{.lr = 0.1}, AdamOptions{.lr = 0.01, .amsgrad = true}, compiled);
    expect_the_same<AdamW>(AdamWOptions{.lr = 0.1}, AdamWOptions{.lr = 0.01, .weight_decay = 0}, compiled);
    expect_the_same<RMSprop>(RMSpropOptions{.lr = 0.1}, RMSpropOptions{.lr = 0.01, .centered = true}, compiled);
    expect_the_same<Adagrad>(AdagradOptions{.lr = 0.1}, AdagradOptions{.lr = 0.01}, compiled);
    expect_the_same<Adafactor>(AdafactorOptions{.lr = 0.1}, AdafactorOptions{.lr = 0.01}, compiled);
    expect_the_same<Lion>(LionOptions{.lr = 0.1}, LionOptions{.lr = 0.01}, compiled);
    expect_the_same<LAMB>(LAMBOptions{.lr = 0.1}, LAMBOptions{.lr = 0.01}, compiled);
    expect_the_same<Muon>(MuonOptions{.lr = 0.1}, MuonOptions{.lr = 0.01}, compiled);
  }
}

// Tensors of rank 2 and more decay. Two groups even if one is empty: a schedule for each fits every model.
TEST(ParamGroups, OnlyMatricesDecay) {
  std::vector<Tensor> params = matrices();
  params.push_back(Tensor::ones({6}).requires_grad_());
  const auto groups = decay_groups(params, AdamWOptions{.lr = 0.5, .weight_decay = 0.25});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].params.size(), 3u);
  EXPECT_EQ(groups[0].options.weight_decay, 0.25);
  EXPECT_EQ(groups[1].options.weight_decay, 0);
  EXPECT_EQ(groups[1].options.lr, 0.5);
  AdamW optimizer(groups);
  for (Tensor& p : params) p.set_grad(Tensor::zeros(p.sizes()));
  const Tensor matrix = params[0].detach().clone();
  optimizer.step();
  EXPECT_TRUE(same_bits(params[3].detach(), Tensor::ones({6})));
  EXPECT_FALSE(same_bits(params[0].detach(), matrix));

  AdamW of_vectors(decay_groups({params[3]}, AdamWOptions{}));
  EXPECT_EQ(of_vectors.n_groups(), 2);
  of_vectors.step();
}

// Between two steps; the earlier group goes on as it would without the other.
TEST(ParamGroups, BetweenSteps) {
  std::vector<Tensor> a = matrices(), b = matrices();
  AdamW alone({a[0]}, {.lr = 0.1}), grown({b[0]}, {.lr = 0.1});
  for (int step = 0; step < 6; ++step) {
    if (step == 3) grown.add_param_group({{b[1]}, {.lr = 0.5}});
    set_grads(a, step);
    set_grads(b, step);
    alone.step();
    grown.step();
  }
  EXPECT_TRUE(same_bits(a[0].detach(), b[0].detach()));
  EXPECT_FALSE(same_bits(a[1].detach(), b[1].detach()));
  EXPECT_EQ(grown.state_dict().at("state.1.step").item(), 3);
}

TEST(ParamGroups, WhatIsRefusedChangesNothing) {
  std::vector<Tensor> a = matrices();
  AdamW optimizer({a[0]}, {.lr = 0.1});
  const Tensor result = a[1] * 2.0;
  EXPECT_NE(error_of([&] {
              optimizer.add_param_group({{a[1], a[0]}, {.lr = 0.2}});
            }).find("is given twice"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              optimizer.add_param_group({{a[1], result}, {.lr = 0.2}});
            }).find("the result of an op"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              optimizer.add_param_group({{a[1]}, {.lr = -1}});
            }).find("must not be negative"),
            std::string::npos);
  EXPECT_EQ(optimizer.n_groups(), 1);
  optimizer.add_param_group({{a[1]}, {.lr = 0.3}});
  EXPECT_EQ(optimizer.n_groups(), 2);
  EXPECT_EQ(optimizer.lr(1), 0.3);
  set_grads(a, 0);
  optimizer.step();
  EXPECT_EQ(optimizer.state_dict().at("group.1.params").item(), 1);
}

TEST(ParamGroups, AScheduleForEach) {
  std::vector<Tensor> a = matrices();
  AdamW optimizer({{{a[0]}, {.lr = 0.1}}, {{a[1]}, {.lr = 0.2}}});
  const std::vector<Optimizer::Schedule> schedules = {Constant{.lr = 0.5}, Cosine{.lr = 1.0, .steps = 10}};
  optimizer.set_lr(schedules, 5);
  EXPECT_EQ(optimizer.lr(0), 0.5);
  EXPECT_EQ(optimizer.lr(1), schedules[1](5));
  EXPECT_NE(error_of([&] { optimizer.set_lr({Constant{}}, 0); }).find("1 schedules for 2 groups"), std::string::npos);
  EXPECT_EQ(error_of([&] {
              optimizer.set_lr({Constant{}, nullptr}, 0);
            }),
            "AdamW::set_lr: the schedule of group 1 is empty");
  EXPECT_NE(error_of([&] {
              optimizer.set_lr({Constant{.lr = 0.7}, [](int64_t) { return -1.0; }}, 3);
            }).find("the rate of group 1 at step 3"),
            std::string::npos);
  EXPECT_EQ(optimizer.lr(0), 0.5);
}

// Phases of no steps: no rate is ever NaN.
TEST(Schedules, PhasesWithoutSteps) {
  EXPECT_EQ(Cosine({.lr = 1.0, .min_lr = 0.25, .steps = 0})(0), 0.25);
  for (const bool three_phase : {false, true})
    for (const double pct_start : {0.0, 0.1, 0.5, 1.0})
      for (int64_t step = 0; step < 10; ++step) {
        const double rate = OneCycle{
            .max_lr = 1.0, .total_steps = 10, .pct_start = pct_start, .three_phase = three_phase}(step);
        EXPECT_TRUE(rate >= 0 && rate <= 1) << pct_start << " " << step << " " << rate;
      }
  EXPECT_EQ(OneCycle({.max_lr = 1.0, .total_steps = 10, .pct_start = 0.1})(0), 1.0);
}

}  // namespace
}  // namespace rondo::optim
