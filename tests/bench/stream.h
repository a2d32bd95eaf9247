// The machine's memory stream, for benchmarks to stand beside: plain loops on all of Rondo's threads.
#pragma once

#include <cstdint>

namespace rondo::bench {

void read_all(const float* from, int64_t n);
void copy_all(const float* from, float* to, int64_t n);

}  // namespace rondo::bench
