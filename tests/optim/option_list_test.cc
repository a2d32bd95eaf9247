// Every option of every optimizer is saved, restored and checked.
#include "rondo/optim/option_list.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "rondo/compile/jit/executable.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/optimizers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo::optim {
namespace {

using test::error_of;
using test::same_bits;

// ---- A list names every member

static_assert(option_detail::members_of<LionOptions>() == 6 && option_detail::members_of<MuonOptions>() == 11);
template <class Options>
concept CompilesWithThreeOfThem = requires {
  OptionList{Option{"lr", &Options::lr}, Option{"state", &Options::state}, Option{"masters", &Options::masters}};
};
struct ThreeOptions {
  double lr;
  StateFormat state;
  bool masters;
};
static_assert(CompilesWithThreeOfThem<ThreeOptions> && !CompilesWithThreeOfThem<LionOptions> &&
              !CompilesWithThreeOfThem<MuonOptions>);

// ---- Saving and restoring

using Made = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&)>;
template <class O, class Options> Made made(Options options) {
  return [options](const std::vector<Tensor>& params) { return std::make_unique<O>(params, options); };
}

// An optimizer with its defaults, and one whose options all differ, but for those that decide which states there are.
struct Pair {
  Made usual, other;
};
const std::map<std::string, Pair>& pairs() {
  static const std::map<std::string, Pair> all = {
      {"sgd",
       {made<SGD>(SGDOptions{.momentum = 0.9}),
        made<SGD>(SGDOptions{.lr = 0.2, .momentum = 0.8, .weight_decay = 0.1, .nesterov = true, .maximize = true})}},
      {"sgd_dampening",
       {made<SGD>(SGDOptions{.momentum = 0.9}), made<SGD>(SGDOptions{.momentum = 0.9, .dampening = 0.3})}},
      {"adam",
       {made<Adam>(AdamOptions{}),
        made<Adam>(AdamOptions{.lr = 0.2, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1, .maximize = true})}},
      {"adamw",
       {made<AdamW>(AdamWOptions{.amsgrad = true}),
        made<AdamW>(AdamWOptions{
            .lr = 0.2, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1, .amsgrad = true, .maximize = true})}},
      {"rmsprop",
       {made<RMSprop>(RMSpropOptions{.momentum = 0.9, .centered = true}),
        made<RMSprop>(RMSpropOptions{.lr = 0.2,
                                     .alpha = 0.9,
                                     .eps = 1e-3,
                                     .weight_decay = 0.1,
                                     .momentum = 0.5,
                                     .centered = true,
                                     .maximize = true})}},
      {"adagrad",
       {made<Adagrad>(AdagradOptions{}), made<Adagrad>(AdagradOptions{.lr = 0.2,
                                                                      .lr_decay = 0.1,
                                                                      .weight_decay = 0.1,
                                                                      .initial_accumulator_value = 0.5,
                                                                      .eps = 1e-3,
                                                                      .maximize = true})}},
      {"adafactor",
       {made<Adafactor>(AdafactorOptions{}), made<Adafactor>(AdafactorOptions{.lr = 0.2,
                                                                              .beta2_decay = -0.5,
                                                                              .eps1 = 1e-2,
                                                                              .eps2 = 1e-1,
                                                                              .d = 2,
                                                                              .weight_decay = 0.1,
                                                                              .maximize = true})}},
      {"lamb",
       {made<LAMB>(LAMBOptions{}),
        made<LAMB>(LAMBOptions{.lr = 0.2, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1})}},
      {"lion",
       {made<Lion>(LionOptions{}),
        made<Lion>(LionOptions{.lr = 0.2, .betas = {0.8, 0.95}, .weight_decay = 0.1, .maximize = true})}},
      {"muon",
       {made<Muon>(MuonOptions{}), made<Muon>(MuonOptions{.lr = 0.2,
                                                          .weight_decay = 0.3,
                                                          .momentum = 0.8,
                                                          .nesterov = false,
                                                          .ns_coefficients = {3, -4, 2},
                                                          .eps = 1e-2,
                                                          .ns_steps = 3,
                                                          .ns_dtype = kBF16,
                                                          .adjust_lr = MuonOptions::kMatchRmsAdamW})}},
  };
  return all;
}

nn::StateDict copy_of(const nn::StateDict& state) {
  nn::StateDict copy;
  for (const auto& [name, tensor] : state) copy[name] = tensor.clone();
  return copy;
}
void expect_same(const nn::StateDict& a, const nn::StateDict& b) {
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(b.contains(name) && same_bits(tensor, b.at(name))) << name;
}

// The second parameter gets its first gradient later: its state is new then.
struct Training {
  explicit Training(const Made& make) : optimizer(make(params)) {}
  void step(int number) {
    for (size_t i = 0; i < params.size(); ++i) {
      const Tensor values = Tensor::arange(6, {kF64}).reshape({2, 3}) * 0.1 - 0.2;
      params[i].set_grad(i == 1 && number < 2 ? Tensor() : values + 0.3 * static_cast<double>(number));
    }
    optimizer->step();
  }
  std::vector<Tensor> params = {Tensor::full({2, 3}, 0.7, {kF64}).requires_grad_(),
                                Tensor::full({2, 3}, 0.4, {kF64}).requires_grad_()};
  std::unique_ptr<Optimizer> optimizer;
};

// The options that a state dict has, without those that both optimizers have in common, differ.
void expect_saved_and_restored(const std::string& name, const Pair& pair, bool compiled) {
  SCOPED_TRACE(name + (compiled ? ", compiled" : ""));
  Training whole(pair.other), resumed(pair.usual);
  if (compiled)
    for (Training* run : {&whole, &resumed}) compile(*run->optimizer);
  resumed.step(0);  // with its own options
  for (int number = 0; number < 2; ++number) whole.step(number);
  const nn::StateDict saved = copy_of(whole.optimizer->state_dict());
  resumed.optimizer->load_state_dict(saved);
  expect_same(resumed.optimizer->state_dict(), saved);
  const NoGrad off;
  for (size_t i = 0; i < 2; ++i) resumed.params[i].copy_(whole.params[i]);
  for (int number = 2; number < 5; ++number)
    for (Training* run : {&whole, &resumed}) run->step(number);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(whole.params[i].detach(), resumed.params[i].detach())) << i;
  // The test sees each option: the usual optimizer would not have gone on so.
  Training usual(pair.usual);
  for (const auto& [key, value] : usual.optimizer->state_dict())
    if (name != "sgd_dampening" && key.starts_with("group.0.") && value.item() == saved.at(key).item()) {
      EXPECT_TRUE(key.ends_with("params") || key.ends_with("state") || key.ends_with("amsgrad") ||
                  key.ends_with("centered") || (name == "sgd" && key.ends_with("dampening")))
          << key;
    }
}

TEST(OptionLists, EveryOptionIsSavedAndRestored) {
  for (const auto& [name, pair] : pairs())
    for (const bool compiled : {false, true})
      if (!compiled || compile::jit_available()) expect_saved_and_restored(name, pair, compiled);
}

// Files of earlier versions.
TEST(OptionLists, FlagsThatAStateLacksStayTheOptimizersOwn) {
  for (const auto& [name, pair] : pairs()) {
    SCOPED_TRACE(name);
    Training run(pair.usual), other(pair.other);
    nn::StateDict old = copy_of(run.optimizer->state_dict());
    const nn::StateDict own = copy_of(other.optimizer->state_dict());
    for (const char* flag :
         {"maximize", "nesterov", "amsgrad", "centered", "state", "eps1", "ns_steps", "ns_dtype", "adjust_lr",
          "ns_coefficient1", "ns_coefficient2", "ns_coefficient3", "initial_accumulator_value"})
      old.erase("group.0." + std::string(flag));
    if (name == "muon") old.erase("group.0.eps");
    other.optimizer->load_state_dict(old);
    for (const auto& [key, value] : other.optimizer->state_dict())
      EXPECT_EQ(value.item(), old.contains(key) ? old.at(key).item() : own.at(key).item()) << key;
    // What every file has is missed.
    old.erase("group.0.lr");
    EXPECT_NE(error_of<nn::StateDictError>([&] { other.optimizer->load_state_dict(old); }).find("group.0.lr"),
              std::string::npos);
  }
}

TEST(OptionLists, ValuesThatAnOptionCannotHaveAreRefused) {
  struct Bad {
    const char *optimizer, *option;
    double value;
  };
  for (const Bad& bad : std::vector<Bad>{{"sgd", "lr", -1},
                                         {"sgd", "momentum", -0.5},
                                         {"sgd", "nesterov", 0.5},
                                         {"sgd", "maximize", 2},
                                         {"sgd_dampening", "nesterov", 1},
                                         {"adam", "lr", -1},
                                         {"adam", "eps", -1},
                                         {"adam", "beta1", 1.5},
                                         {"adam", "beta2", -0.1},
                                         {"adamw", "lr", -1},
                                         {"adamw", "eps", -1},
                                         {"adamw", "beta1", 1.5},
                                         {"adamw", "weight_decay", -1},
                                         {"rmsprop", "alpha", -1},
                                         {"rmsprop", "eps", -1},
                                         {"adagrad", "lr_decay", -1},
                                         {"adagrad", "initial_accumulator_value", -1},
                                         {"adafactor", "d", 0.5},
                                         {"adafactor", "beta2_decay", 1},
                                         {"adafactor", "eps1", -1},
                                         {"lamb", "beta2", 1.5},
                                         {"lamb", "eps", -1},
                                         {"lion", "beta1", 1},
                                         {"lion", "maximize", -1},
                                         {"muon", "eps", 0},
                                         {"muon", "ns_steps", -1},
                                         {"muon", "ns_steps", 2.5},
                                         {"muon", "ns_steps", 1e9},
                                         {"muon", "ns_steps", 1e300},
                                         {"muon", "ns_dtype", 4},
                                         {"muon", "adjust_lr", 2},
                                         {"muon", "nesterov", 3},
                                         {"muon", "state", 3}}) {
    SCOPED_TRACE(std::string(bad.optimizer) + " " + bad.option + " " + std::to_string(bad.value));
    Training run(pairs().at(bad.optimizer).other), source(pairs().at(bad.optimizer).other);
    for (int number = 0; number < 2; ++number) run.step(number), source.step(number + 1);
    const nn::StateDict before = copy_of(run.optimizer->state_dict());
    nn::StateDict state = copy_of(source.optimizer->state_dict());
    state["group.0." + std::string(bad.option)] = Tensor::full({}, bad.value, {kF64});
    EXPECT_NE(error_of<nn::StateDictError>([&] { run.optimizer->load_state_dict(state); }).find("group.0"),
              std::string::npos);
    expect_same(run.optimizer->state_dict(), before);
  }
}

// These options decide which states there are. PyTorch would go on with the wrong ones.
TEST(OptionLists, OptionsThatDecideTheStatesMustBeEqual) {
  struct Case {
    const char* option;
    Made one, other;
  };
  for (const Case& c :
       {Case{"group.0.amsgrad", made<Adam>(AdamOptions{}), made<Adam>(AdamOptions{.amsgrad = true})},
        Case{"group.0.amsgrad", made<AdamW>(AdamWOptions{}), made<AdamW>(AdamWOptions{.amsgrad = true})},
        Case{"group.0.momentum", made<SGD>(SGDOptions{}), made<SGD>(SGDOptions{.momentum = 0.9})},
        Case{"group.0.centered", made<RMSprop>(RMSpropOptions{}), made<RMSprop>(RMSpropOptions{.centered = true})},
        Case{"group.0.momentum", made<RMSprop>(RMSpropOptions{}), made<RMSprop>(RMSpropOptions{.momentum = 0.9})}})
    for (const bool swapped : {false, true})
      for (const int steps : {0, 2}) {
        SCOPED_TRACE(c.option);
        Training from(swapped ? c.other : c.one), to(swapped ? c.one : c.other);
        for (int number = 0; number < steps; ++number) from.step(number);
        const nn::StateDict before = copy_of(to.optimizer->state_dict());
        EXPECT_NE(error_of<nn::StateDictError>([&] {
                    to.optimizer->load_state_dict(from.optimizer->state_dict());
                  }).find(c.option),
                  std::string::npos);
        expect_same(to.optimizer->state_dict(), before);
      }
  // The format of states, of f32 parameters.
  std::vector<Tensor> params = {Tensor::ones({4}).requires_grad_()};
  Lion full(params), half(params, {.state = StateFormat::kBF16});
  EXPECT_NE(error_of<nn::StateDictError>([&] { full.load_state_dict(half.state_dict()); }).find("group.0.state"),
            std::string::npos);
}

TEST(OptionLists, TheOptionsOfAveragesAreRestored) {
  Training whole(pairs().at("adamw").usual), resumed(pairs().at("adamw").usual);
  whole.optimizer->track_average({.decay = 0.6, .warmup = true});
  resumed.optimizer->track_average({.decay = 0.9});
  for (int number = 0; number < 2; ++number) whole.step(number);
  const nn::StateDict saved = copy_of(whole.optimizer->state_dict());
  EXPECT_EQ(saved.at("average.decay").item(), 0.6);
  EXPECT_EQ(saved.at("average.warmup").item(), 1);
  resumed.optimizer->load_state_dict(saved);
  const NoGrad off;
  for (size_t i = 0; i < 2; ++i) resumed.params[i].copy_(whole.params[i]);
  for (int number = 2; number < 8; ++number)
    for (Training* run : {&whole, &resumed}) run->step(number);
  for (size_t i = 0; i < 2; ++i)
    EXPECT_TRUE(same_bits(whole.optimizer->averages()[i], resumed.optimizer->averages()[i])) << i;
  const nn::StateDict before = copy_of(resumed.optimizer->state_dict());
  for (const auto& [key, value] :
       std::map<std::string, double>{{"average.decay", 1.5}, {"average.decay", -0.1}, {"average.warmup", 0.5}}) {
    nn::StateDict bad = saved;
    bad[key] = Tensor::full({}, value, {kF64});
    EXPECT_NE(error_of<nn::StateDictError>([&] { resumed.optimizer->load_state_dict(bad); }).find(key),
              std::string::npos);
  }
  expect_same(resumed.optimizer->state_dict(), before);
  // Files of earlier versions: its own stay.
  nn::StateDict old = saved;
  old.erase("average.decay");
  old.erase("average.warmup");
  Training later(pairs().at("adamw").usual);
  later.optimizer->track_average({.decay = 0.9});
  later.optimizer->load_state_dict(old);
  EXPECT_EQ(later.optimizer->state_dict().at("average.decay").item(), 0.9);
}

}  // namespace
}  // namespace rondo::optim
