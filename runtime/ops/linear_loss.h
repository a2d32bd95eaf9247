// linear_cross_entropy and its gradient: shared by the definition and the kernels of all devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/lowered.h"

namespace rondo::ops {

// The attributes of cross_entropy, followed by ints {rows of a chunk (0: chosen by the kernel), dtype of the products
// (-1: x's), wanted gradients (a bit for each of x, weight and bias)}.
struct LinearLossAttrs {
  int64_t chunk_rows, product_dtype, wanted;
  explicit LinearLossAttrs(const Attrs& attrs)
      : chunk_rows(attrs.ints[2]), product_dtype(attrs.ints[3]), wanted(attrs.ints[4]) {}
  bool wants(int operand) const { return wanted >> operand & 1; }
  DType dtype_of_products(DType x) const { return product_dtype < 0 ? x : static_cast<DType>(product_dtype); }
  // Returns the number of rows of logits that are computed at once. Every chunk but the last has this number of rows.
  // `rows`, `cols`: the sizes of all logits. `most_logits`: the limit for a chunk, unless chunk_rows is given.
  int64_t rows_at_once(int64_t rows, int64_t cols, int64_t most_logits) const {
    const int64_t most = chunk_rows > 0 ? chunk_rows : std::max<int64_t>(1, most_logits / std::max<int64_t>(cols, 1));
    const int64_t chunks = std::max<int64_t>(1, (rows + most - 1) / most);
    return chunk_rows > 0 ? std::min(most, rows) : (rows + chunks - 1) / chunks;
  }
  // The most logits of a chunk on the CPU. Measured at V 50257, C 768, N 4096: chunks of 512 rows or more are 2 to 6%
  // faster than whole logits in f32 and bf16, those of 256 rows 2 to 7% slower (each chunk reads the weight and its
  // gradient once more).
  static constexpr int64_t kChunkLogits = 1 << 25;
};

// For ops that a kernel calls: they are neither recorded nor differentiated, and autocast does
// not convert their operands.
struct LinearLossScope {
  NoGrad off;
  RecorderScope run{nullptr};
  amp::Autocast as_given{std::nullopt};
};

// Returns the operand, dense and in `lower`, the dtype of the products.
inline Tensor lowered_operand(const Tensor& operand, DType lower) {
  return is_low_precision(lower) && amp::keeps_copy(operand) ? amp::lowered(operand, lower)
                                                             : operand.contiguous().to(lower);
}

// Returns the output for the gradient of an operand (0: x, 1: weight, 2: bias), undefined if the gradient is not
// wanted. Gradients begin at output `first`.
inline Tensor wanted_gradient(const KernelContext& context, int operand, int first) {
  return LinearLossAttrs(context.attrs).wants(operand) ? context.out(first + operand) : Tensor();
}

// Marks outputs 1 to 3 as gradients for memory reports, because the forward computes these gradients.
inline void count_gradients(const KernelContext& context) {
  for (int i = 1; i < 4; ++i) {
    const Tensor& gradient = context.out(i);
    // In a region the gradient may share an arena with other tensors.
    if (gradient.nbytes() > 0 && gradient.storage().bytes() == static_cast<size_t>(gradient.nbytes()))
      gradient.storage().set_purpose(Purpose::kGradients);
  }
}

}  // namespace rondo::ops
