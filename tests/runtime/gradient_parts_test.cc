// autograd::GradientParts: the gradient of a leaf with several uses, taken in parts.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/anomaly.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using test::same_bits;

// Takes what it can get: the first `dense` contributions, and all rows.
class Taker final : public autograd::GradientParts {
 public:
  Taker(Tensor leaf, int dense) : leaf_(std::move(leaf)), home_(leaf_), dense_(dense) { home_.set_parts(this); }
  bool wants_part() override { return ++seen == dense_; }
  void part_added() override {
    part = leaf_.grad();
    leaf_.set_grad(Tensor());
  }
  bool take_rows(const Tensor& r, const Tensor& i) override {
    if (!part.defined()) return false;
    rows.push_back(r);
    indices.push_back(i);
    return true;
  }
  // All of it.
  Tensor sum() const {
    const NoGrad off;
    Tensor total = part.clone();
    for (size_t k = 0; k < rows.size(); ++k) ops::add_rows(total, rows[k], indices[k]);
    return leaf_.grad().defined() ? total + leaf_.grad() : total;
  }
  int seen = 0;
  Tensor part;
  std::vector<Tensor> rows, indices;

 private:
  Tensor leaf_;
  autograd::GradientHome home_;
  const int dense_;
};

class GradientPartsTest : public testing::Test {
 protected:
  Tensor table = Tensor::from<float>({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2}).requires_grad_();
  const Tensor ids = Tensor::from<int64_t>({3, 0, 3}, {3});
  int told = 0;
  const int64_t id = autograd::on_accumulated(table, [this] { ++told; });

  // A tied embedding: rows, and then `heads` products.
  Tensor loss(int heads = 1) const {
    const Tensor h = ops::embedding(table, ids);  // (3, 2)
    Tensor y = ops::tanh(h);
    Tensor sum = ops::sum(h * 0.5);
    for (int i = 0; i < heads; ++i) sum = sum + ops::sum(ops::tanh(ops::matmul(y, table.transpose(0, 1))));
    return sum;
  }
  Tensor whole(int heads = 1) {
    loss(heads).backward();
    const Tensor grad = table.grad();
    table.set_grad(Tensor());
    told = 0;
    return grad;
  }
};

TEST_F(GradientPartsTest, TheFirstPartAndRows) {
  for (const int heads : {1, 3}) {
    const Tensor expected = whole(heads);
    Taker taker(table, heads);
    loss(heads).backward();
    EXPECT_EQ(told, 1);
    ASSERT_EQ(taker.rows.size(), 1u);
    EXPECT_EQ(taker.rows[0].sizes(), (Dims{3, 2}));
    EXPECT_TRUE(same_bits(taker.indices[0], ids));
    EXPECT_FALSE(table.grad().defined());
    EXPECT_TRUE(same_bits(taker.sum(), expected)) << heads;
    table.set_grad(Tensor());
  }
}

// What an earlier backward left in .grad is in the first part.
TEST_F(GradientPartsTest, AddsToWhatIsThere) {
  const Tensor expected = whole();
  loss().backward();
  const Tensor before = table.grad().clone();
  told = 0;
  Taker taker(table, 1);
  loss().backward();
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(same_bits(before, expected));
  const Tensor sum = taker.sum();
  for (int64_t i = 0; i < 8; ++i)
    EXPECT_NEAR(sum.view({8}).to_vector<float>()[i], 2 * expected.view({8}).to_vector<float>()[i], 1e-5);
}

// A dense contribution after the first part goes to .grad.
TEST_F(GradientPartsTest, WhatIsNotTakenIsInGrad) {
  const Tensor expected = whole(3);
  Taker taker(table, 2);
  loss(3).backward();
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(table.grad().defined());
  const Tensor sum = taker.sum();
  for (int64_t i = 0; i < 8; ++i)
    EXPECT_NEAR(sum.view({8}).to_vector<float>()[i], expected.view({8}).to_vector<float>()[i], 1e-5);
}

// Nothing but the first part: the other use has no gradient.
TEST_F(GradientPartsTest, IsToldIfNothingFollows) {
  Taker taker(table, 1);
  const Tensor h = ops::embedding(table, ids);
  const Tensor sum = ops::sum(ops::matmul(Tensor::ones({1, 4}), table));
  const Tensor roots[] = {sum, h}, grads[] = {Tensor(), Tensor::zeros({3, 2})};
  autograd::backward(roots, grads, false, false, {});
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(same_bits(taker.sum(), Tensor::ones({4, 2})));
}

TEST_F(GradientPartsTest, HooksSecondDerivativesAnomaliesAndGradSeeItWhole) {
  const Tensor expected = whole();
  Taker taker(table, 1);
  const auto expect_whole = [&](const char* what) {
    EXPECT_EQ(taker.seen, 0) << what;
    EXPECT_TRUE(taker.rows.empty()) << what;
  };
  const Tensor of[] = {table};
  const Tensor l = loss();
  EXPECT_TRUE(same_bits(autograd::grad({&l, 1}, of)[0], expected));
  expect_whole("grad()");
  const auto expect_grad = [&](const char* what) {
    expect_whole(what);
    EXPECT_TRUE(same_bits(table.grad().detach(), expected)) << what;
    table.set_grad(Tensor());
  };
  loss().backward(Tensor(), false, /*create_graph=*/true);
  expect_grad("create_graph");
  {
    const autograd::DetectAnomaly detect;
    loss().backward();
    expect_grad("DetectAnomaly");
  }
  const int64_t hook = table.register_hook([](const Tensor&) { return Tensor(); });
  loss().backward();
  expect_grad("a hook");
  table.remove_hook(hook);
}

// The output layer runs in a checkpoint: its part is offered when the checkpoint's own backward has ended.
TEST_F(GradientPartsTest, APartOutOfACheckpoint) {
  const auto checkpointed = [&] {
    const Tensor h = ops::embedding(table, ids);
    const Tensor in[] = {ops::tanh(h)};
    const auto head = [&](std::span<const Tensor> y) {
      return std::vector<Tensor>{ops::sum(ops::tanh(ops::matmul(y[0], table.transpose(0, 1))))};
    };
    return ops::sum(h * 0.5) + autograd::checkpoint(head, in)[0];
  };
  const Tensor expected = whole();
  Taker taker(table, 1);
  checkpointed().backward();
  EXPECT_EQ(told, 1);
  EXPECT_EQ(taker.rows.size(), 1u);
  EXPECT_TRUE(same_bits(taker.sum(), expected));
}

// autograd::GradientHome, for ops on the eager tape: a norm makes the gradients of its parameters where they are
// wanted.
class NormsAtHome : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    for (Tensor* t : {&w, &b}) {
      *t = t->to(GetParam()).requires_grad_();
      homes.push_back(std::make_unique<autograd::GradientHome>(*t));
    }
    flat = Tensor::full({64}, -77.0, {GetParam()});
  }
  void set_homes() {
    for (size_t i = 0; i < 2; ++i)
      homes[i]->set(Tensor::from_storage(flat.storage(), 32 * static_cast<int64_t>(i), {4}, {1}, GetParam()));
  }
  static bool is_home(const Tensor& grad, const Tensor& flat, int64_t at) {
    return grad.storage() == flat.storage() && grad.storage_offset() == at;
  }
  Tensor norms() const {
    const Tensor in = x.to(GetParam());
    return ops::sum(ops::tanh(ops::layer_norm(in, w, b, 1e-5)).to(kF32));
  }
  std::vector<Tensor> gradients_of(const std::function<Tensor()>& loss) {
    for (const auto& home : homes) home->set(Tensor());
    w.set_grad(Tensor()), b.set_grad(Tensor());
    loss().backward();
    std::vector<Tensor> grads = {w.grad(), b.grad()};
    w.set_grad(Tensor()), b.set_grad(Tensor());
    return grads;
  }
  Tensor w = Tensor::from<float>({1, 2, 0.5, -1}, {4}), b = Tensor::from<float>({0, 1, -1, 2}, {4}), flat;
  const Tensor x = Tensor::from<float>({1, 2, 3, 5, -1, 0.5, 2, 8}, {2, 4});
  std::vector<std::unique_ptr<autograd::GradientHome>> homes;
};

TEST_P(NormsAtHome, OfLayerNorm) {
  const std::vector<Tensor> expected = gradients_of([&] { return norms(); });
  set_homes();
  norms().backward();
  EXPECT_TRUE(is_home(w.grad(), flat, 0));
  EXPECT_TRUE(is_home(b.grad(), flat, 32));
  EXPECT_TRUE(same_bits(w.grad(), expected[0]));
  EXPECT_TRUE(same_bits(b.grad(), expected[1]));
  EXPECT_EQ(flat[4].item(), -77);
  norms().backward();  // adds there
  EXPECT_TRUE(is_home(w.grad(), flat, 0));
  EXPECT_TRUE(same_bits(w.grad(), expected[0] + expected[0]));
}

TEST_P(NormsAtHome, OfRmsNorm) {
  const auto loss = [&] { return ops::sum(ops::tanh(ops::rms_norm(x.to(GetParam()), w, 1e-5)).to(kF32)); };
  const std::vector<Tensor> expected = gradients_of(loss);
  set_homes();
  loss().backward();
  EXPECT_TRUE(is_home(w.grad(), flat, 0));
  EXPECT_TRUE(same_bits(w.grad(), expected[0]));
}

// Two uses, a hook, and gradients that grad() returns: elsewhere, and the same.
TEST_P(NormsAtHome, OnlyIfItIsTheWholeGradient) {
  const auto twice = [&] { return norms() + ops::sum((w * b).to(kF32)); };
  const std::vector<Tensor> expected = gradients_of(twice);
  set_homes();
  twice().backward();
  EXPECT_FALSE(is_home(w.grad(), flat, 0));
  EXPECT_TRUE(same_bits(w.grad(), expected[0]));
  EXPECT_TRUE(same_bits(b.grad(), expected[1]));
  const std::vector<Tensor> once = gradients_of([&] { return norms(); });
  set_homes();
  const Tensor loss = norms(), of[] = {w, b};
  EXPECT_TRUE(same_bits(autograd::grad({&loss, 1}, of)[0], once[0]));
  w.register_hook([](const Tensor&) { return Tensor(); });
  norms().backward();
  EXPECT_FALSE(is_home(w.grad(), flat, 0));
  EXPECT_TRUE(is_home(b.grad(), flat, 32));
  EXPECT_TRUE(same_bits(w.grad(), once[0]));
  EXPECT_EQ(flat[0].item(), -77);
}

INSTANTIATE_TEST_SUITE_P(DTypes, NormsAtHome, testing::Values(kF32, kBF16, kF64),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace rondo
