// Kernels of embedding, which looks up rows of a table, and of its gradient.
#include <algorithm>
#include <cstring>

#include "rondo/runtime/cpu/bad_index.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/row_sums.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {

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

// Sets `table` to `onto` (null: zeros), and adds each row of grad to the row that its index names. Note [Segments] in
// row_sums.h.
void write_rows(const KernelContext& context, const Tensor& grad, const Tensor& indices, const Tensor& table,
                const void* onto) {
  const int64_t rows = table.sizes()[0], cols = table.sizes()[1];
  const RowSums sums{.dtype = table.dtype(),
                     .index = pointer<int64_t>(indices),
                     .n = indices.numel(),
                     .values = grad.impl()->data(),
                     .values_step = cols,
                     .out = table.impl()->data(),
                     .rows = rows,
                     .cols = cols,
                     .onto = onto};
  if (!write_row_sums(sums)) require_indices(context, indices, rows);
}

}  // namespace

void embedding_grad_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  write_rows(context, context.in(0).contiguous(), context.in(1).contiguous(), context.out(), nullptr);
}

void embedding_grad_onto_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor total = context.in(0).contiguous();
  write_rows(context, context.in(1).contiguous(), context.in(2).contiguous(), context.out(), total.impl()->data());
}

}  // namespace rondo::cpu
