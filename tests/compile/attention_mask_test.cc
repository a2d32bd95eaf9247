// An attention mask with a gradient in regions: relative positions, as Swin, T5 and BEiT have them.
#include <gtest/gtest.h>

#include "rondo/tests/compile/block_fixture.h"

namespace rondo {
namespace {

using test::Block;
using test::Tensors;

class AttentionMask : public test::BlockTest {};

// x (2, 5, 6), two heads of 3. The mask is a table of distances, looked up and broadcast over the batch.
Tensor relative(Block& b, const Tensor& x, ops::AttentionOptions options, bool shared) {
  const Tensor heads = ops::transpose(ops::reshape(ops::matmul(x, b.weight), {2, 5, 2, 3}), 1, 2);
  const Tensor rows = ops::unsqueeze(Tensor::arange(5), 1), columns = Tensor::arange(5);
  const Tensor distance = ops::minimum(ops::abs(rows - columns), 2);
  const Tensor table = ops::reshape(b.bias, {3, 2}), mask = ops::permute(ops::embedding(table, distance), {2, 0, 1});
  const Tensor seen = shared ? ops::sum(mask, {0}) : mask;
  const Tensor y = ops::scaled_dot_product_attention(heads, heads, heads * 0.5, seen, options);
  return ops::reshape(ops::transpose(y, 1, 2), {2, 5, 6});
}

TEST_F(AttentionMask, IsAsInEagerExecution) {
  for (const bool causal : {false, true})
    for (const double dropout : {0.0, 0.3})
      for (const bool shared : {false, true})
        expect_as_eager(
            [=](Block& b, const Tensor& x) {
              return Tensors{relative(b, x, {.causal = causal, .dropout = dropout}, shared) + x};
            },
            [](Block& b) {
              Tensors all;
              for (int call = 0; call < 3; ++call)  // the second forward comes after a backward
                for (Tensor& t : test::train_step(b, test::input({2, 5, 6}))) all.push_back(t.detach().clone());
              return all;
            });
}

// So do learnt angles of rotary positions.
TEST_F(AttentionMask, RotaryTablesWithAGradient) {
  expect_as_eager(
      [](Block& b, const Tensor& x) {
        const Tensor cos = ops::reshape(b.bias, {2, 3}), sin = ops::slice(b.weight, 0, {0, 2}).slice(1, {0, 3}) * 1.0;
        return Tensors{ops::rotary_embedding(x, {cos, sin}) * 2.0};
      },
      [](Block& b) {
        Tensors all;
        for (int call = 0; call < 2; ++call)
          for (Tensor& t : test::train_step(b, test::input({3, 2, 6}))) all.push_back(t.detach().clone());
        return all;
      });
}

TEST_F(AttentionMask, AMaskThatIsAnInput) {
  expect_as_eager(
      [](Block& b, const Tensor& x) {
        const Tensor heads = ops::reshape(x, {2, 2, 5, 3});
        return Tensors{ops::scaled_dot_product_attention(heads, heads, heads, b.state.kept[0])};
      },
      [](Block& b) {
        b.state.kept = {test::input({2, 1, 1, 5})};
        Tensors all;
        for (int call = 0; call < 2; ++call)
          for (Tensor& t : test::train_step(b, test::input({2, 5, 6}))) all.push_back(t.detach().clone());
        all.push_back(b.state.kept[0].grad());
        return all;
      });
}

}  // namespace
}  // namespace rondo
