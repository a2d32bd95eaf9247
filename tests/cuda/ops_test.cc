// Every op runs on CUDA: in which way, as its calls are seen to run.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>

#include "rondo/compile/exec/eager_ops.h"
#include "rondo/runtime/cuda/kernels.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

// The work that calls of an op gave the device.
struct Work {
  int64_t generated = 0;  // calls that ran kernels of compile/
  int64_t products = 0;   // of cuBLASLt
  int64_t plans = 0;      // of cuDNN
  int64_t launches = 0;   // of all kernels
};

Work work_of(const OpDef& op, const test::OpSample& sample, DType dtype, const test::FakeCuda& cuda) {
  std::vector<Tensor> inputs;
  for (const Tensor& input : sample.inputs_as(dtype))
    inputs.push_back(input.defined() ? input.to(cuda.device()) : input);
  const fake_cuda::Counts before = cuda->counts();
  const int64_t generated = compile::eager_ops_report().calls;
  test::apply_op(op, inputs, sample.attrs, sample.n_outputs);
  const fake_cuda::Counts after = cuda->counts();
  return {compile::eager_ops_report().calls - generated, after.products - before.products, after.plans - before.plans,
          after.launches - before.launches};
}

std::string way_of(const OpDef& op, const Work& work) {
  if (op.kind == OpKind::kView) return "a view";
  std::string way;
  const auto add = [&](bool here, const char* word) {
    if (here) way += (way.empty() ? "" : " and ") + std::string(word);
  };
  const bool of_ops = cuda::own_kernels(op).kernel == op.host.kernel;
  add(work.generated > 0, "generated");
  add(work.products + work.plans > 0, "by library");
  add(work.launches > 0 && work.generated + work.plans == 0 && !of_ops, "by hand");
  if (of_ops) way = "of other ops" + (way.empty() ? "" : ": " + way);
  return way;
}

// Rows without elements have statistics too, which are hidden outputs: NaN, as the ops that define them compute it, and
// not what the memory held.
TEST(CudaOps, StatisticsOfRowsWithoutElements) {
  test::FakeCuda cuda;  // its fresh memory holds 0xFF
  allocator::set_poison_on_free(true);
  for (const Device device : {kCPU, cuda.device()})
    for (const OpDef* op : {&ops::kLayerNorm, &ops::kRMSNorm}) {
      SCOPED_TRACE(op->name + (" on " + to_string(device)));
      const TensorOptions here{kF32, device};
      static_cast<void>(Tensor::ones({3, 1}));  // a freed block of the statistics' size
      std::vector<Tensor> inputs = {Tensor::zeros({3, 0}, here), Tensor::zeros({0}, here), Tensor::zeros({0}, here)};
      inputs.resize(static_cast<size_t>(op->n_outputs));  // as many inputs as outputs
      const std::vector<Tensor> outputs = test::apply_op(*op, inputs, {.floats = {1e-5}}, op->n_outputs);
      for (size_t i = 1; i < outputs.size(); ++i) {
        const std::string bytes = test::bytes_of(outputs[i]);
        EXPECT_NE(bytes, std::string(bytes.size(), '\xFF')) << "output " << i << " is not written";
        for (const float value : outputs[i].to(kCPU).to_vector<float>()) EXPECT_TRUE(std::isnan(value));
      }
    }
  allocator::set_poison_on_free(false);
}

// The floats of an op that runs as its parts are part of its plan.
TEST(CudaOps, FloatsOfOpsThatRunAsParts) {
  test::FakeCuda cuda;
  const Tensor x = Tensor::randn({6, 16}), w = Tensor::randn({16});
  const Tensor x_there = x.to(cuda.device()), w_there = w.to(cuda.device());
  for (const double eps : {1e-5, 0.5, 1e-5}) {
    const auto got = ops::layer_norm(x_there, w_there, w_there, eps).to_vector<float>();
    const auto want = ops::layer_norm(x, w, w, eps).to_vector<float>();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << eps;
  }
}

// A row of the table that names no op, or one that has a row already, is an internal error of the first look-up.
TEST(CudaOps, KernelsByHandBelongToOps) {
  EXPECT_EQ(cuda::own_kernels(ops::kSum).kernel, &cuda::sum_kernel);
  EXPECT_EQ(cuda::own_kernels(ops::kMatmul).absorbs, &cuda::product_absorbs);
  EXPECT_EQ(cuda::own_kernels(ops::kAdd).kernel, &cuda::elementwise_kernel) << "it has a body";
  EXPECT_EQ(cuda::own_kernels(ops::kVarMean).kernel, nullptr) << "it runs in its parts";
  static constexpr OpDef kOfAProgram = {.name = "sum", .kind = OpKind::kOpaque};
  EXPECT_EQ(cuda::own_kernels(kOfAProgram).kernel, nullptr) << "another op of the same name";
}

// A new op has to have a way for floats, and for integers and bools if it takes them.
TEST(CudaOps, EachHasAWay) {
  test::FakeCuda cuda;
  for (const OpDef* op : all_ops()) {
    const test::OpSpec& spec = *test::find_spec(op->name);
    SCOPED_TRACE(op->name);
    const std::vector<test::OpSample> samples = samples_of(spec);
    Work work;
    const bool lowers = op->lower != nullptr && !op->checks;  // a check is part of another's kernel, or a call
    // Single numbers and empty tensors have no kernels of their own.
    for (const test::OpSample& sample : samples) {
      work = work_of(*op, sample, kF32, cuda);
      if (!lowers ? work.launches + work.products + work.plans > 0 : work.generated > 0) break;
    }
    const std::string way = way_of(*op, work);
    EXPECT_NE(way, "");
    if (lowers) {
      EXPECT_EQ(way, "generated");
    }
    if (op->kind == OpKind::kContraction) {
      EXPECT_EQ(way, "by library");
    }
    std::string integers;
    if (spec.takes_integers && op->kind != OpKind::kView) {
      integers = way_of(*op, work_of(*op, samples.front(), kI32, cuda));
      EXPECT_NE(integers, "");
    }
    // A reduction over other dimensions is another kernel.
    for (const test::OpSample& sample : samples) {
      const bool is_wanted = op->kind == OpKind::kReduction ? sample.inputs[0].rank() == 3
                                                            : &sample == &samples.front();
      if (!spec.takes_bool || op->kind == OpKind::kView || !is_wanted) continue;
      EXPECT_NE(way_of(*op, work_of(*op, sample, kBool, cuda)), "") << sample.label;
    }
    std::printf("%-26s %s%s%s\n", op->name, way.c_str(), integers.empty() || integers == way ? "" : "; integers ",
                integers == way ? "" : integers.c_str());
  }
}

}  // namespace
}  // namespace rondo
