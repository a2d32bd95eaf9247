// Kernels of these tests: host functions on float vectors, which declare what they touch.
#pragma once

#include "rondo/runtime/cuda/device_state.h"
#include "rondo/tests/cuda/kernel_text.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::test {

template <class T> T argument(const fake_cuda::Launch& launch, int i) { return *static_cast<T*>(launch.args[i]); }

// y[i] += a * x[i]. Arguments: y, x, n, a.
inline fake_cuda::Kernel axpy() {
  return {{8, 8, 8, 4},
          [](const fake_cuda::Launch& launch) {
            float* y = argument<float*>(launch, 0);
            const float* x = argument<const float*>(launch, 1);
            for (int64_t i = 0; i < argument<int64_t>(launch, 2); ++i) y[i] += argument<float>(launch, 3) * x[i];
          },
          [](const fake_cuda::Launch& launch) -> std::vector<fake_cuda::Access> {
            const auto bytes = static_cast<size_t>(argument<int64_t>(launch, 2)) * 4;
            return {{argument<void*>(launch, 0), bytes, true}, {argument<void*>(launch, 1), bytes, false}};
          },
          256,
          0,
          kAxpyText};
}

inline void launch_axpy(int device, const cuda::Kernel& kernel, float* y, const float* x, int64_t n, float a) {
  void* args[] = {&y, &x, &n, &a};
  cuda::launch(device, kernel, {static_cast<unsigned>((n + 255) / 256)}, {256}, 0, args);
}

// The same on tensors.
inline void launch_axpy(const cuda::Kernel& kernel, const Tensor& y, const Tensor& x, float a) {
  launch_axpy(y.device().index, kernel, reinterpret_cast<float*>(y.storage().data()),
              reinterpret_cast<const float*>(x.storage().data()), y.numel(), a);
}

// A tensor of a CUDA device, of poison.
inline Tensor empty(Device device, int64_t n) { return Tensor::empty({n}, {kF32, device}); }

}  // namespace rondo::test
