// Ops and backward when memory runs short.
#include "rondo/runtime/autograd/autograd.h"

#include <gtest/gtest.h>

#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/memory/digest.h"
#include "rondo/tests/memory/failing_memory.h"

namespace rondo {
namespace {

using test::digest;
using test::expect_typed_errors;
using test::Work;

Tensor leaf(const Dims& sizes) {
  Tensor x = Tensor::randn(sizes);
  x.requires_grad_();
  return x;
}

TEST(MemoryOfAutograd, RunsShortInGradientsOfGradients) {
  expect_typed_errors([]() -> Work {
    return [] {
      manual_seed(3);
      const Tensor x = leaf({3, 4}), w = leaf({4, 4});
      const Tensor y = ops::sum(ops::tanh(ops::matmul(x, w)) * x);
      const Tensor roots[] = {y}, inputs[] = {x, w};
      const std::vector<Tensor> first = autograd::grad(roots, inputs, {}, true, true);
      ops::sum(first[0] * first[1].slice(0, {0, 3})).backward();
      return digest(first, x.grad(), w.grad());
    };
  });
}

// More tasks than a backward makes room for, and nodes that wait for each other.
TEST(MemoryOfAutograd, RunsShortInALongTape) {
  expect_typed_errors([]() -> Work {
    return [] {
      manual_seed(3);
      const Tensor x = leaf({4});
      Tensor h = x;
      for (int i = 0; i < 150; ++i) h = i % 3 == 0 ? h * 0.9 : i % 3 == 1 ? ops::sin(h) : h + x;
      ops::sum(h).backward();
      return digest(x.grad());
    };
  });
}

// The tape of a wide graph is freed with more nodes at once than the list of dying nodes holds without memory.
TEST(MemoryOfAutograd, RunsShortInAWideTape) {
  expect_typed_errors([]() -> Work {
    auto leaves = std::make_shared<std::vector<Tensor>>();
    manual_seed(3);
    for (int i = 0; i < 40; ++i) leaves->push_back(leaf({2}));
    return [leaves] {
      Tensor sum = Tensor::zeros({2});
      for (Tensor& x : *leaves) {
        x.zero_grad();
        sum = sum + x * x;
      }
      Tensor wide = ops::cat(*leaves, 0);
      ops::sum(ops::sum(sum) * wide).backward();
      return digest((*leaves)[0].grad(), (*leaves)[39].grad());
    };
  });
}

TEST(MemoryOfOps, RunsShort) {
  expect_typed_errors([]() -> Work {
    const Tensor i = Tensor::from<int64_t>({3, 1, 1, 0}, {4});
    return [i] {
      manual_seed(4);
      const Tensor x = Tensor::randn({4, 6});
      Tensor y = ops::index_select(ops::softmax(x, 1), 0, i) + ops::cumsum(x, 1);
      y.add_(x);
      const ops::ValuesAndIndices sorted = ops::sort(y, 1);
      const Tensor sums = ops::index_add(Tensor::zeros({4, 6}), 0, i, sorted.values);
      return digest(y, sorted.values, sorted.indices, sums, ops::argmax(y, 1), y.to_string());
    };
  });
}

}  // namespace
}  // namespace rondo
