// Automatic mixed precision. Under autocast each op converts its inputs as its AmpPolicy says (OpDef::amp).
//
//   amp::Autocast autocast(kBF16);
//   Tensor loss = model(x);
//
// The scope is a setting of the thread. backward() needs no scope: gradients have the dtypes that the forward chose.
#pragma once

#include <cstdint>
#include <optional>

#include "rondo/runtime/base/dtype.h"

#pragma GCC visibility push(default)
namespace rondo {

enum class AmpPolicy : uint8_t {
  kNone,     // runs in the dtypes it is given; several operands are promoted to the widest (ops/promotion.h)
  kLower,    // cast to the autocast dtype: contractions, attention
  kFloat32,  // cast to f32: losses, wide reductions
};

namespace amp {

// Returns this thread's autocast dtype, or nullopt if autocast is off.
std::optional<DType> autocast_dtype();

// RAII: autocast to bf16 or f16 in this scope; std::nullopt switches autocast off. A parameter is converted once per
// version (lowered.h). On a CPU with AVX-512 bf16 is twice as fast as f32. Products of f16, and without AVX-512 of
// bf16, compute in f32 and are rounded once: they save memory, but little time. With RONDO_LOGS=perf_hints a compiled
// region reports its f16 products. Throws Error for any other dtype.
class Autocast {
 public:
  explicit Autocast(std::optional<DType> dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  std::optional<DType> previous_;
};

}  // namespace amp
}  // namespace rondo
#pragma GCC visibility pop
