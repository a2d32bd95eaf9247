// Padding and pixel_shuffle, written in public ops. Compiled, they are lookups that fuse with the ops that follow.
#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/channels_last.h"
#include "rondo/runtime/ops/interpolation.h"
#include "rondo/runtime/ops/lookup.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/ops/window.h"

namespace rondo::ops {

namespace {

void require_image(const char* op, const TensorArg& x) {
  require_defined(op, x);
  if (x.tensor.rank() != 4)
    throw_op_error(op, absl::StrCat("needs x (B, C, H, W), got ", to_string(x.tensor.sizes())), x.where);
}

Tensor select_all(const TensorArg& x, int dim, const std::vector<int64_t>& places) {
  const Tensor index = Tensor::from(places, {static_cast<int64_t>(places.size())}, x.tensor.device());
  return select_slices(x, dim, {index, x.where});
}

}  // namespace

Tensor pad(TensorArg x, const Dims& amounts, PadMode mode, double value) {
  require_defined("pad", x);
  const auto fail = [&](const std::string& what) {
    throw_op_error("pad", absl::StrCat(what, "; got x ", to_string(x.tensor.sizes()), ", amounts ", to_string(amounts)),
                   x.where);
  };
  const int rank = x.tensor.rank(), padded = amounts.rank() / 2;
  if (amounts.rank() % 2 != 0 || padded > rank)
    fail("needs two amounts for each of the last dimensions, at most for all of them");
  if (lies_channels_last(x.tensor)) {
    // Reorders the amounts for (B, H, W, C). Amounts list the last dimension first: C, W, H, B.
    const auto of = [&](int i) { return i < amounts.rank() ? amounts[i] : 0; };
    const Dims moved = {of(4), of(5), of(0), of(1), of(2), of(3), of(6), of(7)};
    const Tensor back = channels_to_back(x);
    return result_to_front(pad({back, x.where}, moved, mode, value), x.where);
  }
  const int64_t most_added = mode == PadMode::kConstant ? int64_t{1} << 40 : kMostPixels;
  Tensor y = x.tensor;
  Dims sizes = y.sizes(), begin = Dims::filled(rank, 0);
  for (int i = 0; i < padded; ++i) {
    const int dim = rank - 1 - i;
    const int64_t before = amounts[2 * i], after = amounts[2 * i + 1], n = sizes[dim];
    const auto too_many = [&](int64_t amount) { return amount > most_added || amount < -most_added; };
    if (too_many(before) || too_many(after) || n + before + after < 0)
      fail(absl::StrCat("dimension ", dim, " cannot be changed by ", before, " and ", after));
    if (before == 0 && after == 0) continue;
    if (mode == PadMode::kConstant) {
      if (before < 0 || after < 0) {
        y = slice({y, x.where}, dim, {std::max<int64_t>(0, -before), n - std::max<int64_t>(0, -after)});
      }
      begin[dim] = std::max<int64_t>(0, before);
      sizes[dim] = n + before + after;
      continue;
    }
    if (before < 0 || after < 0) fail("amounts may not be negative here");
    const int64_t most = mode == PadMode::kReflect ? n - 1 : n > 0 ? most_added : 0;
    if (std::max(before, after) > most)
      fail(absl::StrCat("dimension ", dim, " has ", n, " elements to pad from, too few"));
    std::vector<int64_t> places;
    for (int64_t k = -before; k < n + after; ++k)
      places.push_back(mode == PadMode::kReplicate ? std::clamp<int64_t>(k, 0, n - 1)
                       : k < 0                     ? -k
                       : k < n                     ? k
                                                   : 2 * (n - 1) - k);
    y = select_all({y, x.where}, dim, places);
    sizes[dim] = n + before + after;
  }
  // The caller may write to the result, which is never a view of x.
  if (mode != PadMode::kConstant && !y.is_same(x.tensor)) return y.contiguous(x.where);
  if (y.sizes() == sizes) return y.clone(x.where);
  if (y.numel() == 0) {  // there is no window to write
    for (int d = 0; d < rank; ++d) {
      const auto edge = [&](int64_t n) {
        Dims part = y.sizes();
        part[d] = n;
        return Tensor::full(part, value, {y.dtype(), y.device()}, x.where);
      };
      y = cat({edge(begin[d]), y, edge(sizes[d] - begin[d] - y.size(d))}, d, x.where);
    }
    return y;
  }
  const Tensor frame = Tensor::full(sizes, value, {y.dtype(), y.device()}, x.where);
  Window inside{0, y.sizes(), frame.strides()};
  for (int d = 0; d < rank; ++d) inside.offset += begin[d] * frame.strides()[d];
  return call(kOverwrite, {{frame, x.where}, {y, x.where}}, inside.for_write());
}

Tensor pixel_shuffle(TensorArg x, int64_t factor) {
  require_image("pixel_shuffle", x);
  const Dims& s = x.tensor.sizes();
  if (factor < 1 || factor > (1 << 15) || s[1] % (factor * factor) != 0)
    throw_op_error("pixel_shuffle",
                   absl::StrCat("the square of the factor ", factor, " must divide the channels; got x ", to_string(s)),
                   x.where);
  const int64_t channels = s[1] / (factor * factor);
  if (lies_channels_last(x.tensor)) {
    const Tensor parts = reshape({channels_to_back(x), x.where}, {s[0], s[2], s[3], channels, factor, factor});
    const Tensor moved = permute(parts, {0, 1, 4, 2, 5, 3});
    return result_to_front(reshape(moved, {s[0], s[2] * factor, s[3] * factor, channels}), x.where);
  }
  const Tensor parts = reshape(x, {s[0], channels, factor, factor, s[2], s[3]});
  return reshape(permute(parts, {0, 1, 4, 2, 5, 3}), {s[0], channels, s[2] * factor, s[3] * factor});
}

}  // namespace rondo::ops
