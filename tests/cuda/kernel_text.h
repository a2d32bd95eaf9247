// Kernels of several tests, as CUDA C++.
#pragma once

namespace rondo::test {

// y[i] += a * x[i]. Blocks of at most 256 threads.
inline constexpr const char* kAxpyText = R"(
extern "C" __global__ void __launch_bounds__(256) axpy(float* y, const float* x, long long n, float a) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
)";
// The sum of each block's 128 values, by a tree in shared memory.
inline constexpr const char* kBlockSumText = R"(
extern "C" __global__ void __launch_bounds__(128) block_sum(const float* x, float* sums) {
  __shared__ float part[128];
  const int t = threadIdx.x;
  part[t] = x[blockIdx.x * 128 + t];
  for (int half = 64; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) part[t] += part[t + half];
  }
  if (t == 0) sums[blockIdx.x] = part[0];
}
)";
// x[0] is the sum of one warp's 32 values.
inline constexpr const char* kWarpSumText = R"(
extern "C" __global__ void warp_sum(float* x) {
  float sum = x[threadIdx.x];
  for (int k = 16; k > 0; k /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, k);
  if (threadIdx.x == 0) x[0] = sum;
}
)";

}  // namespace rondo::test
