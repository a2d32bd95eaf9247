#include "rondo/runtime/tensor/memory_order.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

namespace rondo {

bool is_channels_last(const Dims& sizes, const Dims& strides) {
  if (sizes.rank() != 4 || strides[1] == 0) return false;
  int64_t least = 0;
  for (int d : {1, 3, 2, 0}) {
    if (sizes[d] == 0 || strides[d] < least) return false;
    // If C, H and W are 1 and have equal strides, both layouts fit. As in PyTorch, this counts as the usual layout.
    if (d == 0 && least == strides[1]) return false;
    least = strides[d] * std::max<int64_t>(sizes[d], 1);
  }
  return true;
}

Dims channels_last_strides(const Dims& s) {
  const Dims dense = contiguous_strides({s[0], s[2], s[3], s[1]});
  return {dense[0], dense[3], dense[1], dense[2]};
}

Dims memory_order(const Dims& sizes, const Dims& strides) {
  Dims order;
  for (int d = 0; d < sizes.rank(); ++d) order.push_back(d);
  // The largest stride comes first. If strides are equal, a dimension of size 1 comes after the others.
  const auto key = [&](int64_t dim) {
    const int d = static_cast<int>(dim);
    return std::tuple(-std::abs(strides[d]), sizes[d] == 1, d);
  };
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return key(a) < key(b); });
  return order;
}

Tensor with_strides(const Tensor& x, const Dims& strides) {
  if (x.strides() == strides || x.numel() == 0) return x;
  if (is_contiguous(x.sizes(), strides)) return x.contiguous();
  const Dims order = memory_order(x.sizes(), strides);
  Dims back = order;
  for (int d = 0; d < order.rank(); ++d) back[static_cast<int>(order[d])] = d;
  return x.permute(order).contiguous().permute(back);
}

}  // namespace rondo
