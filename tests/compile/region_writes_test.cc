// Side effects inside a region that no op describes: host writes, backward(), steps of an optimizer. Each is a graph
// break, so that what is recorded before it runs before it.
#include <gtest/gtest.h>

#include <cmath>

#include "rondo/modules/module.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/foreach_map.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;

// `call` throws an Error whose message has `part`.
#define EXPECT_ERROR(call, part)                                            \
  do {                                                                      \
    const std::string message = error_of([&] { static_cast<void>(call); }); \
    EXPECT_NE(message.find(part), message.npos) << "\"" << message << "\""; \
  } while (false)

class RegionWrites : public BlockTest {
 protected:
  // `write` changes b.state.kept[0] while an op that reads it is pending.
  void expect_break(const std::function<void(Block&)>& write, int64_t breaks = 1) {
    const auto body = [&](Block& b, const Tensor& x) {
      const Tensor before = x + b.state.kept[0];
      write(b);
      return Tensors{before, x * b.state.kept[0]};
    };
    expect_as_eager(body, [](Block& b) {
      b.state.kept = {Tensor::randn({4, 6})};
      Tensors all;
      for (int i = 0; i < 3; ++i)
        for (Tensor& t : one_step(b)) all.push_back(t);
      all.push_back(b.state.kept[0]);
      return all;
    });
    EXPECT_EQ(report.graph_breaks, 3 * breaks) << report.last_break;
  }
};

TEST_F(RegionWrites, ThroughTheTensor) {
  expect_break([](Block& b) { b.state.kept[0].mutable_data<float>()[0] += 100; });
  EXPECT_NE(report.last_break.find("region_writes_test.cc"), std::string::npos) << report.last_break;
}
TEST_F(RegionWrites, ThroughARawPointer) {
  expect_break([](Block& b) { static_cast<float*>(b.state.kept[0].raw_mutable_data())[3] = 7; });
}
TEST_F(RegionWrites, ThroughACopyOfTheHandle) {
  expect_break([](Block& b) {
    Tensor copy = b.state.kept[0];
    copy.mutable_data<float>()[1] -= 5;
  });
}
TEST_F(RegionWrites, ThroughAViewMadeBefore) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor before = x + b.state.kept[0];
    b.state.kept[1].mutable_data<float>()[0] = 9;
    return Tensors{before, x * b.state.kept[0]};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor whole = Tensor::randn({4, 6});
    b.state.kept = {whole, whole[2]};
    return one_step(b);
  });
  EXPECT_EQ(report.graph_breaks, 1);
}
TEST_F(RegionWrites, ThroughAViewMadeInside) {
  expect_break([](Block& b) {
    Tensor row = b.state.kept[0][1];
    row.mutable_data<float>()[2] = -3;
  });
}
// A write through a view of a view makes a new version of the whole; the view between them has not looked at it when
// the next write to it is a graph break.
TEST_F(RegionWrites, ThroughAViewOfAnOlderVersion) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x * b.bias;
    Tensor flat = h.view({24});
    flat.view({4, 6}).add_(1.0);
    no_grad([&] { flat.add_(3.0); });
    return Tensors{h.slice(0, {0, 2})};
  };
  expect_as_eager(body, one_step);
  EXPECT_EQ(report.graph_breaks, 1) << report.last_break;
}
// A view that is made inside, of a view from outside: it follows the outside view's base.
TEST_F(RegionWrites, ThroughAnOutsideViewWhoseViewIsReadAgain) {
  const auto body = [](Block& b, const Tensor& x) {
    no_grad([&] { b.state.kept[0].copy_(x); });
    const Tensor row = b.state.kept[0][1];
    b.state.kept[0].mul_(x);  // with a gradient: a graph break
    return Tensors{row * 2.0};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::randn({6, 6}).slice(0, {1, 5})};
    Tensors all = one_step(b);
    EXPECT_TRUE(all.back().defined());
    all.push_back(b.state.kept[0].detach());
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 1) << report.last_break;
}
// A view is read again after its base, and after a write through a sibling: three gradients meet at the base, and their
// sum has eager's order.
TEST_F(RegionWrites, ThroughASiblingOfAViewThatIsReadAgain) {
  const std::vector<std::function<void(Tensors&)>> writes = {
      [](Tensors& p) { p[1].mul_(3.0); },
      [](Tensors& p) { p[0].add_(p[2]); },
      [](Tensors& p) { p[1].mul_(3.0), p[0].add_(p[2]); },
  };
  for (const auto& write : writes) {
    const auto body = [&](Block&, const Tensor& x) {
      const Tensor h = x * 2.0;
      Tensors p = ops::split(h, 2, 1);
      write(p);
      return Tensors{h * h, p[2] * 1.5, p[1] * p[2], ops::tanh(h)};
    };
    expect_as_eager(body, [](Block& b) {
      Tensors all;
      for (int i = 0; i < 20; ++i)
        for (Tensor& t : train_step(b, input())) all.push_back(t);
      return all;
    });
  }
}
// A pending write ends the history of a view, and a hook belongs to the one after it.
TEST_F(RegionWrites, BeforeAHookOfAViewThatIsReadAgain) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x * 2.0;
    Tensor part = h.t();
    no_grad([&] { part.copy_(Tensor::ones({1})); });  // a graph break: h keeps its history
    no_grad([&] { h.sub_(4.0); });                    // recorded
    part.register_hook([&b](const Tensor& g) { return ++b.state.hook_calls, g * 0.5; });
    return Tensors{part};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all = one_step(b);
    EXPECT_EQ(b.state.hook_calls, 1);
    return all;
  });
}
// Note [Stale views]: nothing has read the view since the write, so its gradient comes to the base after those of
// later calls, or before them, as eager execution has it.
TEST_F(RegionWrites, AViewLeavesWithItsBase) {
  const auto body = [](Block&, const Tensor& x) {
    const Tensor h = x * 2.0, turned = h.t();
    Tensor row = h[1];
    row.copy_(ops::sigmoid(row.clone()));
    return Tensors{h, turned, row};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 20; ++i) {
      const Tensor x = input();
      Tensors roots, seeds;
      for (int call = 0; call < 3; ++call)
        for (Tensor& y : b(call == 0 ? x : roots[roots.size() - 3])) roots.push_back(y);
      for (const Tensor& y : roots) seeds.push_back(Tensor::randn(y.sizes()));
      EXPECT_FALSE(roots[1].is_leaf());
      autograd::backward(roots, seeds, false, false, std::source_location::current());
      all.push_back(x.grad());
    }
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}
// A view belongs to its base's new history as soon as that is written, although nothing has read it since.
TEST_F(RegionWrites, ThroughASiblingOfAViewThatLeaves) {
  const auto body = [](Block& b, const Tensor&) {
    const Tensor whole = b.state.kept[0] * 2.0, part = whole.slice(0, {1, 3}), flat = whole.view({-1});
    flat.view({4, 6}).mul_(b.bias);
    return Tensors{part, whole};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::randn({4, 6})};
    const Tensors out = b(input());
    EXPECT_TRUE(out[0].requires_grad());
    EXPECT_FALSE(out[0].is_leaf());
    ops::sum(out[0]).backward();
    return out;
  });
}
TEST_F(RegionWrites, ThroughAnotherTensorOfTheStorage) {
  expect_break([](Block& b) {
    const Tensor& t = b.state.kept[0];
    Tensor other = Tensor::from_storage(t.storage(), 4, {2}, {1}, kF32);
    other.mutable_data<float>()[0] = 11;
  });
}
TEST_F(RegionWrites, OfAParameterUnderNoGrad) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor before = x * b.bias;
    b.bias.mutable_data<float>()[0] = 2;
    return Tensors{before.detach(), x.detach() * b.bias};
  };
  expect_as_eager(body, [](Block& b) { return Tensors{b(input())}; });
  EXPECT_EQ(report.graph_breaks, 1);
}
// What no pending op reads may be written without a break: a tensor that is made inside, or one that is read later.
TEST_F(RegionWrites, OfWhatNothingReadsIsNoBreak) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = x * b.bias, made = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f}, {6});
    b.state.kept[0].mutable_data<float>()[0] += 1;
    return Tensors{h * made + b.state.kept[0]};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::randn({4, 6})};
    Tensors all = one_step(b);
    for (Tensor& t : one_step(b)) all.push_back(t);
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}
// A replay would leave the write out.
TEST_F(RegionWrites, AreNotReplayed) {
  struct Counting : nn::Module<Counting> {
    Tensor& count = buffer("count", Tensor::zeros({1}));
    Tensor& weight = parameter("weight", Tensor::ones({6}));
    Tensor forward(const Tensor& x) {
      count.mutable_data<float>()[0] += 1;
      return x * weight;
    }
  };
  Counting model;
  compile::compile_module(model, {.capture = compile::Capture::kReplay});
  for (int i = 0; i < 3; ++i) model(Tensor::ones({6}));
  EXPECT_EQ(model.count.item(), 3);
}
TEST_F(RegionWrites, AreErrorsWithFullgraph) {
  Block block([](Block& b, const Tensor& x) {
    const Tensor y = x + b.state.kept[0];
    if (b.state.step++ == 1) b.state.kept[0].mutable_data<float>()[0] = 1;
    return Tensors{y};
  });
  block.state.kept = {Tensor::zeros({4, 6})};
  const auto regions = compile::compile_module(block, {.fullgraph = true});
  block(input());
  EXPECT_ERROR(block(input()), "region_writes_test.cc");
  EXPECT_EQ(block.state.kept[0].to_vector<float>()[0], 0);
  block(input());  // as compiled before
  EXPECT_EQ(regions.report()[0].entries, 1);
}
TEST_F(RegionWrites, AModuleChangesItsDtype) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor before = x * b.norm.weight.detach();
    no_grad([&] { b.norm.to(kF64); });
    const Tensor after = x.to(kF64) * b.norm.weight.detach();
    no_grad([&] { b.norm.to(kF32); });
    return Tensors{before, after};
  };
  expect_as_eager(body, one_step);
}
TEST_F(RegionWrites, AnOptimizerSteps) {
  std::unique_ptr<optim::AdamW> made;
  const auto body = [&made](Block& b, const Tensor& x) {
    auto& optimizer = b.state.step == 0
                          ? (made = std::make_unique<optim::AdamW>(b.parameters(), optim::AdamWOptions{.lr = 0.1}))
                          : made;
    ++b.state.step;
    const Tensor before = mlp(b, x).detach();
    b.bias.set_grad(Tensor::ones({6}));
    b.weight.set_grad(before.slice(0, {0, 1}).expand({6, 6}).clone());
    optim::clip_grad_norm_(b.parameters(), 0.5);
    optimizer->step();
    const Tensor after = mlp(b, x).detach();
    optimizer->zero_grad();
    return Tensors{before, after};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 3; ++i)
      for (Tensor& t : b(input())) all.push_back(t);
    return all;
  });
  EXPECT_GT(report.graph_breaks, 0);
}
TEST_F(RegionWrites, AForeachMap) {
  expect_break([](Block& b) {
    const std::vector<Tensor> list{b.state.kept[0]};
    optim::foreach_map([](auto& a) { a = a * a; }, list);
  });
}

// ---- backward() and grad() inside

TEST_F(RegionWrites, BackwardInside) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor y = mlp(b, x), loss = ops::sum(y * y);
    loss.backward(Tensor(), /*retain_graph=*/true);
    return Tensors{y + b.bias.grad(), x.grad() * 2.0};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 3; ++i)
      for (Tensor& t : one_step(b)) all.push_back(t);
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 3);
  EXPECT_NE(report.last_break.find("backward"), std::string::npos) << report.last_break;
  EXPECT_NE(report.last_break.find("region_writes_test.cc"), std::string::npos) << report.last_break;
}
TEST_F(RegionWrites, BackwardOfATensorMadeBeforeTheRegion) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor y = x * b.bias;
    b.state.kept[0].backward();
    return Tensors{y * b.bias.grad()};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {ops::sum(b.bias * 3.0)};
    return one_step(b);
  });
}
TEST_F(RegionWrites, GradInside) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients of outputs inside the region");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor y = mlp(b, x), loss = ops::sum(y * y);
    const Tensor roots[] = {loss}, inputs[] = {x, b.weight, y};
    const std::vector<Tensor> grads = autograd::grad(roots, inputs, {}, /*retain_graph=*/true);
    return Tensors{y, grads[0] * x, grads[1] + b.weight, grads[2]};
  };
  expect_as_eager(body, one_step);
  EXPECT_EQ(report.graph_breaks, 1);
}
TEST_F(RegionWrites, GradOfAGradientInside) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients with a history");
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor loss = ops::sum(ops::tanh(ops::matmul(x, b.weight)));
    const Tensor roots[] = {loss}, inputs[] = {x};
    const Tensor g = autograd::grad(roots, inputs, {}, true, /*create_graph=*/true)[0];
    return Tensors{ops::sum(g * g) + loss};
  };
  expect_as_eager(body, one_step);
}
// What autograd::grad() watches inside a region, it watches once: its tape of second order lives on.
TEST_F(RegionWrites, GradOfAnInnerOutputThatIsDifferentiatedAgain) {
  const MeansToRun eagerly(Eagerly::kBackward, "gradients with a history");
  const auto use = [](Block& b) {
    const Tensor x = input();
    const Tensors y = b(x);
    const Tensor roots[] = {ops::sum(y[1] * y[1])}, inputs[] = {y[0]};
    const Tensor g = autograd::grad(roots, inputs, {}, true, /*create_graph=*/true)[0], before = g.detach().clone();
    ops::sum(g * g).backward();
    return Tensors{before, g.detach(), x.grad()};
  };
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::tanh(x * b.bias);
    return Tensors{h, ops::exp(h) * x};
  };
  expect_as_eager(body, use);
}
TEST_F(RegionWrites, BackwardInsideANestedRegion) {
  struct Inner : nn::Module<Inner> {
    Tensor& weight = parameter("weight", Tensor::full({6}, 0.7));
    Tensor forward(const Tensor& x) {
      const Tensor y = ops::tanh(x * weight);
      ops::sum(y * y).backward(Tensor(), true);
      return y * weight.grad();
    }
  };
  struct Outer : nn::Module<Outer> {
    Inner inner = child("inner");
    Tensor forward(const Tensor& x) { return inner(x * 2.0) + x; }
  };
  Outer eager, compiled;
  compile::compile_module(compiled, {.exact = true});
  compile::compile_module(compiled.inner, {.exact = true});
  manual_seed(3);
  const Tensor a = input(), b = a.detach().requires_grad_();
  const Tensor ya = eager(a), yb = compiled(b);
  ops::sum(ya).backward();
  ops::sum(yb).backward();
  EXPECT_TRUE(same_bits(ya, yb));
  EXPECT_TRUE(same_bits(a.grad(), b.grad()));
  EXPECT_TRUE(same_bits(eager.inner.weight.grad(), compiled.inner.weight.grad()));
}
TEST_F(RegionWrites, BackwardInsideIsAnErrorWithFullgraph) {
  Block block([](Block& b, const Tensor& x) {
    const Tensor loss = ops::sum(mlp(b, x));
    if (b.state.step++ == 1) loss.backward();
    return Tensors{loss};
  });
  compile::compile_module(block, {.fullgraph = true});
  block(input())[0].backward();
  EXPECT_ERROR(block(input()), "region_writes_test.cc");
  Block other([](Block& b, const Tensor& x) {
    const Tensor roots[] = {ops::sum(mlp(b, x))}, inputs[] = {b.weight};
    return Tensors{autograd::grad(roots, inputs)[0]};
  });
  compile::compile_module(other, {.fullgraph = true});
  EXPECT_ERROR(other(input()), "region_writes_test.cc");
}

// ---- A tensor without a value: an error came before it

class Escaped : public BlockTest {
 protected:
  // A tensor that escapes from a region whose op failed.
  static Tensor make() {
    Block failing([](Block& b, const Tensor& x) {
      const Tensor index = Tensor::from<int64_t>({0, 99}, {2});
      const Tensor row = ops::index_select(x, 0, index);
      b.state.kept = {ops::tanh(row)};
      return Tensors{b.state.kept[0]};
    });
    compile::compile_module(failing);
    EXPECT_ANY_THROW(failing(Tensor::randn({4, 6})));
    return failing.state.kept[0];
  }
};

TEST_F(Escaped, IsAnErrorInAnotherRegion) {
  const Tensor lost = make();
  Block block([](Block&, const Tensor& x) { return Tensors{x * 2.0}; });
  compile::compile_module(block);
  EXPECT_ERROR(block(lost), "no value");
  EXPECT_ERROR(lost * 2.0, "no value");
  // The region is as good as before.
  EXPECT_EQ(block(Tensor::ones({2}))[0].to_vector<float>()[0], 2);
}
TEST_F(Escaped, IsAnErrorInAReplay) {
  struct Twice : nn::Module<Twice> {
    Tensor forward(const Tensor& x) { return x * 2.0; }
  };
  const Tensor lost = make();
  Twice model;
  compile::compile_module(model, {.capture = compile::Capture::kReplay});
  for (int i = 0; i < 2; ++i) model(Tensor::ones({2, 6}));
  EXPECT_ERROR(model(lost), "no value");
}
TEST_F(Escaped, IsAnErrorAsAViewAndInPlace) {
  Tensor lost = make();
  Block block([](Block&, const Tensor& x) { return Tensors{x.t()}; });
  compile::compile_module(block);
  EXPECT_ERROR(block(lost), "no value");
  EXPECT_ERROR(lost.fill_(0), "no value");
  EXPECT_ERROR(lost.mul_(2.0), "no value");
  EXPECT_ERROR(lost.view({12}), "no value");
  EXPECT_ERROR(lost.mutable_data<float>(), "no value");
  Tensor good = Tensor::ones({2, 6});
  EXPECT_ERROR(good.add_(lost), "no value");
  EXPECT_ERROR(good.copy_(lost), "no value");
}
TEST_F(Escaped, IsAnErrorAsAGradient) {
  const Tensor lost = make();
  Block block([](Block&, const Tensor& x) { return Tensors{ops::tanh(x)}; });
  compile::compile_module(block);
  const Tensor y = block(input({2, 6}))[0];
  EXPECT_ERROR(y.backward(lost), "no value");
}

}  // namespace
}  // namespace rondo
