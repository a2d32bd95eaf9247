// Layouts that default mode chooses for images inside of a region (compile/transform/lay_out.h). Results and gradients
// have the values and the strides of eager execution, whatever ops stand between the convolutions.
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/modules/layers/channel_norm.h"
#include "rondo/modules/layers/convolution.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/convolution.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo::compile {
namespace {

// Three convolutions with norms, and a shortcut.
struct Block : nn::Module<Block> {
  Block(int64_t outside, int64_t inside) : outside(outside), inside(inside) {}
  int64_t outside, inside;
  nn::Conv2d conv1 = child("conv1", outside, inside, 1, nn::Conv2dOptions{.bias = false});
  nn::BatchNorm2d bn1 = child("bn1", inside);
  nn::Conv2d conv2 = child("conv2", inside, inside, 3, nn::Conv2dOptions{.padding = 1});
  nn::BatchNorm2d bn2 = child("bn2", inside);
  nn::Conv2d conv3 = child("conv3", inside, outside, 1);
  nn::BatchNorm2d bn3 = child("bn3", outside);
  Tensor forward(const Tensor& x) {
    const Tensor y = ops::relu(bn2(conv2(ops::relu(bn1(conv1(x))))));
    return ops::relu(bn3(conv3(y)) + x);
  }
};

struct Blocks : nn::Module<Blocks> {
  Block first = child("first", 8, 16), second = child("second", 8, 16), third = child("third", 8, 16);
  Tensor forward(const Tensor& x) { return third(second(first(x))); }
};

struct Results {
  std::vector<Tensor> tensors;  // the output, the input's gradient, those of the parameters, buffers
};

// Gives both networks one dtype, and the second the numbers of the first.
template <class Net> void make_twins(Net& net, Net& twin, DType dtype) {
  net.to(dtype);
  twin.to(dtype);
  twin.load_state_dict(net.state_dict());
}

template <class Net> Results step(Net& net, const Tensor& x) {
  const Tensor input = x.detach().requires_grad_();
  const Tensor y = net(input);
  net.zero_grad();
  (y * y).mean().backward();
  Results results{{y, input.grad()}};
  for (const auto& [name, parameter] : net.named_parameters())
    results.tensors.push_back(parameter.grad().defined() ? parameter.grad().clone() : Tensor::zeros({}));
  for (const auto& [name, buffer] : net.named_buffers()) results.tensors.push_back(buffer.clone());
  return results;
}

void expect_like(const Results& got, const Results& want, double bound, const std::string& what) {
  ASSERT_EQ(got.tensors.size(), want.tensors.size()) << what;
  for (size_t i = 0; i < got.tensors.size(); ++i) {
    const Tensor &a = got.tensors[i], &b = want.tensors[i];
    EXPECT_EQ(a.sizes(), b.sizes()) << what << ", result " << i;
    EXPECT_EQ(a.strides(), b.strides()) << what << ", result " << i;
    if (b.numel() == 0) continue;
    const Tensor wide_a = a.to(kF64), wide_b = b.to(kF64);
    EXPECT_LE(test::difference(wide_a, wide_b), bound * std::max(1e-2, test::largest(wide_b)))
        << what << ", result " << i;
  }
}

const ProgramExplanation& program(const Explanation& explanation, size_t n) {
  return explanation.regions.at(0).entries.at(0).programs.at(n);
}

class ChosenLayouts : public testing::Test {
 protected:
  void SetUp() override {
    if (!jit_available()) GTEST_SKIP() << "built without LLVM";
    if (!(default_device() == kCPU))
      GTEST_SKIP() << "chosen where convolutions prefer channels last, which is measured on the CPU";
    manual_seed(17);
  }
  void TearDown() override { disable_stages(""); }
};

TEST_F(ChosenLayouts, ConversionsAreAtTheEnds) {
  for (const DType dtype : {kF32, kF64}) {
    Blocks net;
    net.to(dtype);
    const Tensor x = Tensor::randn({2, 8, 9, 7}).to(dtype);
    Blocks twin;
    twin.to(dtype);
    twin.load_state_dict(net.state_dict());
    const Results eager = step(twin, x);
    auto compiled = compile_module(net);
    const test::MustRunCompiled here;
    const Results got = step(net, x);
    expect_like(got, eager, dtype == kF64 ? 1e-11 : 2e-4, "three blocks");
    const Explanation explanation = explain(compiled);
    // What enters is read by a convolution and by the shortcut; what leaves is written by a kernel.
    const ProgramExplanation &forward = program(explanation, 0), &backward = program(explanation, 1);
    EXPECT_EQ(forward.layouts_in_convolutions, 1);
    EXPECT_LE(forward.layout_copies, 1);
    EXPECT_LE(backward.layout_copies + backward.layouts_in_convolutions, 4);
    if (backward.layout_copies + backward.layouts_in_convolutions > 4) puts(to_text(explanation).c_str());
    EXPECT_NE(to_text(explanation).find("change their layout"), std::string::npos);
  }
}

TEST_F(ChosenLayouts, AreAStageAndNotForExactMode) {
  Blocks nets[2];
  const Tensor x = Tensor::randn({2, 8, 9, 7});
  for (int i = 0; i < 2; ++i) {
    if (i == 0) disable_stages("layouts");
    auto compiled = compile_module(nets[i], {.exact = i == 1});
    step(nets[i], x);
    const Explanation explanation = explain(compiled);
    EXPECT_EQ(program(explanation, 0).layout_copies, 0);
    EXPECT_EQ(program(explanation, 0).layouts_in_convolutions, 18);  // each of nine reads one and writes one
    disable_stages("");
  }
}

TEST_F(ChosenLayouts, ABlockThatGainsLittleStaysAsItIs) {
  Block net(16, 4);
  auto compiled = compile_module(net);
  step(net, Tensor::randn({2, 16, 9, 7}));
  EXPECT_EQ(program(explain(compiled), 0).layouts_in_convolutions, 6);
}

TEST_F(ChosenLayouts, AConvolutionMakesTheLayoutThatItsCallNames) {
  const Tensor x = Tensor::randn({2, 6, 5, 4}), weight = Tensor::randn({8, 6, 3, 3}),
               grad = Tensor::randn({2, 8, 5, 4});
  const ops::Convolution conv{.before = {1, 1}, .after = {1, 1}};
  struct Case {
    const OpDef* op;
    Tensor a, b;
    Attrs attrs;
  };
  for (const Case& c :
       {Case{&ops::kConv2d, x, weight, conv.attrs()}, Case{&ops::kConv2dGradInput, grad, weight, conv.attrs({5, 4})}})
    for (const bool last_operands : {false, true}) {
      const auto lie = [&](const Tensor& t) {
        return last_operands ? with_strides(t, channels_last_strides(t.sizes())) : t;
      };
      const Tensor a = lie(c.a), b = lie(c.b), usual = call(*c.op, {c.a, c.b}, c.attrs);
      for (const auto layout : {ops::ResultLayout::kUsual, ops::ResultLayout::kChannelsLast}) {
        Attrs attrs = c.attrs;
        attrs.ints[ops::Convolution::kLayoutInt] = static_cast<int64_t>(layout);
        const Tensor y = call(*c.op, {a, b}, attrs);
        EXPECT_EQ(lies_channels_last(y), layout == ops::ResultLayout::kChannelsLast) << c.op->name;
        EXPECT_TRUE(test::same_bits(y.contiguous(), usual)) << c.op->name;
      }
    }
}

TEST_F(ChosenLayouts, OtherRunsOfTheSameRegion) {
  const auto results = [](Blocks& net, const Tensor& x) {
    Results all;
    {
      const NoGrad off;
      all.tensors.push_back(net(x));
    }
    const Tensor input = x.detach().requires_grad_();
    net.zero_grad();
    const Tensor y = net(input), g = Tensor::full(y.sizes(), 0.3, {y.dtype()}) * x;
    y.backward(with_strides(g, channels_last_strides(y.sizes())));
    net(input).sum().backward();  // onto what is there
    all.tensors.push_back(input.grad());
    for (const auto& [name, parameter] : net.named_parameters()) all.tensors.push_back(parameter.grad().clone());
    net.eval();
    all.tensors.push_back(net(x.detach().requires_grad_()));
    // Second derivatives.
    const Tensor again = x.detach().requires_grad_();
    const Tensor root = ops::sum(ops::pow(net(again), 3.0));
    const Tensor first = autograd::grad({&root, 1}, {&again, 1}, {}, true, true)[0], second = ops::sum(first * first);
    all.tensors.push_back(autograd::grad({&second, 1}, {&again, 1})[0]);
    return all;
  };
  Blocks net, twin;
  make_twins(net, twin, kF64);
  const Tensor x = Tensor::randn({2, 8, 6, 5}).to(kF64);
  const Results eager = results(twin, x);
  compile_module(net);
  const test::MeansToRun eagerly(test::Eagerly::kBackward, "second derivatives");
  expect_like(results(net, x), eager, 1e-10, "runs");
}

// A softmax keeps default mode from other formulas (may_relax() of codegen/relax.h), not from other layouts.
TEST_F(ChosenLayouts, BesideAMaximum) {
  struct Net : nn::Module<Net> {
    Blocks blocks = child("blocks");
    Tensor forward(const Tensor& x) {
      const Tensor y = blocks(x);
      return ops::softmax(y, 1) * ops::max(y, {1}, true);
    }
  };
  Net net, twin;
  make_twins(net, twin, kF64);
  const Tensor x = Tensor::randn({2, 8, 9, 7}).to(kF64);
  const Results eager = step(twin, x);
  auto compiled = compile_module(net);
  expect_like(step(net, x), eager, 1e-11, "maximum");
  EXPECT_LE(program(explain(compiled), 0).layouts_in_convolutions, 2);
}

// zeros and full are numbers in a kernel in both layouts, not images that lie otherwise.
TEST_F(ChosenLayouts, FilledImagesAreNumbers) {
  struct Net : nn::Module<Net> {
    nn::ModuleList<nn::Conv2d> convs = child("convs", 3, 8, 8, 3, nn::Conv2dOptions{.padding = 1});
    Tensor forward(const Tensor& x) {
      Tensor y = x;
      for (nn::Conv2d& conv : convs) {
        y = conv(y);
        y = ops::relu(Tensor::full(y.sizes(), 0.5, {y.dtype()}) * y + Tensor::zeros(y.sizes(), {y.dtype()}));
      }
      return y;
    }
  };
  Net net, twin;
  make_twins(net, twin, kF64);
  const Tensor x = Tensor::randn({2, 8, 9, 7}).to(kF64);
  const Results eager = step(twin, x);
  auto compiled = compile_module(net);
  const test::MustRunCompiled here;
  expect_like(step(net, x), eager, 1e-11, "filled");
  const ProgramExplanation forward = program(explain(compiled), 0);
  EXPECT_LE(forward.layouts_in_convolutions, 2);  // the first reads, the last writes
  EXPECT_EQ(forward.layout_copies, 0);
  EXPECT_EQ(forward.kernels, 3);
}

TEST_F(ChosenLayouts, UnderAutocast) {
  Blocks net, twin;
  twin.load_state_dict(net.state_dict());
  const Tensor x = Tensor::randn({2, 8, 9, 7});
  const amp::Autocast low(kBF16);
  const Results eager = step(twin, x);
  auto compiled = compile_module(net);
  expect_like(step(net, x), eager, 0.1, "bf16");
  EXPECT_EQ(program(explain(compiled), 0).layouts_in_convolutions, 1);
}

// ---- Random programs

// A net of ops on images, with its own choice of them, from the number.
struct RandomNet : nn::Module<RandomNet> {
  explicit RandomNet(uint64_t number) : number(number) {}
  Tensor forward(const Tensor& x) {
    std::mt19937_64 random(number);
    const auto below = [&](uint64_t n) { return random() % n; };
    std::vector<Tensor> images = {x};
    const auto any = [&]() -> const Tensor& { return images[below(images.size())]; };
    const auto recent = [&]() -> const Tensor& {
      return images[images.size() - 1 - below(std::min<size_t>(3, images.size()))];
    };
    for (int i = 0; i < 6; ++i) {
      images.push_back(convs[i](recent()));
      for (uint64_t k = below(4); k > 0; --k) {
        const Tensor& y = recent();
        switch (below(19)) {
          case 0: images.push_back(norms[i](y)); break;
          case 1: images.push_back(ops::relu(y)); break;
          case 2: images.push_back(y + any()); break;
          case 3: images.push_back(any() * ops::sigmoid(y)); break;
          case 4: images.push_back(y * ops::sigmoid(ops::mean(y, {2, 3}, true))); break;
          case 5: images.push_back(y - ops::mean(any(), {1}, true)); break;
          case 6: images.push_back(ops::dropout(y, 0.3)); break;
          case 7: {  // channels in two halves, one of which goes on
            const Tensor both = ops::cat(
                {ops::slice(y, 1, {0, kChannels / 2}), ops::slice(any(), 1, {1, 1 + kChannels / 2})}, 1);
            images.push_back(both);
            break;
          }
          case 8: images.push_back(ops::slice(ops::cat({y, any()}, 2), 2, {1, 1 + kHeight})); break;
          case 9: images.push_back(ops::max_pool2d(y, 3, {.stride = 1, .padding = 1})); break;
          case 10: images.push_back(ops::avg_pool2d(y, 3, {.stride = 1, .padding = 1})); break;
          case 11:
            images.push_back(ops::interpolate(y, {kHeight, kWidth}, {.mode = ops::InterpolateMode::kBilinear}));
            break;
          case 12: images.push_back(ops::softmax(y, 1)); break;
          case 13:  // views in another order
            images.push_back(
                ops::reshape(ops::permute(ops::tanh(ops::permute(y, {0, 2, 3, 1})), {0, 3, 1, 2}), y.sizes()));
            break;
          case 14: images.push_back(y + ops::reshape(ops::sum(any(), {0, 2, 3}), {kChannels, 1, 1})); break;
          case 16:  // more dimensions than an image has
            images.push_back(ops::mean(y * Tensor::full({2, 1, 1, 1, 1}, 1.5, {y.dtype()}), {0}));
            break;
          case 17: images.push_back(Tensor::full(y.sizes(), 1.5, {y.dtype()}) - any()); break;
          case 15: images.push_back(ops::where(any() > 0.0, y, any())); break;
          default:
            images.push_back(ops::pad(ops::slice(y, 3, {1, kWidth}), {1, 0}, ops::PadMode::kConstant, 0.5));
            break;
        }
      }
    }
    return below(3) == 0 ? any() + images.back() : images.back();
  }
  static constexpr int64_t kChannels = 6, kHeight = 5, kWidth = 4;
  uint64_t number;
  nn::ModuleList<nn::Conv2d> convs = child("convs", 6, kChannels, kChannels, 3, nn::Conv2dOptions{.padding = 1});
  nn::ModuleList<nn::BatchNorm2d> norms = child("norms", 6, kChannels);
};

TEST_F(ChosenLayouts, RandomProgramsInF64) {
  constexpr uint64_t kPrograms = 60;
  int chosen = 0;
  for (uint64_t number = 0; number < kPrograms; ++number) {
    manual_seed(number);
    RandomNet net(number), twin(number);
    make_twins(net, twin, kF64);
    const Tensor x = Tensor::randn({2, RandomNet::kChannels, RandomNet::kHeight, RandomNet::kWidth}).to(kF64);
    manual_seed(number + 1000);
    const Results eager = step(twin, x);
    auto compiled = compile_module(net);
    manual_seed(number + 1000);
    const Results got = step(net, x);
    expect_like(got, eager, 1e-9, absl::StrCat("program ", number));
    const Explanation explanation = explain(compiled);
    const ProgramExplanation& forward = program(explanation, 0);
    for (const NodeExplanation& node : forward.nodes)
      chosen += node.text.find("strides[120, 1, 24, 6]") != std::string::npos;
    if (HasFailure()) {
      std::string ops;
      for (const NodeExplanation& node : forward.nodes) absl::StrAppend(&ops, node.text, "\n");
      ADD_FAILURE() << ops;
      break;
    }
  }
  EXPECT_GT(chosen, 60);
}

}  // namespace
}  // namespace rondo::compile
