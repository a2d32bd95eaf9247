// How a CUDA device runs a loop kernel: which thread computes what, and in which order every reduction adds up. The
// loop IR says what is computed. The order follows from the shape only (columns for row reductions, rows for column
// sums), so a value has the same bits in every kernel that computes it, on every device and in every order of threads.
//
// Note [Row order on CUDA]. A row belongs to `threads_per_row` threads, which take `elements` neighbouring columns at a
//   time: lane c % (threads_per_row * elements) of the row combines the columns c, in increasing c, onto the identity.
//   The lanes then meet in trees: those of one thread, the threads of each warp, the warps (lane i takes lane i + k).
//   A row of a kernel along rows (LoopKernel::inner above 1) belongs to one thread, neighbouring rows to neighbouring
//   threads. It adds up in Note [Column order] of ops/reduction_order.h.
// Note [Column order on CUDA]. The rows are split into chunks of `chunk_rows`. In each chunk, rows are added in order
//   onto 0. A second launch combines the chunks' partial sums: group g of kCombineGroups adds the chunks g, g +
//   kCombineGroups, ... in order onto 0; then the groups are added in order onto the first.
// Note [Width of accesses]. A thread reads and writes `elements` neighbours of an operand at once, in at most 16 bytes,
//   where all of them exist and their address is a multiple of those bytes; otherwise one by one. Each access decides
//   for itself, so one kernel serves every base, stride and tail. (A peeled head would have to be another one for each
//   operand and row.) Without row reductions, the widest operand takes 16 bytes. A warp then reads neighbouring bytes,
//   and a narrower operand's accesses are 8 or 4 bytes, neighbours too. Row reductions take 4 elements in every type,
//   because the order of their sums may not depend on types.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/compile/codegen/interpret.h"
#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cuda {

inline constexpr int32_t kWarp = 32;
inline constexpr int32_t kCombineGroups = 8;
inline constexpr int32_t kTile = 32;     // rows and columns of a tile
inline constexpr int32_t kTileRows = 8;  // that the threads of a block take at a time
// Elements behind each line of a tile of a type. A line is then an odd number of 4-byte words, or of pairs of them, so
// that the elements of a column lie in different banks.
inline constexpr int32_t tile_pad(DType type) {
  return size_of(type) >= 4 ? 1 : static_cast<int32_t>(4 / size_of(type));
}
inline constexpr int32_t kSharedBytes = 48 << 10;

// Where the value of a run-time scalar comes from.
enum class ScalarFrom : uint8_t {
  kArgument,   // a double among the parameters
  kDeviceF64,  // a pointer to a double in device memory, read when the kernel runs
  kDeviceF32,
};

// Code is made for a kernel and a schedule. Both the sizes of a kernel at run time and its text decide which schedule
// it has, so a kernel whose sizes vary may need code for several: same_code().
struct Schedule {
  enum class Shape : uint8_t {
    kElements,  // each thread takes `elements` columns of one row
    kRows,      // threads_per_row threads share a row; with column sums, they take the rows of one chunk in order
    kColumns,   // column sums and nothing along the rows: each thread takes `elements` columns of one chunk, or segment
    kTiles,     // a block takes kTile x kTile elements; transposed operands go through shared memory
  };
  Shape shape = Shape::kElements;
  int32_t threads = 256;        // of a block: whole warps
  int32_t threads_per_row = 1;  // a power of two; above kWarp, it is `threads`
  int32_t elements = 4;         // neighbouring columns of a thread
  int64_t chunk_rows = 0;       // of a kernel with column sums; a run-time argument of the code
  // kRows: a row takes that many steps of each thread, and its sweeps are unrolled. 0: they are loops.
  int32_t steps = 0;
  bool keeps_sums = false;  // partial sums stay in registers over the rows of a chunk; else they are in memory
  bool keeps_row = false;   // what several stages load of a row stays in registers; else it is loaded again
  bool wide = false;        // 64-bit indices
  std::vector<ScalarFrom> scalars = {};  // by scalar; empty: all are arguments

  friend bool operator==(const Schedule&, const Schedule&) = default;
};
// True if code for one serves the other.
bool same_code(const Schedule& a, const Schedule& b);
// Target::schedule: sets LoopKernel::split_columns and chunk_rows, from the shape only.
void split(LoopKernel& kernel);
// How a kernel runs at the sizes that it has in this run; a plan with fixed sizes asks once. REQUIRES: split() was
// called.
Schedule schedule(const LoopKernel& kernel);

// The size of a launch. All shared memory is static: at most kSharedBytes, known to the driver from the code.
struct Grid {
  int64_t x = 1, y = 1;  // blocks
  int32_t threads = 1;   // of a block
};
// Throws Error if there are more blocks than a grid can have.
Grid grid(const LoopKernel& kernel, const Schedule& schedule);
// The size of the launch that combines the partial sums of `n_sums` column sums, of at most `cols` columns.
Grid combine_grid(int64_t cols, int32_t n_sums);

// Partial sums of each column sum: a dense [chunks, cols] array.
int64_t chunks(const LoopKernel& kernel, const Schedule& schedule);

// For each operand of a kernel with Shape::kTiles: true if it goes through a tile in shared memory.
std::vector<bool> tiled(const LoopKernel& kernel);
// By operand: a column list reads it in more than one stage.
std::vector<bool> read_by_several_stages(const LoopKernel& kernel);

// Note [Row order on CUDA], for the interpreter.
RowOrder row_order(const Schedule& schedule);

}  // namespace rondo::compile::cuda
