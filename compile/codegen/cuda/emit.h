// Emits CUDA C++ from the loop IR: source that NVRTC and nvcc compile if device_math() is in front of it. Needs neither
// a device nor a CUDA header.
//
//   const Schedule s = schedule(kernel);
//   source = std::string(device_math()) + emit(kernel, s);
//   ... cuLaunchKernel(code, grid(kernel, s), {operands..., scalars..., integers...})
//
// Parameters of a kernel, in order: a pointer for each operand (for a kCheckIndex operand: a pointer to the device's
// status, and the number of the call; such a kernel needs the text of status.h in front of it); a double for each
// scalar, or a pointer to it (Schedule::scalars); then 64-bit integers, whose values are integer_arguments(). A column
// sum writes partial sums, [chunks, cols] of its compute type; a second kernel (emit_combine) adds them up.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rondo/compile/codegen/cuda/schedule.h"
#include "rondo/compile/codegen/cuda/table_layout.h"
#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cuda {

// Returns the source of a function, `extern "C" __global__ void <kernel.name>(...)`. The function serves all kernels
// with the same code_text() whose schedules have same_code().
std::string emit(const LoopKernel& kernel, const Schedule& schedule);
// Returns the values of a launch's integer parameters: the number of rows (or of segments, if the kernel has them); the
// rows of a chunk, if there are column sums; the extents that vary.
std::vector<int64_t> integer_arguments(const LoopKernel& kernel, const Schedule& schedule);

// Returns the source of a function that combines the partial sums of several column sums, of any kernels, in one launch
// (combine_grid). Its parameter is a RondoSums (table_layout.h). The source needs kSumsLayout in front of it.
std::string emit_combine(const std::string& name);

// Returns the source of a function that runs the kernel on every item of a table (table_layout.h). Its parameters: the
// rows of the table; their number; `when`, `equals` and `failed`. The launch does nothing if *when differs from
// `equals`. If `when` is null, it does nothing if *failed (an unsigned) is not 0. The source needs kTableLayout in
// front of it. REQUIRES: no column sums; all extents that vary are an item's width.
std::string emit_table(const LoopKernel& kernel, const Schedule& schedule);
// Returns the number of blocks for an item with `rows` whole rows and `numel` elements in total. The grid is the sum of
// these numbers over all items.
int64_t table_blocks(const LoopKernel& kernel, const Schedule& schedule, int64_t rows, int64_t width, int64_t numel);
// Sets first_block of all rows; their other members must be set. Returns the grid of the launch.
Grid table_grid(const LoopKernel& kernel, const Schedule& schedule, std::span<RondoTableRow> rows);

}  // namespace rondo::compile::cuda
