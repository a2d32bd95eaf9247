// Moving averages: the warm-up, buffers, evaluation with them, and states that hold them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "rondo/compile/compile.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/average_scope.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/sgd.h"
#include "rondo/optim/update_at_seams.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/small_modules.h"

namespace rondo::optim {
namespace {

using test::error_of;
using test::same_bits;

Tensor squares(const Tensor& t) { return (t * t).sum(); }

// Two parameters and three buffers, of which one counts.
struct Trained {
  explicit Trained(DType dtype = kF32) {
    Generator generator(5);
    for (const Dims& sizes : {Dims{33, 7}, Dims{1031}})
      params.push_back(Tensor::randn(sizes, {dtype}, &generator).requires_grad_());
    buffers = {Tensor::zeros({77}, {dtype}), Tensor::zeros({}, {kI64}), Tensor::ones({5}, {kF64})};
  }
  // What a step of training writes.
  void run(int64_t step, bool finite = true) {
    Generator generator(static_cast<uint64_t>(100 + step));
    for (Tensor& p : params) p.set_grad(Tensor::randn(p.sizes(), {p.dtype()}, &generator));
    if (!finite) params[0].set_grad(params[0].grad() * (1.0 / 0.0));
    const NoGrad off;
    buffers[0].mul_(0.9).add_(Tensor::randn({77}, {buffers[0].dtype()}, &generator));
    buffers[1].add_(1);
    buffers[2].mul_(1.01);
  }
  std::vector<Tensor> params, buffers;
};

// The averages by plain loops on the host.
struct ByHand {
  double decay;
  bool warmup;
  int64_t updates = 0;
  std::vector<Tensor> averages = {};

  void move(const std::vector<Tensor>& values) {
    ++updates;
    const double t = static_cast<double>(updates);
    const double weight = warmup ? std::max(1 - decay, 9.0 / (10.0 + t)) : 1 - decay;
    if (averages.empty())
      for (const Tensor& value : values)
        averages.push_back(value.detach().to(value.dtype() == kF64 ? kF64 : kF32).clone());
    for (size_t i = 0; i < values.size(); ++i) {
      if (averages[i].dtype() == kF64) step<double>(averages[i], values[i], weight);
      else step<float>(averages[i], values[i], static_cast<float>(weight));
    }
  }
  template <class C> static void step(Tensor& average, const Tensor& value, C weight) {
    std::vector<C> a = average.to_vector<C>();
    const std::vector<C> v = value.to_vector<C>();
    for (size_t i = 0; i < a.size(); ++i) a[i] = std::fma(weight, v[i] - a[i], a[i]);
    average = Tensor::from(a, average.sizes());
  }
};

struct Case {
  DType dtype;
  bool compiled, warmup;
};
const Case kCases[] = {
    {kF32, false, true}, {kF32, true, true}, {kF32, true, false}, {kBF16, true, true}, {kF64, false, true}};

std::unique_ptr<AdamW> optimizer_of(Trained& trained, const Case& c) {
  auto optimizer = std::make_unique<AdamW>(trained.params, AdamWOptions{.lr = 0.05});
  if (c.compiled) compile(*optimizer);
  optimizer->track_average({.decay = 0.9, .warmup = c.warmup, .buffers = trained.buffers});
  return optimizer;
}

std::vector<Tensor> floats(const Trained& trained) { return {trained.buffers[0], trained.buffers[2]}; }

TEST(Averages, AreThoseOfASeparateComputationBitForBit) {
  for (const Case& c : kCases) {
    Trained trained(c.dtype);
    const auto optimizer = optimizer_of(trained, c);
    ByHand params{0.9, c.warmup}, buffers{0.9, c.warmup};
    for (const Tensor& p : trained.params)
      params.averages.push_back(p.detach().to(c.dtype == kF64 ? kF64 : kF32).clone());
    for (int64_t step = 0; step < 40; ++step) {
      const bool finite = step % 7 != 3;  // a step that is skipped moves nothing and counts nothing
      trained.run(step, finite);
      optimizer->step({.check_finite = true, .zero_grad = true});
      if (!finite) continue;
      params.move(trained.params);
      buffers.move(floats(trained));
    }
    // The average of a 16-bit parameter takes its value before it is rounded, which is not seen from here.
    for (size_t i = 0; i < 2 && c.dtype != kBF16; ++i)
      EXPECT_TRUE(same_bits(optimizer->averages()[i], params.averages[i])) << i;
    const std::vector<Tensor> averages = optimizer->buffer_averages();
    ASSERT_EQ(averages.size(), 3u);
    EXPECT_TRUE(same_bits(averages[0], buffers.averages[0]));
    EXPECT_EQ(averages[1].item<int64_t>(), 40);  // the buffer itself
    EXPECT_TRUE(same_bits(averages[2], buffers.averages[1]));
  }
}

TEST(Averages, AreResumedExactly) {
  for (const Case& c : kCases) {
    Trained whole(c.dtype), resumed(c.dtype);
    const auto first = optimizer_of(whole, c);
    for (int64_t step = 0; step < 5; ++step) whole.run(step), first->step();
    nn::StateDict saved;
    for (const auto& [name, tensor] : first->state_dict()) saved[name] = tensor.clone();
    EXPECT_EQ(saved.at("buffer.updates").item<int64_t>(), 5);

    const auto second = optimizer_of(resumed, c);
    {
      const NoGrad off;
      for (size_t i = 0; i < 2; ++i) resumed.params[i].copy_(whole.params[i].detach());
      for (size_t i = 0; i < 3; ++i) resumed.buffers[i].copy_(whole.buffers[i]);
    }
    second->load_state_dict(saved);
    for (int64_t step = 5; step < 9; ++step) {
      whole.run(step), first->step();
      resumed.run(step), second->step();
    }
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(first->averages()[i], second->averages()[i]));
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(first->buffer_averages()[i], second->buffer_averages()[i]));
    // A state without buffers' averages: they start anew.
    std::erase_if(saved, [](const auto& entry) { return entry.first.starts_with("buffer."); });
    second->load_state_dict(saved);
    EXPECT_EQ(second->state_dict().at("buffer.updates").item<int64_t>(), 0);
    saved["buffer.updates"] = Tensor::full({}, -1, {kI64});
    EXPECT_NE(error_of([&] { second->load_state_dict(saved); }), "");
  }
}

// The scope exchanges each buffer with its average, so memory that it meets twice would not come back.
TEST(Averages, OfMemoryThatIsAveragedAlready) {
  test::OneLinear model(8);
  const Tensor memory = Tensor::zeros({6});
  for (const std::vector<Tensor>& buffers :
       {std::vector<Tensor>{model.parameters()[0].detach()}, std::vector<Tensor>{memory, memory},
        std::vector<Tensor>{memory, memory.slice(0, {5, 6})},
        std::vector<Tensor>{memory.slice(0, {0, 4}), memory.slice(0, {3, 6})}}) {
    SGD sgd(model.parameters(), {.lr = 0.1});
    EXPECT_NE(error_of([&] { sgd.track_average({.buffers = buffers}); }).find("shares memory with such a tensor"),
              std::string::npos);
  }
  SGD sgd(model.parameters(), {.lr = 0.1});
  sgd.track_average({.buffers = {memory.slice(0, {0, 3}), memory.slice(0, {3, 6}), memory.slice(0, {2, 2})}});
}

TEST(Averages, AtSeamsBuffersMoveOnceAStep) {
  test::OneLinear after(8), at_seams(8);
  std::vector<Tensor> buffers = {Tensor::zeros({3})};
  at_seams.load_state_dict(after.state_dict());
  SGD one(after.parameters(), {.lr = 0.1}), other(at_seams.parameters(), {.lr = 0.1});
  std::vector<Tensor> others = {Tensor::zeros({3})};
  one.track_average({.decay = 0.5, .buffers = buffers});
  other.track_average({.decay = 0.5, .buffers = others});
  UpdateAtSeams updates(at_seams, other);
  const Tensor x = Tensor::ones({4, 8});
  for (int i = 0; i < 5; ++i) {
    buffers[0].add_(1.5), others[0].add_(1.5);
    after(x).sum().backward();
    one.step();
    one.zero_grad();
    at_seams(x).sum().backward();
    updates.finish();
  }
  EXPECT_TRUE(same_bits(one.buffer_averages()[0], other.buffer_averages()[0]));
  EXPECT_FALSE(same_bits(others[0], other.buffer_averages()[0]));
}

// The scope swaps, whoever looks: parameters, buffers, a compiled region that runs meanwhile.
TEST(AverageScopes, EvaluateAndLeaveNoTrace) {
  for (const DType dtype : {kF32, kBF16}) {
    SCOPED_TRACE(name_of(dtype));
    test::Gate model(16);
    model.to(dtype);
    compile::compile_module(model);
    Generator generator(9);
    const Tensor x = Tensor::randn({4, 16}, {dtype}, &generator);
    std::vector<Tensor> statistics = {Tensor::zeros({16}, {dtype}), Tensor::zeros({}, {kI64})};
    AdamW optimizer(model.parameters(), {.lr = 0.05});
    optimizer.track_average({.decay = 0.5, .buffers = statistics});
    for (int i = 0; i < 4; ++i) {
      squares(model(x)).backward();
      statistics[0].add_(0.75);
      optimizer.step({.zero_grad = true});
    }
    const auto clones = [](const std::vector<Tensor>& list) {
      std::vector<Tensor> out;
      for (const Tensor& t : list) out.push_back(t.detach().clone());
      return out;
    };
    const std::vector<Tensor> own = clones(model.parameters()), averages = clones(optimizer.averages());
    const std::vector<Tensor> buffers = clones(statistics), buffer_averages = clones(optimizer.buffer_averages());
    const auto output = [&] { return no_grad([&] { return model(x); }); };
    const Tensor before = output().clone();

    test::Gate averaged(16);
    averaged.to(dtype);
    compile::compile_module(averaged);
    no_grad([&] {
      for (size_t i = 0; i < own.size(); ++i) averaged.parameters()[i].copy_(averages[i]);
    });
    const Tensor wanted = no_grad([&] { return averaged(x); });
    EXPECT_FALSE(same_bits(before, wanted));
    {
      const AverageScope scope(optimizer);
      for (size_t i = 0; i < own.size(); ++i)
        EXPECT_TRUE(same_bits(model.parameters()[i].detach(), averages[i].to(dtype))) << i;
      EXPECT_TRUE(same_bits(statistics[0], buffer_averages[0].to(dtype)));
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(output(), wanted)) << i;
      EXPECT_NE(error_of([&] { AverageScope again(optimizer); }).find("end it first"), std::string::npos);
      EXPECT_NE(error_of([&] { optimizer.step({.allow_no_gradients = true}); }).find("AverageScope"),
                std::string::npos);
      for (const std::function<void()>& call : std::vector<std::function<void()>>{
               [&] { optimizer.state_dict(); }, [&] { optimizer.averages(); }, [&] { optimizer.load_state_dict({}); },
               [&] { optimizer.track_average(); }, [&] { optimizer.buffer_averages(); }})
        EXPECT_NE(error_of(call).find("AverageScope"), std::string::npos);
    }
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(same_bits(model.parameters()[i].detach(), own[i])) << i;
      EXPECT_TRUE(same_bits(optimizer.averages()[i], averages[i])) << i;
    }
    EXPECT_TRUE(same_bits(statistics[0], buffers[0]));
    EXPECT_TRUE(same_bits(optimizer.buffer_averages()[0], buffer_averages[0]));
    EXPECT_TRUE(same_bits(output(), before));
    squares(model(x)).backward();
    optimizer.step();
  }
}

TEST(AverageScopes, EndEarlyAndAfterAnException) {
  Trained trained;
  SGD optimizer(trained.params, {.lr = 0.1});
  EXPECT_NE(error_of([&] { AverageScope scope(optimizer); }).find("track_average"), std::string::npos);
  optimizer.track_average({.decay = 0.5});
  trained.run(0);
  optimizer.step();
  const Tensor own = trained.params[0].detach().clone();
  AverageScope scope(optimizer);
  EXPECT_FALSE(same_bits(trained.params[0].detach(), own));
  scope.end();
  EXPECT_TRUE(same_bits(trained.params[0].detach(), own));
  scope.end();  // nothing more to do
  EXPECT_TRUE(same_bits(trained.params[0].detach(), own));
  try {
    const AverageScope inner(optimizer);
    throw Error("an evaluation failed");
  } catch (const Error&) {
  }
  EXPECT_TRUE(same_bits(trained.params[0].detach(), own));
  // Averages from elsewhere.
  {
    const AverageScope whole(optimizer, trained.params, {Tensor::ones({33, 7}), Tensor::ones({1031})});
    EXPECT_EQ(trained.params[0].sum().item(), 33 * 7);
  }
  EXPECT_TRUE(same_bits(trained.params[0].detach(), own));
  EXPECT_NE(error_of([&] {
              AverageScope whole(optimizer, trained.params, {Tensor::ones({33, 7})});
            }).find("1 averages for 2"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              AverageScope whole(optimizer, trained.params, {Tensor::ones({7, 33}), Tensor::ones({1031})});
            }).find("[7, 33]"),
            std::string::npos);
  EXPECT_TRUE(same_bits(trained.params[0].detach(), own));
}

// A graph that was recorded with other parameters is refused, as after any write.
TEST(AverageScopes, AreWritesForTheTape) {
  test::OneLinear model(4);
  SGD optimizer(model.parameters(), {.lr = 0.1});
  optimizer.track_average({.decay = 0.5});
  const Tensor x = Tensor::ones({2, 4}).requires_grad_();
  Tensor loss = squares(model(x));
  { const AverageScope scope(optimizer); }
  EXPECT_THROW(loss.backward(), StaleTensorError);
}

TEST(Averages, BuffersThatCannotBeAveragedAreRefused) {
  Trained trained;
  SGD optimizer(trained.params, {.lr = 0.1});
  const auto refused = [&](std::vector<Tensor> buffers) {
    return error_of([&] { optimizer.track_average({.buffers = std::move(buffers)}); });
  };
  EXPECT_NE(refused({Tensor::ones({2}), Tensor()}).find("buffer 1 is undefined"), std::string::npos);
  EXPECT_NE(refused({Tensor::ones({2, 3}).t()}).find("not contiguous"), std::string::npos);
  EXPECT_NE(refused({trained.params[0]}).find("buffer 0 is a parameter"), std::string::npos);
  EXPECT_NE(refused({trained.buffers[0], trained.buffers[0]}).find("buffer 1"), std::string::npos);
  EXPECT_TRUE(optimizer.buffer_averages().empty());
  EXPECT_EQ(refused(trained.buffers), "");
  EXPECT_NE(refused(trained.buffers).find("3 buffers are averaged already"), std::string::npos);
  optimizer.track_average({.decay = 0.25, .warmup = true});  // only the decay and the warm-up
  EXPECT_EQ(optimizer.buffer_averages().size(), 3u);
}

}  // namespace
}  // namespace rondo::optim
