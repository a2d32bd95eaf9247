// Kernels of runtime/cuda/ with a line changed: each is noticed. And the real NVRTC takes them all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <regex>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/device_math.h"
#include "rondo/runtime/cuda/driver.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/cuda/nvrtc.h"
#include "rondo/runtime/cuda/source.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/tests/cuda/run_kernel.h"
#include "rondo/tests/cuda_on_host/machine.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

using test::FakeCuda;
using test::kOrders;
using test::run;
using test::same;

struct Call {
  const OpDef& op;
  std::vector<Tensor> inputs;
  Attrs attrs = {};
  int outputs = 1;
};

// True if the results are the CPU's in this order of threads, with `part` of the source replaced.
bool is_right(const Call& call, uint64_t order, const std::string& part, const std::string& by) {
  FakeCuda cuda({.seed = order});
  bool found = part.empty();
  cuda->set_edit([&](const std::string& source) {
    std::string text = source;
    const size_t at = part.empty() ? text.npos : text.find(part);
    if (at != text.npos) text.replace(at, part.size(), by), found = true;
    return text;
  });
  const std::vector<Tensor> got = run(call.op, call.attrs, call.outputs, call.inputs, cuda.device()),
                            expected = run(call.op, call.attrs, call.outputs, call.inputs, kCPU);
  EXPECT_TRUE(found) << "no kernel of " << call.op.name << " has " << part;
  bool right = true;
  for (size_t i = 0; i < got.size(); ++i) right = right && same(call.op, got[i], expected[i]);
  return right;
}
void expect_other_numbers(const Call& call, const std::string& part, const std::string& by) {
  bool always_right = true;
  for (const uint64_t order : kOrders) {
    EXPECT_TRUE(is_right(call, order, "", ""));
    always_right = always_right && is_right(call, order, part, by);
  }
  EXPECT_FALSE(always_right) << call.op.name << ": nobody notices " << by << " in place of " << part;
}

Tensor integers(int64_t n, int64_t modulus) {
  std::vector<int64_t> list;
  for (int64_t i = 0; i < n; ++i) list.push_back(i * 7919 % modulus);
  return Tensor::from(list, {n});
}
Tensor reals(const Dims& sizes) { return test::uniform(sizes, -2, 2, 7).to(kF32); }

TEST(PlantedKernels, Barriers) {
  expect_other_numbers({ops::kArgsort, {reals({200})}, {.ints = {0, 0}}},
                       "put(tile[t], keys.at(line + from + t));\n    __syncthreads();",
                       "put(tile[t], keys.at(line + from + t));");
  expect_other_numbers({ops::kArgmax, {reals({3, 200})}, {.ints = {2, 1, 0}}}, "__syncthreads();\n      if (t < width)",
                       "if (t < width)");
  expect_other_numbers({ops::kCrossEntropy, {reals({4, 300}), integers(4, 300)}, {.ints = {-1, 0}, .floats = {0.1}}, 2},
                       "__syncthreads();\n  V all", "V all");
}
TEST(PlantedKernels, OrdersOfEqualElements) {
  // Runs of 256 are merged where there are many elements.
  expect_other_numbers({ops::kArgsort, {integers(66000, 5).view({220, 300})}, {.ints = {1, 0}}},
                       "is_right ? other <= mine : other < mine", "other < mine");
  expect_other_numbers({ops::kArgsort, {integers(100, 5)}, {.ints = {0, 0}}}, "other == mine && from + j < at",
                       "other == mine && from + j > at");
  expect_other_numbers({ops::kArgmax, {integers(500, 5)}, {.ints = {1, 1, 0}}}, "other_at < my_at", "other_at > my_at");
}
TEST(PlantedKernels, WhatMeetsInOnePlace) {
  const Tensor index = integers(60, 4);
  expect_other_numbers({ops::kScatter, {reals({4}), index, reals({60})}, {.ints = {0}}},
                       "atomicMax(winners + at[0] + k * step, static_cast<unsigned long long>(i) + 1ull)",
                       "write(winners + at[0] + k * step, static_cast<unsigned long long>(i) + 1ull)");
  expect_other_numbers({ops::kScatterSum, {reals({60}), index}, {.ints = {0, 4}}},
                       "for (long long i = first; i < n && read(keys + i) == key; ++i)",
                       "for (long long i = first; i < n - 1 && read(keys + i) == key; ++i)");
  const Call few{ops::kEmbeddingGrad, {reals({60, 3}), index}, {.ints = {4}}},
      many{ops::kEmbeddingGrad, {reals({8300, 1}), integers(8300, 4)}, {.ints = {4}}};
  expect_other_numbers(few, "is_first = is_first && get(marks[word]) == 0u", "");
  expect_other_numbers(few, "(1u << block % 32) - 1u", "0u");
  expect_other_numbers(few, "at < n) put(marks[at / 32], word);\n    }\n    __syncthreads();",
                       "at < n) put(marks[at / 32], word);\n    }\n");
  expect_other_numbers(many, "(first > 0 && read(keys + first - 1) == key)", "false");
}
TEST(PlantedKernels, Arithmetic) {
  expect_other_numbers({ops::kSum, {reals({3, 50})}, {.ints = {2, 0}}}, "width = 8;", "width = 4;");
  expect_other_numbers({ops::kDropout, {reals({100}), integers(2, 50)}, ops::dropout_attrs(0.5, 0)},
                       "static_cast<unsigned long long>(group)", "static_cast<unsigned long long>(group + 1)");
  expect_other_numbers({ops::kRotary, {reals({3, 4}), reals({3, 2}), reals({3, 2})}, {.ints = {1}}}, "* sign", "");
  expect_other_numbers({ops::kCast, {test::uniform({50}, -4e9, 4e9, 3)}, {.ints = {static_cast<int64_t>(kI32)}}},
                       "if (x >= high) return 2147483647;", "");
}

// Elements beyond the last one.
TEST(PlantedKernels, Tails) {
  const auto behind = [](const std::string& part) {
    FakeCuda cuda;
    cuda->set_edit([&](const std::string& source) {
      const size_t at = part.empty() ? source.npos : source.find(part);
      return at == source.npos ? source : std::string(source).replace(at, part.size(), "4");
    });
    Tensor y = Tensor::full({70}, 7, {kF32, cuda.device()});
    y.slice(0, {0, 63}).copy_(reals({63}).to(cuda.device()));
    return y.to_vector<float>()[63];
  };
  EXPECT_EQ(behind(""), 7.0f);
  EXPECT_NE(behind("n - i < 4 ? static_cast<int>(n - i) : 4"), 7.0f);
}

// In whatever order the threads run, and whatever numbers they leave.
TEST(PlantedKernelsDeathTest, TSanReportsAMissingBarrier) {
  if (cuda_on_host::kSanitizer != cuda_on_host::Sanitizer::kThread)
    GTEST_SKIP() << "needs kernels with TSan: kernels_thread_cuda";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Call sort{ops::kArgsort, {reals({200})}, {.ints = {0, 0}}},
      best{ops::kArgmax, {reals({3, 200})}, {.ints = {2, 1, 0}}};
  const auto run_without = [](const Call& call, const std::string& part, const std::string& by) {
    is_right(call, 0, part, by);
    exit(0);
  };
  EXPECT_EXIT(run_without(sort, "", ""), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(run_without(sort, "put(tile[t], keys.at(line + from + t));\n    __syncthreads();",
                          "put(tile[t], keys.at(line + from + t));"),
              testing::ExitedWithCode(66), "ThreadSanitizer: data race");
  EXPECT_EXIT(run_without(best, "__syncthreads();\n      if (t < width)", "if (t < width)"),
              testing::ExitedWithCode(66), "ThreadSanitizer: data race");
  // The values are right: one warp adds up, and its shuffles bring the threads together, but they order no memory.
  EXPECT_EXIT(run_without(best, "for (int width = 64; width > 0; width /= 2) {\n      __syncthreads();",
                          "for (int width = 64; width > 0; width /= 2) {\n      if (width >= 32) __syncthreads(); "
                          "else __shfl_sync(0xFFFFFFFFu, 0, 0);"),
              testing::ExitedWithCode(66), "ThreadSanitizer: data race");
}

TEST(PlantedKernelsDeathTest, AccessesAndMasks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Call far{ops::kEmbedding, {reals({4, 3}), Tensor::from<int64_t>({0, int64_t{1} << 40}, {2})}};
  EXPECT_DEATH(
      {
        FakeCuda cuda;
        cuda->set_edit([](const std::string& source) {
          return std::regex_replace(source, std::regex("row < 0 \\|\\| row >= rows"), "false");
        });
        run(far.op, far.attrs, 1, far.inputs, cuda.device());
      },
      "rondo_embedding");
  const Call sum{ops::kSum, {reals({3, 50})}, {.ints = {2, 0}}};
  EXPECT_DEATH(is_right(sum, 0, "__shfl_down_sync(0xFFFFFFFFu, total", "__shfl_down_sync(0x0000FFFFu, total"),
               "a mask that lacks the thread itself");
}

// Everything that the ops compile, by the real NVRTC: no error, and not a word of warning.
TEST(RealNvrtc, TakesEveryKernel) {
  std::map<std::string, std::string> sources;  // by text: the op
  {
    FakeCuda cuda;
    std::string name;
    cuda->set_loader([&](const std::string& image) {
      sources.emplace(image.substr(image.find('\n') + 1), name);
      // Kernels that do nothing.
      std::vector<std::pair<std::string, fake_cuda::Kernel>> kernels;
      const std::regex pattern("__global__ void (?:__launch_bounds__\\([\\w, ]+\\)\\s+)?(\\w+)\\(");
      for (std::sregex_iterator at(image.begin(), image.end(), pattern), end; at != end; ++at)
        kernels.emplace_back((*at)[1], fake_cuda::Kernel{{}, [](const fake_cuda::Launch&) {}, {}});
      return kernels;
    });
    for (const OpDef* op : all_ops()) {
      if (cuda::own_kernels(*op).kernel == nullptr || op->kind == OpKind::kContraction) continue;
      name = op->name;
      const test::OpSpec& spec = *test::find_spec(op->name);
      const test::OpSample sample = samples_of(spec)[0];
      std::vector<DType> dtypes = {kF32};
      if (op->body == nullptr) dtypes.push_back(kBF16);
      if (spec.takes_integers) dtypes.push_back(kI32);
      for (const DType dtype : dtypes) run(*op, sample.attrs, sample.n_outputs, sample.inputs_as(dtype), cuda.device());
    }
  }
  std::string why_not;
  const cuda::Nvrtc* nvrtc = cuda::find_nvrtc(&why_not);
  if (nvrtc == nullptr) GTEST_SKIP() << why_not;
  EXPECT_GT(sources.size(), 60u);
  for (const auto& [text, op] : sources) {
    const cuda::NvrtcOutput output = cuda::compile_source(*nvrtc, text, op, 80, cuda::kExactFlags);
    EXPECT_EQ(output.result, cuda::NvrtcResult::kSuccess) << op;
    EXPECT_EQ(output.log, "") << op;
  }
}

}  // namespace
}  // namespace rondo
