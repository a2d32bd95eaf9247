// autograd::GradientHome: a region's backward makes the gradient of a parameter in memory of the caller's choice, where
// nobody can see the difference.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/options.h"
#include "rondo/modules/layers/attention.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo::compile {
namespace {

using test::same_bits;

// One block of memory for the gradients of all parameters, each from a multiple of 16 elements on, `shift` added.
class Homes {
 public:
  explicit Homes(const std::vector<Tensor>& parameters, int64_t shift = 0) {
    int64_t elements = shift;
    for (const Tensor& p : parameters) elements += (p.numel() + 15) / 16 * 16;
    flat_ = Tensor::full({elements}, -77.0);
    int64_t at = shift;
    for (const Tensor& p : parameters) {
      views.push_back(Tensor::from_storage(flat_.storage(), at, p.sizes(), contiguous_strides(p.sizes()), p.dtype()));
      homes_.push_back(std::make_unique<autograd::GradientHome>(p));
      homes_.back()->set(views.back());
      at += (p.numel() + 15) / 16 * 16;
    }
  }
  void leave() {
    for (const auto& home : homes_) home->set(Tensor());
  }
  bool holds(const Tensor& gradient, size_t i) const {
    return gradient.storage() == flat_.storage() && gradient.storage_offset() == views[i].storage_offset();
  }
  std::vector<Tensor> views;

 private:
  Tensor flat_;
  std::vector<std::unique_ptr<autograd::GradientHome>> homes_;
};

class GradientHomeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!jit_available()) GTEST_SKIP() << "built without LLVM";
    manual_seed(1);
    block_ = std::make_unique<nn::TransformerBlock>(32, 2);
    regions_ = compile_module(*block_, {.exact = true});
    x_ = Tensor::randn({2, 8, 32});
  }
  void backward(double scale = 1) { (ops::sum((*block_)(x_)) * scale).backward(); }
  std::vector<Tensor> gradients() {
    std::vector<Tensor> all;
    for (const Tensor& p : block_->parameters()) all.push_back(p.grad().clone());
    return all;
  }
  void expect(const std::vector<Tensor>& expected) {
    const std::vector<Tensor> now = gradients();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(same_bits(now[i], expected[i])) << i;
  }

  std::unique_ptr<nn::TransformerBlock> block_;
  std::optional<Regions> regions_;
  Tensor x_;
};

TEST_F(GradientHomeTest, GradientsAreMadeThere) {
  backward();
  const std::vector<Tensor> expected = gradients();
  block_->zero_grad();
  const std::vector<Tensor> parameters = block_->parameters();
  Homes homes(parameters);
  for (int round = 0; round < 3; ++round) {
    backward();
    expect(expected);
    for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(homes.holds(parameters[i].grad(), i)) << i;
    block_->zero_grad();
  }
  homes.leave();
  backward();
  expect(expected);
  for (size_t i = 0; i < parameters.size(); ++i) EXPECT_FALSE(homes.holds(parameters[i].grad(), i)) << i;
}

TEST_F(GradientHomeTest, ASecondBackwardAddsThere) {
  backward();
  backward(0.5);
  const std::vector<Tensor> expected = gradients();
  block_->zero_grad();
  const std::vector<Tensor> parameters = block_->parameters();
  Homes homes(parameters);
  backward();
  backward(0.5);
  expect(expected);
  for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(homes.holds(parameters[i].grad(), i)) << i;
}

// What may not, or cannot, be made there is made elsewhere, with the same bits; the home is not touched.
TEST_F(GradientHomeTest, OtherwiseGradientsAreMadeElsewhere) {
  backward();
  const std::vector<Tensor> expected = gradients();
  block_->zero_grad();
  const std::vector<Tensor> parameters = block_->parameters();
  {
    Homes homes(parameters, /*shift=*/3);  // memory that a kernel may not expect
    backward();
    expect(expected);
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_FALSE(homes.holds(parameters[i].grad(), i)) << i;
      EXPECT_EQ(homes.views[i].view({-1})[0].item(), -77);
    }
    block_->zero_grad();
  }
  Homes homes(parameters);
  Tensor seen;
  const int64_t hook = block_->ln_1.weight.register_hook(
      [&](const Tensor& gradient) { return seen = gradient, Tensor(); });
  backward();
  expect(expected);
  block_->ln_1.weight.remove_hook(hook);
  for (size_t i = 0; i < parameters.size(); ++i)
    EXPECT_EQ(homes.holds(parameters[i].grad(), i), !parameters[i].is_same(block_->ln_1.weight)) << i;
  EXPECT_TRUE(same_bits(seen, block_->ln_1.weight.grad()));
  // grad() returns gradients, and leaves homes alone.
  block_->zero_grad();
  homes.views[0].fill_(-77.0);
  const Tensor loss = ops::sum((*block_)(x_));
  const std::vector<Tensor> returned = autograd::grad({&loss, 1}, parameters);
  EXPECT_TRUE(same_bits(returned[0], expected[0]));
  EXPECT_EQ(homes.views[0].view({-1})[0].item(), -77);
}

// A parameter whose gradient has two sources: their sum is made outside of the region.
TEST_F(GradientHomeTest, AParameterThatIsUsedTwice) {
  const auto twice = [&] { (ops::sum((*block_)(x_)) + ops::sum(block_->ln_1.weight * 2.0)).backward(); };
  twice();
  const std::vector<Tensor> expected = gradients();
  block_->zero_grad();
  Homes homes(block_->parameters());
  twice();
  expect(expected);
}

// Every unit is compared with eager execution while gradients are made at home.
TEST_F(GradientHomeTest, UnitsAreChecked) {
  Homes homes(block_->parameters());
  set_check_units(true);
  backward();
  set_check_units(false);
  EXPECT_TRUE(homes.holds(block_->parameters()[0].grad(), 0));
}

TEST(GradientHomeRules, ItIsOfALeaf) {
  const Tensor plain = Tensor::ones({2});
  EXPECT_THROW(autograd::GradientHome{plain}, Error);
  EXPECT_THROW(autograd::GradientHome{plain.clone().requires_grad_() * 2.0}, Error);
}

}  // namespace
}  // namespace rondo::compile
