// Plans of cuDNN: convolutions on the fake library against the CPU's, what has no plan, where plans are kept, and the
// errors. Attention: cudnn_attention_test.cc. The real library makes plans in tests/gpu/cudnn_plans.cc.
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "rondo/compile/compile_for.h"
#include "rondo/compile/explain.h"
#include "rondo/modules/layers/convolution.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/absent.h"
#include "rondo/runtime/cuda/dnn_plan.h"
#include "rondo/runtime/cuda/dnn_store.h"
#include "rondo/runtime/ops/matmul_precision.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/compiled_runs.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/paths.h"

namespace rondo {
namespace {

using cuda::DnnConvolution;
using test::FakeCuda;

Tensor random(const Dims& sizes, DType dtype) { return Tensor::randn(sizes, {kF64}).to(dtype); }
Tensor channels_last(const Tensor& t) {
  return t.rank() == 4 ? t.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2}) : t;
}
double largest(const Tensor& t) {
  double most = 0;
  for (const double value : t.to(kCPU).to(kF64).contiguous().to_vector<double>())
    most = std::max(most, std::abs(value));
  return most;
}
// f32 sums are in another order; 16-bit results are rounded once on both sides.
double tolerance(DType dtype) { return dtype == kBF16 ? 0x1p-7 : dtype == kF16 ? 0x1p-10 : 1e-5; }

struct Case {
  const char* name;
  Dims x, w;
  ops::Conv2dOptions options;
  bool bias = true;
};
std::vector<Case> cases() {
  return {{"3 x 3", {2, 4, 6, 7}, {6, 4, 3, 3}, {.padding = 1}},
          {"strides", {2, 3, 9, 8}, {5, 3, 3, 2}, {.stride = {2, 3}, .padding = {1, 0}}, false},
          {"dilated groups", {1, 6, 9, 9}, {4, 3, 3, 3}, {.padding = 2, .dilation = 2, .groups = 2}},
          {"depthwise", {2, 5, 5, 6}, {5, 1, 3, 3}, {.padding = ops::kSamePadding, .groups = 5}},
          {"more on one side", {1, 2, 6, 6}, {3, 2, 2, 4}, {.padding = ops::kSamePadding}},
          {"1 x 1", {3, 8, 4, 4}, {4, 8, 1, 1}, {}, false}};
}

struct Results {
  Tensor y, grad_x, grad_w, grad_b;
};
Results convolve(const Case& c, Device device, DType dtype, bool last) {
  manual_seed(11);
  const auto leaf = [&](const Dims& sizes) {
    const Tensor t = random(sizes, dtype).to(device);
    return (last ? channels_last(t) : t).detach().requires_grad_();
  };
  const Tensor x = leaf(c.x), w = leaf(c.w), b = c.bias ? leaf({c.w[0]}) : Tensor();
  const Tensor y = ops::conv2d(x, w, b, c.options);
  y.backward(random(y.sizes(), dtype).to(device));
  return {y, x.grad(), w.grad(), c.bias ? b.grad() : Tensor()};
}
void expect_close(const Tensor& got, const Tensor& want, const std::string& what) {
  if (!want.defined()) return;
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_EQ(got.strides(), want.strides()) << what;
  EXPECT_LE(largest(got.to(kCPU).to(kF64) - want.to(kF64)), tolerance(want.dtype()) * (1 + largest(want))) << what;
}

struct Small : nn::Module<Small> {
  nn::Conv2d conv = child("conv", 3, 4, 3);
  Tensor forward(const Tensor& x) { return ops::relu(conv(x)); }
};

// No plan is known before.
class Cudnn : public testing::Test {
 protected:
  Cudnn() { cuda::forget_plans(); }
  ~Cudnn() override { cuda::forget_plans(); }

 private:
  const test::Setting cache_{"RONDO_CACHE", "off"};
};

// Values and layouts are those of the CPU, whatever order the streams take, and all of it runs in plans.
TEST_F(Cudnn, ConvolutionsEqualTheCpus) {
  for (const uint64_t seed : {1, 2}) {
    FakeCuda cuda({.seed = seed});
    for (const Case& c : cases())
      for (const DType dtype : {kF32, kBF16, kF16})
        for (const bool last : {false, true}) {
          const std::string what = std::string(c.name) + " " + std::string(name_of(dtype)) + (last ? " last" : "");
          const cuda::DnnReport before = cuda::dnn_report();
          const int64_t plans = cuda->counts().plans;
          const Results there = convolve(c, cuda.device(), dtype, last), here = convolve(c, kCPU, dtype, last);
          expect_close(there.y, here.y, what + " y");
          expect_close(there.grad_x, here.grad_x, what + " dx");
          expect_close(there.grad_w, here.grad_w, what + " dw");
          expect_close(there.grad_b, here.grad_b, what + " db");
          EXPECT_EQ(cuda::dnn_report().runs, before.runs + 3) << what;
          EXPECT_EQ(cuda->counts().plans, plans + 3) << what;
          EXPECT_EQ(cuda::dnn_report().runs_otherwise, before.runs_otherwise) << what;
        }
  }
}

TEST_F(Cudnn, OneDimensionTransposedAndGradientsOfGradients) {
  FakeCuda cuda;
  const auto run = [](Device device) {
    manual_seed(3);
    const auto leaf = [&](const Dims& sizes) { return random(sizes, kF32).to(device).detach().requires_grad_(); };
    const Tensor x = leaf({2, 3, 9}), w = leaf({4, 3, 3}), up = leaf({4, 2, 1, 3});
    const Tensor between = ops::conv1d(x, w, {}, {.stride = 2}).view({2, 4, 1, 4});
    const Tensor y = ops::conv_transpose2d(between, up, {}, {.stride = 2});
    const Tensor loss = ops::sum(y * y), leaves[] = {x, w, up};
    const std::vector<Tensor> first = autograd::grad({&loss, 1}, leaves, {}, true, true);
    const Tensor second = ops::sum(first[0] * first[0]) + ops::sum(first[1] * first[1]);
    return autograd::grad({&second, 1}, leaves, {}, false, false);
  };
  const int64_t otherwise = cuda::dnn_report().runs_otherwise;
  const std::vector<Tensor> there = run(cuda.device()), here = run(kCPU);
  for (size_t i = 0; i < here.size(); ++i) expect_close(there[i], here[i], "second derivatives");
  EXPECT_EQ(cuda::dnn_report().runs_otherwise, otherwise);
}

// Operands with gaps or at odd addresses are copied; an empty batch has no plan and needs none.
TEST_F(Cudnn, OperandsInLargerTensors) {
  FakeCuda cuda;
  manual_seed(4);
  const Tensor all = random({3, 4, 6, 7}, kF32), w = random({2, 3, 3, 3}, kF32);
  const Tensor there = all.to(cuda.device());
  const auto part = [](const Tensor& t) { return t.slice(1, {1, 4}).slice(3, {1, 7}); };
  expect_close(ops::conv2d(part(there), w.to(cuda.device()), {}, {}), ops::conv2d(part(all), w, {}, {}), "a part");
  const Tensor odd = there.view({-1}).slice(0, {1, 1 + 2 * 3 * 5 * 5}).view({2, 3, 5, 5});
  expect_close(ops::conv2d(odd, w.to(cuda.device()), {}, {}), ops::conv2d(odd.to(kCPU), w, {}, {}), "an odd address");
  const Tensor none = ops::conv2d(Tensor::zeros({0, 3, 5, 5}, {kF32, cuda.device()}), w.to(cuda.device()), {}, {});
  EXPECT_EQ(none.sizes(), (Dims{0, 2, 3, 3}));
}

// ---- Without a plan

TEST_F(Cudnn, WhatNoEngineServesRunsInParts) {
  FakeCuda cuda;
  cuda->set_dnn_oracle([](const std::string& graph) { return graph.find("12/") != std::string::npos; });  // dx
  const Case c = cases()[0];
  const cuda::DnnReport before = cuda::dnn_report();
  const Results there = convolve(c, cuda.device(), kF32, false), here = convolve(c, kCPU, kF32, false);
  expect_close(there.y, here.y, "y");
  expect_close(there.grad_x, here.grad_x, "dx");
  expect_close(there.grad_w, here.grad_w, "dw");
  const cuda::DnnReport after = cuda::dnn_report();
  EXPECT_EQ(after.refused, before.refused + 1);
  EXPECT_EQ(after.runs, before.runs + 2);
  EXPECT_EQ(after.runs_otherwise, before.runs_otherwise + 1);
  EXPECT_NE(after.last.back().find("no plan for conv2d_grad_input of [2, 4, 6, 7] with a weight [6, 4, 3, 3] in f32"),
            std::string::npos)
      << after.last.back();
  // It is asked for once, and told in explain().
  convolve(c, cuda.device(), kF32, false);
  EXPECT_EQ(cuda::dnn_report().refused, after.refused);
  EXPECT_EQ(cuda::dnn_report().runs_otherwise, after.runs_otherwise + 1);
  Small model;
  model.to(cuda.device());
  const Tensor x = Tensor::randn({2, 3, 6, 6}).to(cuda.device()).detach().requires_grad_();
  const Tensor eager = model(x);
  const compile::Regions regions = compile::compile_module(model, {.exact = true});
  const Tensor compiled = model(x);
  EXPECT_TRUE(test::same_bits(compiled.to(kCPU), eager.to(kCPU)));
  ops::sum(compiled).backward();
  EXPECT_EQ(cuda::dnn_report().refused, after.refused + 1);  // of another size
  bool told = false;
  for (const std::string& text : compile::explain(regions).products)
    told = told || text.find("without a plan of cuDNN") != std::string::npos;
  EXPECT_TRUE(told);
  // f64 is never asked for.
  const cuda::DnnReport narrow = cuda::dnn_report();
  const Results wide = convolve(c, cuda.device(), kF64, false);
  expect_close(wide.grad_x, convolve(c, kCPU, kF64, false).grad_x, "f64");
  EXPECT_EQ(cuda::dnn_report().refused, narrow.refused);
  EXPECT_EQ(cuda::dnn_report().runs, narrow.runs);
}

TEST_F(Cudnn, AnOldLibraryIsNone) {
  FakeCuda cuda({.dnn_version = 90800});
  std::string why_not;
  EXPECT_EQ(cuda::find_cudnn(&why_not), nullptr);
  EXPECT_NE(why_not.find("is cuDNN 9.8.0, which is too old; plans need cuDNN 9.11 or newer (pip: nvidia-cudnn-cu13"),
            std::string::npos)
      << why_not;
  try {
    cuda::require_cudnn();
    ADD_FAILURE() << "there is none";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("no plans of cuDNN: "), std::string::npos) << error.what();
    EXPECT_FALSE(error.lost());
  }
  const int64_t runs = cuda::dnn_report().runs;
  expect_close(convolve(cases()[2], cuda.device(), kF32, false).grad_w, convolve(cases()[2], kCPU, kF32, false).grad_w,
               "without cuDNN");
  EXPECT_EQ(cuda::dnn_report().runs, runs);
  EXPECT_NE(cuda::dnn_report().last.back().find("too old"), std::string::npos);
}

TEST_F(Cudnn, NoLibraryIsSaidSo) {
  const test::Setting off("RONDO_CUDA", "off");
  cuda::forget_libraries();
  std::string why_not;
  EXPECT_EQ(cuda::find_cudnn(&why_not), nullptr);
  EXPECT_EQ(why_not.find("RONDO_CUDA=off; plans need cuDNN 9.11"), 0u) << why_not;
  cuda::forget_libraries();
}

// ---- Engines

// The fake lists engines that may not be taken first: one whose results differ from run to run, one with short sums,
// one with a huge workspace, one that does not build, and one that rounds f32 to TF32.
TEST_F(Cudnn, EnginesAreChosenByTheirNotes) {
  FakeCuda cuda;
  const cuda::Cudnn& library = cuda::require_cudnn();
  DnnConvolution c{.dtype = kF32, .input = {1, 2, 4, 4}, .weight = {2, 2, 3, 3}, .output = {1, 2, 2, 2}};
  const auto made = [&] { return cuda::make_plan(library, cuda::convolution_graph(c), cuda::properties_of(90)); };
  EXPECT_EQ(made().engine, 1);
  EXPECT_EQ(made().workspace, 4096);
  EXPECT_EQ(made().notes, "native CUDA graphs");
  c.fast = true;
  EXPECT_EQ(made().engine, 3);
  EXPECT_EQ(made().notes, "TF32, native CUDA graphs");
  c.dtype = kBF16;
  EXPECT_EQ(made().engine, 1);
  // TF32 where a program allows it for products.
  const Case one = cases()[0];
  const cuda::DnnReport before = cuda::dnn_report();
  set_float32_matmul_precision(MatmulPrecision::kHigh);
  convolve(one, cuda.device(), kF32, false);
  set_float32_matmul_precision(MatmulPrecision::kHighest);
  convolve(one, cuda.device(), kF32, false);
  EXPECT_EQ(cuda::dnn_report().runs, before.runs + 6);
}

// Bias and activation are part of the plan.
TEST_F(Cudnn, BiasAndReluAreFused) {
  FakeCuda cuda;
  manual_seed(6);
  for (const DType dtype : {kF32, kBF16}) {
    const Tensor x = random({2, 3, 5, 5}, dtype), w = random({4, 3, 3, 3}, dtype), b = random({4}, dtype);
    const Tensor there[] = {x.to(cuda.device()), w.to(cuda.device()), b.to(cuda.device()),
                            Tensor::empty({2, 4, 5, 5}, {dtype, cuda.device()})};
    const DnnConvolution c{.dtype = dtype,
                           .bias = true,
                           .relu = true,
                           .input = {2, 3, 5, 5},
                           .weight = {4, 3, 3, 3},
                           .output = {2, 4, 5, 5},
                           .before = {1, 1},
                           .after = {1, 1}};
    const auto plan = cuda::DnnPlan::get(0, cuda::convolution_graph(c), c.describe());
    ASSERT_TRUE(plan->usable());
    const int64_t before = cuda->counts().plans;
    const void* operands[] = {there[0].impl()->data(), there[1].impl()->data(), there[2].impl()->data(),
                              there[3].impl()->data()};
    plan->enqueue(operands);
    EXPECT_EQ(cuda->counts().plans, before + 1);
    const Tensor want = ops::relu(ops::conv2d(x.to(kF64), w.to(kF64), b.to(kF64), {.padding = 1})).to(dtype);
    expect_close(there[3], want, "relu");
    EXPECT_GT(largest(want), 0);
  }
}

// The fake is as strict as a device: wrong addresses end a run.
TEST_F(Cudnn, WrongOperandsAreCaught) {
  FakeCuda cuda({.aborts = false});
  const DnnConvolution c{.dtype = kF32, .input = {1, 1, 4, 4}, .weight = {1, 1, 1, 1}, .output = {1, 1, 4, 4}};
  const auto plan = cuda::DnnPlan::get(0, cuda::convolution_graph(c), c.describe());
  ASSERT_TRUE(plan->usable());
  const Tensor x = Tensor::zeros({64}, {kF32, cuda.device()}), y = Tensor::zeros({64}, {kF32, cuda.device()});
  const Tensor host = Tensor::zeros({64});
  const std::byte *const a = x.impl()->data(), *const b = y.impl()->data();
  const auto fails = [&](std::vector<const void*> operands, const char* words) {
    EXPECT_THROW(plan->enqueue(operands), DeviceError) << words;
    const std::vector<std::string> misuses = cuda->misuses();
    ASSERT_FALSE(misuses.empty()) << words;
    EXPECT_NE(misuses.back().find(words), std::string::npos) << misuses.back();
  };
  fails({a + 4, a + 128, b}, "is not aligned to 16 bytes");
  fails({a, nullptr, b}, "has no address");
  fails({a, a + 128, a + 16}, "overlaps another tensor");
  fails({host.impl()->data(), a, b}, "an operand of a plan");
  EXPECT_THROW(plan->enqueue(std::vector<const void*>{a, b}), InternalError);
}

// ---- Where plans are kept

TEST_F(Cudnn, PlansAreKeptOnDisk) {
  const test::TempFolder folder;
  const test::Setting cache("RONDO_CACHE_DIR", (folder / "cache").c_str());
  const test::Setting on("RONDO_CACHE", nullptr);
  const Case c = cases()[3];
  const auto count = [&](uint64_t seed, size_t version) {
    cuda::forget_plans();
    FakeCuda cuda({.seed = seed, .dnn_version = version});
    const cuda::DnnReport before = cuda::dnn_report();
    const Results there = convolve(c, cuda.device(), kF32, true);
    expect_close(there.grad_w, convolve(c, kCPU, kF32, true).grad_w, "dw");
    const cuda::DnnReport after = cuda::dnn_report();
    return std::pair(after.made - before.made, after.from_disk - before.from_disk);
  };
  EXPECT_EQ(count(1, 91900), std::pair(int64_t{3}, int64_t{0}));
  EXPECT_EQ(count(2, 91900), std::pair(int64_t{0}, int64_t{3}));
  EXPECT_EQ(count(3, 92000), std::pair(int64_t{3}, int64_t{0}));  // another version
  int damaged = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / "cache"))
    if (entry.is_regular_file() && entry.path().extension() == ".rk")
      std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) / 2), ++damaged;
  EXPECT_GE(damaged, 6);  // kernels that NVRTC's stand-in made may lie there, too
  EXPECT_EQ(count(4, 91900), std::pair(int64_t{3}, int64_t{0}));
}

// compile_for() ships plans that were made without a device; one that the device refuses is made again.
TEST_F(Cudnn, CompileForShipsPlans) {
  for (const int capability : {90, 80}) {
    const test::TempFolder folder;
    cuda::forget_plans();
    manual_seed(8);
    Small model;
    {
      const test::Setting libraries("RONDO_CUDA_PATH", test::fake_cuda_folder().c_str());
      cuda::forget_libraries();
      const cuda::DnnReport before = cuda::dnn_report();
      compile::compile_for(model, {Tensor::randn({2, 3, 6, 6}).requires_grad_()},
                           "cuda sm_" + std::to_string(capability))
          .save(folder / "small.rondo");
      EXPECT_EQ(cuda::dnn_report().made - before.made, 3);
    }
    cuda::forget_plans();
    FakeCuda cuda({.capability = capability});
    compile::load_artifacts(folder / "small.rondo");
    const cuda::DnnReport before = cuda::dnn_report();
    const Tensor x = Tensor::randn({2, 3, 6, 6});
    const auto run = [&](Device device) {
      model.to(device);
      model.zero_grad();
      const Tensor in = x.to(device).detach().requires_grad_();
      ops::sum(model(in)).backward();
      return in.grad();
    };
    const Tensor there = run(cuda.device());
    const cuda::DnnReport after = cuda::dnn_report();
    expect_close(there, run(kCPU), "dx");
    // The fake's device has as many multiprocessors as an H100, so plans for an A100 do not fit it.
    EXPECT_EQ(after.from_artifacts - before.from_artifacts, capability == 90 ? 3 : 0);
    EXPECT_EQ(after.made - before.made, capability == 90 ? 0 : 3);
  }
}

}  // namespace
}  // namespace rondo
