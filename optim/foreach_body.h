// Body: the formula that one pass over all parameters computes. ArraySpec: an array that it works on. The pass itself
// is a Foreach (foreach.h).
#pragma once

#include <cstdint>
#include <memory>

#include "rondo/runtime/base/dtype.h"
#include "rondo/runtime/op/lowering.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

inline constexpr int kMaxValues = 10, kMaxScalars = 16;
// kBlock8: elements of an 8-bit array that share a scale (block8.h). kRow: elements in a row of an item with sums.
inline constexpr int64_t kBlock8 = 256, kRow = 1024;

enum class Role : uint8_t {
  kValue,    // an operand of the formula; written back if the formula changes it
  kSum,      // a sum that the formula adds to; an f64 for each row in memory
  kAverage,  // after the formula, a += scalars[1] * (values[0] - a): an exponential moving average
  kCopy,     // after the formula, becomes values[0] in another dtype
};
enum class Format : uint8_t { kPlain, kSigned8, kUnsigned8 };
enum class Layout : uint8_t { kFull, kPerRow, kPerColumn };

struct ArraySpec {
  Role role = Role::kValue;
  DType dtype = kF32;
  Format format = Format::kPlain;
  Layout layout = Layout::kFull;
  bool zero = false;  // filled with zeros at the end, even if the pass is skipped; the formula's value is not stored
  // True if the array holds nothing before the pass. A skipped pass then fills it: a copy with values[0], another array
  // with zeros.
  bool fresh = false;
  bool operator==(const ArraySpec&) const = default;
};

// A type-erased formula. `values`: one pointer for each array of role kValue, then one for each kSum.
struct Body {
  const char* name = "";
  int n_values = 0, n_sums = 0, n_scalars = 0;
  void (*f32)(const void* context, float* const* values, const float* scalars, int64_t n) = nullptr;
  void (*f64)(const void* context, double* const* values, const double* scalars, int64_t n) = nullptr;
  void (*build)(const void* context, LoopValue* values, const LoopValue* scalars) = nullptr;
  // Bit k: f32 and f64 never store to values[k]. They may store to the other arrays even if nothing changes.
  uint32_t keeps = 0;
  bool wide = false;                            // true: computes in f64 on arrays of any dtype
  const void* context = nullptr;                // passed to the functions
  std::shared_ptr<const void> owner = nullptr;  // keeps `context` alive, because a pass may run later
};

}  // namespace rondo::optim
#pragma GCC visibility pop
