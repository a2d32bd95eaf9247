// How precise products of f32 are on a device that knows a faster way. The default is IEEE everywhere.
//
//   set_float32_matmul_precision(MatmulPrecision::kHigh);   // PyTorch's torch.set_float32_matmul_precision("high")
//
// A setting of the process, which any thread may change; products that run later see it, compiled ones, too.
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
