// Bitwise operations on integers, and logical ones on bools.
#include "rondo/runtime/ops/bitwise.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/ops/attributes.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {
namespace {

enum class Bools : uint8_t { kAllowed, kRefused };

// The operands are kInputs tensors of one dtype, or one tensor and a scalar attribute.
template <auto kBody, int kInputs, int kScalars, Bools kBools> struct BitwiseImpl {
  static void infer(InferContext& c) {
    Dims sizes = c.sizes(0);
    if (kInputs == 2) {
      c.require_same_dtype(0, 1);
      if (!broadcast_shapes(c.sizes(0), c.sizes(1), sizes)) c.fail("shapes do not broadcast");
    }
    if (is_floating(c.dtype(0))) c.fail("floats have no bits here; cast to an integer dtype first");
    if (kBools == Bools::kRefused && c.dtype(0) == kBool) c.fail("bools are not shifted; cast to a number first");
    c.output(0, c.dtype(0), sizes);
  }
  template <class T> static void run(const ElementwiseRun& rows, const double* scalars) {
    if constexpr (kInputs == 2) {
      elementwise_run<T, T, T>(rows, kBody);
    } else if constexpr (kScalars == 1) {
      const T s = convert<T>(scalars[0]);
      elementwise_run<T, T>(rows, [s](T x) { return kBody(x, s); });
    } else {
      elementwise_run<T, T>(rows, kBody);
    }
  }
  static constexpr ElementwiseBody kHostBody = [] {
    constexpr auto run_of = [](auto tag) { return &run<typename decltype(tag)::type>; };
    if constexpr (kBools == Bools::kAllowed) return elementwise_body<int64_t, int32_t, uint8_t, bool>(kInputs, run_of);
    else return elementwise_body<int64_t, int32_t, uint8_t>(kInputs, run_of);
  }();
  static void lower(LoopBuilder& b) {
    if constexpr (kInputs == 2) b.output(0, kBody(b.input(0), b.input(1)));
    else if constexpr (kScalars == 1) b.output(0, kBody(b.input(0), b.scalar(0)));
    else b.output(0, kBody(b.input(0)));
  }
};
template <auto kBody, Bools kBools = Bools::kAllowed> constexpr OpDef of_two(const char* name) {
  return elementwise_without_gradient<BitwiseImpl<kBody, 2, 0, kBools>>(name);
}
template <auto kBody, Bools kBools = Bools::kRefused> constexpr OpDef with_scalar(const char* name) {
  return elementwise_without_gradient<BitwiseImpl<kBody, 1, 1, kBools>>(name);
}

struct And {
  template <class T> T operator()(T a, T b) const { return static_cast<T>(a & b); }
  LoopValue operator()(LoopValue a, LoopValue b) const { return scalar::emit(LoopOp::kAnd, a, b); }
};
struct Or {
  template <class T> T operator()(T a, T b) const { return static_cast<T>(a | b); }
  LoopValue operator()(LoopValue a, LoopValue b) const { return scalar::emit(LoopOp::kOr, a, b); }
};
struct Xor {
  template <class T> T operator()(T a, T b) const { return static_cast<T>(a ^ b); }
  LoopValue operator()(LoopValue a, LoopValue b) const { return scalar::emit(LoopOp::kXor, a, b); }
};
struct Not {
  template <class T> T operator()(T a) const { return static_cast<T>(~a); }
  bool operator()(bool a) const { return !a; }
  LoopValue operator()(LoopValue a) const { return scalar::emit(LoopOp::kNot, a); }
};
struct ShiftLeft {
  template <class T> T operator()(T a, T b) const { return shift_left(a, b); }
  LoopValue operator()(LoopValue a, LoopValue b) const { return scalar::emit(LoopOp::kShiftLeft, a, b); }
};
struct ShiftRight {
  template <class T> T operator()(T a, T b) const { return shift_right(a, b); }
  LoopValue operator()(LoopValue a, LoopValue b) const { return scalar::emit(LoopOp::kShiftRight, a, b); }
};

}  // namespace

constexpr OpDef kBitwiseAnd = of_two<And{}>("bitwise_and");
constexpr OpDef kBitwiseOr = of_two<Or{}>("bitwise_or");
constexpr OpDef kBitwiseXor = of_two<Xor{}>("bitwise_xor");
constexpr OpDef kBitwiseNot = elementwise_without_gradient<BitwiseImpl<Not{}, 1, 0, Bools::kAllowed>>("bitwise_not");
constexpr OpDef kShiftLeft = of_two<ShiftLeft{}, Bools::kRefused>("shift_left");
constexpr OpDef kShiftRight = of_two<ShiftRight{}, Bools::kRefused>("shift_right");

// floats: {the scalar operand}
constexpr OpDef kBitwiseAndScalar = with_scalar<And{}>("bitwise_and_scalar");
constexpr OpDef kBitwiseOrScalar = with_scalar<Or{}>("bitwise_or_scalar");
constexpr OpDef kBitwiseXorScalar = with_scalar<Xor{}>("bitwise_xor_scalar");
constexpr OpDef kShiftLeftScalar = with_scalar<ShiftLeft{}>("shift_left_scalar");
constexpr OpDef kShiftRightScalar = with_scalar<ShiftRight{}>("shift_right_scalar");

namespace {

void require_bits(const char* op, TensorArg x) {
  require_defined(op, x);
  if (is_floating(x.tensor.dtype()))
    throw_op_error(op, absl::StrCat("needs integers or bools, got ", std::string(name_of(x.tensor.dtype()))), x.where);
}
Tensor bits_of_two(const OpDef& op, TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_bits(op.name, operand);
  const DType dtype = result_dtype(a.tensor, b.tensor);
  const Tensor x = a.tensor.to(dtype, a.where), y = b.tensor.to(dtype, b.where);
  return call(op, {{x, a.where, a.tensor.dtype()}, {y, b.where, b.tensor.dtype()}});
}
// Calls `op`, which takes the number as an attribute, or `of_tensors`, which takes it as a tensor. `of_tensors` is for
// a number that an attribute would round, and for bools.
Tensor bits_and_number(const OpDef& op, const OpDef& of_tensors, TensorArg a, Scalar s) {
  require_bits(of_tensors.name, a);
  if (!s.is_integer()) throw_op_error(of_tensors.name, "needs an integer, got a float", a.where);
  const DType dtype = promote(a.tensor.dtype(), s);
  require_in_range(of_tensors.name, s, dtype, a.where);
  if (dtype == kBool || !is_exact_attribute(s))
    return bits_of_two(of_tensors, a, {number_tensor(s, a.tensor.sizes(), {dtype, a.tensor.device()}), a.where});
  return call(op, {{a.tensor.to(dtype, a.where), a.where, a.tensor.dtype()}}, {.floats = {s.real()}});
}

}  // namespace

Tensor bitwise_and(TensorArg a, TensorArg b) { return bits_of_two(kBitwiseAnd, a, b); }
Tensor bitwise_or(TensorArg a, TensorArg b) { return bits_of_two(kBitwiseOr, a, b); }
Tensor bitwise_xor(TensorArg a, TensorArg b) { return bits_of_two(kBitwiseXor, a, b); }
Tensor bitwise_and(TensorArg a, Scalar b) { return bits_and_number(kBitwiseAndScalar, kBitwiseAnd, a, b); }
Tensor bitwise_or(TensorArg a, Scalar b) { return bits_and_number(kBitwiseOrScalar, kBitwiseOr, a, b); }
Tensor bitwise_xor(TensorArg a, Scalar b) { return bits_and_number(kBitwiseXorScalar, kBitwiseXor, a, b); }
Tensor bitwise_not(TensorArg x) {
  require_bits("bitwise_not", x);
  return call(kBitwiseNot, {x});
}
Tensor shift_left(TensorArg a, TensorArg b) { return bits_of_two(kShiftLeft, a, b); }
Tensor shift_right(TensorArg a, TensorArg b) { return bits_of_two(kShiftRight, a, b); }
Tensor shift_left(TensorArg a, Scalar b) { return bits_and_number(kShiftLeftScalar, kShiftLeft, a, b); }
Tensor shift_right(TensorArg a, Scalar b) { return bits_and_number(kShiftRightScalar, kShiftRight, a, b); }

constexpr OpList kBitwiseOps = {&kBitwiseAnd,       &kBitwiseOr,       &kBitwiseXor,       &kBitwiseNot,
                                &kShiftLeft,        &kShiftRight,      &kBitwiseAndScalar, &kBitwiseOrScalar,
                                &kBitwiseXorScalar, &kShiftLeftScalar, &kShiftRightScalar};

}  // namespace rondo::ops
