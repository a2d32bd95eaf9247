#include "rondo/optim/clip.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/optim/foreach.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/parallel.h"

namespace rondo::optim {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements
constexpr int kLanes = 16;           // partial sums of a chunk: element i goes to lane i % 16, on any machine

template <class T> double sum_of_squares(const T* values, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes; ++k) {
      const double v = static_cast<double>(values[i + k]);
      lanes[k] = std::fma(v, v, lanes[k]);
    }
  for (int k = 0; i < n; ++i, ++k) {
    const double v = static_cast<double>(values[i]);
    lanes[k] = std::fma(v, v, lanes[k]);
  }
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) lanes[k] += lanes[k + width];
  return lanes[0];
}

struct Chunk {
  const std::byte* data;
  DType dtype;
  int64_t n;
};

}  // namespace

double clip_grad_norm_(std::span<const Tensor> params, double max_norm, ClipOptions options) {
  if (!(max_norm >= 0)) throw Error(absl::StrCat("clip_grad_norm_: max_norm must not be negative, got ", max_norm));
  const NoGrad off;
  std::vector<Tensor> grads;
  std::vector<int64_t> sizes;
  std::vector<Chunk> chunks;
  for (Tensor param : params) {
    if (!param.defined() || !param.grad().defined()) continue;
    if (!param.grad().is_contiguous()) param.set_grad(param.grad().contiguous());
    const Tensor& grad = grads.emplace_back(param.grad());
    if (!is_floating(grad.dtype())) throw Error("clip_grad_norm_: gradients must be floating point");
    sizes.push_back(grad.numel());
    const std::byte* data = static_cast<const std::byte*>(grad.raw_data());
    for (int64_t at = 0; at < grad.numel(); at += kChunk)
      chunks.push_back({data + at * static_cast<int64_t>(size_of(grad.dtype())), grad.dtype(), std::min(kChunk, grad.numel() - at)});
  }
  std::vector<double> partial(chunks.size());
  parallel_for(static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const Chunk& chunk = chunks[static_cast<size_t>(c)];
      visit_floating(chunk.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        partial[static_cast<size_t>(c)] = sum_of_squares(reinterpret_cast<const T*>(chunk.data), chunk.n);
      });
    }
  });
  double total = 0;
  for (double p : partial) total += p;
  const double norm = std::sqrt(total);
  if (options.error_if_nonfinite && !std::isfinite(norm))
    throw Error(absl::StrCat("clip_grad_norm_: the gradients' norm is ", norm, "; a loss or a gradient overflowed"));
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;
  std::vector<std::byte*> data;
  for (Tensor& grad : grads) data.push_back(static_cast<std::byte*>(grad.raw_mutable_data()));
  parallel_for_each(sizes, [&](size_t i, int64_t begin, int64_t end) {
    visit_floating(grads[i].dtype(), [&](auto tag) {
      using T = typename decltype(tag)::type;
      using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
      T* values = reinterpret_cast<T*>(data[i]);
      const C scale = static_cast<C>(factor);
      for (int64_t k = begin; k < end; ++k) values[k] = static_cast<T>(static_cast<C>(values[k]) * scale);
    });
  });
  return norm;
}

}  // namespace rondo::optim
