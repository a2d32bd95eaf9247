// The range that a user gives for a dimension whose size changes between calls. It is metadata of a tensor for the
// compiler, set by compile::mark_dynamic; no op reads it. detach() keeps it, and so does a view, for each dimension
// that has the size and stride of a marked one. Compiled regions pass it on to results that have the dimension. Results
// of other ops have no ranges.
#pragma once

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo {

class Tensor;

struct DynamicRange {
  // The sizes that may occur. Any other size is an error.
  int64_t min = 0;
  int64_t max = INT64_MAX;
  int64_t multiple_of = 1;
  // The maximum number of ranges (buckets) into which [min, max] is divided; ranges of small sizes are shorter. A
  // bucket has its own code if its bounds allow better code. Needs `max`.
  int buckets = 1;
  // Alternative to `buckets`: the largest size of each bucket, ascending. If `max` is given, the last one equals it.
  std::vector<int64_t> bucket_bounds = {};
  friend bool operator==(const DynamicRange&, const DynamicRange&) = default;
};

struct DynamicDims {
  struct Mark {
    int dim;
    DynamicRange range;
  };
  std::vector<Mark> marks;  // at most one for each dimension
};

// Copies to `view` the marks of those dimensions of `source` that `view` has, too.
void follow_marks(const Tensor& source, Tensor& view);

}  // namespace rondo
#pragma GCC visibility pop
