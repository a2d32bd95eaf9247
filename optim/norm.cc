#include "rondo/optim/norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "rondo/runtime/backend.h"
#include "rondo/runtime/parallel.h"

namespace rondo::optim {
namespace {

constexpr int64_t kChunk = 1 << 16;  // elements
constexpr int64_t kGrain = 1 << 15;  // elements that are worth a thread
// Partial sums of a chunk: element i goes to lane i % 32, on any machine. Four vectors of eight doubles, so that the
// additions of one need not wait for the last.
constexpr int kVectors = 4, kWidth = 8, kLanes = kVectors * kWidth;
using Lanes = double __attribute__((vector_size(kWidth * sizeof(double))));

template <class T> double sum_of_squares(const T* values, int64_t n) {
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

double norm_of(std::span<const NormOperand> operands) {
  std::vector<Chunk> chunks;
  chunks.reserve(operands.size());
  for (const NormOperand& o : operands)
    for (int64_t at = 0; at < o.n; at += kChunk)
      chunks.push_back({static_cast<const std::byte*>(o.data) + at * static_cast<int64_t>(size_of(o.dtype)), o.dtype,
                        std::min(kChunk, o.n - at)});
  int64_t total_elements = 0;
  for (const Chunk& chunk : chunks) total_elements += chunk.n;
  std::vector<double> partial(chunks.size());
  // Chunks may be small: as many to a thread as are worth it.
  const auto n = static_cast<int64_t>(chunks.size());
  const int64_t grain = std::max<int64_t>(1, n * kGrain / std::max<int64_t>(total_elements, 1));
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
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
  return std::sqrt(total);
}

}  // namespace

void enqueue_norm(Device device, std::vector<NormOperand> operands, double* norm) {
  enqueue(device, [operands = std::move(operands), norm] { *norm = norm_of(operands); });
}

}  // namespace rondo::optim
