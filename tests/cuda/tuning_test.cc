// Mode::kMaxAutotune on CUDA: what a measured choice holds for, and what is measured on.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "rondo/compile/exec/made_up.h"
#include "rondo/compile/jit/tuner.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/compile/graph_fixture.h"
#include "rondo/tests/compile/temp_folder.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::compile {
namespace {

using test::FakeCuda;

// Another device, driver or library measures again; the same ones, in another process, do not.
TEST(CudaTuning, AChoiceIsOfADeviceItsDriverAndItsLibraries) {
  const test::TempFolder folder;
  const DiskCacheOptions disk{.folder = folder / "cache"};
  const std::function<void()> candidates[] = {[] {}, [] {}};
  const auto measures = [&](const fake_cuda::Options& options) {
    FakeCuda cuda(options);
    Tuner tuner(disk);  // of another process
    tuner.fastest("a product", candidates, cuda.device());
    tuner.fastest("a product", candidates, cuda.device());
    return tuner.measured();
  };
  const auto on_the_cpu = [&] {
    Tuner tuner(disk);
    tuner.fastest("a product", candidates);
    return tuner.measured();
  };
  EXPECT_EQ(on_the_cpu(), 1);
  EXPECT_EQ(measures({}), 1) << "what the CPU has measured says nothing of a GPU";
  EXPECT_EQ(measures({}), 0);
  EXPECT_EQ(measures({.name = "another GPU"}), 1);
  EXPECT_EQ(measures({.driver_version = 13010}), 1);
  EXPECT_EQ(measures({.lt_version = 130002}), 1);
  EXPECT_EQ(measures({.bytes = size_t{2} << 30}), 1);
  EXPECT_EQ(measures({.capability = 100}), 1);
  EXPECT_EQ(measures({}), 0) << "the first one's choice is still there";
  EXPECT_EQ(on_the_cpu(), 0);
  FakeCuda cuda;
  EXPECT_EQ(rondo::cuda::machine_of(0), "fake GPU, sm_90, 4 multiprocessors, 1024 MiB, driver 13.0, cuBLASLt 130000");
}

TEST(CudaTuning, MadeUpDataVaryAndAreInRange) {
  FakeCuda cuda({.seed = 4});
  NoGrad off;
  // A table whose rows are more than its columns, indices that go through a view, a mask, and strides.
  const Tensor table = Tensor::zeros({40, 6}), rows = Tensor::zeros({4, 3}, {kI64}),
               mask = Tensor::zeros({4, 3, 6}, {kBool}), wide = Tensor::zeros({6, 9}, {kBF16}).t(),
               unused = Tensor::zeros({5}, {kI32});
  const Graph graph = record([&] {
    const Tensor picked = ops::embedding(table, rows.reshape({12})).reshape({4, 3, 6});
    return std::vector<Tensor>{ops::where(mask, picked, 0.0), wide + 1.0, unused + unused};
  });
  ASSERT_GE(graph.inputs.size(), 5u);
  const uint64_t before = default_generator().offset();
  for (const Device device : {kCPU, cuda.device()}) {
    Generator generator(1);
    for (const ValueId id : graph.inputs) {
      const Value& value = graph.value(id);
      if (value.sizes.numel() == 1) continue;  // a number of the program's
      const Tensor made = made_up(graph, id, device, generator);
      EXPECT_EQ(made.sizes(), value.sizes);
      EXPECT_EQ(made.strides(), value.strides);
      EXPECT_EQ(made.dtype(), value.dtype);
      const std::vector<double> numbers = made.to(kCPU).to(kF64).to_vector<double>();
      const std::set<double> distinct(numbers.begin(), numbers.end());
      const double least = *distinct.begin(), most = *distinct.rbegin();
      EXPECT_GT(distinct.size(), 1u) << name_of(value.dtype) << rondo::to_string(value.sizes);
      EXPECT_GE(least, 0);
      EXPECT_LE(most, is_floating(value.dtype) || value.dtype == kBool ? 1 : 39) << "a row of the table";
    }
  }
  EXPECT_EQ(default_generator().offset(), before) << "to tune draws none of the program's numbers";
}

}  // namespace
}  // namespace rondo::compile
