// Automatic mixed precision: what each op does with its inputs under autocast (the op table's `amp` field).
#pragma once

#include <cstdint>
#include <optional>

#include "rondo/runtime/dtype.h"

#pragma GCC visibility push(default)
namespace rondo {

enum class AmpPolicy : uint8_t {
  kNone,     // runs in the dtype it is given
  kLower,    // cast to the autocast dtype: contractions, attention
  kFloat32,  // cast to f32: losses, wide reductions
  kWidest,   // cast all floats to the widest among the inputs
};

namespace amp {

// The autocast dtype of this thread, if autocast is on.
std::optional<DType> autocast_dtype();

// RAII: autocast to bf16 or f16 in this scope; std::nullopt switches it off. A parameter is converted once for each of
// its versions (lowered.h). On CPU, products of f16 are carried out in f32 and rounded once: f16 saves memory there,
// and no time; bf16 is twice as fast as f32. A compiled region says so, too (RONDO_LOGS=perf_hints).
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
