#include "rondo/runtime/cpu/indexing.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/recorder.h"

namespace rondo::cpu {
namespace {

template <class T> const T* pointer(const Tensor& t) { return reinterpret_cast<const T*>(t.impl()->data()); }
template <class T> T* pointer(Tensor& t) { return reinterpret_cast<T*>(t.impl()->data()); }

}  // namespace

void require_indices(const KernelContext& context, const Tensor& indices, int64_t size, std::optional<int64_t> allowed) {
  const int64_t* index = pointer<int64_t>(indices);
  for (int64_t i = 0; i < indices.numel(); ++i)
    if ((index[i] < 0 || index[i] >= size) && index[i] != allowed)
      throw_op_error(context.op.name, absl::StrCat("index ", index[i], " at position ", i, " is out of range for size ", size),
                     context.where);
}

void embedding_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor weight = context.in(0).contiguous(), indices = context.in(1).contiguous();
  const int64_t rows = weight.sizes()[0];
  require_indices(context, indices, rows);
  const size_t bytes = static_cast<size_t>(weight.sizes()[1]) * size_of(weight.dtype());
  const int64_t* index = pointer<int64_t>(indices);
  const std::byte* from = weight.impl()->data();
  std::byte* to = context.out().impl()->data();
  parallel_for(indices.numel(), std::max<int64_t>(1, (1 << 16) / static_cast<int64_t>(bytes + 1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(to + i * bytes, from + index[i] * bytes, bytes);
  });
}

void embedding_grad_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor grad = context.in(0).contiguous(), indices = context.in(1).contiguous();
  Tensor& out = context.out();
  const int64_t rows = out.sizes()[0], cols = out.sizes()[1], n = indices.numel();
  require_indices(context, indices, rows);
  const int64_t* index = pointer<int64_t>(indices);
  visit_floating(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ComputeType<T>;
    const T* g = pointer<T>(grad);
    T* to = pointer<T>(out);
    // Each thread owns a range of rows of the table and adds what falls into it, in the order of the indices.
    parallel_for(rows, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(cols, 1)), [&](int64_t begin, int64_t end) {
      std::memset(static_cast<void*>(to + begin * cols), 0, static_cast<size_t>((end - begin) * cols) * sizeof(T));
      if constexpr (std::is_same_v<T, C>) {
        for (int64_t i = 0; i < n; ++i) {
          if (index[i] < begin || index[i] >= end) continue;
          T* row = to + index[i] * cols;
          for (int64_t c = 0; c < cols; ++c) row[c] = row[c] + g[i * cols + c];
        }
      } else {
        // 16-bit tables sum in f32 and round once.
        std::vector<C> sums(static_cast<size_t>((end - begin) * cols), C(0));
        for (int64_t i = 0; i < n; ++i) {
          if (index[i] < begin || index[i] >= end) continue;
          C* row = sums.data() + (index[i] - begin) * cols;
          for (int64_t c = 0; c < cols; ++c) row[c] = row[c] + static_cast<C>(g[i * cols + c]);
        }
        for (int64_t i = 0; i < (end - begin) * cols; ++i) to[begin * cols + i] = static_cast<T>(sums[i]);
      }
    });
  });
}

}  // namespace rondo::cpu
