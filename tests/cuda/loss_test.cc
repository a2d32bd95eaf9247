// The loss of an output layer without whole logits on CUDA, against the CPU's: products run on the fake cuBLASLt,
// kernels on fibers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/close.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo {
namespace {

using ops::LinearCrossEntropyOptions;
using ops::Reduction;
using test::FakeCuda;

struct Operands {
  Tensor x, weight, bias, target;
  Operands(int64_t rows, int64_t inner, int64_t cols, DType dtype, bool with_bias = true)
      : x(Tensor::randn({rows, inner}, {kF64}).to(dtype)),
        weight(Tensor::randn({cols, inner}, {kF64}).to(dtype)),
        target(Tensor::randint(0, cols, {rows})) {
    if (with_bias) bias = Tensor::randn({cols}, {kF64}).to(dtype);
  }
};
struct Results {
  Tensor loss, x, weight, bias;
};
Results run(const Operands& o, const LinearCrossEntropyOptions& options, Device device, DType lower = kF32) {
  const auto leaf = [&](const Tensor& t) { return t.defined() ? t.to(device).clone().requires_grad_() : Tensor(); };
  const Tensor x = leaf(o.x), weight = leaf(o.weight), bias = leaf(o.bias);
  Tensor loss;
  {
    const amp::Autocast scope(lower == kF32 ? std::nullopt : std::optional(lower));
    loss = ops::linear_cross_entropy(x, weight, bias, o.target.to(device), options);
  }
  const int64_t n = loss.numel();
  std::vector<double> arriving;
  for (int64_t i = 0; i < n; ++i) arriving.push_back(n == 1 ? 0.5 : 0.25 + static_cast<double>(i % 5));
  loss.backward(Tensor::from(arriving, loss.sizes()).to(loss.dtype()).to(device));
  return {loss.detach(), x.grad(), weight.grad(), bias.defined() ? bias.grad() : Tensor()};
}

void expect_close(const Tensor& cuda, const Tensor& cpu, double tolerance, const std::string& what) {
  const test::Tolerance bound = {.of_largest = tolerance, .nonfinite = true};
  EXPECT_TRUE(test::is_close(cuda.defined() ? cuda.to(kCPU) : cuda, cpu, bound)) << what;
}
void expect_same(const Operands& o, const LinearCrossEntropyOptions& options, Device device, const std::string& what,
                 DType lower = kF32) {
  const DType dtype = lower == kF32 ? o.x.dtype() : lower;
  const double tolerance = dtype == kF64 ? 1e-12 : dtype == kF32 ? 2e-5 : dtype == kF16 ? 4e-3 : 3e-2;
  const Results cpu = run(o, options, kCPU, lower), cuda = run(o, options, device, lower);
  expect_close(cuda.loss, cpu.loss, tolerance, what + " loss");
  expect_close(cuda.x, cpu.x, tolerance, what + " dx");
  expect_close(cuda.weight, cpu.weight, tolerance, what + " dweight");
  expect_close(cuda.bias, cpu.bias, tolerance, what + " dbias");
}

void expect_the_cpus(std::initializer_list<DType> dtypes) {
  FakeCuda cuda({.seed = 2});
  manual_seed(4);
  for (const DType dtype : dtypes)
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum, Reduction::kNone})
      for (const auto& [chunk, smoothing, bias] :
           {std::tuple(int64_t{0}, 0.0, false), {int64_t{3}, 0.1, true}, {int64_t{1}, 0.0, true}}) {
        Operands o(7, 5, 19, dtype, bias);
        LinearCrossEntropyOptions options{};
        options.reduction = reduction;
        options.label_smoothing = smoothing;
        options.chunk_rows = chunk;
        const std::string what = absl::StrCat(std::string(name_of(dtype)), " reduction ", static_cast<int>(reduction),
                                              " chunk ", chunk);
        expect_same(o, options, cuda.device(), what);
        o.target.mutable_data<int64_t>()[2] = 3;
        options.ignore_index = 3;
        expect_same(o, options, cuda.device(), what + " with ignored rows");
      }
}

TEST(CudaHead, EqualsTheCpus) { expect_the_cpus({kF32, kF64, kF16}); }
TEST(CudaHead, EqualsTheCpusInBF16) { expect_the_cpus({kBF16}); }

void expect_same_under_autocast(DType lower) {
  FakeCuda cuda;
  manual_seed(5);
  for (const int64_t chunk : {0, 4}) {
    // 19 columns: unlike 21, their next multiple of 4 or 2 is none of 8, which aligned rows of 16-bit logits need.
    const Operands o(9, 8, 19, kF32, chunk == 0);
    expect_same(o, {.chunk_rows = chunk}, cuda.device(), absl::StrCat(std::string(name_of(lower)), " ", chunk), lower);
  }
}
TEST(CudaHead, UnderAutocast) { expect_same_under_autocast(kF16); }
TEST(CudaHead, UnderAutocastInBF16) { expect_same_under_autocast(kBF16); }

void expect_same_in_long_rows(DType dtype, std::initializer_list<int64_t> widths) {
  FakeCuda cuda({.seed = 1});
  manual_seed(6);
  for (const int64_t cols : widths)
    expect_same(Operands(2, 3, cols, dtype), {.label_smoothing = 0.2}, cuda.device(),
                absl::StrCat(std::string(name_of(dtype)), " ", cols));
}
// More columns than a block's threads take at once; GPT-2's; more than they keep; and such as fill the 48 KiB that a
// launch may have without asking, beside the kernel's static memory (40,000 in bf16, 28,000 in f32).
TEST(CudaHead, LongRows) {
  expect_same_in_long_rows(kF32, {2500, 28000, 50257});
  expect_same_in_long_rows(kF64, {17003});
}
TEST(CudaHead, LongRowsOf16Bits) {
  expect_same_in_long_rows(kF16, {40001});
  expect_same_in_long_rows(kBF16, {9001, 40000, 50257});
}

TEST(CudaHead, NothingToDo) {
  FakeCuda cuda;
  expect_same(Operands(0, 4, 6, kF32), {.reduction = Reduction::kSum}, cuda.device(), "no rows");
  expect_same(Operands(3, 0, 6, kF32), {}, cuda.device(), "no inner elements");
}

TEST(CudaHead, ABadTargetIsNamed) {
  FakeCuda cuda;
  Operands o(5, 4, 6, kF32);
  o.target.mutable_data<int64_t>()[3] = 6;
  const std::string error = test::error_of([&] { run(o, {.chunk_rows = 2}, cuda.device()).loss.item(); });
  EXPECT_NE(error.find("linear_cross_entropy"), std::string::npos) << error;
  EXPECT_NE(error.find("6"), std::string::npos) << error;
}

// The logits' memory is that of a chunk.
TEST(CudaHead, MemoryIsThatOfAChunk) {
  FakeCuda cuda({.bytes = size_t{60} << 30, .executes = false});
  const DeviceScope scope(cuda.device());
  const Tensor x = Tensor::empty({65536, 768}).requires_grad_(), weight = Tensor::empty({50257, 768}).requires_grad_();
  const Tensor target = Tensor::zeros({65536}, {kI64});
  const BackendTable& table = backend_of(cuda.device());
  table.reset_peak(0);
  const int64_t before = table.stats(0).bytes_in_use;
  cuda->take_journal();
  const Tensor loss = ops::linear_cross_entropy(x, weight, Tensor(), target);
  int64_t products = 0;
  for (const fake_cuda::Enqueued& work : cuda->take_journal())
    products += work.kind == fake_cuda::Enqueued::Kind::kProduct;
  EXPECT_EQ(products, 3 * 14) << "4682 rows at a time";
  // The gradients, a chunk, the losses, and a workspace of the library.
  const int64_t chunk = (int64_t{60} << 30) / 64, gradients = (x.numel() + weight.numel()) * 4;
  EXPECT_LE(table.stats(0).peak_bytes - before, gradients + chunk + chunk / 8);
}

// A line of the kernels changed.
TEST(CudaHead, PlantedBugsAreNoticed) {
  manual_seed(9);
  const Operands small(5, 4, 1501, kF32), large(3, 2, 17003, kF64);  // `large`: more than a block keeps
  const LinearCrossEntropyOptions options{.label_smoothing = 0.1, .chunk_rows = 2};
  const Results small_results = run(small, options, kCPU), large_results = run(large, options, kCPU);
  const auto is_right_of = [&](const Operands& o, const Results& expected, uint64_t order, const std::string& part,
                               const std::string& by) {
    FakeCuda cuda({.seed = order});
    cuda->set_edit([&](const std::string& source) {
      const size_t at = part.empty() ? source.npos : source.find(part);
      return at == source.npos ? source : std::string(source).replace(at, part.size(), by);
    });
    const Results got = run(o, options, cuda.device());
    const auto close = [](const Tensor& a, const Tensor& b) {
      const std::vector<double> x = a.to(kCPU).to_vector<double>(), y = b.to_vector<double>();
      for (size_t i = 0; i < x.size(); ++i)
        if (!(std::abs(x[i] - y[i]) <= 1e-4 * (1e-2 + std::abs(y[i])))) return false;
      return true;
    };
    return close(got.loss, expected.loss) && close(got.x, expected.x) && close(got.weight, expected.weight) &&
           close(got.bias, expected.bias);
  };
  const auto is_right = [&](uint64_t order, const std::string& part, const std::string& by) {
    return is_right_of(small, small_results, order, part, by) && is_right_of(large, large_results, order, part, by);
  };
  for (const uint64_t order : {0, 1, 3}) EXPECT_TRUE(is_right(order, "", ""));
  for (const auto& [part, by] : {std::pair("read(target + first + r)", "read(target + r)"),
                                 {"share - (static_cast<C>(1) - smoothing)", "share - static_cast<C>(1)"},
                                 {"i < KEPT; ++i)\n      if (has(i)) use", "i < KEPT - 1; ++i)\n      if (has(i)) use"},
                                 {"i < KEPT + SHARED - 1 || at(i) < whole", "at(i) < whole - 1"},
                                 {"threadIdx.x < rest", "threadIdx.x + 1 < rest"},
                                 {"sum = sum * rondo_exp(top - base);", ""},
                                 {"rondo_exp(top - base), parts", "1, parts"},
                                 {"unsigned i = KEPT + SHARED;", "unsigned i = KEPT + SHARED + 1;"},
                                 {"vector % THREADS", "vector"},
                                 {"mine[i * THREADS]", "mine[0]"},
                                 {"begins != 0 ?", "true ?"},
                                 {"w < kWarps", "w < kWarps - 1"},
                                 {"plain * inverse", "plain"},
                                 {"__syncthreads();\n  V all", "V all"}}) {
    bool right = true;
    for (const uint64_t order : {0, 1, 3}) right = right && is_right(order, part, by);
    EXPECT_FALSE(right) << "nobody notices " << by << " in place of " << part;
  }
}

// The same bits in every order of threads, blocks and streams.
TEST(CudaHead, EveryOrderGivesTheSameBits) {
  std::vector<double> expected;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    FakeCuda cuda({.seed = seed});
    manual_seed(7);
    const Results r = run(Operands(6, 4, 300, kF32), {.label_smoothing = 0.1, .chunk_rows = 2}, cuda.device());
    std::vector<double> all = r.loss.to(kCPU).to_vector<double>();
    for (const Tensor* t : {&r.x, &r.weight, &r.bias})
      for (const double value : t->to(kCPU).to_vector<double>()) all.push_back(value);
    if (expected.empty()) expected = all;
    EXPECT_EQ(all, expected) << seed;
  }
}

}  // namespace
}  // namespace rondo
