// The structs that generated kernels take as arguments. The same text is compiled by the host and is put in front of
// kernels. The table of a table launch (compile/target/table.h) is in device memory. All threads of a block work on one
// item, so they read the same row of the table.
#pragma once

#include <cstddef>
#include <string_view>

namespace rondo::compile::cuda {

// Declares the types here, and keeps their text as `name`.
#define RONDO_HERE_AND_ON_DEVICE(name, ...) \
  __VA_ARGS__                               \
  inline constexpr std::string_view name = #__VA_ARGS__

// One item: `rows` whole rows of `width` elements, and a last, shorter one if `numel` is larger than rows * width. A
// kernel that splits its columns takes the `numel` elements as one row. first_block: the item's first block in the
// grid; the next item's blocks follow, and each item has at least one. scalars: the kernel's scalars, in order, in
// device memory. operands: the item's operands, in device memory.
RONDO_HERE_AND_ON_DEVICE(
    kTableLayout, struct RondoTableRow {
      long long first_block;
      long long rows;
      long long width;
      long long numel;
      const double* scalars;
      void* const* operands;
    };);

// Reductions over rows whose partial results are combined by one launch; row y of its grid computes sum y. partial:
// [chunks, cols] of the DType `compute`; out: [cols] of the DType `stored`; op: the argument of combine_by(). A launch
// takes at most 4 KiB of arguments.
RONDO_HERE_AND_ON_DEVICE(
    kSumsLayout,
    struct RondoSum {
      const void* partial;
      void* out;
      long long chunks;
      long long cols;
      int compute;
      int stored;
      long long op;
    };
    struct RondoSums { RondoSum at[64]; };);
inline constexpr size_t kMostSums = 64;
#undef RONDO_HERE_AND_ON_DEVICE
static_assert(sizeof(RondoTableRow) == 48, "six words of 8 bytes, the same on both sides");
static_assert(sizeof(RondoSums) == 64 * 48, "six words of 8 bytes each, the same on both sides");

}  // namespace rondo::compile::cuda
