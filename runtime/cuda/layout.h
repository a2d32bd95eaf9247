// Strided operands of a kernel: the host passes a layout, and kernels read it by offsets_of() (source.cc).
#pragma once

#include <array>

#include "rondo/runtime/cuda/status.h"
#include "rondo/runtime/tensor/iteration_space.h"

namespace rondo::cuda {

// clang-format off
RONDO_TEXT_AND_CODE(kLayoutText,
struct RondoLayout {
  long long numel;
  long long rank;
  long long sizes[8];
  long long strides[4][8];  // in elements, of each operand; 0 where it is broadcast
};
struct RondoPieces {
  long long count;
  long long from[64];  // addresses of the pieces
  long long to[64];    // their offsets in the result, in elements
};
)
// clang-format on
static_assert(kMaxRank == 8 && sizeof(RondoLayout) == 42 * 8, "the same on both sides");
inline constexpr size_t kMostPieces = 64;
static_assert(sizeof(RondoPieces) == (1 + 2 * kMostPieces) * 8, "the same on both sides");

template <int N> RondoLayout layout_of(const IterationSpace<N>& space) {
  static_assert(N <= 4);
  RondoLayout layout = {};
  layout.numel = space.sizes.numel();
  layout.rank = space.sizes.rank();
  for (int d = 0; d < space.sizes.rank(); ++d) {
    layout.sizes[d] = space.sizes[d];
    for (int k = 0; k < N; ++k) layout.strides[k][d] = space.strides[static_cast<size_t>(k)][d];
  }
  return layout;
}
// Returns the layout of operands that broadcast to `shape`.
template <class... T> RondoLayout layout_of(const Dims& shape, const T&... operands) {
  return layout_of(IterationSpace<sizeof...(T)>(shape, std::array<const Tensor*, sizeof...(T)>{&operands...}));
}
// Like layout_of(out.sizes(), out, operands...), but the dimensions are in the order in which `out` lies in memory.
template <class... T> RondoLayout layout_in_memory_order(const Tensor& out, const T&... operands) {
  return layout_of(IterationSpace<sizeof...(T) + 1>::in_memory_order({&out, &operands...}));
}
// True if element i of each operand lies at offset i.
inline bool is_dense(const RondoLayout& layout, int operands) {
  bool dense = layout.rank == 1;
  for (int k = 0; k < operands; ++k) dense = dense && (layout.strides[k][0] == 1 || layout.sizes[0] == 1);
  return dense;
}

// Returns the address of element 0.
inline std::byte* address_of(const Tensor& tensor) { return tensor.impl()->data(); }

// Returns a dense tensor with these values: `tensor` itself if it is dense. A copy has no history, and is not recorded.
Tensor dense(const Tensor& tensor);

}  // namespace rondo::cuda
