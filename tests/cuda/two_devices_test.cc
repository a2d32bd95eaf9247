// Two devices in one process: tensors on both, errors where they mix, copies between them, and a model trained on
// each, which has the bits that it has alone.
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <optional>
#include <thread>

#include "rondo/compile/compile.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/clip.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/sgd.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using test::error_of;
using test::FakeCuda;
using test::same_bits;

// ---- Mixing

// The error of one call that mixes the devices 0 and 1: it names both.
void expect_mixed(const std::string& error, const std::string& what) {
  for (const char* device : {"cuda:0", "cuda:1"})
    EXPECT_NE(error.find(device), std::string::npos) << what << ": " << error;
}

TEST(TwoDevices, EveryOpRefusesOperandsOfBoth) {
  FakeCuda cuda({.devices = 2});
  int calls = 0;
  for (const test::OpSpec& spec : test::op_specs()) {
    const test::OpSample sample = test::samples_of(spec).front();
    const OpDef& op = *find_op(spec.name);
    std::vector<Tensor> inputs = sample.inputs_as(kF32);
    for (Tensor& t : inputs)
      if (t.defined()) t = t.to(cuda.device(0));
    for (size_t i = 1; i < inputs.size(); ++i) {
      if (!inputs[i].defined()) continue;
      std::vector<Tensor> mixed = inputs;
      mixed[i] = inputs[i].to(cuda.device(1));
      const int64_t launches = cuda->counts().launches;
      const std::string error = error_of([&] { test::apply_op(op, mixed, sample.attrs, sample.n_outputs); });
      expect_mixed(error, std::string(spec.name) + ", operand " + std::to_string(i));
      EXPECT_EQ(error.find(spec.name), 0u) << error;
      EXPECT_EQ(cuda->counts().launches, launches) << spec.name;
      ++calls;
    }
  }
  EXPECT_GT(calls, 60);
}

TEST(TwoDevices, ErrorsNameBoth) {
  FakeCuda cuda({.devices = 2});
  const Device first = cuda.device(0), second = cuda.device(1);
  const Tensor a = Tensor::ones({4}).to(first), b = Tensor::ones({4}).to(second);
  expect_mixed(error_of([&] { Tensor(a).add_(b); }), "in place");
  expect_mixed(error_of([&] { ops::cat(std::vector<Tensor>{a, b}, 0); }), "a list");
  // Gradients.
  const Tensor w = Tensor::ones({4}).to(first).requires_grad_();
  const Tensor y = w * 2.0;
  expect_mixed(error_of([&] { y.backward(b); }), "backward");
  expect_mixed(error_of([&] { autograd::grad({&y, 1}, {&w, 1}, {&b, 1}); }), "grad");
  expect_mixed(error_of([&] { Tensor(w).set_grad(b); }), "set_grad");
  EXPECT_FALSE(w.grad().defined());
  // A model and its input, eager and compiled.
  nn::Linear layer(4, 4);
  layer.to(first);
  expect_mixed(error_of([&] { layer(Tensor::ones({2, 4}).to(second)); }), "a module");
  {
    const compile::Regions regions = compile::compile_module(layer);
    expect_mixed(error_of([&] { layer(Tensor::ones({2, 4}).to(second)); }), "a region");
    EXPECT_EQ(layer(Tensor::ones({2, 4}).to(first)).device(), first) << "goes on";
  }
  // Optimizers and norms.
  const Tensor v = Tensor::ones({4}).to(second).requires_grad_();
  expect_mixed(error_of([&] { optim::SGD(std::vector<Tensor>{w, v}); }), "an optimizer");
  Tensor(w).set_grad(a), Tensor(v).set_grad(b);
  expect_mixed(error_of([&] { optim::clip_grad_norm_(std::vector<Tensor>{w, v}, 1.0); }), "a norm");
  optim::SGD one(std::vector<Tensor>{w});
  EXPECT_NE(error_of([&] { one.step({.device_scale = Tensor::scalar(2.0, kF64).to(second)}); }).find("cuda:1"),
            std::string::npos);
  // A device that is not there.
  const std::string absent = error_of([&] { static_cast<void>(a.to(cuda.device(2))); });
  EXPECT_NE(absent.find("no device cuda:2: cuda has 2 devices"), std::string::npos) << absent;
  EXPECT_EQ((a + a).to_vector<float>(), std::vector<float>(4, 2.0f));
  EXPECT_EQ((b + b).to_vector<float>(), std::vector<float>(4, 2.0f));
}

// ---- Copies

// Tensors go from one device to the other and back, while both work on them.
std::vector<std::string> exchange(const fake_cuda::Options& options) {
  FakeCuda cuda(options);
  Generator generator(3);
  std::vector<std::string> bits;
  for (const int64_t n : {0, 1, 1000}) {
    const Tensor host = Tensor::randn({n}, {kF32, kCPU}, &generator);
    Tensor here = host.to(cuda.device(0)), there = (here * 2.0).to(cuda.device(1));
    for (int turn = 0; turn < 3; ++turn) {
      const Tensor again = (there + 1.0).to(cuda.device(0));  // what it is made of is freed at once
      here = here * 0.5 + again;
      there = here.to(cuda.device(1)) - there;
      here.fill_(turn);  // after the copy has read it
    }
    bits.push_back(test::bytes_of(here));
    bits.push_back(test::bytes_of(there));
  }
  // 5.2 MB are more than a staging buffer.
  const Tensor large = Tensor::arange(650'000), far = large.to(cuda.device(0)).to(cuda.device(1));
  EXPECT_TRUE(same_bits(far.to(cuda.device(0)), large));
  // Views, and other dtypes.
  const Tensor square = Tensor::randn({40, 30}, {kF32, kCPU}, &generator).to(cuda.device(0));
  for (const DType dtype : {kF64, kBF16, kF16, kI64, kU8, kBool}) {
    const Tensor part = (square * 50.0).to(dtype).t().slice(0, {3, 23});
    EXPECT_TRUE(same_bits(part.to(cuda.device(1)), part.to(kCPU)));
    bits.push_back(test::bytes_of(part.to(cuda.device(1)).to(cuda.device(0))));
  }
  Tensor target = Tensor::zeros({30, 40}).to(cuda.device(1));
  target.copy_(square.t().to(cuda.device(1)));
  EXPECT_TRUE(same_bits(target, square.t().to(kCPU)));
  // The gradient of a copy goes back to where it came from.
  const Tensor leaf = square.detach().requires_grad_();
  ops::sum(leaf.to(cuda.device(1)) * 3.0).backward();
  EXPECT_EQ(leaf.grad().device(), cuda.device(0));
  EXPECT_EQ(leaf.grad().to_vector<float>(), std::vector<float>(1200, 3.0f));
  return bits;
}

TEST(TwoDevices, CopiesBetweenThem) {
  const std::vector<std::string> expected = exchange({.devices = 2});
  for (const bool peers : {true, false})
    for (uint64_t seed = 1; seed <= 4; ++seed)
      for (const double early : {0.0, 0.02, 1.0})
        EXPECT_TRUE(exchange({.seed = seed, .devices = 2, .early = early, .peers = peers}) == expected)
            << "seed " << seed << (peers ? "" : ", through the host");
}

// ---- Models

// A small GPT-2 that is trained on one device. Everything random comes from seeds of its own.
class Training {
 public:
  Training(Device device, int64_t vocabulary, bool compiled)
      : device_(device), model_(config(vocabulary), static_cast<uint64_t>(vocabulary)) {
    model_.to(device);
    optimizer_.emplace(model_.parameters(), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
    if (compiled) {
      regions_.emplace(compile::compile_regions(model_, {.exact = true}));
      optim::compile(*optimizer_);
    }
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < 16; ++i) tokens.push_back((i * i + 3 * i) % vocabulary);
    batch_ = Tensor::from(tokens, {2, 8}).to(device);
  }
  void step() {
    const Tensor loss = model_.loss(batch_, batch_);
    loss.backward();
    if (++steps_ % 2 == 0) optim::clip_grad_norm_(model_.parameters(), 0.5);
    optimizer_->step({.max_norm = 0.7});
    optimizer_->zero_grad();
    losses_.push_back(loss.detach());
  }
  // Losses, parameters and states.
  std::vector<std::string> bits() const {
    std::vector<std::string> all;
    for (const Tensor& loss : losses_) all.push_back(test::bytes_of(loss));
    for (const nn::NamedTensor& p : model_.named_parameters()) {
      EXPECT_EQ(p.tensor.device(), device_) << p.name;
      all.push_back(test::bytes_of(p.tensor));
    }
    for (const auto& [key, tensor] : optimizer_->state_dict()) all.push_back(test::bytes_of(tensor));
    return all;
  }
  double loss(size_t i) const { return losses_[i].item(); }
  void expect_compiled() const {
    if (!regions_) return;
    EXPECT_EQ(regions_->report()[0].eager_runs, 0) << regions_->summary();
    EXPECT_EQ(regions_->report()[0].failed_compilations, 0) << regions_->report()[0].last_failed_compilation;
  }

 private:
  static nn::GPT2Config config(int64_t vocabulary) {
    return {.vocab_size = vocabulary, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16};
  }
  Device device_;
  nn::GPT2 model_;
  std::optional<optim::AdamW> optimizer_;
  std::optional<compile::Regions> regions_;
  Tensor batch_;
  std::vector<Tensor> losses_;
  int steps_ = 0;
};

constexpr int kSteps = 4;
constexpr int64_t kVocabulary[] = {31, 23};  // of the model on each device: they differ

// The result of each model's training where nothing else runs. On device 0 of one: the bits are not the ordinal's.
std::vector<std::string> alone(int which, bool compiled) {
  FakeCuda cuda;
  Training run(cuda.device(), kVocabulary[which], compiled);
  for (int step = 0; step < kSteps; ++step) run.step();
  run.expect_compiled();
  EXPECT_LT(run.loss(kSteps - 1), run.loss(0));
  return run.bits();
}

class TwoModels : public testing::TestWithParam<bool> {
 protected:
  const bool compiled_ = GetParam();
};

TEST_P(TwoModels, InTurnsOfOneThread) {
  const std::vector<std::string> expected[] = {alone(0, compiled_), alone(1, compiled_)};
  for (uint64_t seed = 0; seed < 5; ++seed) {
    FakeCuda cuda({.seed = seed, .devices = 2, .early = seed == 4 ? 0.5 : 0.02, .peers = seed % 2 == 0});
    Training first(cuda.device(0), kVocabulary[0], compiled_), second(cuda.device(1), kVocabulary[1], compiled_);
    for (int step = 0; step < kSteps; ++step) first.step(), second.step();
    EXPECT_TRUE(second.bits() == expected[1]) << "seed " << seed;
    EXPECT_TRUE(first.bits() == expected[0]) << "seed " << seed;
    first.expect_compiled(), second.expect_compiled();
  }
}

// Runs both at once and throws what one of them has thrown.
void at_once(const std::function<void()>& a, const std::function<void()>& b) {
  std::exception_ptr error;
  std::thread other([&] {
    try {
      b();
    } catch (...) {
      error = std::current_exception();
    }
  });
  a();
  other.join();
  if (error != nullptr) std::rethrow_exception(error);
}

TEST_P(TwoModels, InTwoThreadsAtOnce) {
  const std::vector<std::string> expected[] = {alone(0, compiled_), alone(1, compiled_)};
  for (uint64_t seed = 0; seed < 5; ++seed) {
    FakeCuda cuda({.seed = seed, .devices = 2});
    std::vector<std::string> results[2];
    const auto train = [&](int which) {
      Training run(cuda.device(which), kVocabulary[which], compiled_);
      for (int step = 0; step < kSteps; ++step) run.step();
      run.expect_compiled();
      results[which] = run.bits();
    };
    at_once([&] { train(0); }, [&] { train(1); });
    for (int which : {0, 1}) EXPECT_TRUE(results[which] == expected[which]) << "seed " << seed << ", device " << which;
  }
}

// One stream serves both threads, and its blocks go from one to the other.
TEST_P(TwoModels, OnOneDeviceInTwoThreads) {
  const std::vector<std::string> expected[] = {alone(0, compiled_), alone(1, compiled_)};
  for (uint64_t seed = 0; seed < 3; ++seed) {
    FakeCuda cuda({.seed = seed});
    std::vector<std::string> results[2];
    const auto train = [&](int which) {
      Training run(cuda.device(), kVocabulary[which], compiled_);
      for (int step = 0; step < kSteps; ++step) run.step();
      run.expect_compiled();
      results[which] = run.bits();
    };
    at_once([&] { train(0); }, [&] { train(1); });
    for (int which : {0, 1}) EXPECT_TRUE(results[which] == expected[which]) << "seed " << seed << ", model " << which;
  }
}

// A model that moves between the devices in the middle of its training goes on with the same bits.
TEST_P(TwoModels, AModelMoves) {
  const auto train = [&](bool moves) {
    FakeCuda cuda({.seed = 3, .devices = 2});
    nn::GPT2 model({.vocab_size = 31, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16}, 5);
    std::optional<compile::Regions> regions;
    if (compiled_) regions.emplace(compile::compile_regions(model, {.exact = true}));
    nn::StateDict state;
    std::vector<std::string> bits;
    for (int part = 0; part < 3; ++part) {
      const Device device = cuda.device(moves ? part % 2 : 0);
      model.to(device);
      optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
      if (compiled_) optim::compile(optimizer);
      if (part > 0) optimizer.load_state_dict(state);
      for (int step = 0; step < 2; ++step) {
        const Tensor batch = Tensor::arange(16).view({2, 8}).to(device), loss = model.loss(batch, batch);
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        bits.push_back(test::bytes_of(loss.detach()));
      }
      state.clear();
      for (const auto& [key, tensor] : optimizer.state_dict()) state[key] = tensor.clone();  // on the old device
    }
    return bits;
  };
  EXPECT_TRUE(train(true) == train(false));
}

INSTANTIATE_TEST_SUITE_P(Modes, TwoModels, testing::Bool(),
                         [](const auto& info) { return info.param ? "compiled" : "eager"; });

// Two halves of one model: the activations cross forward, the gradients back.
TEST(TwoDevices, AModelOnBoth) {
  const auto train = [](Device first, Device second) {
    manual_seed(4);
    nn::Linear in(6, 16), out(16, 3);
    in.to(first), out.to(second);
    optim::SGD a(in.parameters(), {.lr = 0.1, .momentum = 0.9}), b(out.parameters(), {.lr = 0.1, .momentum = 0.9});
    Generator generator(8);
    std::vector<std::string> bits;
    for (int step = 0; step < 4; ++step) {
      const Tensor x = Tensor::randn({10, 6}, {kF32, kCPU}, &generator).to(first);
      const Tensor y = out(ops::gelu(in(x)).to(second)), loss = ops::mean(y * y);
      loss.backward();
      a.step(), b.step();
      a.zero_grad(), b.zero_grad();
      bits.push_back(test::bytes_of(loss.detach()));
    }
    for (const Tensor& p : in.parameters()) bits.push_back(test::bytes_of(p));
    for (const Tensor& p : out.parameters()) bits.push_back(test::bytes_of(p));
    return bits;
  };
  std::vector<std::string> expected;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    FakeCuda cuda({.seed = seed, .devices = 2, .peers = seed % 2 == 0});
    if (seed == 0) expected = train(cuda.device(0), cuda.device(0));
    EXPECT_TRUE(train(cuda.device(0), cuda.device(1)) == expected) << "seed " << seed;
    EXPECT_TRUE(train(cuda.device(1), cuda.device(0)) == expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace rondo
