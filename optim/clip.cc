#include "rondo/optim/clip.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/optim/foreach.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/parallel.h"

namespace rondo::optim {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements
// Partial sums of a chunk: element i goes to lane i % 32, on any machine. Four vectors of eight doubles, so that the
// additions of one need not wait for the last.
constexpr int kVectors = 4, kWidth = 8, kLanes = kVectors * kWidth;
using Lanes = double __attribute__((vector_size(kWidth * sizeof(double))));

template <class T>
double sum_of_squares(const T* values, int64_t n) {
  Lanes sums[kVectors] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int v = 0; v < kVectors; ++v) {
      Lanes x;
      if constexpr (std::is_same_v<T, float>) {
        float __attribute__((vector_size(kWidth * sizeof(float)))) narrow;
        std::memcpy(&narrow, values + i + v * kWidth, sizeof(narrow));
        x = __builtin_convertvector(narrow, Lanes);
      } else {
        for (int k = 0; k < kWidth; ++k) x[k] = static_cast<double>(values[i + v * kWidth + k]);
      }
      sums[v] += x * x;  // the square of an f32 is exact
    }
  for (int64_t k = 0; i < n; ++i, ++k) {
    const double x = static_cast<double>(values[i]);
    sums[k / kWidth][k % kWidth] += x * x;
  }
  const Lanes total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double result = 0;
  for (int k = 0; k < kWidth; ++k) result += total[k];
  return result;
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
      chunks.push_back(
          {data + at * static_cast<int64_t>(size_of(grad.dtype())), grad.dtype(), std::min(kChunk, grad.numel() - at)});
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
