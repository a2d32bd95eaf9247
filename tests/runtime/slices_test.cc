// Parts of a tensor, and their gradients: any number of them, in any mixture. The expected gradients are added up by
// plain loops over the positions of the elements.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"

namespace rondo {
namespace {

using test::error_of;
using test::same_bits;
using Tensors = std::vector<Tensor>;
using Parts = std::function<Tensors(const Tensor&)>;

class Slices : public testing::Test {
 protected:
  void SetUp() override {
    allocator::set_poison_on_free(true);
    manual_seed(5);
  }
  void TearDown() override { allocator::set_poison_on_free(false); }
};

Tensor leaf(const Dims& sizes, DType dtype = kF32) { return Tensor::randn(sizes, {dtype}).requires_grad_(); }
// Small whole numbers, whose sums have no rounding: the order does not matter.
Tensor whole_numbers(const Dims& sizes, int64_t seed) {
  std::vector<double> values(static_cast<size_t>(sizes.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>((i * 7 + seed * 5) % 11) - 5;
  return Tensor::from(values, sizes);
}

// The elements of a tensor of these sizes that make up the parts.
std::vector<std::vector<int64_t>> positions(const Dims& sizes, const Parts& parts) {
  const Tensor all = Tensor::arange(sizes.numel(), {kI64}).view(sizes);
  std::vector<std::vector<int64_t>> result;
  for (const Tensor& part : parts(all)) result.push_back(part.to_vector<int64_t>());
  return result;
}

struct Kind {
  const char* name;
  Dims sizes;
  Parts parts;
};

std::vector<Kind> kinds() {
  return {
      {"split", {3, 23, 4}, [](const Tensor& x) { return ops::split(x, 1, 1); }},
      {"split with a rest", {3, 23, 4}, [](const Tensor& x) { return ops::split(x, 2, 1); }},
      {"split of rows", {40}, [](const Tensor& x) { return ops::split(x, 1, 0); }},
      {"chunk", {23, 2}, [](const Tensor& x) { return ops::chunk(x, 10, 0); }},
      {"unbind", {2, 3, 37}, [](const Tensor& x) { return ops::unbind(x, -1); }},
      {"select",
       {3, 19, 4},
       [](const Tensor& x) {
         Tensors parts;
         for (int64_t t = 0; t < 19; ++t) parts.push_back(x.select(1, t));
         return parts;
       }},
      {"select backwards, the last twice",
       {3, 5},
       [](const Tensor& x) {
         Tensors parts = {x.select(1, -1)};
         for (int64_t t = 4; t >= 0; --t) parts.push_back(x.select(1, t));
         return parts;
       }},
      {"slices over each other",
       {12, 3},
       [](const Tensor& x) {
         Tensors parts;
         for (int64_t t = 0; t < 9; ++t) parts.push_back(x.slice(0, {t, t + 4}));
         return parts;
       }},
      {"steps",
       {2, 20},
       [](const Tensor& x) {
         return Tensors{x.slice(1, {0, 20, 2}), x.slice(1, {1, 20, 2}), x.slice(1, {3, 19, 5}), x.slice(1, {4, 4})};
       }},
      {"slices of slices, in several dimensions",
       {6, 7, 5},
       [](const Tensor& x) {
         const Tensor middle = x.slice(1, {1, 6});
         // `middle` stands where no hook is set: a hook would see the gradients of its slices, too.
         return Tensors{middle.slice(1, {0, 3}).slice(0, {2, 5, 2}),
                        middle[3],
                        middle.select(2, 1),
                        x.slice(2, {0, 5, 4}),
                        x[0][1],
                        middle,
                        x[0].slice(0, {1, 2})};
       }},
      {"all of it, and some",
       {4, 5},
       [](const Tensor& x) {
         return Tensors{x.slice(0, {0, 4}), x[2], x, x.slice(1, {1, 3}), x.t()[1]};
       }},
  };
}

// The gradient is the sum of those of the parts, whatever else happens to x, to a part, or to its gradient.
TEST_F(Slices, GradientsOfPartsAddUp) {
  for (const Kind& kind : kinds()) {
    for (const bool inner : {false, true}) {        // x is a leaf, or is computed
      for (const int64_t unused : {0, 2, 3}) {      // every so many-th part gets no gradient
        for (const bool doubled : {false, true}) {  // by a hook
          SCOPED_TRACE(testing::Message() << kind.name << inner << unused << doubled);
          const Tensor leaf = whole_numbers(kind.sizes, 1).requires_grad_(), x = inner ? leaf * 2.0 : leaf;
          const auto at = positions(kind.sizes, kind.parts);
          std::vector<double> expected(static_cast<size_t>(leaf.numel()), 0);
          Tensor loss = ops::sum(x * whole_numbers(kind.sizes, 3));
          const std::vector<double> dense = whole_numbers(kind.sizes, 3).to_vector<double>();
          for (size_t i = 0; i < dense.size(); ++i) expected[i] += dense[i];
          Tensors parts = kind.parts(x);
          ASSERT_EQ(parts.size(), at.size());
          std::vector<std::pair<Tensor, Tensor>> retained;
          for (size_t p = 0; p < parts.size(); ++p) {
            if (unused > 0 && static_cast<int64_t>(p) % unused == 0) continue;
            const bool hooked = doubled && p % 2 == 0 && !(parts[p].impl() == x.impl());
            const Tensor weight = whole_numbers(parts[p].sizes(), static_cast<int64_t>(p));
            if (hooked) parts[p].register_hook([](const Tensor& g) { return g * 2.0; });
            if (hooked) parts[p].retain_grad(), retained.emplace_back(parts[p], weight * 2.0);
            loss = loss + ops::sum(parts[p] * weight);
            const std::vector<double> values = weight.to_vector<double>();
            for (size_t i = 0; i < values.size(); ++i)
              expected[static_cast<size_t>(at[p][i])] += values[i] * (hooked ? 2 : 1);
          }
          loss.backward({}, /*retain_graph=*/true);
          const Tensor want = Tensor::from(expected, kind.sizes) * (inner ? 2.0 : 1.0);
          EXPECT_EQ(leaf.grad().to_vector<double>(), want.to_vector<double>());
          for (const auto& [part, grad] : retained)
            EXPECT_EQ(part.grad().to_vector<double>(), grad.to_vector<double>());
          loss.backward();
          EXPECT_EQ(leaf.grad().to_vector<double>(), (want * 2.0).to_vector<double>()) << "accumulated";
        }
      }
    }
  }
}

// Sums that round: the call made last comes first, as for every other op.
TEST_F(Slices, GradientsAddInTheOrderOfTheTape) {
  for (const DType dtype : {kF32, kBF16}) {
    Tensor x = leaf({6, 3}, dtype);
    const auto random = [&](const Dims& sizes) { return Tensor::randn(sizes, {dtype}); };
    const Tensor a = random({4, 3}), b = random({6, 3}), c = random({3}), d = random({3, 3}), e = random({6});
    // Made in this order: slice, the tensor itself, select, slice, select of another dimension.
    const Tensor part_a = x.slice(0, {1, 5}), part_b = x * 1.0, part_c = x[2], part_d = x.slice(0, {0, 6, 2}),
                 part_e = x.select(1, 1);
    const Tensor roots[] = {part_a, part_b, part_c, part_d, part_e}, seeds[] = {a, b, c, d, e};
    autograd::backward(roots, seeds, false, false, std::source_location::current());
    NoGrad off;
    Tensor sum = Tensor::zeros({6, 3}, {dtype});
    sum.select(1, 1).copy_(e);
    sum.slice(0, {0, 6, 2}).add_(d);
    sum[2].add_(c);
    sum.add_(b);
    sum.slice(0, {1, 5}).add_(a);
    EXPECT_TRUE(same_bits(x.grad(), sum)) << name_of(dtype);
  }
}

TEST_F(Slices, ANegativeZeroOfOneSliceStays) {
  Tensor x = leaf({3});
  const Tensor zero = Tensor::full({1}, -0.0);
  x.slice(0, {1, 2}).backward(zero);
  EXPECT_TRUE(std::signbit(x.grad().to_vector<float>()[1]));
}

// Second derivatives go through every kind of part, and cost one pass, too.
TEST_F(Slices, SecondDerivatives) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const Tensor x = whole_numbers(kind.sizes, 2).requires_grad_();
    Tensor loss;
    std::vector<double> curvature(static_cast<size_t>(x.numel()), 0);
    const auto at = positions(kind.sizes, kind.parts);
    const Tensors parts = kind.parts(x);
    for (size_t p = 0; p < parts.size(); ++p) {
      const Tensor cubes = ops::sum(parts[p] * parts[p] * parts[p]);
      loss = loss.defined() ? loss + cubes : cubes;
      for (const int64_t i : at[p]) curvature[static_cast<size_t>(i)] += 6;
    }
    const Tensor roots[] = {loss}, inputs[] = {x};
    const Tensor first = autograd::grad(roots, inputs, {}, true, /*create_graph=*/true)[0];
    const Tensor direction = whole_numbers(kind.sizes, 4);
    const Tensor seconds[] = {ops::sum(first * direction)};
    const Tensor second = autograd::grad(seconds, inputs)[0];
    const std::vector<double> values = x.to_vector<double>(), along = direction.to_vector<double>();
    std::vector<double> expected;
    for (size_t i = 0; i < values.size(); ++i) expected.push_back(curvature[i] * values[i] * along[i]);
    EXPECT_EQ(second.to_vector<double>(), expected);
  }
}

TEST_F(Slices, WritesInPlaceOnParts) {
  const Tensor x = whole_numbers({4, 10}, 1).requires_grad_(), weight = whole_numbers({4, 10}, 6);
  const Tensor h = x * 3.0;
  const Tensor before = h.select(1, 4) * 2.0;
  for (int64_t t = 0; t < 10; t += 2) h.select(1, t).mul_(static_cast<double>(t));
  h.slice(0, {1, 3}).add_(1.0);
  Tensor loss = ops::sum(before);
  for (const Tensor& column : ops::unbind(h, 1)) loss = loss + ops::sum(column * column);
  loss = loss + ops::sum(h * weight);
  loss.backward();
  std::vector<double> expected;
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t t = 0; t < 10; ++t) {
      const double factor = t % 2 == 0 ? 3.0 * static_cast<double>(t) : 3.0;
      const double value = x[r][t].item() * factor + (r == 1 || r == 2 ? 1 : 0);
      expected.push_back((2 * value + weight[r][t].item()) * factor + (t == 4 ? 6 : 0));
    }
  EXPECT_EQ(x.grad().to_vector<double>(), expected);
}

TEST_F(Slices, StackAndCatTakeAnyNumber) {
  for (const int64_t n : {1, 8, 9, 40, 300}) {
    SCOPED_TRACE(n);
    Tensors rows;
    for (int64_t i = 0; i < n; ++i) rows.push_back(whole_numbers({3, 2}, i).requires_grad_(i % 3 != 1));
    const Tensor stacked = ops::stack(rows, 1), joined = ops::cat(rows, 0);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_TRUE(same_bits(stacked.select(1, i).contiguous(), rows[static_cast<size_t>(i)]));
      EXPECT_TRUE(same_bits(joined.slice(0, {3 * i, 3 * i + 3}).contiguous(), rows[static_cast<size_t>(i)]));
    }
    const Tensor a = whole_numbers(stacked.sizes(), 1), b = whole_numbers(joined.sizes(), 2);
    (ops::sum(stacked * a) + ops::sum(joined * b)).backward();
    for (int64_t i = 0; i < n; ++i) {
      const Tensor& row = rows[static_cast<size_t>(i)];
      if (!row.requires_grad()) {
        EXPECT_FALSE(row.grad().defined());
        continue;
      }
      const Tensor want = a.select(1, i) + b.slice(0, {3 * i, 3 * i + 3});
      EXPECT_TRUE(same_bits(row.grad(), want.contiguous()));
    }
  }
}

TEST_F(Slices, MixedDtypesUnderAutocast) {
  Tensor x = leaf({5, 12, 4}), w = leaf({3, 4});
  std::vector<Tensor> grads;
  for (const bool gathered : {true, false}) {
    x.set_grad({});
    Tensor loss;
    {
      const amp::Autocast lower(kBF16);
      for (int64_t t = 0; t < 12; ++t) {
        const Tensor mask = ops::equal(Tensor::arange(12).view({12, 1}), t).to(kF32);
        const Tensor part = gathered ? x.select(1, t) : ops::sum(x * mask, {1});
        const Tensor y = ops::sum(ops::linear(part, w, Tensor()).to(kF32) * static_cast<double>(t));
        loss = loss.defined() ? loss + y : y;
      }
    }
    loss.backward();
    EXPECT_EQ(x.grad().dtype(), kF32);
    grads.push_back(x.grad());
  }
  EXPECT_EQ(grads[0].to_vector<double>(), grads[1].to_vector<double>());
}

TEST_F(Slices, Errors) {
  const Tensor x = Tensor::zeros({4, 6});
  EXPECT_NE(error_of([&] { ops::chunk(x, 0, 0); }).find("chunk: the number of parts must be positive"),
            std::string::npos);
  EXPECT_NE(error_of([&] { ops::unbind(Tensor::zeros({}), 0); }).find("unbind: a scalar"), std::string::npos);
  EXPECT_NE(error_of([&] { ops::unbind(x, 2); }).find("dimension 2 is out of range"), std::string::npos);
  EXPECT_TRUE(ops::unbind(Tensor::zeros({0, 3})).empty());
  EXPECT_EQ(ops::chunk(Tensor::zeros({0, 3}), 4, 0).size(), 1u);
  EXPECT_EQ(ops::chunk(Tensor::zeros({5}), 4, 0).size(), 3u);
  EXPECT_EQ(ops::split(Tensor::zeros({5}), std::numeric_limits<int64_t>::max(), 0).size(), 1u);
}

// The gradient of one slice more costs what the slice holds, and not what the tensor holds. A tensor of x's size for a
// slice, alone or with the sum so far, would stand beside that sum: the memory in use shows it, at one slice as at
// many.
TEST_F(Slices, TheGradientOfManyIsLinear) {
  const TensorOptions here{kF32, kCPU};  // whose memory is counted
  const Tensor x = Tensor::randn({1 << 14, 64}, here).requires_grad_();
  // The most that going backward through n slices takes, in tensors of x's size.
  const auto tensors_of_its_size = [&](int64_t n, bool create_graph) {
    Tensor loss;
    for (int64_t i = 0; i < n; ++i) {
      const Tensor row = ops::sum(i % 2 == 0 ? x[i] : x.slice(0, {i, i + 1})[0]);
      loss = loss.defined() ? loss + row : row;
    }
    const Tensor roots[] = {loss}, inputs[] = {x};
    const int64_t before = allocator::stats().bytes_in_use;
    allocator::reset_peak();
    const Tensor gradient = autograd::grad(roots, inputs, {}, create_graph, create_graph)[0];
    EXPECT_EQ(ops::sum(gradient).item(), static_cast<double>(n * x.size(1)));
    return static_cast<double>(allocator::stats().peak_bytes - before) / static_cast<double>(x.nbytes());
  };
  for (const bool create_graph : {false, true}) {
    for (const int64_t n : {2, 64, 512}) {
      const double most = tensors_of_its_size(n, create_graph);
      EXPECT_GE(most, 1) << "the gradient itself";
      EXPECT_LT(most, 1.5) << n << " slices, create_graph " << create_graph;
    }
  }
}

// ---- What saves nothing goes backward as often as it is asked to.

TEST_F(Slices, AViewServesTwoBackwards) {
  Tensor w = leaf({6});
  const std::function<Tensor(const Tensor&)> views[] = {
      [](const Tensor& x) {
        return x.view({2, 3});
      },
      [](const Tensor& x) {
        return x.slice(0, {1, 4});
      },
      [](const Tensor& x) { return x[2]; },
      [](const Tensor& x) { return ops::split(x, 4, 0)[1]; },
      [](const Tensor& x) {
        return x.view({2, 3}).t();
      },
      [](const Tensor& x) { return ops::unbind(x)[5]; },
      [](const Tensor& x) {
        return x.expand({2, 6});
      },
      [](const Tensor& x) { return ops::sum(x); },
      [](const Tensor& x) { return x + x; },
      [](const Tensor& x) { return -(x - 1.0); },
      [](const Tensor& x) { return x * 3.0; },
      [](const Tensor& x) { return x.to(kF64); },
      [](const Tensor& x) {
        return ops::cat({x, x}, 0);
      },
      [](const Tensor& x) {
        return ops::stack({x, x}, 0);
      },
      [](const Tensor& x) { return ops::mean(x); },
      [](const Tensor& x) {
        return ops::tril(x.view({2, 3}), 1);
      },
      [](const Tensor& x) {
        return ops::triu(x.view({3, 2}), -1);
      },
  };
  size_t i = 0;
  for (const auto& view : views) {
    SCOPED_TRACE(i++);
    w.set_grad({});
    const Tensor v = view(w);
    ops::sum(v * v.detach()).backward();
    const Tensor once = w.grad().clone();
    ops::sum(v * v.detach()).backward();
    EXPECT_TRUE(same_bits(w.grad(), once * 2.0));
  }
  // As often as one likes, as for a leaf; what saves something still says so.
  const Tensor sum = ops::sum(w * 2.0), product = ops::sum(w * w);
  for (int round = 0; round < 3; ++round) sum.backward();
  product.backward();
  EXPECT_NE(error_of([&] { product.backward(); }).find("backward of mul: its saved tensors were freed"),
            std::string::npos);
}

}  // namespace
}  // namespace rondo
