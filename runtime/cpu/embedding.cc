// Rows of a table.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "rondo/runtime/autograd.h"
#include "rondo/runtime/cpu/bad_index.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cpu {
namespace {}  // namespace

void embedding_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor weight = context.in(0).contiguous(), indices = context.in(1).contiguous();
  const int64_t rows = weight.sizes()[0];
  require_indices(context, indices, rows);
  const size_t bytes = static_cast<size_t>(weight.sizes()[1]) * size_of(weight.dtype());
  const int64_t* index = pointer<int64_t>(indices);
  const std::byte* from = weight.impl()->data();
  std::byte* to = context.out().impl()->data();
  parallel_for(indices.numel(), std::max<int64_t>(1, (1 << 16) / static_cast<int64_t>(bytes + 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) std::memcpy(to + i * bytes, from + index[i] * bytes, bytes);
               });
}

namespace {

// Adds to each row of the table the sum of its gradients, taken in the order of the indices. 16-bit ones are summed in
// f32 and rounded once.
void add_rows(const KernelContext& context, const Tensor& grad, const Tensor& indices, Tensor& table) {
  const int64_t rows = table.sizes()[0], cols = table.sizes()[1], n = indices.numel();
  require_indices(context, indices, rows);
  const int64_t* index = pointer<int64_t>(indices);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return index[a] < index[b]; });
  std::vector<int64_t> starts;  // of each row's gradients in `order`
  for (int64_t i = 0; i < n; ++i)
    if (i == 0 || index[order[i]] != index[order[i - 1]]) starts.push_back(i);
  starts.push_back(n);
  visit_floating(table.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const T* g = pointer<T>(grad);
    T* to = pointer<T>(table);
    const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(cols, 1));
    parallel_for(std::ssize(starts) - 1, grain, [&](int64_t begin, int64_t end) {
      std::vector<C> sum(static_cast<size_t>(cols));
      for (int64_t r = begin; r < end; ++r) {
        std::fill(sum.begin(), sum.end(), C(0));
        for (int64_t i = starts[r]; i < starts[r + 1]; ++i)
          for (int64_t c = 0; c < cols; ++c) sum[c] = sum[c] + static_cast<C>(g[order[i] * cols + c]);
        T* row = to + index[order[starts[r]]] * cols;
        for (int64_t c = 0; c < cols; ++c)
          row[c] = static_cast<T>(static_cast<C>(row[c]) + static_cast<C>(static_cast<T>(sum[c])));
      }
    });
  });
}

}  // namespace

void embedding_grad_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  Tensor& out = context.out();
  const int64_t bytes = out.nbytes();
  std::byte* to = out.impl()->data();
  parallel_for(bytes, kElementwiseGrain * 4,
               [&](int64_t begin, int64_t end) { std::memset(to + begin, 0, static_cast<size_t>(end - begin)); });
  add_rows(context, context.in(0).contiguous(), context.in(1).contiguous(), out);
}

void embedding_grad_onto_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const NoGrad off;
  Tensor& out = context.out();
  if (out.impl()->data() != context.in(0).impl()->data()) out.copy_(context.in(0));
  add_rows(context, context.in(1).contiguous(), context.in(2).contiguous(), out);
}

}  // namespace rondo::cpu
