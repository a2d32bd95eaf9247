// Every op runs on CUDA: in which way, as its calls are seen to run.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "rondo/compile/exec/eager_ops.h"
#include "rondo/runtime/op.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

// What calls of an op made the device do.
struct Work {
  int64_t generated = 0;  // calls that ran kernels of compile/
  int64_t products = 0;   // of cuBLASLt
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
  return {compile::eager_ops_report().calls - generated, after.products - before.products,
          after.launches - before.launches};
}

std::string way_of(const OpDef& op, const Work& work) {
  if (op.kind == OpKind::kView) return "a view";
  std::string way;
  const auto add = [&](bool here, const char* word) {
    if (here) way += (way.empty() ? "" : " and ") + std::string(word);
  };
  const bool of_ops = op.on[static_cast<size_t>(Backend::kCUDA)].kernel ==
                      op.on[static_cast<size_t>(Backend::kCPU)].kernel;
  add(work.generated > 0, "generated");
  add(work.products > 0, "by library");
  add(work.launches > 0 && work.generated == 0 && !of_ops, "by hand");
  if (of_ops) way = "of other ops" + (way.empty() ? "" : ": " + way);
  return way;
}

// A new op has to have a way for floats, and for integers if it takes them.
TEST(CudaOps, EachHasAWay) {
  test::FakeCuda cuda;
  for (const OpDef* op : all_ops()) {
    const test::OpSpec& spec = *test::find_spec(op->name);
    SCOPED_TRACE(op->name);
    const std::vector<test::OpSample> samples = samples_of(spec);
    Work work;
    // Single numbers and empty tensors have no kernels of their own.
    for (const test::OpSample& sample : samples) {
      work = work_of(*op, sample, kF32, cuda);
      if (op->lower == nullptr ? work.launches + work.products > 0 : work.generated > 0) break;
    }
    const std::string way = way_of(*op, work);
    EXPECT_NE(way, "");
    if (op->lower != nullptr) {
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
    std::printf("%-26s %s%s%s\n", op->name, way.c_str(), integers.empty() || integers == way ? "" : "; integers ",
                integers == way ? "" : integers.c_str());
  }
}

}  // namespace
}  // namespace rondo
