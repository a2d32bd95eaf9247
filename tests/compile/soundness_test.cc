// What may change between two calls of a compiled block: every such change is seen, and none costs more compilations
// than there are different programs. Compiled against eager, in every bit, with freed memory poisoned.
#include <gtest/gtest.h>

#include <thread>

#include "rondo/runtime/op/recorder.h"
#include "rondo/tests/compile/block_fixture.h"

namespace rondo {
namespace {

using namespace test;

class Soundness : public BlockTest {};

void append(Tensors& all, const Tensors& more) { all.insert(all.end(), more.begin(), more.end()); }
Tensors copies_of_gradients(nn::ModuleBase& model) {
  Tensors grads;
  for (const Tensor& p : model.parameters()) grads.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
  return grads;
}
void expect_same(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
}

// ---- What arrives from outside

// Products may sum in another order for another layout, and a region receives dense gradients.
TEST_F(Soundness, AGradientWithGapsReachesAProduct) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{64, 1}, {1000, 2}, {1000, 33}, {3, 1}})
    for (const bool linear : {true, false}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << columns << (linear ? " linear" : " matmul"));
      Tensor weight = Tensor::randn({columns, 5}).requires_grad_();
      const auto body = [&](Block&, const Tensor& x) {
        return Tensors{linear ? ops::linear(x, weight, Tensor()) : ops::matmul(x, weight.t())};
      };
      expect_as_eager(body, [&](Block& b) {
        const Tensor x = input({rows, 5}), beside = Tensor::randn({rows, 7});
        weight.set_grad({});
        const Tensor y = ops::cat({b(x)[0], beside}, 1);
        ops::sum(y * Tensor::randn(y.sizes())).backward();
        return Tensors{x.grad(), weight.grad()};
      });
    }
}

// An embedding adds its rows to the gradient so far and leaves the others as they are: a zero keeps its sign.
TEST_F(Soundness, AnEmbeddingAddsToWhatCameFromOutside) {
  const Tensor rows = Tensor::from(std::vector<int64_t>{1, 3}, {2});
  Tensor table = Tensor::randn({6, 6}).requires_grad_();
  const Block::Body body = [&](Block&, const Tensor& x) { return Tensors{ops::embedding(table, rows) * x}; };
  expect_as_eager(body, [&](Block& b) {
    Tensors all;
    table.set_grad({});
    for (int step = 0; step < 2; ++step) {  // the second adds to .grad
      const Tensor y = b(input({2, 6}))[0];
      (ops::sum(y) + ops::sum(table * -0.0)).backward();
      all.push_back(table.grad().clone());
    }
    return all;
  });
}

// ---- One block, called again

TEST_F(Soundness, AnIfOnAStepCounter) {
  const auto body = [](Block& b, const Tensor& x) {
    const int64_t step = b.state.step++;
    Tensor h = mlp(b, x);
    if (step % 3 == 0) h = h * 2.0;
    if (step >= 4) h = ops::dropout(h, 0.5);
    return Tensors{h};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 12; ++i) append(all, one_step(b));
    return all;
  });
  EXPECT_EQ(report.entries, 4);  // two conditions
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

TEST_F(Soundness, AnOutsideTensorIsReboundOrOverwritten) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{x * b.state.kept[0] + b.bias}; };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 3; ++i) {
      b.state.kept = {Tensor::randn({4, 6})};
      append(all, one_step(b));
      b.state.kept[0].fill_(i);
      append(all, one_step(b));
      b.state.kept[0] = b.state.kept[0].t().clone().t();  // other strides
      append(all, one_step(b));
      b.state.kept[0] = Tensor::randn({6});  // another shape
      append(all, one_step(b));
      b.state.kept[0] = Tensor::randn({4, 1}).requires_grad_();  // one with a gradient
      append(all, one_step(b));
      all.push_back(b.state.kept[0].grad());
      b.state.kept[0] = Tensor::randn({1}, {kF64}).requires_grad_();
      append(all, one_step(b));
      all.push_back(b.state.kept[0].grad());
    }
    return all;
  });
  EXPECT_EQ(report.entries, 5);
}

TEST_F(Soundness, HyperParametersChangeWithoutNewCode) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{ops::leaky_relu(b.norm(x) * (0.5 + static_cast<double>(b.state.step)),
                                   0.01 * static_cast<double>(b.state.step))};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 6; ++i) {
      b.state.step = i % 4;
      b.norm.eps = i < 3 ? 1e-5 : 0.5;
      append(all, one_step(b));
    }
    return all;
  });
  EXPECT_LE(report.compilations, 2);  // the first step's, and that of the backward that adds to .grad
}

TEST_F(Soundness, TrainEvalGradModeAndAutocastFlip) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{b.dropout(mlp(b, x)) + ops::matmul(x, b.weight)}; };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 16; ++i) {
      b.train((i & 1) != 0);
      std::optional<amp::Autocast> lower;
      if ((i & 2) != 0) lower.emplace(i < 8 ? kBF16 : kF16);
      if ((i & 4) != 0) append(all, no_grad([&] { return b(input()); }));
      else append(all, one_step(b));
    }
    all.push_back(Tensor::rand({3}));
    return all;
  });
  EXPECT_EQ(report.entries, 12);
}

TEST_F(Soundness, TheModelChangesItsDtype) {
  expect_as_eager(plain_body, [](Block& b) {
    Tensors all;
    for (DType dtype : {kF32, kBF16, kF64, kF32}) {
      b.to(dtype);
      b.zero_grad();
      append(all, train_step(b, Tensor::randn({4, 6}, {dtype}).requires_grad_()));
      append(all, copies_of_gradients(b));
    }
    return all;
  });
  EXPECT_EQ(report.entries, 3);
}

TEST_F(Soundness, ParametersAreTiedUntiedAndLoaded) {
  const auto body = [](Block& b, const Tensor& x) {
    return Tensors{ops::matmul(ops::matmul(x, b.weight), b.state.kept[0]) + b.bias * b.state.kept[1]};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 4; ++i) {
      Tensor other = Tensor::randn({6, 6}).requires_grad_();
      b.state.kept = {i % 2 == 0 ? b.weight : other, i < 2 ? b.bias : b.weight[0]};
      append(all, one_step(b));
      all.push_back(other.grad());
      append(all, copies_of_gradients(b));
      nn::StateDict state;
      for (const nn::NamedTensor& p : b.named_parameters()) state[p.name] = Tensor::randn(p.tensor.sizes());
      b.load_state_dict(state);
    }
    return all;
  });
  EXPECT_EQ(report.entries, 4);
}

TEST_F(Soundness, HooksComeAndGo) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = mlp(b, x);
    if (b.state.step % 2 == 1) {
      Tensor watched = h;
      watched.register_hook([&b](const Tensor& g) { return ++b.state.hook_calls, g * 3.0; });
    }
    return Tensors{h * h + x};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    int64_t id = -1;
    for (int i = 0; i < 6; ++i) {
      b.state.step = i;
      if (i == 2) id = b.weight.register_hook([](const Tensor& g) { return g * 0.5; });
      if (i == 4) b.weight.remove_hook(id);
      Tensor x = input();
      x.register_hook([i](const Tensor& g) { return g + i; });
      append(all, train_step(b, x));
      append(all, copies_of_gradients(b));
      if (i != 3) b.zero_grad();  // and accumulate once
    }
    EXPECT_EQ(b.state.hook_calls, 3);
    return all;
  });
}

TEST_F(Soundness, AHookThatThrows) {
  expect_as_eager(plain_body, [](Block& b) {
    Tensor x = input();
    const int64_t id = x.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("in a hook"); });
    const Tensor y = b(x)[0];
    EXPECT_THROW(ops::sum(y).backward(), std::runtime_error);
    x.remove_hook(id);
    b.zero_grad();
    x.zero_grad();
    return train_step(b, x);
  });
}

// ---- Memory that is shared

TEST_F(Soundness, OverlappingInputs) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor other = b.state.kept[0];
    const Tensor before = x * other;
    if (b.state.step > 0) other.mul_(2.0);  // changes most of x, too
    const Tensor after = x * other;
    if (b.state.step > 1) Tensor(x).add_(before);
    return Tensors{before, after, x + other * b.bias};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int64_t step = 0; step < 3; ++step) {
      b.state.step = step;
      for (int64_t distance : {0, 1, 6, 3}) {
        const Tensor memory = Tensor::randn({40});
        const auto view = [&](int64_t offset) {
          return Tensor::from_storage(memory.storage(), offset, {4, 6}, {6, 1}, kF32);
        };
        b.state.kept = {view(distance)};
        append(all, train_step(b, view(2)));
        all.push_back(memory);
      }
    }
    return all;
  });
}

TEST_F(Soundness, OverlappingLeavesKeepTheirGradientsApart) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{ops::exp(x * 0.5) * b.state.kept[0] + b.bias}; };
  expect_as_eager(body, [](Block& b) {
    const Tensor memory = Tensor::randn({5, 6});
    Tensor x = memory.slice(0, {0, 4}), y = memory.slice(0, {1, 5});
    x.requires_grad_();
    y.requires_grad_();
    b.state.kept = {y};
    Tensors all = train_step(b, x);
    all.push_back(y.grad());
    b.state.kept = {x};
    append(all, train_step(b, x));
    return all;
  });
}

// What a block returns is the caller's: writing to it changes what it changes in eager, and no later call.
TEST_F(Soundness, WhatIsReturnedIsTheCallers) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x * 2.0, again = x * 2.0, mean = ops::mean(h);
    return Tensors{
        h, again, h.t(), h[0], again.expand({2, 4, 6}), x.slice(0, {1, 3}), b.bias, mean, Tensor::zeros({3})};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor x = Tensor::randn({4, 6});
    Tensors all;
    for (int i = 0; i < 3; ++i) {
      Tensors y = no_grad([&] { return b(x); });
      no_grad([&] {
        y[0].add_(1.0);
        y[3].fill_(7);
        y[1].slice(1, {0, 6, 2}).mul_(-1.0);
        y[5].mul_(1.5);
        y[6].add_(0.25);
        y[8].fill_(i);
      });
      for (const Tensor& t : y) all.push_back(t.clone());
      all.push_back(x.clone());
    }
    return all;
  });
  EXPECT_EQ(report.entries, 1);
}

// ---- Exceptions

TEST_F(Soundness, AnExceptionInEveryPlace) {
  const auto body = [](Block& b, const Tensor& x) {
    const auto maybe_throw = [&](int64_t place) {
      if (b.state.step == place) throw std::runtime_error("half way");
    };
    b.state.kept.clear();
    maybe_throw(0);
    Tensor h = mlp(b, x);
    b.state.kept.push_back(h);
    maybe_throw(1);
    h.mul_(2.0);
    maybe_throw(2);
    const Tensor top = ops::sum(h);
    b.state.kept.push_back(top);
    if (top.item() < 1e9) maybe_throw(3);
    const Tensor free = no_grad([&] {
      maybe_throw(4);
      return b.dropout(h);
    });
    if (b.state.step == 5) ops::matmul(free, Tensor::zeros({5, 5}));
    return Tensors{free * x, top};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int64_t place : {9, 0, 1, 2, 3, 4, 5, 9, 2, 9}) {
      b.state.step = place;
      const Tensor x = input();
      if (place == 9) {
        append(all, train_step(b, x));
      } else {
        EXPECT_ANY_THROW(b(x));
        EXPECT_TRUE(grad_enabled());
        EXPECT_EQ(active_recorder(), nullptr);
        for (const Tensor& kept : b.state.kept) {
          all.push_back(kept.clone());
          ops::sum(kept).backward({}, true);
        }
        all.push_back(x.grad());
      }
      all.push_back(Tensor::rand({1}));
    }
    return all;
  });
}

// Bad data is an error in both; the compiled block says so at its end, and works afterwards.
TEST_F(Soundness, ABadIndexInside) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{ops::embedding(b.weight, b.state.kept[0]) * x[0]}; };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int64_t index : {5, 6, -1, 0}) {
      b.state.kept = {Tensor::from<int64_t>({1, index}, {2})};
      const Tensor x = input();
      if (index >= 0 && index < 6) append(all, train_step(b, x));
      else EXPECT_THROW(b(x), Error) << index;
    }
    return all;
  });
  EXPECT_EQ(report.entries, 1);
}

// ---- Many layers

// Constants of a layer: a window's size is another program, a factor is not.
struct Layer : nn::Module<Layer> {
  Layer(int64_t width, int64_t window, double factor) : width(width), window(window), factor(factor) {}
  int64_t width, window;
  double factor;
  nn::Linear in = child("in", width, width);
  Tensor forward(const Tensor& x) {
    const Tensor h = (ops::gelu(in(x)) * factor).to(x.dtype());
    return x + ops::cat(Tensors{ops::softmax(h.slice(1, {0, window})), h.slice(1, {window})}, 1);
  }
};

TEST_F(Soundness, ConstantsOfLayers) {
  const auto run = [](bool compiled) {
    manual_seed(3);
    nn::ModuleList<Layer> list(12, 8, 2, 0.5);
    for (int64_t i = 0; i < 12; ++i) {
      list[i].window = i % 2 == 0 ? 2 : 5;  // local and wide layers in turn
      list[i].factor = 0.1 * static_cast<double>(i);
    }
    std::optional<compile::Regions> regions;
    if (compiled) regions = compile::compile_regions(list, {.exact = true});
    Tensors all;
    for (int step = 0; step < 2; ++step) {
      Tensor y = input({3, 8});
      for (int64_t i = 0; i < 12; ++i) y = list[i](y);
      ops::sum(y * y).backward();
      all.push_back(y.detach());
      append(all, copies_of_gradients(list));
    }
    if (compiled) {
      const compile::RegionReport report = regions->report()[0];
      EXPECT_EQ(report.layers, 12);
      EXPECT_LE(report.compilations - report.other_backwards, 2) << regions->summary();  // one a window
      EXPECT_LE(report.compilations, 4) << regions->summary();  // and, where gradients accumulate, its backward
      EXPECT_EQ(report.graph_breaks, 0) << regions->summary();
    }
    return all;
  };
  expect_same(run(false), run(true));
}

// Frozen layers in one model: a compilation for each pattern of frozen parameters, not for each layer.
TEST_F(Soundness, FrozenLayers) {
  const auto run = [](bool compiled) {
    manual_seed(3);
    nn::ModuleList<Layer> list(9, 8, 4, 0.5);
    for (int64_t i = 0; i < 9; ++i) {
      if (i < 3) list[i].requires_grad_(false);
      else if (i < 6) list[i].in.bias.requires_grad_(false);
    }
    std::optional<compile::Regions> regions;
    if (compiled) regions = compile::compile_regions(list, {.exact = true});
    Tensor y = Tensor::randn({3, 8});
    for (int64_t i = 0; i < 9; ++i) y = list[i](y);
    ops::sum(y * y).backward();
    Tensors all = copies_of_gradients(list);
    all.push_back(y.detach());
    if (compiled) {
      EXPECT_LE(regions->report()[0].entries, 4) << regions->summary();  // the first trained layer sends nothing on
    }
    return all;
  };
  expect_same(run(false), run(true));
}

// ---- Threads

// One model, called by several threads at once: without gradients, each with shapes and modes of its own.
TEST_F(Soundness, InferenceFromSeveralThreads) {
  manual_seed(3);
  nn::ModuleList<Layer> list(4, 8, 4, 0.5);
  const auto call = [&](const Tensor& x) {
    NoGrad off;
    Tensor y = x;
    for (Layer& layer : list) y = layer(y);
    return y;
  };
  std::vector<Tensor> inputs;
  for (int64_t rows = 1; rows <= 24; ++rows) inputs.push_back(Tensor::randn({rows % 7 + 1, 8}));
  Tensors expected, results(inputs.size());
  for (const Tensor& x : inputs) expected.push_back(call(x));
  const compile::Regions regions = compile::compile_regions(list, {.exact = true, .max_entries = 3});
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int again = 0; again < 5; ++again)
        for (size_t i = t; i < inputs.size(); i += 4) results[i] = call(inputs[i]);
    });
  for (std::thread& thread : threads) thread.join();
  expect_same(expected, results);
  EXPECT_EQ(regions.report()[0].calls, 4 * 5 * 24);
}

// Models of one class, each trained by a thread of its own, under a mode of its own; their kernels are shared.
TEST_F(Soundness, TrainingInSeveralThreads) {
  const auto run = [](bool compiled) {
    manual_seed(3);
    std::vector<std::unique_ptr<nn::ModuleList<Layer>>> models;
    std::vector<Tensor> data;
    for (int i = 0; i < 4; ++i) {
      models.push_back(std::make_unique<nn::ModuleList<Layer>>(2, 8, 2 + i % 2, 0.5));
      if (compiled) compile::compile_regions(*models.back(), {.exact = true});
      data.push_back(Tensor::randn({5, 8}));
    }
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        std::optional<amp::Autocast> lower;
        if (t % 2 == 1) lower.emplace(kBF16);
        for (int64_t step = 1; step <= 5; ++step) {
          Tensor y = data[t].slice(0, {0, step});
          for (Layer& layer : *models[t]) y = layer(y);
          ops::sum(y * y).backward();
        }
      });
    for (std::thread& thread : threads) thread.join();
    Tensors all;
    for (const auto& model : models) append(all, copies_of_gradients(*model));
    return all;
  };
  expect_same(run(false), run(true));
}

}  // namespace
}  // namespace rondo
