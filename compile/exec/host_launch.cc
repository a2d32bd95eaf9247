#include "rondo/compile/exec/host_launch.h"

#include <algorithm>

#include "rondo/runtime/parallel.h"

namespace rondo::compile {

void run_on_host(const KernelCall& call) {
  const LoopKernel& kernel = *call.kernel;
  const auto run = [&](int64_t begin, int64_t end) {
    call.entry(call.operands, call.scalars, call.extents, begin, end);
  };
  if (kernel.split_columns) {
    parallel_for(
        (kernel.cols + kSplitGrain - 1) / kSplitGrain, call.grain / kSplitGrain,
        [&](int64_t begin, int64_t end) { run(begin * kSplitGrain, std::min(end * kSplitGrain, kernel.cols)); });
    return;
  }
  if (kernel.chunk_rows == 0) {
    parallel_for(kernel.rows, std::max<int64_t>(1, call.grain / kernel.cols), run);
    return;
  }
  const int64_t chunks = (kernel.rows + kernel.chunk_rows - 1) / kernel.chunk_rows;
  parallel_for(chunks, std::max<int64_t>(1, call.grain / (kernel.cols * kernel.chunk_rows)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t k = begin; k < end; ++k)
                   run(k * kernel.chunk_rows, std::min((k + 1) * kernel.chunk_rows, kernel.rows));
               });
}

namespace {
template <class C> void combine(const CombineCall& call) {
  auto* partial = reinterpret_cast<C*>(call.partial);
  for (int64_t k = 1; k < call.chunks; ++k)
    for (int64_t c = 0; c < call.cols; ++c) partial[c] = partial[c] + partial[k * call.cols + c];
  visit_floating(call.result, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t c = 0; c < call.cols; ++c) reinterpret_cast<T*>(call.out)[c] = static_cast<T>(partial[c]);
  });
}
}  // namespace

void run_on_host(const CombineCall& call) {
  if (call.compute == kF64) combine<double>(call);
  else combine<float>(call);
}

}  // namespace rondo::compile
