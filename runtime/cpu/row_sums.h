// Rows added up by index: row k of the result is the sum, in order, of the rows i of `values` with index[i] == k. Used
// by embedding's gradient, and by scatter_add and index_add where one index belongs to a whole row.
//
// Note [Segments]. The rows of one k are a segment. A segment is summed from zero, in ascending i, by one thread;
//   16-bit rows are summed in f32 and rounded once. So the bits do not depend on the number of threads, and equal those
//   of a loop over i. To find the segments, the indices are distributed, stably, over buckets of neighbouring k, whose
//   sums fit a cache: work and memory are linear in the number of indices, no two threads write one row, and each row
//   of the result is written once.
#pragma once

#include <cstdint>

#include "rondo/runtime/base/dtype.h"

namespace rondo::cpu {

struct RowSums {
  DType dtype = kF32;
  const int64_t* index = nullptr;
  int64_t index_step = 1;  // elements between two of them
  int64_t n = 0;
  const void* values = nullptr;  // n rows of `cols` neighbours
  int64_t values_step = 0;       // elements between two rows
  void* out = nullptr;           // dense [rows, cols]
  int64_t rows = 0, cols = 0;
  const void* onto = nullptr;  // dense [rows, cols], may be `out`; null: zeros
};

// out = onto + the sums, each rounded to the dtype first; rows that no index names are those of `onto`. False, and
// nothing is written: an index is not in [0, rows).
[[nodiscard]] bool write_row_sums(const RowSums& sums);

}  // namespace rondo::cpu
