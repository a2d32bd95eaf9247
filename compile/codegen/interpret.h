// Runs a LoopKernel one element at a time, with the primitives of runtime/ops/scalar_math.h. The interpreter defines
// what generated code must compute, bit for bit. It is a test oracle and a tool to find a wrong kernel, and hundreds of
// times slower than compiled code.
#pragma once

#include <vector>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile {

// The order of a reduction over the columns of a row. Each lane starts from the identity. Lane c % lanes combines
// column c, in increasing c. After each `block` columns, each lane is combined onto its total and starts from the
// identity again. Then, for each distance k in turn, each total i is combined with total i + k. Total 0 is the result.
// The default is the order of ops/reduction_order.h; other targets have other orders.
struct RowOrder {
  int32_t lanes = kLanes;
  int64_t block = kRowBlock;  // a multiple of `lanes`
  std::vector<int32_t> distances = {8, 4, 2, 1};
};

// Runs the kernel like a call of its compiled code (KernelEntry). Throws InternalError if verify(kernel)
// finds a problem.
void interpret(const LoopKernel& kernel, void* const* operands, const double* scalars, int64_t begin, int64_t end,
               const RowOrder& order = {});

}  // namespace rondo::compile
