#include "rondo/tests/like_ranks.h"
#include "rondo/tests/samples/make.h"

namespace rondo::test::samples {

Samples all_reduce_samples(bool large) {
  static const LikeRanks& ranks = *new LikeRanks;  // outlives every tape
  Samples samples;
  for (const Dims& sizes : unary_shapes(large))
    samples.push_back({to_string(sizes), {real(sizes)}, ints({ranks.id()})});
  return samples;
}

}  // namespace rondo::test::samples
