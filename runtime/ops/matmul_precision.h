// How precise products of f32 are on a device that knows a faster way. The default is IEEE everywhere.
//
//   set_float32_matmul_precision(MatmulPrecision::kHigh);   // PyTorch's torch.set_float32_matmul_precision("high")
//
// The setting belongs to the process, and any thread may change it. It holds for all products that run later, also in
// compiled regions.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
namespace rondo {

enum class MatmulPrecision : uint8_t {
  kHighest,  // IEEE f32
  kHigh,     // CUDA: operands are rounded to TF32 (10 bits of fraction), sums are f32. CPU: as kHighest
};

void set_float32_matmul_precision(MatmulPrecision precision);
MatmulPrecision float32_matmul_precision();

}  // namespace rondo
#pragma GCC visibility pop
