#include "rondo/tests/fake_cuda/product.h"

#include <omp.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "oneapi/dnnl/dnnl.h"
#include "rondo/runtime/base/dtype.h"

namespace rondo::fake_cuda {
namespace {

using cuda::LtType;

double load(LtType type, const void* data, int64_t i) {
  switch (type) {
    case LtType::kF64: return static_cast<const double*>(data)[i];
    case LtType::kBF16: return static_cast<float>(static_cast<const BFloat16*>(data)[i]);
    case LtType::kF16: return static_cast<float>(static_cast<const Float16*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}
void store(LtType type, void* data, int64_t i, double value) {
  const auto narrow = static_cast<float>(value);
  switch (type) {
    case LtType::kF64: static_cast<double*>(data)[i] = value; break;
    case LtType::kBF16: static_cast<BFloat16*>(data)[i] = BFloat16(narrow); break;
    case LtType::kF16: static_cast<Float16*>(data)[i] = Float16(narrow); break;
    default: static_cast<float*>(data)[i] = narrow;
  }
}

// To 10 bits of fraction, to nearest, ties to even.
float round_to_tf32(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  if (!std::isfinite(value)) return value;
  bits += 0xFFFu + (bits >> 13 & 1u);
  return std::bit_cast<float>(bits & ~0x1FFFu);
}

// One matrix of an operand as it lies, as floats: rows x columns, of leading dimension `rows`.
std::vector<float> floats(const MatrixRef& matrix, int64_t i, int64_t rows, int64_t columns, bool tf32) {
  std::vector<float> dense(static_cast<size_t>(rows * columns));
  for (int64_t c = 0; c < columns; ++c)
    for (int64_t r = 0; r < rows; ++r) {
      const auto value = static_cast<float>(load(matrix.type, matrix.data, i * matrix.stride + c * matrix.ld + r));
      dense[static_cast<size_t>(c * rows + r)] = tf32 ? round_to_tf32(value) : value;
    }
  return dense;
}

class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

// The sums of one matrix of the batch, dense by columns.
std::vector<double> sums_f64(const ProductWork& w, int64_t i) {
  std::vector<double> sums(static_cast<size_t>(w.m * w.n));
  const auto* a = static_cast<const double*>(w.a.data) + i * w.a.stride;
  const auto* b = static_cast<const double*>(w.b.data) + i * w.b.stride;
  for (int64_t part = 0; part < w.parts; ++part) {
    std::vector<double> partial(sums.size());
    for (int64_t c = 0; c < w.n; ++c)
      for (int64_t p = w.k * part / w.parts; p < w.k * (part + 1) / w.parts; ++p) {
        const double factor = w.transpose_b ? b[p * w.b.ld + c] : b[c * w.b.ld + p];
        double* column = partial.data() + c * w.m;
        for (int64_t r = 0; r < w.m; ++r) column[r] += (w.transpose_a ? a[r * w.a.ld + p] : a[p * w.a.ld + r]) * factor;
      }
    for (size_t e = 0; e < sums.size(); ++e) sums[e] += partial[e];
  }
  return sums;
}

std::vector<float> sums_f32(const ProductWork& w, int64_t i) {
  const int64_t a_rows = w.transpose_a ? w.k : w.m, b_rows = w.transpose_b ? w.n : w.k;
  const std::vector<float> a = floats(w.a, i, a_rows, w.m * w.k / a_rows, w.tf32),
                           b = floats(w.b, i, b_rows, w.k * w.n / b_rows, w.tf32);
  std::vector<float> sums(static_cast<size_t>(w.m * w.n)), partial(w.parts > 1 ? sums.size() : 0);
  const OneThread alone;
  for (int64_t part = 0; part < w.parts; ++part) {
    const int64_t first = w.k * part / w.parts, size = w.k * (part + 1) / w.parts - first;
    float* out = part == 0 ? sums.data() : partial.data();
    // oneDNN's matrices lie by rows: it computes the transposed product.
    dnnl_sgemm(w.transpose_b ? 'T' : 'N', w.transpose_a ? 'T' : 'N', w.n, w.m, size, 1.0f,
               b.data() + first * (w.transpose_b ? b_rows : 1), b_rows, a.data() + first * (w.transpose_a ? 1 : a_rows),
               a_rows, 0.0f, out, w.m);
    if (part > 0)
      for (size_t e = 0; e < sums.size(); ++e) sums[e] += partial[e];
  }
  return sums;
}

// The tanh form, as the manual's CUBLASLT_EPILOGUE_GELU.
template <class T> T gelu(T x) {
  const T inner = static_cast<T>(0.7978845608028654) * (x + static_cast<T>(0.044715) * x * x * x);
  return static_cast<T>(0.5) * x * (1 + std::tanh(inner));
}

template <class T> void finish(const ProductWork& w, int64_t i, const std::vector<T>& sums) {
  for (int64_t c = 0; c < w.n; ++c)
    for (int64_t r = 0; r < w.m; ++r) {
      T value = static_cast<T>(w.alpha) * sums[static_cast<size_t>(c * w.m + r)];
      if (w.beta != 0)
        value += static_cast<T>(w.beta) * static_cast<T>(load(w.c.type, w.c.data, i * w.c.stride + c * w.c.ld + r));
      if (w.bias != nullptr) value += static_cast<T>(load(w.d.type, w.bias, r));
      if (w.gelu) value = gelu(value);
      store(w.d.type, w.d.data, i * w.d.stride + c * w.d.ld + r, value);
    }
}

}  // namespace

size_t element_bytes(LtType type) {
  switch (type) {
    case LtType::kF64: return 8;
    case LtType::kBF16:
    case LtType::kF16: return 2;
    case LtType::kI8: return 1;
    default: return 4;
  }
}

void compute(const ProductWork& w) {
  for (int64_t i = 0; i < w.batch; ++i) {
    if (w.f64) finish(w, i, sums_f64(w, i));
    else finish(w, i, sums_f32(w, i));
  }
}

}  // namespace rondo::fake_cuda
