// CUDA C++ from the loop IR: text that NVRTC and nvcc accept after device_math(). Needs no device, no header of CUDA.
//
//   const Schedule s = schedule(kernel);
//   source = std::string(device_math()) + emit(kernel, s);
//   ... cuLaunchKernel(code, grid(kernel, s), {operands..., scalars..., integers...})
//
// Parameters of a kernel, in order: a pointer for each operand (of a check: to the device's status, and the number of
// the call; the text of status.h stands in front of such a kernel); a double for each scalar, or a pointer to it
// (Schedule::scalars); then 64-bit integers, whose values are integer_arguments(). A column sum leaves partial sums,
// [chunks, cols] of its compute type, which a second kernel (emit_combine) adds up.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rondo/compile/codegen/cuda/schedule.h"
#include "rondo/compile/codegen/cuda/table_layout.h"
#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cuda {

// One function, `extern "C" __global__ void <kernel.name>(...)`. It serves every kernel of equal code_text() whose
// schedule is same_code().
std::string emit(const LoopKernel& kernel, const Schedule& schedule);
// Rows; rows of a chunk where there are column sums; extents that vary.
std::vector<int64_t> integer_arguments(const LoopKernel& kernel, const Schedule& schedule);

// Combines the partial sums of column sums of any kernels in one launch (combine_grid). Its parameter: RondoSums
// (table_layout.h), whose text kSumsLayout it needs in front.
std::string emit_combine(const std::string& name);

// The kernel on every item of a table (table_layout.h). Parameters: the rows of the table; their number; `when`,
// `equals` and `failed`: the launch does nothing if *when is another number than `equals`, or, where `when` is null, if
// *failed, an unsigned, is not 0. The text needs kTableLayout in front. REQUIRES: no column sums; extents that vary are
// an item's width.
std::string emit_table(const LoopKernel& kernel, const Schedule& schedule);
// Blocks of an item with `rows` whole rows and `numel` elements in all. Together they are the grid's.
int64_t table_blocks(const LoopKernel& kernel, const Schedule& schedule, int64_t rows, int64_t width, int64_t numel);
// Sets first_block of all rows, whose other members are set. Returns the grid of their launch.
Grid table_grid(const LoopKernel& kernel, const Schedule& schedule, std::span<RondoTableRow> rows);

}  // namespace rondo::compile::cuda
