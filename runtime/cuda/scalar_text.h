// ScalarText: writes a scalar program as CUDA C++ for one type: an op's `lower`, or a function of ops/scalar_math.h. So
// the kernels of this folder come from the same templates that the host compiles and from which compile/ generates
// code, and a new op needs no CUDA text. Integers compute in their own type and wrap around, as on the host.
//
//   ScalarText text(kI64, attrs, inputs);
//   op.lower(text);                        // "const C v0 = a0; ... const C v3 = ...; result = v3;"
#pragma once

#include <span>
#include <string>

#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/op/op.h"

namespace rondo::cuda {

// In the text, C is the compute type, a0, a1, ... are the inputs (of C, or bool), s0, s1 the scalars (of C), and
// `result` takes output 0.
class ScalarText final : public LoopBuilder {
 public:
  // `compute`: f32, f64, i64, i32, u8, or bool, which computes as u8.
  ScalarText(DType compute, const Attrs& attrs, std::span<const DType> inputs)
      : compute_(compute), attrs_(attrs), inputs_(inputs) {}
  const std::string& text() const { return text_; }

  LoopValue input(int i) override;
  bool has_input(int i) const override { return i < static_cast<int>(inputs_.size()); }
  LoopValue scalar(int i) override;
  int64_t integer(int i) const override { return attrs_.ints[static_cast<size_t>(i)]; }
  LoopValue constant(double value, DType type) override;
  LoopValue emit(LoopOp op, DType type, LoopValue a, LoopValue b = {}, LoopValue c = {}) override;
  LoopValue reduce(LoopOp op, LoopValue v) override;
  void output(int i, LoopValue v) override;

  // Returns the C++ type of the values in a body that computes in `dtype`: "float".
  static const char* type_of(DType dtype);

 private:
  LoopValue define(DType type, const std::string& expression, bool is_double = false);
  DType carried() const { return compute_ == kF32 ? kF32 : kF64; }

  DType compute_;
  const Attrs& attrs_;
  std::span<const DType> inputs_;
  std::string text_;
  int32_t next_ = 0;
};

// Returns the text of `RONDO_DEVICE float name(float a0)`, and of the same function for f64, from a function of
// ops/scalar_math.h:
//   scalar_function("rondo_exp", [](LoopValue x) { return scalar::exp(x); })
std::string scalar_function(const std::string& name, LoopValue (*function)(LoopValue));

}  // namespace rondo::cuda
