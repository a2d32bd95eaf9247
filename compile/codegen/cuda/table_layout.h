// The arguments of generated kernels that are more than numbers and pointers. The same text is compiled by the host and
// in front of kernels. The table of a table launch (compile/target/table.h) lies in the memory of a device: a block
// belongs to one item, so its threads read the item's row together.
#pragma once

#include <cstddef>
#include <string_view>

namespace rondo::compile::cuda {

// Declares it here, and keeps it as the text `name`.
#define RONDO_HERE_AND_ON_DEVICE(name, ...) \
  __VA_ARGS__                               \
  inline constexpr std::string_view name = #__VA_ARGS__

// One item: `rows` whole rows of `width` elements, and a last, shorter one if `numel` is more than those. A kernel that
// splits its columns takes the `numel` elements in a line.
// first_block: where the item's blocks begin in the grid. The items' blocks follow each other, and each item has some.
// scalars: the kernel's, in order, in device memory. operands: the first of the item's, in device memory.
RONDO_HERE_AND_ON_DEVICE(
    kTableLayout, struct RondoTableRow {
      long long first_block;
      long long rows;
      long long width;
      long long numel;
      const double* scalars;
      void* const* operands;
    };);

// Reductions over rows whose partial results are combined by one launch, row y of its grid for each. partial: [chunks,
// cols] of the DType `compute`; out: [cols] of the DType `stored`; op: that of combine_by(). A launch takes at most 4
// KiB of arguments.
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
