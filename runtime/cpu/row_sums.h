// Sums of rows by index: row k of the result is the sum of the rows i of `values` with index[i] == k, in ascending i.
// Used by the gradient of embedding, and by scatter_add and index_add if an index applies to a whole row.
//
// Note [Segments]. The rows with the same k form a segment. One thread sums a segment from zero, in ascending i; 16-bit
//   rows are summed in f32 and rounded once. So the bits do not depend on the number of threads, and equal those of a
//   loop over i. To find the segments, the indices are distributed stably into buckets. A bucket is a range of k; the
//   sums of one bucket fit into a cache. Work and memory are linear in the number of indices, no two threads write the
//   same row, and each row of the result is written once.
#pragma once

#include <cstdint>

#include "rondo/runtime/base/dtype.h"

namespace rondo::cpu {

struct RowSums {
  DType dtype = kF32;
  const int64_t* index = nullptr;
  int64_t index_step = 1;  // elements between two indices
  int64_t n = 0;
  const void* values = nullptr;  // n rows of `cols` adjacent elements
  int64_t values_step = 0;       // elements between two rows
  void* out = nullptr;           // dense [rows, cols]
  int64_t rows = 0, cols = 0;
  const void* onto = nullptr;  // dense [rows, cols], may be `out`; null: zeros
};

// Sets out to onto + sums, where the sums are first rounded to the dtype. Rows without an index equal those of `onto`.
// Returns false, and writes nothing, if an index is not in [0, rows).
[[nodiscard]] bool write_row_sums(const RowSums& sums);

}  // namespace rondo::cpu
