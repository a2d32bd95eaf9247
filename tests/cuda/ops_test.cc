// Every op runs on CUDA: in which way.
#include <gtest/gtest.h>

#include <cstdio>

#include "rondo/runtime/op.h"
#include "rondo/tests/op_samples.h"

namespace rondo {
namespace {

// What an op runs with on CUDA. A new op has to have one of these.
TEST(CudaOps, EachHasAWay) {
  for (const OpDef* op : all_ops()) {
    const bool kernel = op->on[static_cast<size_t>(Backend::kCUDA)].kernel != nullptr;
    const char* way = nullptr;
    if (op->kind == OpKind::kView) way = "a view";
    else if (op->lower != nullptr)
      way = kernel && test::find_spec(op->name)->takes_integers ? "generated; by hand for integers" : "generated";
    else if (kernel) way = op->kind == OpKind::kContraction ? "by library" : "by hand";
    else if (op->decompose != nullptr) way = "by decomposition";
    // Products run on cuBLASLt, whose kernels are not in the table yet.
    else if (op->kind == OpKind::kContraction) way = "by library (not there yet)";
    std::printf("%-26s %s\n", op->name, way == nullptr ? "NOTHING" : way);
    EXPECT_NE(way, nullptr) << op->name << " does not run on CUDA";
    EXPECT_TRUE(op->lower == nullptr || kernel) << op->name << ": what is generated has no kernel for integers";
  }
}

}  // namespace
}  // namespace rondo
