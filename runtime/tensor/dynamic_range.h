// The range that a user states for a dimension whose size changes between calls: metadata of a tensor, for compilers.
// No op reads it. Set by compile::mark_dynamic. It follows views (wherever a view's dimension has the size and stride
// of a marked one) and detach(), and regions hand it on to the results that have the dimension; results of other ops
// carry none.
#pragma once

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo {

class Tensor;

struct DynamicRange {
  // Sizes that may be met. Any other is an error.
  int64_t min = 0;
  int64_t max = INT64_MAX;
  int64_t multiple_of = 1;
  // At most so many ranges that [min, max] is divided into, shorter ones for small sizes. Each has code of its own
  // where its bounds allow for better. Needs `max`.
  int buckets = 1;
  // Or the largest size of each bucket, ascending. The last is `max`, if that is given, too.
  std::vector<int64_t> bucket_bounds = {};
  friend bool operator==(const DynamicRange&, const DynamicRange&) = default;
};

struct DynamicDims {
  struct Mark {
    int dim;
    DynamicRange range;
  };
  std::vector<Mark> marks;  // at most one a dimension
};

// The marks of `source` that its view has, too.
void follow_marks(const Tensor& source, Tensor& view);

}  // namespace rondo
#pragma GCC visibility pop
