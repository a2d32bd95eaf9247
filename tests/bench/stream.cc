#include "rondo/tests/bench/stream.h"

#include "rondo/runtime/base/parallel.h"

namespace rondo::bench {

void read_all(const float* from, int64_t n) {
  parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
    float sums[64] = {};
    int64_t i = begin;
    for (; i + 64 <= end; i += 64)
      for (int l = 0; l < 64; ++l) sums[l] += from[i + l];
    volatile float keep = 0;
    for (float sum : sums) keep = keep + sum;
  });
}

void copy_all(const float* from, float* to, int64_t n) {
  parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = from[i] * 1.5f;
  });
}

}  // namespace rondo::bench
