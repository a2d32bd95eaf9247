// Products through cuBLASLt's fake, against those of the CPU: shapes, transpositions, dtypes, batches, epilogues.
#include <gtest/gtest.h>

#include <cmath>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/product.h"
#include "rondo/runtime/ops/matmul_precision.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/close.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo {
namespace {

using test::FakeCuda;

constexpr DType kDTypes[] = {kF32, kF64, kBF16, kF16};

// Relative to the sum of the products' magnitudes: the unit roundoff of the result, and of its sums.
double tolerance(DType dtype, int64_t k) {
  const double sums = dtype == kF64 ? 1e-15 : 1e-7;
  const double result = dtype == kBF16 ? 8e-3 : dtype == kF16 ? 1e-3 : 0;
  return result + sums * static_cast<double>(k + 8);
}

Tensor random(const Dims& sizes, DType dtype) { return Tensor::randn(sizes, {kF64}).to(dtype); }

// `scale`: the sums of magnitudes, in f64.
void expect_close(const Tensor& cuda, const Tensor& cpu, const Tensor& scale, double tolerance,
                  const std::string& what) {
  EXPECT_TRUE(test::is_close(cuda.to(kCPU), cpu, (scale + 1e-30) * tolerance)) << what;
}

// Operands on both devices, of equal layout.
struct Pair {
  Tensor host, device;
};
Pair pair(const Tensor& host, Device device) { return {host, host.to(device)}; }
Pair transposed(const Dims& sizes, DType dtype, Device device) {
  Dims stored = sizes;
  std::swap(stored[stored.rank() - 1], stored[stored.rank() - 2]);
  const Tensor host = random(stored, dtype);
  return {host.transpose(-1, -2), host.to(device).transpose(-1, -2)};
}
// The values begin `offset` elements behind an aligned address.
Pair misaligned(const Dims& sizes, DType dtype, int64_t offset, Device device) {
  const Tensor host = random(sizes, dtype);
  return {host, test::with_strides(host.to(device), contiguous_strides(sizes), offset, sizes.numel() + offset)};
}
// Rows with `gap` elements between them.
Pair gapped(const Dims& sizes, DType dtype, int64_t gap, Device device) {
  Dims wide = sizes;
  wide[wide.rank() - 1] += gap;
  const Tensor host = random(sizes, dtype);
  return {host, test::with_strides(host.to(device), contiguous_strides(wide), 0, wide.numel())};
}

void expect_product(const Pair& a, const Pair& b, const std::string& what) {
  const Tensor cpu = a.host.matmul(b.host);
  const Tensor scale = a.host.to(kF64).abs().matmul(b.host.to(kF64).abs());
  expect_close(a.device.matmul(b.device), cpu, scale, tolerance(a.host.dtype(), a.host.sizes().back()), what);
}

TEST(CudaProduct, EveryTranspositionAndDType) {
  FakeCuda cuda;
  manual_seed(1);
  const Device device = cuda.device();
  const int64_t shapes[][3] = {{1, 1, 1}, {3, 5, 7}, {1, 8, 16},   {16, 1, 8},   {8, 8, 1},
                               {1, 1, 9}, {4, 4, 4}, {17, 33, 65}, {64, 48, 96}, {5, 3, 600}};
  for (const DType dtype : kDTypes)
    for (const auto& [m, n, k] : shapes)
      for (int layout = 0; layout < 4; ++layout) {
        const Pair a = (layout & 1) != 0 ? transposed({m, k}, dtype, device) : pair(random({m, k}, dtype), device);
        const Pair b = (layout & 2) != 0 ? transposed({k, n}, dtype, device) : pair(random({k, n}, dtype), device);
        expect_product(
            a, b, std::string(name_of(dtype)) + " " + to_string(Dims{m, n, k}) + " layout " + std::to_string(layout));
      }
}

TEST(CudaProduct, AddressesAndRowsOfEveryAlignment) {
  FakeCuda cuda;
  manual_seed(2);
  const Device device = cuda.device();
  for (const DType dtype : kDTypes)
    for (int64_t offset : {1, 2, 3, 4, 8})
      for (int64_t gap : {0, 1, 3}) {
        const std::string what = std::string(name_of(dtype)) + " offset " + std::to_string(offset) + " gap " +
                                 std::to_string(gap);
        expect_product(misaligned({9, 16}, dtype, offset, device), gapped({16, 8}, dtype, gap, device), what);
        expect_product(gapped({9, 16}, dtype, gap, device), misaligned({16, 8}, dtype, offset, device), what);
      }
}

TEST(CudaProduct, Batches) {
  FakeCuda cuda;
  manual_seed(3);
  const Device device = cuda.device();
  const Dims shapes[][2] = {
      {{6, 4, 5}, {6, 5, 3}},       {{2, 3, 4, 5}, {2, 3, 5, 7}}, {{2, 3, 4, 5}, {3, 5, 7}},
      {{2, 1, 4, 5}, {1, 3, 5, 7}}, {{4, 5}, {2, 3, 5, 7}},       {{2, 3, 4, 5}, {5, 7}},
      {{1, 4, 5}, {6, 5, 3}},       {{6, 4, 5}, {1, 5, 3}},       {{2, 3, 2, 4, 5}, {3, 1, 5, 2}}};
  for (const DType dtype : kDTypes)
    for (const auto& [x, y] : shapes)
      for (int layout = 0; layout < 4; ++layout)
        expect_product((layout & 1) != 0 ? transposed(x, dtype, device) : pair(random(x, dtype), device),
                       (layout & 2) != 0 ? transposed(y, dtype, device) : pair(random(y, dtype), device),
                       std::string(name_of(dtype)) + " " + to_string(x) + to_string(y));
  // One transposed part of a wider matrix for all of a batch: its leading dimension is that of the wider one.
  for (const DType dtype : kDTypes) {
    const auto part = [](const Tensor& stored, int64_t columns) { return stored.slice(1, {2, 2 + columns}).t(); };
    const Tensor wide = random({7, 11}, dtype), tall = random({5, 13}, dtype);
    const Pair of_wide{part(wide, 5), part(wide.to(device), 5)}, of_tall{part(tall, 4), part(tall.to(device), 4)};
    expect_product(pair(random({6, 4, 5}, dtype), device), of_wide, "a part, on the right");
    expect_product(of_tall, pair(random({6, 5, 3}, dtype), device), "a part, on the left");
    const auto all = [](const Tensor& t) { return t.unsqueeze(0).expand({6, t.sizes()[0], t.sizes()[1]}); };
    expect_product(pair(random({6, 4, 5}, dtype), device), {all(of_wide.host), all(of_wide.device)}, "expanded");
    expect_product({all(of_tall.host), all(of_tall.device)}, pair(random({6, 5, 3}, dtype), device), "expanded");
  }
  // Heads inside of a projection: (B, T, 3, H, D) -> (B, H, T, D), whose matrices lie between each other's rows.
  const Tensor host = random({2, 5, 3, 4, 8}, kF32), there = host.to(device);
  const auto head = [](const Tensor& t, int64_t i) { return t.select(2, i).transpose(1, 2); };
  const Pair q{head(host, 0), head(there, 0)}, k{head(host, 1), head(there, 1)}, v{head(host, 2), head(there, 2)};
  expect_product(q, {k.host.transpose(-1, -2), k.device.transpose(-1, -2)}, "scores");
  const Pair weights = pair(random({2, 4, 5, 5}, kF32), device);
  expect_product(weights, v, "values");
}

TEST(CudaProduct, NothingToMultiply) {
  FakeCuda cuda;
  const auto shape = [&](const Dims& a, const Dims& b) {
    return Tensor::zeros(a).to(cuda.device()).matmul(Tensor::zeros(b).to(cuda.device()));
  };
  EXPECT_EQ(to_string(shape({0, 4}, {4, 3}).sizes()), "[0, 3]");
  EXPECT_EQ(to_string(shape({2, 4}, {4, 0}).sizes()), "[2, 0]");
  EXPECT_EQ(to_string(shape({0, 2, 4}, {0, 4, 3}).sizes()), "[0, 2, 3]");
  EXPECT_EQ(cuda->counts().products, 0);
  const Tensor zeros = shape({2, 0}, {0, 3});
  for (const float value : zeros.to_vector<float>()) EXPECT_EQ(value, 0.0f);
  for (const float value : shape({3, 2, 0}, {0, 3}).to_vector<float>()) EXPECT_EQ(value, 0.0f);
  EXPECT_EQ(cuda->counts().products, 0);
}

TEST(CudaProduct, LinearWithBias) {
  FakeCuda cuda;
  manual_seed(4);
  const Device device = cuda.device();
  for (const DType dtype : kDTypes)
    for (const int64_t in : {1, 7, 64, 600})
      for (const int64_t out : {1, 6, 32})
        for (const int64_t offset : {0, 1, 4}) {
          const Pair x = pair(random({2, 3, in}, dtype), device), w = pair(random({out, in}, dtype), device),
                     bias = misaligned({out}, dtype, offset, device);
          const Tensor scale = x.host.to(kF64).abs().matmul(w.host.to(kF64).abs().t()) + bias.host.to(kF64).abs();
          expect_close(ops::linear(x.device, w.device, bias.device), ops::linear(x.host, w.host, bias.host), scale,
                       tolerance(dtype, in), std::string(name_of(dtype)) + " " + to_string(Dims{in, out, offset}));
          // A weight as a transposed view, and no bias.
          const Pair by_columns = transposed({out, in}, dtype, device);
          expect_close(
              ops::linear(x.device, by_columns.device, Tensor()), ops::linear(x.host, by_columns.host, Tensor()),
              x.host.to(kF64).abs().matmul(by_columns.host.to(kF64).abs().t()), tolerance(dtype, in), "by columns");
        }
}

// ---- Epilogues, as the executor of compiled regions asks for them

struct WithEpilogues {
  const OpDef& op;
  std::vector<Tensor> inputs;
  std::vector<EpilogueCall> epilogues;
  Tensor out;
  std::vector<const Tensor*> pointers;
  KernelContext context() {
    pointers.clear();
    for (const Tensor& input : inputs) pointers.push_back(&input);
    return {op, pointers, {&out, 1}, attrs, std::source_location::current(), epilogues};
  }
  Attrs attrs;
  // Eagerly, then prepared: equal bits.
  void run() {
    const Tensor before = test::dense_copy(out);
    run_kernel(context());
    const std::string eager = test::bytes_of(out);
    copy_back(before);
    const auto prepared = entry_of(op, out.device()).prepare(context(), 0);
    ASSERT_NE(prepared, nullptr);
    std::vector<std::byte*> addresses;
    for (const Tensor& input : inputs) addresses.push_back(input.impl()->data());
    for (const EpilogueCall& call : epilogues)
      if (call.operand != nullptr) addresses.push_back(call.operand->impl()->data());
    addresses.push_back(out.impl()->data());
    prepared->run(addresses);
    EXPECT_EQ(test::bytes_of(out), eager) << "prepared";
  }
  void copy_back(const Tensor& values) {
    copy_bytes(out.device(), out.impl()->data(), values.device(), values.impl()->data(),
               static_cast<size_t>(out.nbytes()));
  }
};

double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

TEST(CudaProduct, AddsInPlaceAndApplies) {
  FakeCuda cuda;
  manual_seed(5);
  const Device device = cuda.device();
  for (const DType dtype : kDTypes)
    for (const bool bias : {false, true})
      for (const int adds : {0, 1, 2})  // nothing, another tensor, its own memory
        for (const bool activates : {false, true}) {
          if (activates && dtype == kF64) continue;
          const int64_t in = 24, out = 10;
          const Tensor x = random({7, in}, dtype), w = random({out, in}, dtype), b = random({out}, dtype),
                       c = random({7, out}, dtype);
          WithEpilogues call{ops::kLinear, {x.to(device), w.to(device)}, {}, test::dense_copy(c.to(device)), {}, {}};
          if (bias) call.inputs.push_back(b.to(device));
          // 12 bytes, or 6, behind an aligned address: C's alignment is none of D's.
          const Tensor added = test::with_strides(c.to(device), contiguous_strides(c.sizes()), 3, c.numel() + 3);
          if (adds > 0) call.epilogues.push_back({Epilogue::kAdd, adds == 1 ? &added : &call.out});
          if (activates) call.epilogues.push_back({Epilogue::kGeluTanh, nullptr});
          std::vector<Epilogue> kinds;
          for (const EpilogueCall& e : call.epilogues) kinds.push_back(e.kind);
          EXPECT_TRUE(cuda::product_absorbs(kinds, dtype, false));
          call.run();
          Tensor want = x.to(kF64).matmul(w.to(kF64).t());
          if (bias) want = want + b.to(kF64);
          if (adds > 0) want = want + c.to(kF64);
          std::vector<double> values = want.to_vector<double>();
          if (activates)
            for (double& value : values) value = gelu(value);
          const Tensor scale = x.to(kF64).abs().matmul(w.to(kF64).abs().t()) + 2.0;
          expect_close(call.out, Tensor::from(values, want.sizes()).to(dtype), scale, tolerance(dtype, in),
                       std::string(name_of(dtype)) + std::to_string(adds) + std::to_string(activates));
        }
}

TEST(CudaProduct, WideResults) {
  FakeCuda cuda;
  manual_seed(6);
  const Tensor a = random({5, 40}, kBF16), b = random({40, 9}, kBF16), c = random({5, 9}, kF32);
  WithEpilogues call{
      ops::kMatmul, {a.to(cuda.device()), b.to(cuda.device())}, {}, test::dense_copy(c.to(cuda.device())), {}, {}};
  call.epilogues = {{Epilogue::kWiden, nullptr}, {Epilogue::kAdd, &call.out}};
  call.run();
  const Tensor want = a.to(kF64).matmul(b.to(kF64)) + c.to(kF64);
  expect_close(call.out, want.to(kF32), a.to(kF64).abs().matmul(b.to(kF64).abs()) + c.to(kF64).abs(), 1e-6,
               "f32 of bf16");
}

TEST(CudaProduct, AbsorbsWhatTheLibraryCanDo) {
  using enum Epilogue;
  const auto absorbs = [](std::vector<Epilogue> kinds, DType dtype, bool exact = false) {
    return cuda::product_absorbs(kinds, dtype, exact);
  };
  EXPECT_TRUE(absorbs({kAdd}, kF64));
  EXPECT_TRUE(absorbs({kAdd, kGeluTanh}, kF16));
  EXPECT_TRUE(absorbs({kWiden, kAdd}, kBF16));
  EXPECT_FALSE(absorbs({kGeluTanh, kAdd}, kF32)) << "C is added before the activation";
  EXPECT_FALSE(absorbs({kAdd, kAdd}, kF32)) << "there is one C";
  EXPECT_FALSE(absorbs({kGelu}, kF32)) << "the library's GELU is the tanh form";
  EXPECT_FALSE(absorbs({kGeluTanh}, kF64));
  EXPECT_FALSE(absorbs({kWiden}, kF32));
  EXPECT_FALSE(absorbs({kAdd}, kF32, /*exact=*/true));
}

TEST(CudaProduct, Variants) {
  FakeCuda cuda;
  manual_seed(7);
  const Tensor a = random({6, 100}, kF32), b = random({100, 9}, kF32);
  WithEpilogues call{
      ops::kMatmul, {a.to(cuda.device()), b.to(cuda.device())}, {}, Tensor::zeros({6, 9}).to(cuda.device()), {}, {}};
  const Tensor want = a.matmul(b), scale = a.to(kF64).abs().matmul(b.to(kF64).abs());
  int variants = 0;
  for (;; ++variants) {
    const auto prepared = entry_of(ops::kMatmul, cuda.device()).prepare(call.context(), variants);
    if (prepared == nullptr) break;
    std::byte* addresses[] = {call.inputs[0].impl()->data(), call.inputs[1].impl()->data(), call.out.impl()->data()};
    prepared->run(addresses);
    expect_close(call.out, want, scale, tolerance(kF32, 100), "variant " + std::to_string(variants));
  }
  EXPECT_EQ(variants, 3) << "the fake has three algorithms";
}

// A program may ask for TF32; products that were prepared before see it, too.
TEST(CudaProduct, Tf32IsASwitch) {
  FakeCuda cuda;
  manual_seed(8);
  const Tensor a = random({32, 64}, kF32), b = random({64, 16}, kF32);
  WithEpilogues call{
      ops::kMatmul, {a.to(cuda.device()), b.to(cuda.device())}, {}, Tensor::zeros({32, 16}).to(cuda.device()), {}, {}};
  const auto prepared = entry_of(ops::kMatmul, cuda.device()).prepare(call.context(), 0);
  std::byte* addresses[] = {call.inputs[0].impl()->data(), call.inputs[1].impl()->data(), call.out.impl()->data()};
  const auto bits = [&] {
    prepared->run(addresses);
    const std::string bytes = test::bytes_of(call.out);
    EXPECT_EQ(bytes, test::bytes_of(call.inputs[0].matmul(call.inputs[1])));
    return bytes;
  };
  const std::string ieee = bits();
  set_float32_matmul_precision(MatmulPrecision::kHigh);
  const std::string fast = bits();
  set_float32_matmul_precision(MatmulPrecision::kHighest);
  EXPECT_NE(fast, ieee);
  EXPECT_EQ(bits(), ieee);
  set_float32_matmul_precision(MatmulPrecision::kHigh);
  expect_close(call.inputs[0].matmul(call.inputs[1]), a.matmul(b), a.to(kF64).abs().matmul(b.to(kF64).abs()), 2e-3,
               "TF32");
  set_float32_matmul_precision(MatmulPrecision::kHighest);
}

// ---- Gradients

struct Gradients {
  Tensor y, a, b;
};
Gradients gradients(Tensor a, Tensor b, const Tensor& grad) {
  a.requires_grad_();
  b.requires_grad_();
  const Tensor y = a.matmul(b);
  y.backward(grad);
  return {y.detach(), a.grad(), b.grad()};
}

TEST(CudaProduct, Gradients) {
  FakeCuda cuda;
  manual_seed(9);
  const Device device = cuda.device();
  const Dims shapes[][2] = {{{4, 5}, {5, 3}}, {{2, 3, 4, 5}, {2, 3, 5, 7}}, {{2, 3, 4, 5}, {5, 7}}};
  for (const DType dtype : kDTypes)
    for (const auto& [x, y] : shapes) {
      const Tensor a = random(x, dtype), b = random(y, dtype), grad = random(a.matmul(b).sizes(), dtype);
      const Gradients cpu = gradients(a.clone(), b.clone(), grad),
                      got = gradients(a.to(device), b.to(device), grad.to(device));
      const double unit = tolerance(dtype, 64);
      expect_close(got.y, cpu.y, Tensor::full(cpu.y.sizes(), 40.0), unit, "y");
      expect_close(got.a, cpu.a, Tensor::full(cpu.a.sizes(), 40.0), unit, "a");
      expect_close(got.b, cpu.b, Tensor::full(cpu.b.sizes(), 40.0), unit, "b");
    }
}

// ---- Orders, memory

// Products whose operands and workspaces are freed at once, on two devices, in every dtype: the bits.
std::string products(const fake_cuda::Options& options) {
  FakeCuda cuda(options);
  manual_seed(10);
  std::string bits;
  Tensor sums[] = {random({16, 16}, kF32).to(cuda.device(0)), random({16, 16}, kF32).to(cuda.device(1))};
  for (int step = 0; step < 6; ++step)
    for (int d = 0; d < 2; ++d) {
      const Tensor w = random({16, 700}, kF32).to(cuda.device(d));
      sums[d] = sums[d].matmul(w).matmul(w.t());  // long sums: the second product has a workspace
      sums[d] =
          sums[d].to(cuda.device(1 - d)).to(cuda.device(d)).matmul(Tensor::full({16, 16}, 1e-5).to(cuda.device(d)));
      const DType dtype = kDTypes[static_cast<size_t>(step) % 4];
      const Tensor x = random({3, 8, 12}, dtype).to(cuda.device(d));
      bits += test::bytes_of(
          ops::linear(x, random({5, 12}, dtype).to(cuda.device(d)), random({5}, dtype).to(cuda.device(d))));
    }
  return bits + test::bytes_of(sums[0]) + test::bytes_of(sums[1]);
}

TEST(CudaProduct, EveryOrderGivesTheSameBits) {
  const std::string expected = products({.devices = 2});
  for (uint64_t seed = 1; seed <= 10; ++seed) EXPECT_EQ(products({.seed = seed, .devices = 2}), expected) << seed;
  for (const double early : {0.0, 1.0}) EXPECT_EQ(products({.seed = 3, .devices = 2, .early = early}), expected);
  const test::Setting no_cache("RONDO_CUDA_CACHE", "0");
  EXPECT_EQ(products({.seed = 4, .devices = 2}), expected);
}

TEST(CudaProduct, MemoryThatRunsOutIsATypedErrorAndNoMore) {
  for (int64_t n = 1; n <= 12; ++n) {
    const test::Setting no_cache("RONDO_CUDA_CACHE", "0");  // each workspace is an allocation of the driver
    FakeCuda cuda;
    manual_seed(11);
    const Tensor a = random({16, 700}, kF32), b = random({700, 16}, kF32);
    const Tensor x = a.to(cuda.device()), y = b.to(cuda.device());
    cuda->fail_allocations(n, 1);
    for (int i = 0; i < 6; ++i) {
      try {
        static_cast<void>(x.matmul(y));
      } catch (const OutOfMemoryError&) {
      } catch (const DeviceError& error) {
        EXPECT_NE(std::string(error.what()).find("the resource allocation failed"), std::string::npos) << error.what();
      }
    }
    cuda->fail_allocations(0, 0);
    expect_close(x.matmul(y), a.matmul(b), a.to(kF64).abs().matmul(b.to(kF64).abs()), tolerance(kF32, 700), "after it");
  }
}

TEST(CudaProduct, SizesBeyondTheLibrarysNameTheCall) {
  FakeCuda cuda({.bytes = size_t{60} << 30, .executes = false});
  const int64_t K = (int64_t{1} << 31) + 7;
  const Tensor x = Tensor::empty({1, K}, {kBF16, cuda.device()});
  const std::string message = test::error_of([&] { static_cast<void>(x.matmul(x.t())); });
  EXPECT_EQ(message.find("matmul ("), 0u) << message;
  EXPECT_NE(message.find("product_test.cc"), std::string::npos) << message;
  EXPECT_NE(message.find("cuBLASLt takes sizes below 2^31, not 1 times [1, 2147483655]"), std::string::npos) << message;
}

TEST(CudaProduct, SizesUpToTheLibrarysAreTaken) {
  FakeCuda cuda({.bytes = size_t{60} << 30, .executes = false});
  for (const int axis : {0, 1, 2, 3})
    for (const int64_t most : {(int64_t{1} << 31) - 1, int64_t{1} << 31}) {
      int64_t s[] = {1, 1, 1, 1};  // batch, m, k, n
      s[axis] = most;
      const TensorOptions options{kBF16, cuda.device()};
      const Tensor a = Tensor::empty({s[0], s[1], s[2]}, options), b = Tensor::empty({s[0], s[2], s[3]}, options);
      const std::string message = test::error_of([&] { static_cast<void>(a.matmul(b)); });
      EXPECT_EQ(message.find("sizes below 2^31") != message.npos, most > INT32_MAX) << axis << ": " << message;
      EXPECT_EQ(message.empty(), most <= INT32_MAX) << axis << ": " << message;
    }
}

// What an algorithm may rely on is what the addresses have, and no less: aligned operands get the wide loads.
TEST(CudaProduct, AlgorithmsRelyOnTheAlignmentThatThereIs) {
  FakeCuda cuda;
  const Device device = cuda.device();
  cuda->take_journal();
  const auto promised = [&](const Pair& a, const Pair& b) {
    static_cast<void>(cuda->take_journal());
    static_cast<void>(a.device.matmul(b.device));
    int64_t bytes = 0;
    for (const fake_cuda::Enqueued& work : cuda->take_journal())
      if (work.kind == fake_cuda::Enqueued::Kind::kProduct) bytes = work.bytes;
    return bytes;
  };
  const Pair a = pair(random({8, 16}, kF32), device), b = pair(random({16, 8}, kF32), device);
  EXPECT_EQ(promised(a, b), 16);
  for (const int64_t offset : {1, 2, 3, 4}) {
    const int64_t bytes = offset == 2 ? 8 : offset == 4 ? 16 : 4;
    EXPECT_EQ(promised(misaligned({8, 16}, kF32, offset, device), b), bytes);
    EXPECT_EQ(promised(a, misaligned({16, 8}, kF32, offset, device)), bytes);
  }
}

TEST(CudaProduct, ForgottenProductsLeaveNoDescriptor) {
  FakeCuda cuda;
  const Tensor x = Tensor::ones({4, 4}).to(cuda.device());
  static_cast<void>(x.matmul(x));
  cuda::Product::trim();
  const int64_t before = cuda->counts().lt_descriptors;
  for (int64_t n = 1; n <= 4; ++n)
    for (const DType dtype : kDTypes) {
      const Tensor y = random({n, 4}, dtype).to(cuda.device());
      static_cast<void>(ops::linear(y, random({3, 4}, dtype).to(cuda.device()), random({3}, dtype).to(cuda.device())));
    }
  EXPECT_GT(cuda->counts().lt_descriptors, before);
  cuda::Product::trim();
  EXPECT_EQ(cuda->counts().lt_descriptors, before);
}

TEST(CudaProduct, AnotherDevicesOperandIsRefused) {
  FakeCuda cuda({.devices = 2});
  const Tensor a = Tensor::ones({2, 3}).to(cuda.device(0)), b = Tensor::ones({3, 2}).to(cuda.device(1));
  EXPECT_NE(test::error_of([&] { static_cast<void>(a.matmul(b)); }).find("cuda:0"), std::string::npos);
}

}  // namespace
}  // namespace rondo
