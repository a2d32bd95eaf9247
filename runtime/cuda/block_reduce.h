// A reduction over a block of threads: source text for kernels in which each block works on one row.
#pragma once

namespace rondo::cuda {

// Combines the `value` of every thread by Op::combine, in the same order in every run: in a tree over each warp, then
// warp after warp. All threads of the block call it, and all get the result. `parts` is shared memory, one element for
// each warp.
inline constexpr const char* kBlockReduce = R"cuda(
template <class Op, class V, int kWarps> RONDO_DEVICE V block_reduce(V value, V (&parts)[kWarps]) {
  value = warp_reduce<Op, 32>(value);
  __syncthreads();  // the last reduction has been read
  if (threadIdx.x % 32 == 0) put(parts[threadIdx.x / 32], value);
  __syncthreads();
  V all = get(parts[0]);
#pragma unroll
  for (int w = 1; w < kWarps; ++w) all = Op::combine(all, get(parts[w]));
  return all;
}
)cuda";

}  // namespace rondo::cuda
