// Products that cuBLASLt has no algorithm for: without their epilogues, on dense copies, by a kernel of our own. The
// fake says on demand that it has none, in each of the forms that cublasLt.h knows.
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/product.h"
#include "rondo/runtime/cuda/product_kernel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo {
namespace {

using fake_cuda::LtAnswer;
using fake_cuda::LtQuestion;
using test::FakeCuda;

Tensor random(const Dims& sizes, DType dtype) { return Tensor::randn(sizes, {kF64}).to(dtype); }

// The calls that the library refuses, so that a product takes each way.
using Refuses = bool (*)(const LtQuestion&);
bool everything(const LtQuestion&) { return true; }
bool epilogues(const LtQuestion& q) { return q.has_bias || q.has_gelu; }
bool what_is_not_dense(const LtQuestion& q) {
  return q.transpose_a || q.transpose_b || q.ld[0] != q.m || q.ld[1] != q.k || q.alignment_a < 16 || q.alignment_b < 16;
}
fake_cuda::Control::LtOracle refusing(Refuses refuses, LtAnswer answer) {
  return [=](const LtQuestion& question) { return refuses(question) ? answer : LtAnswer::kAlgorithms; };
}

// linear(x, w, b) + c, then GELU, as the executor of regions asks for it; against sums in f64.
struct Case {
  DType dtype;
  bool bias, adds, in_place, gelu, wide;
};
double gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))); }

void expect_right(const Case& c, Device device, const std::string& what) {
  constexpr int64_t kRows = 19, kIn = 37, kOut = 21;
  const DType result = c.wide ? kF32 : c.dtype;
  const Tensor x = random({kRows, kIn}, c.dtype), w = random({kOut, kIn}, c.dtype), b = random({kOut}, c.dtype),
               d = random({kRows, kOut}, result);
  const Tensor there[] = {x.to(device), w.to(device), b.to(device)};
  const Tensor* inputs[] = {&there[0], &there[1], &there[2]};
  Tensor out = test::dense_copy(d.to(device));
  const Tensor added = d.to(device);
  std::vector<EpilogueCall> epilogues;
  if (c.wide) epilogues.push_back({Epilogue::kWiden, nullptr});
  if (c.adds) epilogues.push_back({Epilogue::kAdd, c.in_place ? &out : &added});
  if (c.gelu) epilogues.push_back({Epilogue::kGeluTanh, nullptr});
  run_kernel({ops::kLinear,
              std::span(inputs).first(c.bias ? 3 : 2),
              {&out, 1},
              {},
              std::source_location::current(),
              epilogues});
  Tensor want = x.to(kF64).matmul(w.to(kF64).t());
  if (c.bias) want = want + b.to(kF64);
  if (c.adds) want = want + d.to(kF64);
  const std::vector<double> got = out.to(kCPU).to(kF64).to_vector<double>(), sums = want.to_vector<double>();
  const double unit = result == kF64 ? 1e-14 : result == kF32 ? 2e-6 : result == kF16 ? 2e-3 : 1e-2;
  for (size_t i = 0; i < got.size(); ++i) {
    const double value = c.gelu ? gelu(sums[i]) : sums[i];
    ASSERT_NEAR(got[i], value, unit * (20 + std::abs(value))) << what << " " << i;
  }
}

TEST(CudaProductOtherwise, EveryFormOfNoIsAnotherWay) {
  manual_seed(3);
  int64_t apart = 0, copied = 0, by_kernel = 0;
  for (const LtAnswer answer :
       {LtAnswer::kNotSupported, LtAnswer::kNone, LtAnswer::kStates, LtAnswer::kRefusedByMatmul})
    for (const Refuses refuses : {&everything, &epilogues, &what_is_not_dense}) {
      FakeCuda cuda({.seed = static_cast<uint64_t>(answer)});
      cuda->set_lt_oracle(refusing(refuses, answer));
      const cuda::ProductReport before = cuda::product_report();
      for (const DType dtype : {kF32, kF64, kBF16, kF16})
        for (int kind = 0; kind < 16; ++kind) {
          const Case c{dtype,
                       (kind & 1) != 0,
                       (kind & 2) != 0,
                       (kind & 4) != 0,
                       (kind & 8) != 0 && dtype != kF64,
                       dtype == kBF16 && (kind & 8) == 0 && (kind & 2) != 0};
          if (c.in_place && !c.adds) continue;
          if (c.wide && c.bias) continue;  // a bias of the result's dtype is the caller's matter (matmul.cc)
          expect_right(c, cuda.device(),
                       absl::StrCat(static_cast<int>(answer), " ", std::string(name_of(dtype)), " ", kind));
        }
      const cuda::ProductReport now = cuda::product_report();
      apart += now.apart - before.apart, copied += now.copied - before.copied;
      by_kernel += now.by_kernel - before.by_kernel;
      EXPECT_GT(now.runs, before.runs);
      if (refuses == &everything) {
        EXPECT_EQ(cuda->counts().products, 0);
        // Where only the run is refused, each part of another way is tried, too.
        if (answer != LtAnswer::kRefusedByMatmul) {
          EXPECT_EQ(now.apart + now.copied, before.apart + before.copied);
        }
      } else {
        EXPECT_EQ(now.by_kernel, before.by_kernel);
      }
    }
  EXPECT_GT(apart, 0);
  EXPECT_GT(copied, 0);
  EXPECT_GT(by_kernel, 0);
}

// Batches, transpositions, gaps, odd addresses: by the public functions, with their gradients.
TEST(CudaProductOtherwise, LayoutsBatchesAndGradients) {
  for (const Refuses refuses : {&everything, &what_is_not_dense}) {
    FakeCuda cuda({.seed = 5});
    cuda->set_lt_oracle(refusing(refuses, LtAnswer::kNotSupported));
    manual_seed(4);
    for (const DType dtype : {kF32, kBF16})
      for (const auto& [x, y] : {std::pair(Dims{18, 33}, Dims{33, 5}),
                                 {Dims{2, 3, 4, 17}, Dims{2, 3, 17, 7}},
                                 {Dims{2, 1, 4, 5}, Dims{1, 3, 5, 7}},
                                 {Dims{4, 1}, Dims{1, 9}}}) {
        const Tensor a = random(x, dtype), b = random(y, dtype);
        const auto run = [&](Device device) {
          const Tensor left = a.to(device).detach().clone().requires_grad_(),
                       right = b.transpose(-1, -2).contiguous().to(device).detach().clone().requires_grad_();
          const Tensor out = left.matmul(right.transpose(-1, -2));
          ops::sum(out * out).backward();
          return std::vector<Tensor>{out.detach(), left.grad(), right.grad()};
        };
        const std::vector<Tensor> want = run(kCPU), got = run(cuda.device());
        for (size_t k = 0; k < want.size(); ++k) {
          const std::vector<double> w = want[k].to(kF64).to_vector<double>(),
                                    g = got[k].to(kCPU).to(kF64).to_vector<double>();
          double most = 0;
          for (const double value : w) most = std::max(most, std::abs(value));
          for (size_t i = 0; i < w.size(); ++i)
            ASSERT_NEAR(g[i], w[i], (dtype == kF32 ? 1e-5 : 3e-2) * most) << k << " " << i << to_string(x);
        }
      }
  }
}

// Nothing is silent: it is counted, and the log names op, line, product and way, once.
TEST(CudaProductOtherwise, IsToldToTheLog) {
  FakeCuda cuda;
  cuda->set_lt_oracle(refusing(&everything, LtAnswer::kNone));
  std::string told;
  compile::log::configure("perf_hints");
  auto before = compile::log::set_log_sink([&](std::string_view message) { told += message; });
  const Tensor x = Tensor::ones({6, 8}).to(cuda.device());
  const cuda::ProductReport report = cuda::product_report();
  for (int i = 0; i < 3; ++i) x.matmul(x.t());
  compile::log::set_log_sink(std::move(before));
  compile::log::configure("");
  EXPECT_NE(told.find("matmul ("), std::string::npos) << told;
  EXPECT_NE(told.find("product_otherwise_test.cc:"), std::string::npos) << told;
  const std::string words =
      "cuBLASLt has no algorithm for a product of [6, 8] x [8, 6] in f32 on cuda:0, so it runs by a kernel of Rondo's "
      "own";
  EXPECT_NE(told.find(words), std::string::npos) << told;
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  EXPECT_EQ(cuda::product_report().by_kernel, report.by_kernel + 1);
  EXPECT_EQ(cuda::product_report().runs, report.runs + 3);
  EXPECT_NE(cuda::product_report().last.back().find(words), std::string::npos);
}

// So does explain(), as text and as a page.
TEST(CudaProductOtherwise, IsPartOfAnExplanation) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  FakeCuda cuda;
  cuda->set_lt_oracle(refusing(&everything, LtAnswer::kNone));
  nn::Linear layer(11, 7);
  layer.to(cuda.device());
  const compile::Explanation e = compile::explain(layer, Tensor::ones({5, 11}).to(cuda.device()));
  for (const std::string& report : {compile::to_text(e), compile::to_html(e)})
    for (const char* part :
         {"products without an algorithm of cuBLASLt: ", " by a kernel of Rondo's own; ",
          "product_otherwise_test.cc:", "has no algorithm for a product of [5, 11] x [11, 7] in f32"})
      EXPECT_NE(report.find(part), std::string::npos) << part << "\n" << report;
}

// The same bits in every order of threads and streams.
TEST(CudaProductOtherwise, EveryOrderGivesTheSameBits) {
  for (const Refuses refuses : {&everything, &epilogues, &what_is_not_dense}) {
    std::string expected;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      FakeCuda cuda({.seed = seed});
      cuda->set_lt_oracle(refusing(refuses, LtAnswer::kNone));
      manual_seed(6);
      const Tensor x = random({20, 40}, kF32).to(cuda.device()), w = random({18, 40}, kF32).to(cuda.device()),
                   b = random({18}, kF32).to(cuda.device());
      const Tensor y = ops::linear(x, w, b);
      const std::string bits = test::bytes_of(y.matmul(y.t()));
      if (seed == 0) expected = bits;
      EXPECT_EQ(bits, expected) << seed;
    }
  }
}

// A line of the kernels changed is noticed.
TEST(CudaProductOtherwise, PlantedBugsAreNoticed) {
  const auto is_right = [](const std::string& part, const std::string& by) {
    bool right = true;
    for (const Refuses refuses : {&everything, &epilogues, &what_is_not_dense}) {
      FakeCuda cuda({.seed = 2});
      cuda->set_lt_oracle(refusing(refuses, LtAnswer::kNotSupported));
      cuda->set_edit([&](const std::string& source) {
        const size_t at = part.empty() ? source.npos : source.find(part);
        return at == source.npos ? source : std::string(source).replace(at, part.size(), by);
      });
      manual_seed(8);
      const Tensor x = random({2, 19, 37}, kF32), w = random({37, 21}, kF32).t().contiguous(), b = random({21}, kF32);
      const auto run = [&](Device device) {
        const Tensor y = ops::linear(x.to(device), w.to(device), b.to(device));
        return y.matmul(y.transpose(1, 2)).to(kCPU).to_vector<float>();
      };
      const std::vector<float> want = run(kCPU), got = run(cuda.device());
      for (size_t i = 0; i < want.size(); ++i)
        right = right && std::abs(want[i] - got[i]) <= 1e-3f * (100 + std::abs(want[i]));
    }
    return right;
  };
  EXPECT_TRUE(is_right("", ""));
  for (const auto& [part, by] : {std::pair("__syncthreads();  // the last tiles", "// the last tiles"),
                                 {"put(right[threadIdx.x], y);\n      __syncthreads();", "put(right[threadIdx.x], y);"},
                                 {"of_a < p.k", "of_a < p.k - 1"},
                                 {"i * p.a_row", "i * p.a_column"},
                                 {"tile / across % down", "tile % down"},
                                 {"batch * p.a_batch", "0"},
                                 {"read(bias + column)", "read(bias)"},
                                 {"sum * static_cast<C>(p.alpha)", "sum + static_cast<C>(p.alpha)"},
                                 {"e / p.n % p.m * p.c_row", "e / p.n * p.c_row"},
                                 {"e / columns % rows * row_stride", "e / columns % rows * column_stride"}})
    EXPECT_FALSE(is_right(part, by)) << "nobody notices " << by << " in place of " << part;
}

// The real NVRTC takes them.
TEST(CudaProductOtherwise, TheRealNvrtcCompilesIt) {
  const test::Setting path("RONDO_CUDA_PATH", nullptr);
  cuda::forget_libraries();
  std::string why_not;
  if (cuda::find_nvrtc(&why_not) == nullptr) GTEST_SKIP() << why_not;
  for (const auto& [in, out] : {std::pair(kF32, kF32), {kF64, kF64}, {kBF16, kBF16}, {kBF16, kF32}, {kF16, kF16}})
    for (const int architecture : cuda::kArchitectures) {
      const std::string text = cuda::whole_text(
          cuda::product_source(),
          {{"T", cuda::type_name(in)}, {"R", cuda::type_name(out)}, {"GELU", in == kF64 ? "0" : "1"}});
      EXPECT_GT(cuda::compile_image(text, "product", architecture).cubin.size(), 1000u);
    }
  cuda::forget_libraries();
}

}  // namespace
}  // namespace rondo
