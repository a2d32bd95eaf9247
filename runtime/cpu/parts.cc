// Kernels that put a tensor together from parts.
#include "rondo/runtime/ops/parts.h"

#include <algorithm>
#include <cstring>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::cpu {
namespace {

enum class Put { kCopy, kAdd, kAddToZero };

// Copies or adds the operand to its place in the result.
void put(const KernelContext& context, const ops::Part& place, size_t operand, Put how) {
  const Tensor& out = context.out();
  const Tensor& part = *context.inputs[operand];
  if (part.numel() == 0) return;
  Tensor there = Tensor::over(out.storage(), out.storage_offset() + place.offset, place.sizes, place.strides,
                              out.dtype());
  const auto dtype = static_cast<size_t>(out.dtype());
  const Tensor* operands[] = {&there, &part};
  const KernelContext call{context.op,
                           {operands + (how == Put::kAdd ? 0 : 1), how == Put::kAdd ? 2u : 1u},
                           {&there, 1},
                           context.attrs,
                           context.where};
  const double zero = 0;
  switch (how) {
    case Put::kCopy: return cast_kernel(call);
    case Put::kAdd: return for_each_run<2>(call, ops::kAdd.body->run[dtype]);
    case Put::kAddToZero: return for_each_run<1>(call, ops::kAddScalar.body->run[dtype], &zero);
  }
}

// Puts all operands from `first` on. If they are many and their places do not overlap, the operands are distributed
// over the threads. In all other cases they are put one after the other.
void put_all(const KernelContext& context, const ops::Parts& parts, size_t first, Put how) {
  const auto n = static_cast<int64_t>(parts.places.size() - first);
  const auto some = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t operand = first + static_cast<size_t>(i);
      put(context, parts.places[operand], operand, how);
    }
  };
  if (!parts.apart || n < 2 * num_threads()) return some(0, n);
  parallel_for(n, std::max<int64_t>(1, kElementwiseGrain * n / std::max<int64_t>(1, context.out().numel())), some);
}

// Sets [begin, end) along dimension `dim` of a dense tensor to 0.
void clear(const Tensor& out, int dim, int64_t begin, int64_t end) {
  int64_t rows = 1, row = out.nbytes();  // bytes
  for (int d = 0; d < dim; ++d) rows *= out.sizes()[d];
  if (row == 0) return;
  row /= rows;
  const int64_t each = row / out.sizes()[dim];
  std::byte* const to = out.impl()->data() + begin * each;
  const int64_t bytes = (end - begin) * each;
  if (rows > 1) {
    parallel_for(rows, std::max<int64_t>(1, kElementwiseGrain * 4 / bytes), [&](int64_t from, int64_t until) {
      for (int64_t r = from; r < until; ++r) std::memset(to + r * row, 0, static_cast<size_t>(bytes));
    });
    return;
  }
  parallel_for(bytes, kElementwiseGrain * 4,
               [&](int64_t from, int64_t until) { std::memset(to + from, 0, static_cast<size_t>(until - from)); });
}

}  // namespace

void cat_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  put_all(context, ops::parts_of_cat(context), 0, Put::kCopy);
}

void slice_grad_kernel(const KernelContext& context) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  const Tensor& out = context.out();
  const ops::Parts parts = ops::parts_of_slice_grad(context);
  if (!parts.first_is_whole) {
    if (parts.apart)
      for (const auto& [begin, end] : parts.gaps) clear(out, parts.dim, begin, end);
    else clear(out, 0, 0, out.sizes()[0]);
  }
  const bool in_place = parts.first_is_whole && context.in(0).impl()->data() == out.impl()->data();
  if (!in_place) put(context, parts.places[0], 0, Put::kCopy);
  put_all(context, parts, 1, parts.first_is_whole || !parts.apart ? Put::kAdd : Put::kAddToZero);
}

}  // namespace rondo::cpu
