// Lists of slices of one buffer: nothing between two slices is touched, whatever code the process has compiled before.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/foreach_map.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"

namespace rondo::optim {
namespace {

// Slices of `size` elements, each followed by 15 elements of -7 or more.
struct Guarded {
  explicit Guarded(std::vector<int64_t> sizes) : sizes(std::move(sizes)) {
    int64_t total = kGuard;
    for (int64_t size : this->sizes) starts.push_back(total), total += size + kGuard;
    memory = Tensor::full({total}, -7.0);
    for (size_t i = 0; i < starts.size(); ++i) {
      slices.push_back(Tensor::from_storage(memory.storage(), starts[i], {this->sizes[i]}, {1}, kF32));
      slices.back().fill_(3.0);
    }
  }
  void expect_guards() const {
    std::vector<float> values = memory.to_vector<float>();
    for (size_t i = 0; i < starts.size(); ++i)
      for (int64_t k = 0; k < sizes[i]; ++k) values[static_cast<size_t>(starts[i] + k)] = -7;
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], -7) << "element " << i;
  }
  void expect_all(float expected) const {
    for (size_t i = 0; i < slices.size(); ++i)
      for (float v : slices[i].to_vector<float>()) ASSERT_EQ(v, expected) << "slice of " << sizes[i];
  }
  static constexpr int64_t kGuard = 40;
  std::vector<int64_t> sizes, starts;
  Tensor memory;
  std::vector<Tensor> slices;
};
const std::vector<int64_t> kSizes{33, 1, 15, 64, 16, 17, 31, 2, 100, 47, 1000, 16385, 32, 63};

class ForeachSlices : public testing::Test {
 protected:
  void SetUp() override {
    if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
    compile::forget_unused_kernels();
  }
};

// The kernel that foreach_map wants, compiled before for a region with these marks.
void compile_before(DynamicRange range, int64_t size) {
  auto square = compile::compile([](const Tensor& x) { return x * x; }, {.exact = true});
  Tensor x = Tensor::ones({size});
  compile::mark_dynamic(x, 0, range);
  square(x);
}

TEST_F(ForeachSlices, AfterAMarkWithAMultipleOf) {
  // The region's code lives as long as it does.
  for (DynamicRange range : {DynamicRange{.multiple_of = 32}, DynamicRange{.min = 16, .multiple_of = 16},
                             DynamicRange{.min = 32, .max = 1 << 24, .multiple_of = 32}}) {
    auto square = compile::compile([](const Tensor& x) { return x * x; }, {.exact = true});
    Tensor x = Tensor::ones({1 << 20});
    compile::mark_dynamic(x, 0, range);
    const NoGrad off;
    square(x);
    Guarded in(kSizes), out(kSizes);
    auto map = compile_map([](auto& a, auto& out) { out = a * a; });
    map(in.slices, out.slices);
    out.expect_guards();
    in.expect_guards();
    out.expect_all(9);
  }
}
TEST_F(ForeachSlices, AfterStaticSizes) {
  auto square = compile::compile([](const Tensor& x) { return x * x; },
                                 {.exact = true, .shapes = compile::Shapes::kStatic});
  const NoGrad off;
  square(Tensor::ones({1 << 20}));
  Guarded in(kSizes), out(kSizes);
  auto map = compile_map([](auto& a, auto& out) { out = a * a; });
  map(in.slices, out.slices);
  out.expect_guards();
  out.expect_all(9);
}
TEST_F(ForeachSlices, InPlaceAndBeforeARegion) {
  Guarded data(kSizes);
  auto map = compile_map([](auto& to) { to = to * to; });
  map(data.slices);
  data.expect_guards();
  data.expect_all(9);
  compile_before({.multiple_of = 32}, 1 << 20);
  map(data.slices);
  data.expect_guards();
  data.expect_all(81);
}
// Eager and compiled passes would read an element before or after it is written.
TEST_F(ForeachSlices, ThatOverlapAreRefused) {
  const Tensor memory = Tensor::ones({64}), other = Tensor::ones({16}), third = Tensor::ones({16});
  const Tensor low = memory.slice(0, {0, 16}), middle = memory.slice(0, {8, 24}), high = memory.slice(0, {16, 32});
  const auto copy = [](auto& to, auto& from) { to = from + from; };
  auto compiled = compile_map(copy);
  const auto refuses = [&](std::vector<Tensor> to, std::vector<Tensor> from) {
    for (const bool is_compiled : {false, true}) {
      const std::string error = test::error_of([&] {
        if (is_compiled) compiled(to, from);
        else foreach_map(copy, to, from);
      });
      EXPECT_NE(error.find("shares memory with tensor"), std::string::npos) << error;
    }
    EXPECT_EQ(memory.to_vector<float>(), std::vector<float>(64, 1));  // nothing was written
  };
  refuses({low}, {low});     // the same tensor in two lists
  refuses({low}, {middle});  // a part of it
  refuses({middle}, {low});
  refuses({low, low}, {other, third});  // twice in one list
  refuses({low, middle}, {other, third});
  refuses({other, high}, {middle, third});        // of another pair
  refuses({low}, {memory.slice(0, {8, 40, 2})});  // through strides
  // Neighbours, and what is only read twice, are no overlap.
  foreach_map(copy, std::vector{low, high}, std::vector{other, other});
  compiled(std::vector{low, high}, std::vector{other, other});
  EXPECT_EQ(low.to_vector<float>(), std::vector<float>(16, 2));
  EXPECT_EQ(high.to_vector<float>(), std::vector<float>(16, 2));
  EXPECT_EQ(memory[32].item(), 1);
}

// Rows of 8-bit states, averages, sums: items whose last row is shorter.
TEST_F(ForeachSlices, OptimizersOverSlices) {
  for (StateFormat format : {StateFormat::kFull, StateFormat::k8Bit}) {
    Guarded data({33, 5000, 17, 4097});
    std::vector<Tensor> params;
    for (Tensor& slice : data.slices) params.push_back(slice.requires_grad_());
    Guarded grads(data.sizes);
    AdamW optimizer(params, {.lr = 0.1, .state = format});
    compile(optimizer);
    for (size_t i = 0; i < params.size(); ++i) params[i].set_grad(grads.slices[i]);
    optimizer.step();
    data.expect_guards();
    grads.expect_guards();
  }
}

}  // namespace
}  // namespace rondo::optim
