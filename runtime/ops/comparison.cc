// Comparisons, and what is chosen by a condition.
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// ---- Comparisons: bool outputs, no gradient

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
constexpr OpDef kEqual = comparison<Equal{}>("equal");
constexpr OpDef kNotEqual = comparison<NotEqual{}>("not_equal");
constexpr OpDef kLess = comparison<Less{}>("less");
constexpr OpDef kLessEqual = comparison<LessEqual{}>("less_equal");

namespace {

// Elements are only moved, so their width is all that matters.
template <size_t kBytes> struct UnsignedOf;
template <> struct UnsignedOf<1> { using type = uint8_t; };
template <> struct UnsignedOf<2> { using type = uint16_t; };
template <> struct UnsignedOf<4> { using type = uint32_t; };
template <> struct UnsignedOf<8> { using type = uint64_t; };

template <class T> void run_where(const ElementwiseRun& rows, const double*) {
  // No branch, which a condition without a pattern would make slow.
  elementwise_run<T, bool, T, T>(rows, [](bool condition, T a, T b) {
    const T mask = static_cast<T>(-static_cast<T>(condition));
    return static_cast<T>((a & mask) | (b & static_cast<T>(~mask)));
  });
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
    .on = {{&cpu::elementwise_kernel}, {&cuda::elementwise_kernel}},
    .body = &kWhereBody,
    .grad =
        [](const GradContext& g) {
          if (g.needs(1)) g.set_reduced(1, where(g.input(0), g.grad_out(), 0.0));
          if (g.needs(2)) {
            const Tensor zero = Tensor::zeros({}, {g.grad_out().dtype(), g.grad_out().device()});
            g.set_reduced(2, where(g.input(0), zero, g.grad_out()));
          }
        },
    .lower = [](LoopBuilder& b) { b.output(0, scalar::select(b.input(0), b.input(1), b.input(2))); },
};

// ---- Public functions

Tensor equal(TensorArg a, TensorArg b) { return call_promoted(kEqual, a, b, Promotion::kCompare); }
Tensor not_equal(TensorArg a, TensorArg b) { return call_promoted(kNotEqual, a, b, Promotion::kCompare); }
Tensor less(TensorArg a, TensorArg b) { return call_promoted(kLess, a, b, Promotion::kCompare); }
Tensor less_equal(TensorArg a, TensorArg b) { return call_promoted(kLessEqual, a, b, Promotion::kCompare); }
Tensor greater(TensorArg a, TensorArg b) { return call_promoted(kLess, b, a, Promotion::kCompare); }
Tensor greater_equal(TensorArg a, TensorArg b) { return call_promoted(kLessEqual, b, a, Promotion::kCompare); }

Tensor where(TensorArg condition, TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_defined("where", operand);
  const DType dtype = result_dtype(a.tensor, b.tensor);
  const Tensor left = a.tensor.to(dtype, a.where), right = b.tensor.to(dtype, b.where);
  return call(kWhere, {condition, {left, a.where}, {right, b.where}});
}
Tensor masked_fill(TensorArg x, TensorArg mask, Scalar value) {
  for (const TensorArg& operand : {x, mask}) require_defined("masked_fill", operand);
  require_in_range("masked_fill", value, x.tensor.dtype(), x.where);
  return where(mask, {Tensor::full({}, value, {x.tensor.dtype(), x.tensor.device()}), x.where}, x);
}

constexpr OpList kComparisonOps = {&kEqual, &kNotEqual, &kLess, &kLessEqual, &kWhere};

}  // namespace rondo::ops
