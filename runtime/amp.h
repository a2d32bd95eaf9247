// Automatic mixed precision. Under autocast each op converts its inputs as its AmpPolicy says (OpDef::amp).
//
//   amp::Autocast autocast(kBF16);
//   Tensor loss = model(x);
//
// The scope is a setting of the thread. backward() needs no scope: gradients have the dtypes that the forward chose.
#pragma once

#include <cstdint>
#include <optional>

#include "rondo/runtime/dtype.h"

namespace rondo {

enum class AmpPolicy : uint8_t {
  kNone,     // inputs are not cast
  kLower,    // cast to the autocast dtype: contractions, attention
  kFloat32,  // cast to f32: losses, wide reductions
  kWidest,   // cast to the widest dtype among the inputs
};

namespace amp {

// This thread's autocast dtype; nullopt if autocast is off.
std::optional<DType> autocast_dtype();

// RAII: autocast to bf16 or f16 in this scope; std::nullopt switches autocast off. A parameter is converted once per
// version (lowered.h). On CPU bf16 is twice as fast as f32. Products of f16 run in f32 and are rounded once: f16 saves
// memory, but no time (RONDO_LOGS=perf_hints says so for a compiled region). Throws Error for any other dtype.
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
