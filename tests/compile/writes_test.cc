// Writes in place inside a region: one program, no graph break, and everything a user can see is as in eager execution.
#include <gtest/gtest.h>

#include <thread>

#include "rondo/modules/module.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using namespace test;
using compile::Capture;

class Writes : public BlockTest {
 protected:
  // `steps` calls of `body` on a block whose kept tensors `prepare` makes; these are compared, too, with their
  // versions.
  void expect_no_break(const std::function<Tensors()>& prepare, const Block::Body& body, int steps = 3,
                       int64_t entries = 1) {
    expect_as_eager(body, [&](Block& b) {
      b.state.kept = prepare();
      Tensors all;
      for (int i = 0; i < steps; ++i)
        for (Tensor& t : one_step(b)) all.push_back(t.defined() ? t.detach().clone() : t);
      for (const Tensor& t : b.state.kept) {
        all.push_back(t.detach().clone());
        all.push_back(Tensor::scalar<int64_t>(t.version()));
      }
      return all;
    });
    EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
    EXPECT_EQ(report.entries, entries) << report.last_recompile;
  }
};

// The mean and the variance of each channel, by plain ops, and their running averages.
Tensor batch_norm(Block& b, const Tensor& x) {
  const Tensor mean = ops::mean(x, {0}), var = ops::var(x, {0}, 0);
  no_grad([&] {
    b.state.kept[0].mul_(0.9).add_(mean * 0.1);
    b.state.kept[1].mul_(0.9).add_(var * 0.1);
    b.state.kept[2].add_(1);
  });
  return (x - mean) * ops::rsqrt(var + 1e-5) * b.weight[0] + b.bias;
}
Tensors batch_norm_state() { return {Tensor::zeros({6}), Tensor::ones({6}), Tensor::zeros({}, kI64)}; }

TEST_F(Writes, RunningStatistics) {
  expect_no_break(batch_norm_state, [](Block& b, const Tensor& x) { return Tensors{batch_norm(b, x)}; });
}

TEST_F(Writes, CountersOfAnyDtype) {
  for (const DType dtype : {kF32, kF64, kBF16, kI64, kI32, kU8})
    expect_no_break(
        [&] {
          return Tensors{Tensor::zeros({3}, dtype), Tensor::zeros({}, kI64)};
        },
        [](Block& b, const Tensor& x) {
          b.state.kept[0] += 1;
          b.state.kept[1].add_(x.size(0));
          return Tensors{x * 2.0};
        });
}

TEST_F(Writes, AnAverageIsReadAfterItsWrite) {
  expect_no_break(
      [] {
        return Tensors{Tensor::zeros({4, 6})};
      },
      [](Block& b, const Tensor& x) {
        Tensor& ema = b.state.kept[0];
        const Tensor before = ops::tanh(ema);
        no_grad([&] { ema.mul_(0.9).add_(x.detach() * 0.1); });
        return Tensors{x * ema + before, x - before};
      });
}

TEST_F(Writes, CopyFillAndOtherDtypes) {
  expect_no_break(
      [] {
        return Tensors{Tensor::zeros({4, 6}), Tensor::zeros({4, 6}, kBF16), Tensor::zeros({4, 6}, kI32),
                       Tensor::ones({2, 3})};
      },
      [](Block& b, const Tensor& x) {
        const Tensor values = x.detach() * 3.0;
        for (int i = 0; i < 3; ++i) b.state.kept[static_cast<size_t>(i)].copy_(values);
        b.state.kept[3].fill_(b.state.kept[3].numel());
        b.state.kept[0].copy_(values[1]);  // broadcast
        return Tensors{x * 0.5};
      });
}

TEST_F(Writes, RowsOfABufferAndReadsThroughOtherViews) {
  expect_no_break(
      [] {
        return Tensors{Tensor::randn({4, 6})};
      },
      [](Block& b, const Tensor& x) {
        Tensor& kept = b.state.kept[0];
        const Tensor flat = kept.view({24}), column = kept.select(1, 2);
        kept[1].copy_(x.detach()[0]);
        const Tensor seen = flat * 1.0, of_column = column * 2.0;
        kept.slice(1, {0, 6, 2}).mul_(0.5);
        kept.t()[3].fill_(7);
        return Tensors{x * flat.view({4, 6}), seen, of_column, column + 0.0};
      });
}

TEST_F(Writes, AViewThatEscapesSharesTheBuffer) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor& kept = b.state.kept[0];
    const Tensor row = kept[2];
    kept.add_(x.detach());
    return Tensors{row, x * 1.0};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::randn({4, 6})};
    const Tensors out = b(input());
    EXPECT_TRUE(out[0].storage() == b.state.kept[0].storage());
    EXPECT_EQ(out[0].storage_offset(), 12);
    b.state.kept[0].fill_(3);
    return Tensors{out[0].clone()};
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

// What somebody else holds: a view of the buffer made outside, and a second handle without history.
TEST_F(Writes, OtherHandlesSeeTheWrite) {
  expect_no_break(
      [] {
        const Tensor whole = Tensor::randn({4, 6});
        return Tensors{whole, whole[1], whole.detach()};
      },
      [](Block& b, const Tensor& x) {
        b.state.kept[0].mul_(0.5);
        const Tensor row = b.state.kept[1] * 2.0;
        b.state.kept[1].add_(1.0);
        b.state.kept[2].select(1, 0).add_(10.0);
        return Tensors{x * row, b.state.kept[0] + 0.0};
      });
}

TEST_F(Writes, OfTensorsMadeInside) {
  expect_no_break([] { return Tensors{}; },
                  [](Block&, const Tensor& x) {
                    Tensor h = x.detach() * 2.0;
                    const Tensor column = h.select(1, 1);
                    h.add_(1.0);
                    h[0].copy_(h[1]);
                    h.slice(0, {1, 3}) *= column.slice(0, {1, 3}).unsqueeze(1);
                    return Tensors{x * h, h, column};
                  });
}

// A cache, a ring and a row that is cleared, each at a position that changes from call to call: one program, and the
// position costs no plan.
TEST_F(Writes, AtARunTimePosition) {
  expect_no_break(
      [] {
        return Tensors{Tensor::zeros({2, 9, 6}), Tensor::zeros({4, 6}, kBF16), Tensor::ones({10, 3})};
      },
      [](Block& b, const Tensor& x) {
        const int64_t step = b.state.step++;
        Tensor& cache = b.state.kept[0];
        cache.slice(1, {step, step + 1}).copy_(x.detach().slice(0, {0, 2}).unsqueeze(1));
        b.state.kept[1][step % 4].copy_(x.detach()[1]);
        b.state.kept[2].slice(0, {step, step + 2}).fill_(static_cast<double>(step));
        return Tensors{x * ops::sum(cache, {0, 1}), b.state.kept[1].to(kF32) * x};
      },
      9);
}

// ---- With gradients

TEST_F(Writes, GradientsPassThroughWrites) {
  expect_no_break([] { return Tensors{}; },
                  [](Block& b, const Tensor& x) {
                    Tensor h = x * 2.0;
                    h.mul_(b.bias);  // reads the old value
                    h.add_(ops::tanh(x));
                    h.mul_(h);  // and itself
                    Tensor fresh = Tensor::zeros({4, 6});
                    fresh.copy_(h);  // gets a history
                    return Tensors{h * b.bias, fresh * x};
                  });
}
TEST_F(Writes, GradientsOfViews) {
  expect_no_break([] { return Tensors{}; },
                  [](Block& b, const Tensor& x) {
                    Tensor h = x * b.bias;
                    Tensor row = h[1], columns = h.slice(1, {1, 6, 2});
                    const Tensor flat = h.view({24});
                    row.mul_(b.bias);
                    columns.copy_(ops::tanh(x).slice(1, {0, 3}));
                    h[2].fill_(0.5);
                    const Tensor late = flat * 1.5;
                    h.t()[0].add_(row.slice(0, {0, 4}));
                    return Tensors{h * x, late, row, columns * 2.0};
                  });
}
// The sign of a zero gradient: at a write through a view, zeros are added to the base's gradient.
TEST_F(Writes, GradientsOfAViewThatShowsAll) {
  expect_no_break([] { return Tensors{}; },
                  [](Block& b, const Tensor& x) {
                    Tensor h = x * b.bias, k = x * 3.0, m = x * 2.0;
                    h.slice(0, {0, 4}).mul_(h);
                    k.slice(0, {0, 4}).add_(1.0);
                    m.slice(0, {0, 4}).mul_(m.slice(0, {0, 4}));
                    return Tensors{h * 0.0, k * -0.0, ops::where(x > 0, m, 0.0)};
                  });
}
TEST_F(Writes, OfAParameterUnderNoGrad) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor before = x + b.bias;
    no_grad([&] {
      b.weight.add_(0.25);
      b.bias.mul_(0.5);
    });
    return Tensors{before * 2.0, ops::matmul(x, b.weight) + b.bias};
  };
  expect_as_eager(body, [](Block& b) {
    Tensors all;
    for (int i = 0; i < 3; ++i)
      for (Tensor& t : one_step(b)) all.push_back(t);
    all.push_back(b.weight.detach());
    all.push_back(b.bias.detach());
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}
// A value made inside keeps its history under no_grad(): hooks would see the gradients of both versions. So it breaks.
TEST_F(Writes, OfAResultUnderNoGrad) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor h = x * b.bias;
    const Tensor before = ops::tanh(h);
    no_grad([&] { h.mul_(3.0); });
    h.detach().select(0, 1).fill_(2);
    return Tensors{h + before, h.detach()};
  };
  expect_as_eager(body, one_step);
  EXPECT_GT(report.graph_breaks, 0);
}
// Such a write makes no new variable: the gradients of reads before it, of reads after it, and of uses outside meet in
// one sum, in the order of eager execution.
TEST_F(Writes, GradientsOfAVariableMeetInOneSum) {
  const auto body = [](Block&, const Tensor& x) {
    Tensor h = x;
    const Tensor before = x * 0.3;
    no_grad([&] { h.add_(h); });
    return Tensors{before, ops::tanh(h), h.t() * 3.0};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor leaf = input({40, 60}), x = leaf * 1.25;
    const Tensors out = b(x);
    Tensor loss = ops::sum(x * Tensor::rand(x.sizes()));
    for (const Tensor& y : out) loss = loss + ops::sum(y * Tensor::rand(y.sizes()));
    loss.backward();
    return Tensors{out[0], out[1], out[2], leaf.grad()};
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}
// Eager execution adds the gradient of what is written through a view to zeros, even if the view shows the whole.
TEST_F(Writes, SignsOfZeroGradientsOfAWholeView) {
  const auto body = [](Block&, const Tensor& x) {
    const Tensor y = x * 1.0, row = y[1];
    y.slice(0, {0, 4}).mul_(-1.1);
    return Tensors{row * 3.0};
  };
  expect_as_eager(body, one_step);
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}
// The write through a handle without history, by something with one, is a break: all handles get their values there.
TEST_F(Writes, ThroughASecondHandleOfAVersion) {
  const auto body = [](Block&, const Tensor& x) {
    Tensor h = ops::erf(x), second = h.detach();
    h.mul_(2.0);
    second.mul_(h);
    return Tensors{second, h.detach()};
  };
  expect_as_eager(body, [](Block& b) { return b(input()); });
  EXPECT_EQ(report.graph_breaks, 1) << report.last_break;
}
TEST_F(Writes, SavedResultsThatAreOverwritten) {
  for (const bool compiled : {false, true}) {
    Block block([](Block&, const Tensor& x) {
      Tensor y = ops::exp(x);  // saved for its gradient
      y.add_(1.0);
      return Tensors{y};
    });
    if (compiled) compile::compile_module(block, {.fullgraph = true});
    const Tensor loss = ops::sum(block(input())[0]);
    EXPECT_THROW(loss.backward(), StaleTensorError);
  }
}
TEST_F(Writes, VersionsOfResults) {
  expect_as_eager(
      [](Block&, const Tensor& x) {
        Tensor y = x * 2.0;
        y.add_(1.0);
        y[0].fill_(3);
        return Tensors{y};
      },
      [](Block& b) {
        const Tensor y = b(input())[0];
        return Tensors{y, Tensor::scalar<int64_t>(y.version())};
      });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
}

TEST_F(Writes, AHostReadInTheMiddle) {
  const auto body = [](Block& b, const Tensor& x) {
    b.state.kept[0].add_(1.0);
    const double through_a_view = b.state.kept[1].item();
    b.state.kept[0].add_(1.0);
    return Tensors{x * through_a_view};
  };
  expect_as_eager(body, [](Block& b) {
    const Tensor whole = Tensor::zeros({4});
    b.state.kept = {whole, whole[1]};
    Tensors all;
    for (int i = 0; i < 3; ++i)
      for (Tensor& t : one_step(b)) all.push_back(t);
    all.push_back(whole);
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 3);
}

// A gradient that needs what was overwritten: an error, as in eager execution, and only where it is needed.
TEST_F(Writes, BackwardAfterALaterWrite) {
  for (const bool needed : {true, false})
    for (const bool compiled : {false, true}) {
      Block block([&](Block& b, const Tensor& x) {
        const Tensor y = needed ? x * b.state.kept[0] : x + b.state.kept[0];
        b.state.kept[0].add_(1.0);
        return Tensors{y};
      });
      block.state.kept = {Tensor::ones({4, 6})};
      if (compiled) compile::compile_module(block, {.fullgraph = true});
      const Tensor x = input();
      const Tensor loss = ops::sum(block(x)[0]);
      if (needed) EXPECT_THROW(loss.backward(), StaleTensorError);
      else loss.backward();
    }
}
TEST_F(Writes, BackwardAfterAWriteBehindTheRegion) {
  const MeansToRun eagerly(Eagerly::kBackward, "overwritten memory: the op that needs it is found by a replay");
  for (const bool compiled : {false, true}) {
    Block block([](Block& b, const Tensor& x) {
      b.state.kept[0].add_(1.0);
      return Tensors{x * b.state.kept[0]};
    });
    block.state.kept = {Tensor::ones({4, 6})};
    if (compiled) compile::compile_module(block, {.fullgraph = true});
    const Tensor first = ops::sum(block(input())[0]);
    first.backward();
    const Tensor second = ops::sum(block(input())[0]);
    block(input());
    EXPECT_THROW(second.backward(), StaleTensorError);
  }
}

// The exceptions of forward, and of an op that finds a bad index when it runs.
TEST_F(Writes, AnExceptionInTheMiddle) {
  for (const bool in_op : {false, true}) {
    const auto body = [in_op](Block& b, const Tensor& x) {
      Tensor& kept = b.state.kept[0];
      kept.add_(1.0);
      kept[0].copy_(x.detach()[0]);
      if (!in_op && b.state.step++ == 1) throw std::runtime_error("thrown in forward");
      const Tensor picked = ops::index_select(x, 0, b.state.kept[1]);
      kept.mul_(2.0);
      return Tensors{picked * 1.5};
    };
    expect_as_eager(body, [&](Block& b) {
      b.state.kept = {Tensor::ones({4, 6}), Tensor::from<int64_t>({1, 2}, {2})};
      Tensors all;
      for (int i = 0; i < 4; ++i) {
        if (in_op) b.state.kept[1].copy_(Tensor::from<int64_t>({1, i == 1 ? 9 : 3}, {2}));
        bool threw = false;
        try {
          b(input());
        } catch (const std::exception&) {
          threw = true;
        }
        EXPECT_EQ(threw, i == 1);
        all.push_back(b.state.kept[0].clone());
        all.push_back(Tensor::scalar<int64_t>(b.state.kept[0].version()));
      }
      return all;
    });
    EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
    EXPECT_EQ(report.failed_runs, in_op ? 1 : 0);
  }
}

// One kernel makes both versions; the check of the first one must come before the second one is in the caller's memory.
TEST_F(Writes, ACheckOfWhatWasWritten) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor& at = b.state.kept[0];
    at.add_(1);
    const Tensor picked = ops::index_select(x, 0, at);
    at.mul_(3);
    return Tensors{picked * 1.5};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::from<int64_t>({0, 0}, {2})};
    Tensors all;
    for (int i = 0; i < 3; ++i) {
      b.state.kept[0].copy_(Tensor::from<int64_t>({1, i == 1 ? 3 : 2}, {2}));
      const std::string error = error_of([&] { all.push_back(b(input())[0].detach()); });
      EXPECT_EQ(error.find("index 4 at position 1 is out of range") != std::string::npos, i == 1) << error;
      all.push_back(b.state.kept[0].clone());
    }
    return all;
  });
  EXPECT_EQ(report.graph_breaks, 0) << report.last_break;
  EXPECT_EQ(report.failed_runs, 1);
  EXPECT_NE(report.last_failure.find("index 4"), std::string::npos) << report.last_failure;
}

// An op whose kernel fails behind a write that has been made: the write is not made again.
bool kernel_fails = false;
constexpr OpDef kFailing = {
    .name = "failing",
    .kind = OpKind::kOpaque,
    .infer = [](InferContext& c) { c.output(0, c.dtype(0), c.sizes(0)); },
    .host = {[](const KernelContext& context) {
      if (kernel_fails) throw std::runtime_error("thrown by a kernel");
      const RecorderScope eager(nullptr);
      Tensor(context.out()).copy_(context.in(0));
    }},
};
TEST_F(Writes, AKernelFailsBehindAWrite) {
  const auto body = [](Block& b, const Tensor& x) {
    b.state.kept[0].add_(1.0);
    return Tensors{call(kFailing, {x.detach()}) * 2.0};
  };
  expect_as_eager(body, [](Block& b) {
    b.state.kept = {Tensor::ones({4, 6})};
    Tensors all;
    for (int i = 0; i < 4; ++i) {
      kernel_fails = i == 1;
      EXPECT_EQ(error_of<std::runtime_error>([&] { b(input()); }), kernel_fails ? "thrown by a kernel" : "");
      all.push_back(b.state.kept[0].clone());
    }
    return all;
  });
  EXPECT_EQ(report.failed_runs, 1);
}

// ---- Replays, threads

struct Norm : nn::Module<Norm> {
  Tensor& weight = parameter("weight", Tensor::ones({6}));
  Tensor& mean = buffer("mean", Tensor::zeros({6}));
  Tensor& steps = buffer("steps", Tensor::zeros({}, kI64));
  Tensor& ring = buffer("ring", Tensor::zeros({3, 6}));
  int64_t forwards = 0;
  Tensor forward(const Tensor& x) {
    ++forwards;
    const Tensor now = ops::mean(x, {0});
    no_grad([&] {
      mean.mul_(0.9).add_(now * 0.1);
      steps.add_(1);
      ring.slice(0, {1, 2}).copy_(now);
    });
    return (x - mean) * weight + ring[1];
  }
};
Tensors norm_steps(Norm& norm, int steps) {
  Tensors all;
  for (int i = 0; i < steps; ++i) {
    norm.zero_grad();
    const Tensor x = Tensor::randn({4, 6}).requires_grad_();
    ops::sum(norm(x) * x).backward();
    for (const Tensor& t : {x.grad(), norm.weight.grad(), norm.mean, norm.steps, norm.ring}) all.push_back(t.clone());
  }
  return all;
}

TEST_F(Writes, AreReplayed) {
  Norm eager, compiled;
  const auto regions = compile::compile_module(compiled, {.exact = true, .capture = Capture::kReplay});
  manual_seed(3);
  const Tensors a = norm_steps(eager, 5);
  manual_seed(3);
  const Tensors b = norm_steps(compiled, 5);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
  EXPECT_EQ(compiled.forwards, 1);
  EXPECT_EQ(regions.report()[0].replays, 4) << regions.report()[0].why_not_replayed;
  EXPECT_EQ(compiled.mean.version(), eager.mean.version());
  // An argument in the memory of what is written is another recording.
  const auto both = [](Norm& n) { return n(n.ring); };
  EXPECT_TRUE(same_bits(both(eager), both(compiled)));
  EXPECT_EQ(compiled.forwards, 2);
}

// A view of written memory as an argument: its place is a constant of the recording, which serves no other tensor.
struct Sum : nn::Module<Sum> {
  Tensor& total = buffer("total", Tensor::ones({4, 6}));
  Tensor forward(const Tensor& x) {
    no_grad([&] { total.mul_(2.0); });
    return x + ops::sum(total);
  }
};
TEST_F(Writes, AViewOfThemAsAnArgumentIsNotReplayed) {
  Sum eager, compiled;
  const auto regions = compile::compile_module(compiled, {.exact = true, .capture = Capture::kReplay});
  const auto steps = [](Sum& sum) {
    Tensors all = {sum(sum.total.slice(0, {1, 3})), sum(sum.total.slice(0, {2, 4})), sum(Tensor::zeros({2, 6}))};
    all.push_back(sum(Tensor::full({2, 6}, 3)));
    return all;
  };
  const Tensors a = steps(eager), b = steps(compiled);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
  EXPECT_EQ(regions.report()[0].replays, 1) << regions.report()[0].why_not_replayed;
}

TEST_F(Writes, SeveralThreadsOnSeveralModels) {
  Norm eager;
  manual_seed(3);
  const Tensors expected = norm_steps(eager, 30);
  std::vector<std::unique_ptr<Norm>> models;
  std::vector<Tensors> results(3);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 3; ++i) {
    models.push_back(std::make_unique<Norm>());
    compile::compile_module(*models[i], {.exact = true, .fullgraph = true});
  }
  for (size_t i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      Generator own(3);
      for (int k = 0; k < 30; ++k) {
        models[i]->zero_grad();
        const Tensor x = Tensor::randn({4, 6}, {}, &own).requires_grad_();
        ops::sum((*models[i])(x)*x).backward();
        for (const Tensor& t : {x.grad(), models[i]->weight.grad(), models[i]->mean, models[i]->steps, models[i]->ring})
          results[i].push_back(t.clone());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const Tensors& result : results) {
    ASSERT_EQ(result.size(), expected.size());
    for (size_t i = 0; i < result.size(); ++i) EXPECT_TRUE(same_bits(result[i], expected[i])) << i;
  }
}

}  // namespace
}  // namespace rondo
