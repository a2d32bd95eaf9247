#include "rondo/runtime/tensor/dynamic_range.h"

#include "rondo/runtime/tensor/tensor.h"

namespace rondo {

void follow_marks(const Tensor& source, Tensor& view) {
  const TensorImpl& from = *source.impl();
  TensorImpl& to = *view.impl();
  if (from.marks == nullptr) return;
  auto marks = std::make_unique<DynamicDims>();
  for (const DynamicDims::Mark& mark : from.marks->marks) {
    const auto same = [&](int d) {
      return d < to.sizes.rank() && to.sizes[d] == from.sizes[mark.dim] && to.strides[d] == from.strides[mark.dim];
    };
    // Prefers the dimension at the same position: two dimensions have the same size and stride only if both are
    // expanded or of size 1.
    int dim = mark.dim;
    for (int d = 0; d < to.sizes.rank() && !same(dim); ++d) dim = d;
    if (same(dim)) marks->marks.push_back({dim, mark.range});
  }
  if (!marks->marks.empty()) to.marks = std::move(marks);
}

}  // namespace rondo
