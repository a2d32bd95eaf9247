// Attention by plans of cuDNN, where a program asks for it: graphs that the fake evaluates node by node, against the
// CPU's attention.
#include <gtest/gtest.h>

#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/dnn_attention.h"
#include "rondo/runtime/cuda/dnn_plan.h"
#include "rondo/runtime/cuda/dnn_store.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo {
namespace {

using test::FakeCuda;

class CudnnAttention : public testing::Test {
 protected:
  CudnnAttention() { cuda::forget_plans(); }
  ~CudnnAttention() override {
    cuda::use_cudnn_attention(false);
    cuda::forget_plans();
  }

 private:
  const test::Setting cache_{"RONDO_CACHE", "off"};
};

struct Case {
  const char* name;
  int64_t batch, heads, kv_heads, queries, keys, head_dim;
  bool causal = false;
  Tensor mask = {};
};
struct Results {
  Tensor out, grad_q, grad_k, grad_v;
};
Results run(const Case& c, DType dtype, Device device, double dropout = 0) {
  manual_seed(5);
  // Heads of one projection, so that rows have gaps.
  const auto heads = [&](int64_t n, int64_t length) {
    const Tensor all = Tensor::randn({c.batch, length, n, c.head_dim}, {kF64}).to(dtype).to(device);
    return all.permute({0, 2, 1, 3}).detach().requires_grad_();
  };
  const Tensor q = heads(c.heads, c.queries), k = heads(c.kv_heads, c.keys), v = heads(c.kv_heads, c.keys);
  const Tensor mask = c.mask.defined() ? c.mask.to(device) : Tensor();
  Generator generator(1);
  const Tensor out = ops::scaled_dot_product_attention(
      q, k, v, mask, {.causal = c.causal, .dropout = dropout, .generator = dropout > 0 ? &generator : nullptr});
  out.backward(Tensor::randn(out.sizes(), {kF64}).to(dtype).to(device));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}
double largest(const Tensor& t) {
  double most = 0;
  for (const double value : t.to(kCPU).to(kF64).contiguous().to_vector<double>())
    most = value == value ? std::max(most, std::abs(value)) : 1e300;
  return most;
}
// Weights and their gradients are rounded to 16 bits before the products, as in every fused kernel.
void expect_close(const Results& got, const Results& want, const std::string& what) {
  const std::pair<const Tensor*, const Tensor*> pairs[] = {
      {&got.out, &want.out}, {&got.grad_q, &want.grad_q}, {&got.grad_k, &want.grad_k}, {&got.grad_v, &want.grad_v}};
  for (const auto& [a, b] : pairs) {
    const double tolerance = b->dtype() == kBF16 ? 0.02 : 0.0025;
    EXPECT_LE(largest(a->to(kCPU).to(kF64) - b->to(kF64)), tolerance * (1 + largest(*b))) << what;
  }
}

// Row i of a batch may attend to keys that a table allows; one row to none.
Tensor table(int64_t batch, int64_t queries, int64_t keys) {
  std::vector<float> allowed;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t j = 0; j < keys; ++j) allowed.push_back(i != 3 && (j + i + b) % 3 != 0 ? 1 : 0);
  return Tensor::from(allowed, {batch, 1, queries, keys}).to(kBool);
}
Tensor padding(int64_t batch, int64_t keys) {
  std::vector<float> allowed;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t j = 0; j < keys; ++j) allowed.push_back(j < keys - 4 * b ? 1 : 0);
  return Tensor::from(allowed, {batch, 1, 1, keys}).to(kBool);
}
// The second sequence begins with padding: with `causal`, its first queries have no key.
Tensor first_keys(int64_t batch) {
  std::vector<float> first;
  for (int64_t b = 0; b < batch; ++b) first.push_back(static_cast<float>(3 * b));
  return Tensor::from(first, {batch, 1, 1, 1}).to(kI64);
}

TEST_F(CudnnAttention, EqualsTheCpus) {
  FakeCuda cuda({.seed = 3});
  cuda::use_cudnn_attention(true);
  for (const DType dtype : {kBF16, kF16}) {
    for (const Case& c : std::vector<Case>{{"plain", 2, 3, 3, 16, 16, 8},
                                           {"causal", 2, 2, 2, 17, 17, 16, true},
                                           {"causal cross", 1, 2, 2, 16, 21, 8, true},
                                           {"cross", 1, 2, 2, 18, 5, 8},
                                           {"grouped queries", 2, 6, 2, 16, 16, 8, true},
                                           {"padding", 2, 2, 2, 16, 20, 8, false, padding(2, 20)},
                                           {"a table", 2, 2, 1, 16, 20, 8, false, table(2, 16, 20)},
                                           {"first keys", 2, 2, 2, 16, 16, 8, true, first_keys(2)}}) {
      const std::string what = std::string(c.name) + " " + std::string(name_of(dtype));
      const cuda::DnnReport before = cuda::dnn_report();
      expect_close(run(c, dtype, cuda.device()), run(c, dtype, kCPU), what);
      EXPECT_EQ(cuda::dnn_report().runs, before.runs + 2) << what;
      EXPECT_EQ(cuda::dnn_report().runs_otherwise, before.runs_otherwise) << what;
    }
  }
}

// Rows without a key are zeros, and so are their gradients: not NaN, not an average.
TEST_F(CudnnAttention, RowsWithoutAKey) {
  FakeCuda cuda;
  cuda::use_cudnn_attention(true);
  const Case c = {"", 1, 1, 1, 16, 18, 8, false, table(1, 16, 18)};
  const Results there = run(c, kBF16, cuda.device());
  const auto row = [](const Tensor& t, int64_t i) { return largest(t.to(kCPU).slice(2, {i, i + 1})); };
  EXPECT_EQ(row(there.out, 3), 0);
  EXPECT_EQ(row(there.grad_q, 3), 0);
  EXPECT_GT(row(there.out, 2), 0);
}

// Our own kernels serve what cuDNN is not asked for, and what it has no plan for.
TEST_F(CudnnAttention, OwnKernelsServeTheRest) {
  FakeCuda cuda;
  const Case c = {"", 1, 2, 2, 16, 16, 8, true}, token = {"", 1, 2, 2, 1, 16, 8};
  const auto change = [&](const Case& one, DType dtype, double dropout = 0) {
    const cuda::DnnReport before = cuda::dnn_report();
    const Results there = run(one, dtype, cuda.device(), dropout);
    if (dropout == 0) expect_close(there, run(one, dtype, kCPU), "own");
    const cuda::DnnReport after = cuda::dnn_report();
    return std::pair(after.runs - before.runs, after.runs_otherwise - before.runs_otherwise);
  };
  const std::pair<int64_t, int64_t> none = {0, 0}, both = {2, 0}, counted = {0, 2};
  EXPECT_EQ(change(c, kBF16), none);  // the default
  cuda::use_cudnn_attention(true);
  EXPECT_EQ(change(c, kBF16), both);
  EXPECT_EQ(change(c, kF32), none);
  EXPECT_EQ(change(token, kBF16), none);
  EXPECT_EQ(change(c, kBF16, 0.25), none);
  // A row that an added mask lowers whole has equal weights, and so it has in the backward.
  Tensor added = Tensor::randn({1, 2, 16, 20}, {kF64});
  added.slice(2, {3, 5}).fill_(-1e9);
  added.slice(2, {6, 7}).fill_(-3.3895313892515355e38);
  const Case masked = {"", 1, 2, 2, 16, 20, 8, false, added.to(kBF16)};
  EXPECT_EQ(change(masked, kBF16), none);
  cuda->set_dnn_oracle([](const std::string&) { return true; });
  const Case wide = {"", 1, 2, 2, 16, 16, 16, true};
  EXPECT_EQ(change(wide, kBF16), counted);
  EXPECT_NE(cuda::dnn_report().last.back().find("the gradient of attention [1, 2, 16/16, 16] in bf16, causal"),
            std::string::npos)
      << cuda::dnn_report().last.back();
}

TEST_F(CudnnAttention, AskingWithoutTheLibraryIsAnError) {
  FakeCuda cuda({.dnn_version = 90500});
  try {
    cuda::use_cudnn_attention(true);
    ADD_FAILURE() << "there is none";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("cuDNN 9.5.0, which is too old; plans need"), std::string::npos)
        << error.what();
  }
  EXPECT_FALSE(cuda::uses_cudnn_attention());
}

}  // namespace
}  // namespace rondo
