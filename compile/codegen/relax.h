// The changes of default mode to a kernel, which exact mode (CompileOptions::exact) does not make:
// - products that are only added to something join the addition, a * b + c in one rounding;
// - 16-bit results that only the kernel itself reads stay f32. What is stored is rounded, for all that read it, and so
//   is what the user casts.
// It is a rewrite of the loop IR, so the kernel's text, its key and the interpreter know of it, and generated code is
// still the interpreter's to the bit. Nothing is reordered and nothing is assumed of NaNs and infinities. Scalar bodies
// (scalar_math.h) may be rewritten, too: where they need a product rounded, they use it twice, and such products stay.
//
// Measured on Zen 5, in the caches: GELU forward 7% less time, LayerNorm 6%, tanh(x w + b) x + x / 2 11%; with their
// backwards 3.5%, 4% and 11%. Softmax and RMSNorm: 0 to 2%. Left out: division by a row's value as a product with its
// reciprocal (0%).
#pragma once

#include <cstdint>
#include <span>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/transform/joint.h"

namespace rondo::compile {

// `roundings`: LoweredUnit::roundings.
LoopKernel relax(const LoopKernel& kernel, std::span<const int32_t> roundings = {});

// False where the last bit of a value decides more than a last bit, as kernels, and stages of one, may hold other
// products and so compute one value in two ways. Such a recording stays exact. That is so where the forward or a
// backward of it
// - compares two computed floating-point values: an element that was the largest of its row would be none in the
//   gradient;
// - takes the maximum of a row of values that a kernel computes, as softmax(x * scale) does: beside 1e20, the largest
//   element less the maximum would not be 0 but 1e13, and its exponential infinite.
// `backward`: of all gradients; null: there is none.
bool may_relax(const Graph& forward, const BackwardGraph* backward);

}  // namespace rondo::compile
