#include "rondo/modules/layers/convolution.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/errors.h"

namespace rondo::nn {
namespace {

struct Net : Module<Net> {
  Conv2d stem = child("stem", 3, 8, 3, Conv2dOptions{.stride = 2, .padding = 1, .bias = false});
  Conv2d depthwise = child("depthwise", 8, 8, 3, Conv2dOptions{.padding = ops::kSamePadding, .groups = 8});
  ConvTranspose2d up = child("up", 8, 4, 2, ConvTranspose2dOptions{.stride = 2});
  Conv1d rows = child("rows", 4, 5, 3);
  Tensor forward(const Tensor& x) {                                 // (B, 3, H, W)
    const Tensor y = up(ops::relu(depthwise(ops::gelu(stem(x)))));  // (B, 4, H, W)
    return rows(y.flatten(2));
  }
};

TEST(Convolution, NamesAndShapes) {
  Net net;
  std::string names;
  for (const auto& [name, tensor] : net.state_dict()) names += name + " " + to_string(tensor.sizes()) + "\n";
  EXPECT_EQ(names,
            "depthwise.bias [8]\ndepthwise.weight [8, 1, 3, 3]\nrows.bias [5]\nrows.weight [5, 4, 3]\n"
            "stem.weight [8, 3, 3, 3]\nup.bias [4]\nup.weight [8, 4, 2, 2]\n");
  EXPECT_EQ(to_string(net(Tensor::zeros({2, 3, 8, 6})).sizes()), "[2, 5, 46]");
}

// torch.nn.init.kaiming_uniform_(a=sqrt(5)): +-1/sqrt(fan in), which a transposed convolution counts over its outputs.
TEST(Convolution, StartingWeights) {
  const auto expect_bound = [](const Tensor& t, double bound) {
    double most = 0, sum = 0;
    for (double v : t.to_vector<double>()) most = std::max(most, std::abs(v)), sum += v;
    EXPECT_LE(most, bound);
    EXPECT_GE(most, bound * 0.95);
    EXPECT_LT(std::abs(sum / static_cast<double>(t.numel())), bound * 0.2);
  };
  Conv2d conv(32, 64, {3, 5}, {.groups = 4});
  expect_bound(conv.weight, 1 / std::sqrt(8 * 15.0));
  expect_bound(conv.bias, 1 / std::sqrt(8 * 15.0));
  ConvTranspose2d up(32, 128, 2, {.groups = 2});
  expect_bound(up.weight, 1 / std::sqrt(64 * 4.0));
  expect_bound(up.bias, 1 / std::sqrt(64 * 4.0));
  Conv1d row(16, 64, 4);
  expect_bound(row.weight, 1 / std::sqrt(16 * 4.0));
}

TEST(Convolution, BadSizesAreErrors) {
  EXPECT_NE(test::error_of([] { Conv2d(6, 8, 3, {.groups = 4}); }).find("4 groups of 6 and 8 channels"),
            std::string::npos);
  EXPECT_NE(test::error_of([] {
              Conv2d(6, 8, {3, 0});
            }).find("kernel's sizes must be positive, got 0"),
            std::string::npos);
  EXPECT_NE(test::error_of([] { Conv1d(0, 8, 3); }).find("channels must be positive, got 0 and 8"), std::string::npos);
}

// A region calls the same op: every bit of results and gradients is eager's, in both layouts.
TEST(Convolution, CompiledEqualsEager) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  for (DType dtype : {kF32, kBF16, kF64})
    for (bool last : {false, true}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + (last ? " channels last" : ""));
      Net net;
      net.to(dtype);
      Tensor x = Tensor::randn({2, 3, 12, 10}).to(dtype);
      if (last) x = x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
      const auto run = [&] {
        const Tensor input = x.detach().requires_grad_();
        const Tensor y = net(input);
        net.zero_grad();
        y.backward(Tensor::ones(y.sizes(), {dtype}));
        std::vector<Tensor> results = {y, input.grad()};
        for (const auto& [name, parameter] : net.named_parameters()) results.push_back(parameter.grad().clone());
        return results;
      };
      const std::vector<Tensor> eager = run();
      compile::compile_module(net, {.exact = true});
      const test::MustRunCompiled here;
      const std::vector<Tensor> compiled = run();
      for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(test::same_bits(eager[i], compiled[i])) << i;
    }
}

}  // namespace
}  // namespace rondo::nn
