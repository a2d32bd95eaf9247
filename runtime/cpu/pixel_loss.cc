// Cross-entropy of pixels whose logits are interpolated from a smaller image. The large logits are never stored: they
// are computed in tiles of one row of pixels, all classes of a tile at a time. Every inner loop runs along the row.
#include <algorithm>
#include <vector>

#include "rondo/runtime/cpu/bad_index.h"
#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/cpu/mean_loss.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/interpolation.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
namespace {

constexpr int64_t kTile = 64;  // pixels of a tile

// Along one dimension: the two logits between which each pixel lies, and the weight of the right one.
template <class C> struct Sides {
  std::vector<int32_t> left, right;  // both ascending
  std::vector<C> weight;
  Sides(int64_t from, int64_t size) : weight(static_cast<size_t>(size)) {
    const ops::Taps taps(from, size, {.taps = 2});
    left.assign(taps.pixel.begin(), taps.pixel.begin() + size);
    right.assign(taps.pixel.end() - size, taps.pixel.end());
    if (taps.width == 2) std::copy(taps.weight.end() - size, taps.weight.end(), weight.begin());
  }
};

// Dense logits (B, classes, h, w), interpolated to the size (H, W). Band k is the rows of pixels between row k of
// logits and the next row. Bands share no pixels, so each thread takes whole bands.
template <class T> struct PixelGrid {
  using C = ComputeType<T>;
  int64_t batch, classes, h, w, H, W;
  const T* logits;
  Sides<C> rows, columns;
  std::vector<int64_t> first;  // band k has the rows [first[k], first[k + 1])

  PixelGrid(const Tensor& x, const Dims& pixels)
      : batch(x.size(0)),
        classes(x.size(1)),
        h(x.size(2)),
        w(x.size(3)),
        H(pixels[1]),
        W(pixels[2]),
        logits(pointer<T>(x)),
        rows(h, H),
        columns(w, W) {
    for (int64_t k = 0; k <= h; ++k)
      first.push_back(std::lower_bound(rows.left.begin(), rows.left.end(), k) - rows.left.begin());
  }
  int64_t next_row(int64_t k) const { return std::min(k + 1, h - 1); }
  const T* row(int64_t b, int64_t c, int64_t y) const { return logits + ((b * classes + c) * h + y) * w; }
};

// The computation for one tile. Lanes after the end of the row are computed from zeros and never read.
template <class T> class PixelTile {
 public:
  using C = ComputeType<T>;
  explicit PixelTile(const PixelGrid<T>& grid)
      : grid_(grid), upper_(size()), lower_(size()), values_(size()), top_(kTile), total_(kTile) {}

  // Loads the logits for pixels [x, x + n) of band k.
  void begin(int64_t b, int64_t k, int64_t x) {
    x_ = x;
    n_ = std::min(kTile, grid_.W - x);
    for (int64_t c = 0; c < grid_.classes; ++c) {
      widen(grid_.row(b, c, k), &upper_[c * kTile]);
      widen(grid_.row(b, c, grid_.next_row(k)), &lower_[c * kTile]);
    }
  }
  int64_t n() const { return n_; }

  // Computes the logits of the pixels in row y, by class.
  C* at_row(int64_t y) {
    const C below = grid_.rows.weight[y], above = C(1) - below;
    if (below == C(0)) {  // skips `lower_`, which may be infinite: 0 times infinity is NaN
      std::copy(upper_.begin(), upper_.end(), values_.begin());
      return values_.data();
    }
    for (int64_t c = 0; c < grid_.classes; ++c) {
      const C *up = &upper_[c * kTile], *low = &lower_[c * kTile];
      C* to = &values_[c * kTile];
      for (int64_t i = 0; i < kTile; ++i) to[i] = up[i] * above + low[i] * below;
    }
    return values_.data();
  }
  // Computes the logsumexp over classes, for each pixel of the row that at_row() has computed.
  void logsumexp(C* lse) {
    std::copy_n(values_.data(), kTile, top_.data());
    for (int64_t c = 1; c < grid_.classes; ++c) {
      const C* from = &values_[c * kTile];
      for (int64_t i = 0; i < kTile; ++i) top_[i] = from[i] > top_[i] ? from[i] : top_[i];
    }
    std::fill_n(total_.data(), kTile, C(0));
    for (int64_t c = 0; c < grid_.classes; ++c) {
      const C* from = &values_[c * kTile];
      for (int64_t i = 0; i < kTile; ++i) total_[i] += scalar::exp(from[i] - top_[i]);
    }
    for (int64_t i = 0; i < kTile; ++i) lse[i] = top_[i] + scalar::log(total_[i]);
  }

  // Adds the gradients of the tile's pixels to those of a row of logits, by class: the transpose of the interpolation.
  void add_narrowed(const C* pixels, C* to) const {
    for (int64_t c = 0; c < grid_.classes; ++c) {
      const C* from = pixels + c * kTile;
      C* row = to + c * grid_.w;
      for (int64_t i = 0; i < n_; ++i) {
        const C right = grid_.columns.weight[x_ + i];
        row[grid_.columns.left[x_ + i]] += from[i] * (C(1) - right);
        row[grid_.columns.right[x_ + i]] += from[i] * right;
      }
    }
  }
  size_t size() const { return static_cast<size_t>(grid_.classes * kTile); }

 private:
  void widen(const T* row, C* to) const {
    for (int64_t i = 0; i < n_; ++i) {
      const C right = grid_.columns.weight[x_ + i];
      const C own = static_cast<C>(row[grid_.columns.left[x_ + i]]);
      const C mixed = own * (C(1) - right) + static_cast<C>(row[grid_.columns.right[x_ + i]]) * right;
      to[i] = right == C(0) ? own : mixed;
    }
    std::fill(to + n_, to + kTile, C(0));
  }

  const PixelGrid<T>& grid_;
  int64_t x_ = 0, n_ = 0;
  std::vector<C> upper_, lower_;  // the two rows of logits, interpolated to the pixels' columns; by class
  std::vector<C> values_, top_, total_;
};

// Calls fn(b, k, x, tile) for every tile of every band.
template <class T, class Fn> void for_each_tile(const PixelGrid<T>& grid, Fn fn) {
  parallel_for(grid.batch * grid.h, 1, [&](int64_t begin, int64_t end) {
    PixelTile<T> tile(grid);
    for (int64_t at = begin; at < end; ++at) {
      const int64_t b = at / grid.h, k = at % grid.h;
      if (grid.first[k] == grid.first[k + 1]) continue;
      for (int64_t x = 0; x < grid.W; x += kTile) {
        tile.begin(b, k, x);
        fn(b, k, x, tile);
      }
    }
  });
}

template <class T> void pixel_losses(const KernelContext& context, const Tensor& logits, const Tensor& target) {
  using C = ComputeType<T>;
  const LossOptions options(context.attrs);
  const PixelGrid<T> grid(logits, target.sizes());
  const int64_t* index = pointer<int64_t>(target);
  C* lse = pointer<C>(context.out(1));
  std::vector<C> losses(static_cast<size_t>(target.numel()));
  for_each_tile(grid, [&](int64_t b, int64_t k, int64_t x, PixelTile<T>& tile) {
    C sums[kTile];
    for (int64_t y = grid.first[k]; y < grid.first[k + 1]; ++y) {
      const C* values = tile.at_row(y);
      tile.logsumexp(sums);
      const int64_t at = (b * grid.H + y) * grid.W + x;
      for (int64_t i = 0; i < tile.n(); ++i) {
        const int64_t t = index[at + i];
        lse[at + i] = sums[i];
        losses[static_cast<size_t>(at + i)] = t == options.ignore_index ? C(0) : sums[i] - values[t * kTile + i];
      }
    }
  });
  reduce_losses(options, target, losses, context.out(0));
}

template <class T> void pixel_gradient(const KernelContext& context, const Tensor& logits, const Tensor& target) {
  using C = ComputeType<T>;
  const LossOptions options(context.attrs);
  const PixelGrid<T> grid(logits, target.sizes());
  const int64_t* index = pointer<int64_t>(target);
  const Tensor sums_of = context.in(3).contiguous();
  const C* lse = pointer<C>(sums_of);
  const C scale = static_cast<C>(*pointer<T>(context.in(0))) * mean_scale<C>(options, target);
  // The gradients that each band adds to the row of logits above it and to the row below: (B, h, 2, classes, w).
  const int64_t row = grid.classes * grid.w;
  std::vector<C> sums(static_cast<size_t>(grid.batch * grid.h * 2 * row));
  for_each_tile(grid, [&](int64_t b, int64_t k, int64_t x, PixelTile<T>& tile) {
    std::vector<C> above(tile.size()), below(tile.size());
    C lse_of[kTile] = {}, counts[kTile] = {};
    for (int64_t y = grid.first[k]; y < grid.first[k + 1]; ++y) {
      C* values = tile.at_row(y);
      const int64_t at = (b * grid.H + y) * grid.W + x;
      for (int64_t i = 0; i < tile.n(); ++i) {
        lse_of[i] = lse[at + i];
        counts[i] = index[at + i] == options.ignore_index ? C(0) : C(1);
      }
      for (int64_t c = 0; c < grid.classes; ++c) {
        C* v = values + c * kTile;
        for (int64_t i = 0; i < kTile; ++i) {
          const C p = scalar::exp(v[i] - lse_of[i]) * scale;
          v[i] = counts[i] != C(0) ? p : C(0);  // a select, because an ignored pixel may be NaN
        }
      }
      for (int64_t i = 0; i < tile.n(); ++i)
        if (counts[i] != C(0)) values[index[at + i] * kTile + i] -= scale;
      const C low = grid.rows.weight[y], up = C(1) - low;
      for (int64_t i = 0; i < grid.classes * kTile; ++i) above[i] += values[i] * up;
      for (int64_t i = 0; i < grid.classes * kTile; ++i) below[i] += values[i] * low;
    }
    C* to = &sums[static_cast<size_t>((b * grid.h + k) * 2 * row)];
    tile.add_narrowed(above.data(), to);
    tile.add_narrowed(below.data(), to + row);
  });
  T* dx = pointer<T>(context.out());
  parallel_for(grid.batch * grid.h, 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t b = at / grid.h, k = at % grid.h;
      // The gradient of row k, by class, is a sum of parts. `own`: the numbers that band k adds to the row above it.
      // `before`: the numbers that band k - 1 adds to the row below it. `last`: the last band has no row below it, so
      // its second part belongs to the last row, too.
      const C* const own = &sums[static_cast<size_t>(at * 2 * row)];
      const C* const before = k > 0 ? own - row : nullptr;
      const C* const last = k == grid.h - 1 ? own + row : nullptr;
      for (int64_t c = 0; c < grid.classes; ++c) {
        T* to = dx + ((b * grid.classes + c) * grid.h + k) * grid.w;
        for (int64_t x = 0; x < grid.w; ++x) {
          C sum = own[c * grid.w + x];
          if (before != nullptr) sum += before[c * grid.w + x];
          if (last != nullptr) sum += last[c * grid.w + x];
          to[x] = static_cast<T>(sum);
        }
      }
    }
  });
}

}  // namespace

void pixel_cross_entropy_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor logits = context.in(0).contiguous(), target = context.in(1).contiguous();
  require_indices(context, target, logits.size(1), LossOptions(context.attrs).ignore_index);
  visit_floating(logits.dtype(),
                 [&](auto tag) { pixel_losses<typename decltype(tag)::type>(context, logits, target); });
}

void pixel_cross_entropy_grad_kernel(const KernelContext& context) {
  RecorderScope run(nullptr);
  const Tensor logits = context.in(1).contiguous(), target = context.in(2).contiguous();
  // The targets are checked again: on a stream, this kernel runs even if the forward has found a bad index.
  require_indices(context, target, logits.size(1), LossOptions(context.attrs).ignore_index);
  visit_floating(logits.dtype(),
                 [&](auto tag) { pixel_gradient<typename decltype(tag)::type>(context, logits, target); });
}

}  // namespace rondo::cpu
