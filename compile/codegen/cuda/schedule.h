// How a CUDA device runs a loop kernel: which thread computes what, and the order of every reduction. The order depends
// on the shape only (columns for row reductions, rows for column sums), so a value has the same bits in every kernel
// that computes it, on every device and in every order of threads.
//
// Note [Row order on CUDA]. A row belongs to `threads_per_row` threads, each of which takes `elements` neighbouring
//   columns at a time. Lane c % (threads_per_row * elements) of the row combines the columns c, in increasing c, onto
//   the identity. The lanes are then combined in trees: the lanes of one thread, then the threads of each warp, then
//   the warps (lane i takes lane i + k). A row of a kernel along rows (LoopKernel::inner above 1) belongs to one
//   thread, neighbouring rows to neighbouring threads. The thread combines the columns in the order of Note [Column
//   order] of ops/reduction_order.h.
// Note [Column order on CUDA]. The rows are split into chunks of `chunk_rows`. In each chunk, rows are added in order
//   onto 0. A second launch adds the chunks' partial sums: group g of kCombineGroups adds the chunks g, g +
//   kCombineGroups, ... in order onto 0; then the groups are added in order onto the first.
// Note [Width of accesses]. A thread reads and writes `elements` neighbouring elements of an operand at once, in at
//   most 16 bytes, if all of them exist and their address is a multiple of the size of the access. If not, it accesses
//   them one by one. This is decided for each access, so one kernel serves every base, stride and tail. (A peeled head
//   would differ between operands and rows.) Without row reductions, an access to the widest operand takes 16 bytes.
//   The threads of a warp then read adjacent bytes. Accesses to a narrower operand take 8 or 4 bytes, and are adjacent,
//   too. Row reductions take 4 elements in every type, because the order of their sums must not depend on the type.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/compile/codegen/interpret.h"
#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cuda {

inline constexpr int32_t kWarp = 32;
inline constexpr int32_t kCombineGroups = 8;
inline constexpr int32_t kTile = 32;     // rows and columns of a tile
inline constexpr int32_t kTileRows = 8;  // rows of a tile that a block's threads take at a time
// The padding, in elements, after each line of a tile. A line is then an odd number of 4-byte words, or of 8-byte
// words, so the elements of a column are in different banks.
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

// Code is made for a kernel and a schedule. The schedule depends on the kernel's sizes at run time as well as on its
// text, so a kernel whose sizes vary may need code for several schedules: same_code().
struct Schedule {
  enum class Shape : uint8_t {
    kElements,  // each thread takes `elements` columns of one row
    kRows,      // threads_per_row threads share a row; with column sums, they take the rows of one chunk in order
    kColumns,   // column sums without row reductions: each thread takes `elements` columns of one chunk, or segment
    kTiles,     // a block takes kTile x kTile elements; transposed operands go through shared memory
  };
  Shape shape = Shape::kElements;
  int32_t threads = 256;        // of a block: whole warps
  int32_t threads_per_row = 1;  // a power of two; above kWarp, it is `threads`
  int32_t elements = 4;         // neighbouring columns of a thread
  int64_t chunk_rows = 0;       // of a kernel with column sums; a run-time argument of the code
  // kRows: if not 0, each thread takes this many steps per row, and the sweeps are unrolled. 0: sweeps are loops.
  int32_t steps = 0;
  bool keeps_sums = false;               // partial sums stay in registers for a whole chunk, not in memory
  bool keeps_row = false;                // parts of a row that several stages load stay in registers
  bool wide = false;                     // 64-bit indices
  std::vector<ScalarFrom> scalars = {};  // by scalar of the kernel; empty: all are arguments

  friend bool operator==(const Schedule&, const Schedule&) = default;
};
// True if code for one schedule also serves the other.
bool same_code(const Schedule& a, const Schedule& b);
// Target::schedule: sets LoopKernel::split_columns and chunk_rows, from the shape only.
void split(LoopKernel& kernel);
// Returns the schedule of a kernel at its sizes in this run. A plan with fixed sizes computes it once. REQUIRES:
// split() was called.
Schedule schedule(const LoopKernel& kernel);

// The size of a launch. All shared memory is static: at most kSharedBytes, which the driver reads from the code.
struct Grid {
  int64_t x = 1, y = 1;  // blocks
  int32_t threads = 1;   // of a block
};
// Returns the size of the kernel's launch. Throws Error if there are more blocks than a grid can have.
Grid grid(const LoopKernel& kernel, const Schedule& schedule);
// Returns the size of the launch that combines the partial sums of `n_sums` column sums, of at most `cols` columns.
Grid combine_grid(int64_t cols, int32_t n_sums);

// Returns the number of partial sums of each column sum, which are a dense [chunks, cols] array.
int64_t chunks(const LoopKernel& kernel, const Schedule& schedule);

// Returns, for each operand of a kernel with Shape::kTiles: true if it goes through a tile in shared memory.
std::vector<bool> tiled(const LoopKernel& kernel);
// Returns, by operand: true if column lists of several stages read it.
std::vector<bool> read_by_several_stages(const LoopKernel& kernel);

// Returns the order of Note [Row order on CUDA], for the interpreter.
RowOrder row_order(const Schedule& schedule);

}  // namespace rondo::compile::cuda
