#include "rondo/compile/codegen/cuda/schedule.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/flatten.h"
#include "rondo/compile/codegen/tiles.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile::cuda {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
// Returns the smallest power of two that is at least n, clamped to [low, high].
int32_t power_of_two(int64_t n, int32_t low, int32_t high) {
  int32_t power = low;
  while (power < n && power < high) power *= 2;
  return power;
}

// The number of threads that share a row depends on the columns only: Note [Row order on CUDA]. A long row takes about
// two steps of each thread. Then the row stays in registers, and so do as many sums over rows as the backward of a norm
// has.
constexpr int64_t kWarpRow = 256;       // up to this many columns, a row belongs to at most one warp
constexpr int64_t kStepsPerThread = 2;  // for longer rows
int32_t threads_of_row(int64_t cols, int32_t elements) {
  const int64_t steps = divide_up(cols, elements);
  if (cols <= kWarpRow) return power_of_two(steps, 1, kWarp);
  return power_of_two(divide_up(steps, kStepsPerThread), 2 * kWarp, 512);
}

// Returns the number of rows in a chunk. It depends only on the number of rows: Note [Column order on CUDA].
int64_t rows_of_chunk(int64_t rows) { return std::max<int64_t>(8, divide_up(rows, 512)); }

// kKeptRow: how many 32-bit registers of a thread may hold its part of a row. kKept: how many may hold this part and
// partial sums together. (With more, registers spill: ptxas gives such a kernel 128 registers.)
constexpr int64_t kKeptRow = 48, kKept = 64;
// The most instructions of an unrolled sweep, per element of a thread.
constexpr int64_t kUnrolled = 1200;
// With fewer rows or columns, tiles would be mostly empty.
constexpr int64_t kSmallestTiled = 8;

// True if the kernel has running sums: then one thread takes the columns of a row in order.
bool scans(const LoopKernel& kernel) {
  return std::any_of(kernel.instrs.begin(), kernel.instrs.end(), [](const Instr& i) { return i.op == LoopOp::kScan; });
}

bool needs_rows(const LoopKernel& kernel) {
  if (kernel.split_columns) return false;
  if (kernel.inner > 1 || kernel.stages.size() > 1 || scans(kernel)) return true;
  for (const Stage& stage : kernel.stages) {
    if (!stage.reductions.empty()) return true;
    // A value that is stored once per row needs the whole row in one block: else several blocks would store it.
    for (int32_t id : stage.row)
      if (kernel.instrs[static_cast<size_t>(id)].op == LoopOp::kStore) return true;
  }
  return false;
}

bool reduces_rows(const LoopKernel& kernel) {
  return std::any_of(kernel.stages.begin(), kernel.stages.end(),
                     [](const Stage& stage) { return !stage.reductions.empty(); });
}

// Returns the largest index that the code forms: of columns, rows, partial sums, threads, or an element of an operand.
int64_t largest_index(const LoopKernel& kernel, const Schedule& s) {
  // The last threads of the last block form indices past the end.
  const int64_t cols = kernel.cols + int64_t{2} * s.threads * s.elements, rows = kernel.rows + s.threads;
  int64_t largest = std::max(2 * rows, cols);
  if (s.shape == Schedule::Shape::kElements)
    largest = std::max(largest, kernel.rows * divide_up(kernel.cols, s.elements) + s.threads);
  for (const Operand& operand : kernel.operands) {
    if (operand.is_partial && kernel.starts >= 0) {
      largest = std::max(largest, kernel.segments * cols);
      continue;
    }
    if (operand.is_partial) {
      largest = std::max(largest, divide_up(kernel.rows, s.chunk_rows) * kernel.cols);
      continue;
    }
    int64_t offset = cols * std::abs(operand.col_stride);
    for (const OperandAxis& axis : operand.axes)
      if (!is_picked(axis)) offset += (std::min(axis.size, kernel.rows) - 1) * std::abs(axis.stride);
    largest = std::max(largest, offset);
  }
  return largest;
}

int64_t column_sums(const LoopKernel& kernel) {
  return std::count_if(kernel.operands.begin(), kernel.operands.end(),
                       [](const Operand& operand) { return operand.is_partial; });
}

// Returns, by operand: true if a column list accesses it column by column.
std::vector<bool> moves_with_the_column(const LoopKernel& kernel) {
  std::vector<bool> moves(kernel.operands.size());
  for (const Stage& stage : kernel.stages)
    for (int32_t id : stage.column) {
      const Instr& i = kernel.instrs[static_cast<size_t>(id)];
      if (i.op != LoopOp::kLoad && i.op != LoopOp::kPick && i.op != LoopOp::kStore) continue;
      moves[static_cast<size_t>(i.index)] = kernel.operands[static_cast<size_t>(i.index)].col_stride != 0;
    }
  return moves;
}

// Chooses Schedule::elements: Note [Width of accesses].
int32_t elements_of_thread(const LoopKernel& kernel) {
  if (kernel.cols == 1 || kernel.inner > 1) return 1;
  if (reduces_rows(kernel)) return 4;
  const std::vector<bool> moves = moves_with_the_column(kernel);
  size_t widest = 2;
  for (size_t i = 0; i < moves.size(); ++i)
    if (moves[i]) widest = std::max(widest, static_cast<size_t>(size_of(kernel.operands[i].dtype)));
  return static_cast<int32_t>(16 / widest);
}

// Decides which values stay in registers, for a kernel whose rows take `steps` steps of a thread.
void keep(const LoopKernel& kernel, int64_t steps, Schedule& s) {
  int64_t instrs = 0;
  for (const Stage& stage : kernel.stages) instrs += std::ssize(stage.column);
  const bool cols_known = kernel.varying.empty() || !kernel.varying[0];
  if (!cols_known || instrs * steps > kUnrolled) return;
  const int64_t registers = steps * s.elements;  // for an operand of 4-byte elements
  int64_t sums = 0, row = 0;
  const std::vector<bool> again = read_by_several_stages(kernel);
  for (size_t i = 0; i < again.size(); ++i) {
    const Operand& operand = kernel.operands[i];
    const int64_t taken = registers * static_cast<int64_t>(size_of(operand.dtype)) / 4;
    if (operand.is_partial) sums += taken;
    else if (again[i]) row += taken;
  }
  s.keeps_sums = sums > 0 && sums <= kKept;
  s.keeps_row = row > 0 && row <= kKeptRow && (s.keeps_sums ? sums : 0) + row <= kKept;
  if (s.keeps_sums || s.keeps_row) s.steps = static_cast<int32_t>(steps);
}

}  // namespace

void split(LoopKernel& kernel) {
  if (column_sums(kernel) == 0) flatten(kernel);
  else if (kernel.starts < 0) kernel.chunk_rows = rows_of_chunk(kernel.rows);
}

std::vector<bool> tiled(const LoopKernel& kernel) {
  std::vector<bool> through = moves_with_the_column(kernel);
  // A picked operand reads any rows of a table. The elements that neighbouring rows of the kernel read from it need not
  // be adjacent, so nothing is tiled.
  if (std::any_of(kernel.operands.begin(), kernel.operands.end(), [](const Operand& o) { return is_picked(o); }))
    through.assign(through.size(), false);
  int64_t left = kSharedBytes;
  for (size_t i = 0; i < through.size(); ++i) {
    const Operand& operand = kernel.operands[i];
    const int64_t bytes = int64_t{kTile} * (kTile + tile_pad(operand.dtype)) *
                          static_cast<int64_t>(size_of(operand.dtype));
    through[i] = through[i] && is_transposed(operand) && bytes <= left;
    if (through[i]) left -= bytes;
  }
  return through;
}

std::vector<bool> read_by_several_stages(const LoopKernel& kernel) {
  std::vector<int> stages(kernel.operands.size()), last(kernel.operands.size(), -1);
  for (size_t s = 0; s < kernel.stages.size(); ++s)
    for (int32_t id : kernel.stages[s].column) {
      const Instr& i = kernel.instrs[static_cast<size_t>(id)];
      if (i.op != LoopOp::kLoad) continue;
      const auto at = static_cast<size_t>(i.index);
      if (kernel.operands[at].col_stride != 0 && last[at] != static_cast<int>(s)) ++stages[at];
      last[at] = static_cast<int>(s);
    }
  std::vector<bool> several;
  for (int n : stages) several.push_back(n > 1);
  return several;
}

bool same_code(const Schedule& a, const Schedule& b) {
  Schedule as_b = a;
  as_b.chunk_rows = a.chunk_rows > 0 && b.chunk_rows > 0 ? b.chunk_rows : a.chunk_rows;
  return as_b == b;
}

Schedule schedule(const LoopKernel& kernel) {
  Schedule s;
  s.elements = elements_of_thread(kernel);
  const int64_t sums = column_sums(kernel);
  if (sums > 0) s.chunk_rows = kernel.chunk_rows;
  if (kernel.starts >= 0) {
    s.shape = Schedule::Shape::kColumns;
    s.threads = 128;
  } else if (needs_rows(kernel)) {
    s.shape = Schedule::Shape::kRows;
    s.threads_per_row = kernel.inner > 1 || scans(kernel) ? 1 : threads_of_row(kernel.cols, s.elements);
    s.threads = s.threads_per_row > kWarp ? s.threads_per_row : sums > 0 ? 128 : 256;
    keep(kernel, divide_up(kernel.cols, int64_t{s.threads_per_row} * s.elements), s);
  } else if (sums > 0) {
    s.shape = Schedule::Shape::kColumns;
    s.threads = power_of_two(divide_up(kernel.cols, s.elements), kWarp, 64);
  } else if (kernel.rows >= kSmallestTiled && kernel.cols >= kSmallestTiled) {
    const std::vector<bool> through = tiled(kernel);
    if (std::find(through.begin(), through.end(), true) != through.end()) {
      s.shape = Schedule::Shape::kTiles;
      s.threads = kTile * kTileRows;
      s.elements = 1;
    }
  }
  s.wide = largest_index(kernel, s) > std::numeric_limits<int32_t>::max();
  return s;
}

Grid grid(const LoopKernel& kernel, const Schedule& s) {
  Grid g{.threads = s.threads};
  switch (s.shape) {
    case Schedule::Shape::kElements:
      g.x = divide_up(kernel.rows * divide_up(kernel.cols, s.elements), s.threads);
      break;
    case Schedule::Shape::kColumns:
      if (kernel.starts >= 0) {
        g.x = divide_up(kernel.segments * divide_up(kernel.cols, s.elements), s.threads);
        break;
      }
      g.x = divide_up(kernel.cols, int64_t{s.threads} * s.elements);
      g.y = chunks(kernel, s);
      break;
    case Schedule::Shape::kTiles: g.x = divide_up(kernel.cols, kTile) * divide_up(kernel.rows, kTile); break;
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
  RowOrder order{.lanes = s.threads_per_row * s.elements, .block = INT64_MAX, .distances = {}};
  for (int32_t k = s.elements / 2; k > 0; k /= 2) order.distances.push_back(k);
  for (int32_t k = std::min(s.threads_per_row, kWarp) / 2; k > 0; k /= 2) order.distances.push_back(k * s.elements);
  for (int32_t k = s.threads_per_row / 2; k >= kWarp; k /= 2) order.distances.push_back(k * s.elements);
  return order;
}

}  // namespace rondo::compile::cuda
