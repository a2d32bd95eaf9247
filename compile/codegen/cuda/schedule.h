// How a CUDA device runs a loop kernel: which thread computes what, and in which order every reduction adds up. The
// loop IR says what is computed. The order follows from the shape only (columns for row reductions, rows for column
// sums), so a value has the same bits in every kernel that computes it, on every device and in every order of threads.
//
// Note [Row order on CUDA]. A row belongs to `threads_per_row` threads, which take `elements` neighbouring columns at a
//   time: lane c % (threads_per_row * elements) of the row combines the columns c, in increasing c, onto the identity.
//   The lanes then meet in trees: those of one thread, the threads of each warp, the warps (lane i takes lane i + k).
// Note [Column order on CUDA]. The rows are split into chunks of `chunk_rows`. In each chunk, rows are added in order
//   onto 0. A second launch combines the chunks' partial sums: group g of kCombineGroups adds the chunks g, g +
//   kCombineGroups, ... in order onto 0; then the groups are added in order onto the first.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/compile/codegen/interpret.h"
#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cuda {

inline constexpr int32_t kWarp = 32;
inline constexpr int32_t kCombineGroups = 8;

struct Schedule {
  enum class Shape : uint8_t {
    kFlat,     // split_columns: each thread takes `elements` columns of the one row
    kRows,     // threads_per_row threads share a row; with column sums, they take the rows of one chunk in order
    kColumns,  // column sums and nothing along the rows: each thread takes `elements` columns of one chunk
  };
  Shape shape = Shape::kFlat;
  int32_t threads = 256;        // of a block: whole warps
  int32_t threads_per_row = 1;  // a power of two; above kWarp, it is `threads`
  int32_t elements = 4;         // neighbouring columns of a thread
  int64_t chunk_rows = 0;       // of a kernel with column sums; a run-time argument of the code
  // kRows: partial sums stay in registers over the rows of a chunk, this many steps of each thread; 0: in memory.
  int32_t kept_steps = 0;
  bool wide = false;  // 64-bit indices

  friend bool operator==(const Schedule&, const Schedule&) = default;
};
// Target::schedule: sets LoopKernel::split_columns and chunk_rows, from the shape only.
void split(LoopKernel& kernel);
// REQUIRES: split() was called.
Schedule schedule(const LoopKernel& kernel);

struct Grid {
  int64_t x = 1, y = 1;  // blocks
  int32_t threads = 1;   // of a block
};
// Throws Error if there are more blocks than a grid can have.
Grid grid(const LoopKernel& kernel, const Schedule& schedule);
// The size of the launch that combines the partial sums of `n_sums` column sums.
Grid combine_grid(int64_t cols, int32_t n_sums);

// Partial sums of each column sum: a dense [chunks, cols] array.
int64_t chunks(const LoopKernel& kernel, const Schedule& schedule);

// Note [Row order on CUDA], for the interpreter.
RowOrder row_order(const Schedule& schedule);

}  // namespace rondo::compile::cuda
