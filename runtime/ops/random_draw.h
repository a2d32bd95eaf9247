// Ops that draw tensors of random numbers, and what their kernels share.
#pragma once

#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::ops {

enum class Distribution : int64_t { kUniform, kNormal };
// Element i depends only on the stream and on i: it is made of the random numbers of counter i (random.h). Input: the
// stream's state, i64 [2] (Note [Random state] in random_state.h).
extern const OpDef kDraw;  // ints: {distribution, increment, dtype, sizes...}
extern const OpDef
    kDrawIntegers;  // ints: {increment, dtype, low, span, sizes...}: from [low, low + span); span is unsigned

// Returns a normally distributed number, computed from two uniform numbers in (0, 1) (Box and Muller, 1958). All
// callers pass f64.
template <class T> [[gnu::always_inline]] inline T normal_of(T u, T v) {
  const T radius = scalar::sqrt(scalar::constant(u, -2.0) * scalar::log(u));
  return radius * scalar::cos(scalar::constant(v, 6.283185307179586477) * v);
}

}  // namespace rondo::ops
