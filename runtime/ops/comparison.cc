// Comparisons, and ops that choose by a condition.
#include <bit>

#include "rondo/runtime/ops/attributes.h"
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// ---- Comparisons: bool outputs, no gradient

namespace {
// Returns the scalar operand of the op (floats[0]) as a value of the type of `x`. If x is bool, returns true for every
// number but 0.
LoopValue number_like(LoopBuilder& b, LoopValue x) {
  const LoopValue s = b.scalar(0);
  return x.type == kBool ? scalar::ne(s, scalar::constant(s, 0.0)) : s;
}
}  // namespace

template <auto kBody> struct ComparisonImpl {
  static void infer(InferContext& c) {
    Dims sizes;
    if (!broadcast_shapes(c.sizes(0), c.sizes(1), sizes)) c.fail("shapes do not broadcast");
    c.require_same_dtype(0, 1);
    c.output(0, kBool, sizes);
  }
  template <class T> static void run(const ElementwiseRun& rows, const double*) {
    elementwise_run<bool, T, T>(rows, kBody);
  }
  static constexpr ElementwiseBody kHostBody = body_of_any_dtype(
      2, [](auto tag) { return &run<typename decltype(tag)::type>; });
  static void lower(LoopBuilder& b) { b.output(0, kBody(b.input(0), b.input(1))); }
};
template <auto kBody> constexpr OpDef comparison(const char* name) {
  return elementwise_without_gradient<ComparisonImpl<kBody>>(name);
}
// Native types compare directly; LoopValues build an instruction.
struct Equal {
  template <class T> bool operator()(T a, T b) const { return a == b; }
  LoopValue operator()(LoopValue a, LoopValue b) const { return scalar::eq(a, b); }
};
struct Less {
  template <class T> bool operator()(T a, T b) const { return a < b; }
  LoopValue operator()(LoopValue a, LoopValue b) const { return scalar::lt(a, b); }
};
struct LessEqual {
  template <class T> bool operator()(T a, T b) const { return a <= b; }
  LoopValue operator()(LoopValue a, LoopValue b) const { return scalar::le(a, b); }
};
struct NotEqual {
  template <class T> bool operator()(T a, T b) const { return a != b; }
  LoopValue operator()(LoopValue a, LoopValue b) const { return scalar::ne(a, b); }
};
// Swaps the operands: a > b is b < a.
template <class Body> struct Swapped {
  template <class T> auto operator()(T a, T b) const { return Body{}(b, a); }
};
constexpr OpDef kEqual = comparison<Equal{}>("equal");
constexpr OpDef kNotEqual = comparison<NotEqual{}>("not_equal");
constexpr OpDef kLess = comparison<Less{}>("less");
constexpr OpDef kLessEqual = comparison<LessEqual{}>("less_equal");

// ---- Comparisons with a number. floats: {the number}

template <auto kBody> struct NumberComparisonImpl {
  static void infer(InferContext& c) { c.output(0, kBool, c.sizes(0)); }
  template <class T> static void run(const ElementwiseRun& rows, const double* scalars) {
    const auto s = convert<ComputeType<T>>(scalars[0]);
    elementwise_run<bool, T>(rows, [s](auto x) { return kBody(x, s); });
  }
  static constexpr ElementwiseBody kHostBody = body_of_any_dtype(
      1, [](auto tag) { return &run<typename decltype(tag)::type>; });
  static void lower(LoopBuilder& b) {
    const LoopValue x = b.input(0);
    b.output(0, kBody(x, number_like(b, x)));
  }
};
template <auto kBody> constexpr OpDef number_comparison(const char* name) {
  return elementwise_without_gradient<NumberComparisonImpl<kBody>>(name);
}
constexpr OpDef kEqualScalar = number_comparison<Equal{}>("equal_scalar");
constexpr OpDef kNotEqualScalar = number_comparison<NotEqual{}>("not_equal_scalar");
constexpr OpDef kLessScalar = number_comparison<Less{}>("less_scalar");
constexpr OpDef kLessEqualScalar = number_comparison<LessEqual{}>("less_equal_scalar");
constexpr OpDef kGreaterScalar = number_comparison<Swapped<Less>{}>("greater_scalar");
constexpr OpDef kGreaterEqualScalar = number_comparison<Swapped<LessEqual>{}>("greater_equal_scalar");

namespace {

// where() only copies elements, so one function serves all dtypes of the same width.
template <size_t kBytes> struct UnsignedOf;
template <> struct UnsignedOf<1> { using type = uint8_t; };
template <> struct UnsignedOf<2> { using type = uint16_t; };
template <> struct UnsignedOf<4> { using type = uint32_t; };
template <> struct UnsignedOf<8> { using type = uint64_t; };

// Chooses without a branch, because branches on an irregular condition are slow.
template <class T> T chosen(bool condition, T a, T b) {
  const T mask = static_cast<T>(-static_cast<T>(condition));
  return static_cast<T>((a & mask) | (b & static_cast<T>(~mask)));
}
template <class T> void run_where(const ElementwiseRun& rows, const double*) {
  elementwise_run<T, bool, T, T>(rows, [](bool condition, T a, T b) { return chosen(condition, a, b); });
}
constexpr ElementwiseBody kWhereBody = body_of_any_dtype(
    3, [](auto tag) { return &run_where<typename UnsignedOf<sizeof(typename decltype(tag)::type)>::type>; });

}  // namespace

// Inputs condition, a, b.
constexpr OpDef kWhere = {
    .name = "where",
    .kind = OpKind::kElementwise,
    .saved = {.inputs = kFirst},
    .infer =
        [](InferContext& c) {
          Dims sizes;
          if (c.dtype(0) != kBool) c.fail("the condition must be bool");
          c.require_same_dtype(1, 2);
          if (!broadcast_shapes(c.sizes(0), c.sizes(1), sizes) || !broadcast_shapes(Dims(sizes), c.sizes(2), sizes))
            c.fail("shapes do not broadcast");
          c.output(0, c.dtype(1), sizes);
        },
    .host = {&cpu::elementwise_kernel},
    .body = &kWhereBody,
    .grad =
        [](const GradContext& g) {
          if (g.needs(1)) g.set_reduced(1, where(g.input(0), g.grad_out(), 0.0));
          if (g.needs(2)) g.set_reduced(2, where(g.input(0), 0.0, g.grad_out()));
        },
    .lower = [](LoopBuilder& b) { b.output(0, scalar::select(b.input(0), b.input(1), b.input(2))); },
};

// Inputs condition, x. floats: {the number}. The result is the number where the condition equals kNumber, and x where
// it does not.
template <bool kNumber> struct NumberWhereImpl {
  static void infer(InferContext& c) {
    Dims sizes;
    if (c.dtype(0) != kBool) c.fail("the condition must be bool");
    if (!broadcast_shapes(c.sizes(0), c.sizes(1), sizes)) c.fail("shapes do not broadcast");
    c.output(0, c.dtype(1), sizes);
  }
  template <class T> static void run(const ElementwiseRun& rows, const double* scalars) {
    using Bits = typename UnsignedOf<sizeof(T)>::type;
    const Bits s = std::bit_cast<Bits>(convert<T>(scalars[0]));
    elementwise_run<Bits, bool, Bits>(
        rows, [s](bool condition, Bits x) { return chosen(condition, kNumber ? s : x, kNumber ? x : s); });
  }
  static constexpr ElementwiseBody kHostBody = body_of_any_dtype(
      2, [](auto tag) { return &run<typename decltype(tag)::type>; });
  static void lower(LoopBuilder& b) {
    const LoopValue x = b.input(1), s = number_like(b, x);
    b.output(0, scalar::select(b.input(0), kNumber ? s : x, kNumber ? x : s));
  }
  static void grad(const GradContext& g) {
    if (g.needs(1))
      g.set_reduced(1, kNumber ? where(g.input(0), 0.0, g.grad_out()) : where(g.input(0), g.grad_out(), 0.0));
  }
};
template <bool kNumber> constexpr OpDef number_where(const char* name) {
  using Impl = NumberWhereImpl<kNumber>;
  OpDef op = elementwise_without_gradient<Impl>(name);
  op.saved = {.inputs = kFirst};
  op.grad = &Impl::grad;
  return op;
}
constexpr OpDef kWhereScalar = number_where<false>("where_scalar");
constexpr OpDef kMaskedFill = number_where<true>("masked_fill");

// ---- Public functions

Tensor equal(TensorArg a, TensorArg b) { return call_promoted(kEqual, a, b, Promotion::kCompare); }
Tensor not_equal(TensorArg a, TensorArg b) { return call_promoted(kNotEqual, a, b, Promotion::kCompare); }
Tensor less(TensorArg a, TensorArg b) { return call_promoted(kLess, a, b, Promotion::kCompare); }
Tensor less_equal(TensorArg a, TensorArg b) { return call_promoted(kLessEqual, a, b, Promotion::kCompare); }
Tensor greater(TensorArg a, TensorArg b) { return call_promoted(kLess, b, a, Promotion::kCompare); }
Tensor greater_equal(TensorArg a, TensorArg b) { return call_promoted(kLessEqual, b, a, Promotion::kCompare); }

Tensor equal(TensorArg a, Scalar b) {
  return call_with_number("equal", kEqualScalar, &equal, a, b, Promotion::kCompare);
}
Tensor not_equal(TensorArg a, Scalar b) {
  return call_with_number("not_equal", kNotEqualScalar, &not_equal, a, b, Promotion::kCompare);
}
Tensor less(TensorArg a, Scalar b) { return call_with_number("less", kLessScalar, &less, a, b, Promotion::kCompare); }
Tensor less_equal(TensorArg a, Scalar b) {
  return call_with_number("less_equal", kLessEqualScalar, &less_equal, a, b, Promotion::kCompare);
}
Tensor greater(TensorArg a, Scalar b) {
  return call_with_number("greater", kGreaterScalar, &greater, a, b, Promotion::kCompare);
}
Tensor greater_equal(TensorArg a, Scalar b) {
  return call_with_number("greater_equal", kGreaterEqualScalar, &greater_equal, a, b, Promotion::kCompare);
}

Tensor where(TensorArg condition, TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_defined("where", operand);
  const DType dtype = result_dtype(a.tensor, b.tensor);
  const Tensor left = a.tensor.to(dtype, a.where), right = b.tensor.to(dtype, b.where);
  return call(kWhere, {condition, {left, a.where}, {right, b.where}});
}

namespace {
// Chooses between the elements of `x` and a number, which is converted to x's dtype. Where the condition is true,
// kMaskedFill takes the number, and kWhereScalar takes x.
Tensor choose(const OpDef& op, TensorArg condition, TensorArg x, Scalar s) {
  if (is_exact_attribute(s)) return call(op, {condition, x}, number_attrs(s, x.tensor.dtype()));
  const Tensor number = number_tensor(s, x.tensor.sizes(), {x.tensor.dtype(), x.tensor.device()});
  const TensorArg second{number, x.where};
  return &op == &kMaskedFill ? call(kWhere, {condition, second, x}) : call(kWhere, {condition, x, second});
}
Tensor choose_promoted(const OpDef& op, TensorArg condition, TensorArg x, Scalar s) {
  require_defined("where", condition);
  const Tensor converted = x.tensor.to(dtype_with_number("where", x, s), x.where);
  return choose(op, condition, {converted, x.where, x.tensor.dtype()}, s);
}
}  // namespace

Tensor where(TensorArg condition, TensorArg a, Scalar b) { return choose_promoted(kWhereScalar, condition, a, b); }
Tensor where(TensorArg condition, Scalar a, TensorArg b) { return choose_promoted(kMaskedFill, condition, b, a); }
Tensor where(TensorArg condition, Scalar a, Scalar b) {
  require_defined("where", condition);
  const DType dtype = promote(default_dtype(a), b);
  const Tensor first = number_tensor(a, condition.tensor.sizes(), {dtype, condition.tensor.device()});
  return where(condition, {first, condition.where}, b);
}
Tensor masked_fill(TensorArg x, TensorArg mask, Scalar value) {
  for (const TensorArg& operand : {x, mask}) require_defined("masked_fill", operand);
  require_in_range("masked_fill", value, x.tensor.dtype(), x.where);
  return choose(kMaskedFill, mask, x, value);
}

constexpr OpList kComparisonOps = {&kEqual,         &kNotEqual,           &kLess,       &kLessEqual,
                                   &kEqualScalar,   &kNotEqualScalar,     &kLessScalar, &kLessEqualScalar,
                                   &kGreaterScalar, &kGreaterEqualScalar, &kWhere,      &kWhereScalar,
                                   &kMaskedFill};

}  // namespace rondo::ops
