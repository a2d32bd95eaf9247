#include "rondo/runtime/ops/parts.h"

#include <algorithm>
#include <numeric>

#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

Parts parts_of_cat(const KernelContext& context) {
  const Tensor& out = context.out();
  Parts parts;
  parts.dim = static_cast<int>(context.attrs.ints[0]);
  parts.apart = true;
  int64_t begin = 0;
  for (const Tensor* part : context.inputs) {
    parts.places.push_back({part->sizes(), out.strides(), begin * out.strides()[parts.dim]});
    begin += part->sizes()[parts.dim];
  }
  return parts;
}

namespace {

struct Range {
  int64_t dim, begin, end, step;
};

// Sets `apart` if the ranges along one dimension do not overlap. Then also sets `gaps`, the ranges that no operand
// covers.
void find_gaps(std::vector<Range> ranges, int64_t size, Parts& parts) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  int64_t covered = 0;
  parts.gaps.clear();
  for (const Range& range : ranges) {
    if (range.begin == range.end) continue;
    if (range.begin < covered) return;
    if (range.begin > covered) parts.gaps.emplace_back(covered, range.begin);
    covered = range.end;
  }
  if (covered < size) parts.gaps.emplace_back(covered, size);
  parts.apart = true;
}

}  // namespace

Parts parts_of_slice_grad(const KernelContext& context) {
  const Tensor& out = context.out();
  const auto& ints = context.attrs.ints;
  size_t at = static_cast<size_t>(out.rank());
  Parts parts;
  std::vector<Range> ranges;
  for (const Tensor* part : context.inputs) {
    const int64_t begin = ints[at + 1], step = ints[at + 2];
    const int dim = static_cast<int>(ints[at]);
    Part place{part->sizes(), out.strides(), begin * out.strides()[dim]};
    const bool is_select = part->rank() < out.rank();
    if (is_select) place.strides.erase(dim);
    else place.strides[dim] *= step;
    const int64_t n = is_select ? 1 : part->sizes()[dim];
    ranges.push_back({dim, begin, begin + n, n > 1 ? step : 1});
    parts.places.push_back(place);
    at += 3;
  }
  parts.first_is_whole = context.in(0).numel() == out.numel();
  if (parts.first_is_whole) ranges.erase(ranges.begin());
  if (ranges.empty()) return parts.apart = true, parts;
  const int64_t dim = ranges[0].dim;
  if (std::any_of(ranges.begin(), ranges.end(), [dim](const Range& r) { return r.dim != dim || r.step != 1; }))
    return parts;
  parts.dim = static_cast<int>(dim);
  find_gaps(std::move(ranges), out.sizes()[parts.dim], parts);
  return parts;
}

std::optional<SideBySide> side_by_side(const OpDef& op, const Attrs& attrs, std::span<const Dims> inputs,
                                       const Dims& result) {
  const auto* const trait = op.as<trait::SideBySide>();
  if ((trait == nullptr && &op != &kSliceGrad) || inputs.size() < 2 || result.numel() == 0) return std::nullopt;
  const auto rank = static_cast<size_t>(result.rank());
  SideBySide side;
  side.dim = trait != nullptr ? trait->dim(attrs) : static_cast<int>(attrs.ints[rank]);
  side.order.resize(inputs.size());
  std::iota(side.order.begin(), side.order.end(), size_t{0});
  if (trait != nullptr) return side;
  const auto place = [&](size_t i) { return attrs.ints.begin() + rank + 3 * i; };  // {dim, begin, step}
  std::sort(side.order.begin(), side.order.end(), [&](size_t a, size_t b) { return place(a)[1] < place(b)[1]; });
  int64_t covered = 0;
  for (size_t i : side.order) {
    if (inputs[i].rank() != result.rank() || place(i)[0] != side.dim || place(i)[1] != covered) return std::nullopt;
    const int64_t n = inputs[i][side.dim];
    if (n == 0 || (n > 1 && place(i)[2] != 1)) return std::nullopt;
    covered += n;
  }
  return covered == result[side.dim] ? std::optional(side) : std::nullopt;
}

}  // namespace rondo::ops
