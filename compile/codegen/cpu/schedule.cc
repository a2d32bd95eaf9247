#include "rondo/compile/codegen/cpu/schedule.h"

#include <algorithm>

#include "rondo/compile/codegen/flatten.h"
#include "rondo/compile/codegen/tiles.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile::cpu {
namespace {

// A result of at least this many bytes is no longer in the caches when it is read.
constexpr int64_t kLeastStreamed = 32 << 20;

// True for kernels with a large result whose stores jump from line to line. An ordinary store first reads the cache
// line that it overwrites, which costs the most in these kernels, so they use non-temporal stores.
bool streams(const LoopKernel& kernel) {
  if (kernel.inner == 1 && !goes_in_tiles(kernel)) return false;
  return std::any_of(kernel.operands.begin(), kernel.operands.end(), [&](const Operand& operand) {
    return operand.is_output && operand.col_stride != 0 && size_of(operand.dtype) >= 4 &&
           kernel.rows * kernel.cols * static_cast<int64_t>(size_of(operand.dtype)) >= kLeastStreamed;
  });
}

}  // namespace

void schedule(LoopKernel& kernel) {
  const bool sums_columns = std::any_of(kernel.operands.begin(), kernel.operands.end(),
                                        [](const Operand& operand) { return operand.is_partial; });
  if (!sums_columns) flatten(kernel);
  else if (kernel.starts < 0) kernel.chunk_rows = column_chunk_rows(kernel.rows);
  kernel.streams = streams(kernel);
}

}  // namespace rondo::compile::cpu
