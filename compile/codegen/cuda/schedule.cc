#include "rondo/compile/codegen/cuda/schedule.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/flatten.h"
#include "rondo/runtime/error.h"

namespace rondo::compile::cuda {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
// The smallest power of two that is at least n, within [low, high].
int32_t power_of_two(int64_t n, int32_t low, int32_t high) {
  int32_t power = low;
  while (power < n && power < high) power *= 2;
  return power;
}

// Depends on the columns only: Note [Row order on CUDA].
constexpr int64_t kWarpRow = 1024;      // columns up to which a warp or less takes a row
constexpr int64_t kStepsPerThread = 4;  // that a block aims at for a longer row
int32_t threads_of_row(int64_t cols, int32_t elements) {
  const int64_t steps = divide_up(cols, elements);
  if (cols <= kWarpRow) return power_of_two(steps, 1, kWarp);
  return power_of_two(divide_up(steps, kStepsPerThread), 2 * kWarp, 512);
}

// Depends on the rows only: Note [Column order on CUDA].
int64_t rows_of_chunk(int64_t rows) { return std::max<int64_t>(8, divide_up(rows, 512)); }

// Registers of partial sums that a thread may hold.
constexpr int64_t kKeptSums = 64;

bool needs_rows(const LoopKernel& kernel) {
  if (kernel.stages.size() > 1) return true;
  for (const Stage& stage : kernel.stages) {
    if (!stage.reductions.empty()) return true;
    // Threads of several blocks would share what is stored once for a row.
    for (int32_t id : stage.row)
      if (kernel.instrs[static_cast<size_t>(id)].op == LoopOp::kStore) return true;
  }
  return false;
}

// The largest index that the code forms: of columns, rows, partial sums, or an element of an operand.
int64_t largest_index(const LoopKernel& kernel, const Schedule& s) {
  // A block's last threads count past the end.
  int64_t largest = std::max(2 * kernel.rows + s.threads, kernel.cols + int64_t{2} * s.threads * s.elements);
  for (const Operand& operand : kernel.operands) {
    if (operand.is_partial) {
      largest = std::max(largest, divide_up(kernel.rows, s.chunk_rows) * kernel.cols);
      continue;
    }
    int64_t offset = (kernel.cols + int64_t{2} * s.threads * s.elements) * std::abs(operand.col_stride);
    for (const OperandAxis& axis : operand.axes)
      offset += (std::min(axis.size, kernel.rows) - 1) * std::abs(axis.stride);
    largest = std::max(largest, offset);
  }
  return largest;
}

int64_t column_sums(const LoopKernel& kernel) {
  return std::count_if(kernel.operands.begin(), kernel.operands.end(),
                       [](const Operand& operand) { return operand.is_partial; });
}

}  // namespace

void split(LoopKernel& kernel) {
  if (column_sums(kernel) > 0) kernel.chunk_rows = rows_of_chunk(kernel.rows);
  else flatten(kernel);
}

Schedule schedule(const LoopKernel& kernel) {
  Schedule s;
  s.elements = kernel.cols == 1 ? 1 : 4;
  const int64_t sums = column_sums(kernel);
  if (sums > 0) s.chunk_rows = kernel.chunk_rows;
  if (kernel.split_columns) {
    s.shape = Schedule::Shape::kFlat;
  } else if (sums > 0 && !needs_rows(kernel)) {
    s.shape = Schedule::Shape::kColumns;
    s.threads = power_of_two(divide_up(kernel.cols, s.elements), kWarp, 64);
  } else {
    s.shape = Schedule::Shape::kRows;
    s.threads_per_row = threads_of_row(kernel.cols, s.elements);
    s.threads = std::max(s.threads_per_row, sums > 0 ? 128 : 256);
    if (s.threads_per_row > kWarp) s.threads = s.threads_per_row;
    const int64_t steps = divide_up(kernel.cols, int64_t{s.threads_per_row} * s.elements);
    const bool cols_known = kernel.varying.empty() || !kernel.varying[0];
    if (sums > 0 && cols_known && steps * s.elements * sums <= kKeptSums) s.kept_steps = static_cast<int32_t>(steps);
  }
  s.wide = largest_index(kernel, s) > std::numeric_limits<int32_t>::max();
  return s;
}

Grid grid(const LoopKernel& kernel, const Schedule& s) {
  Grid g{.threads = s.threads};
  const int64_t columns_of_block = int64_t{s.threads} * s.elements;
  switch (s.shape) {
    case Schedule::Shape::kFlat: g.x = divide_up(kernel.cols, columns_of_block); break;
    case Schedule::Shape::kColumns:
      g.x = divide_up(kernel.cols, columns_of_block);
      g.y = chunks(kernel, s);
      break;
    case Schedule::Shape::kRows:
      g.x = divide_up(s.chunk_rows > 0 ? chunks(kernel, s) : kernel.rows, s.threads / s.threads_per_row);
  }
  if (g.x > std::numeric_limits<int32_t>::max())
    throw Error(absl::StrCat(kernel.name, ": ", kernel.rows, " x ", kernel.cols,
                             " elements need more blocks than a CUDA grid has; run it on parts of the tensor"));
  return g;
}

Grid combine_grid(int64_t cols, int32_t n_sums) {
  return {.x = divide_up(cols, kWarp), .y = n_sums, .threads = kWarp * kCombineGroups};
}

int64_t chunks(const LoopKernel& kernel, const Schedule& s) { return divide_up(kernel.rows, s.chunk_rows); }

RowOrder row_order(const Schedule& s) {
  RowOrder order{.lanes = s.threads_per_row * s.elements, .distances = {}};
  for (int32_t k = s.elements / 2; k > 0; k /= 2) order.distances.push_back(k);
  for (int32_t k = std::min(s.threads_per_row, kWarp) / 2; k > 0; k /= 2) order.distances.push_back(k * s.elements);
  for (int32_t k = s.threads_per_row / 2; k >= kWarp; k /= 2) order.distances.push_back(k * s.elements);
  return order;
}

}  // namespace rondo::compile::cuda
