// Predicates: of each element (isfinite, isinf, isnan) or over many elements (any, all). Their results are bool.
#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/reduction_def.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

template <auto kBody> struct PredicateImpl {
  static void infer(InferContext& c) { c.output(0, kBool, c.sizes(0)); }
  template <class T> static void run(const ElementwiseRun& rows, const double*) {
    elementwise_run<bool, T>(rows, kBody);
  }
  static constexpr ElementwiseBody kHostBody = body_of_any_dtype(
      1, [](auto tag) { return &run<typename decltype(tag)::type>; });
  static void lower(LoopBuilder& b) {
    LoopValue x = b.input(0);
    if (x.type == kBool) x = b.emit(LoopOp::kCast, kF32, x);
    const bool integer = !is_floating(x.type);
    b.output(0, integer ? b.constant(kBody(int64_t{0}) ? 1 : 0, kBool) : kBody(x));
  }
};
template <auto kBody> constexpr OpDef predicate(const char* name) {
  return elementwise_without_gradient<PredicateImpl<kBody>>(name);
}

// An integer is finite, and neither infinite nor NaN.
struct IsFinite {
  template <class T> auto operator()(T x) const {
    if constexpr (std::is_integral_v<T>) return true;
    else return scalar::lt(scalar::abs(x), scalar::constant(x, scalar::kInf));
  }
};
struct IsInf {
  template <class T> auto operator()(T x) const {
    if constexpr (std::is_integral_v<T>) return false;
    else return scalar::eq(scalar::abs(x), scalar::constant(x, scalar::kInf));
  }
};
struct IsNan {
  template <class T> auto operator()(T x) const {
    if constexpr (std::is_integral_v<T>) return false;
    else return scalar::ne(x, x);
  }
};
constexpr OpDef kIsFinite = predicate<IsFinite{}>("isfinite");
constexpr OpDef kIsInf = predicate<IsInf{}>("isinf");
constexpr OpDef kIsNan = predicate<IsNan{}>("isnan");

// ---- any and all

namespace {

void infer_bool(InferContext& c) {
  reduction_infer(c);
  c.output(0, kBool, Dims(c.outputs()[0].sizes));
}
LoopValue truth_of(LoopBuilder& b) {
  const LoopValue x = b.input(0);
  return x.type == kBool ? x : scalar::ne(x, scalar::constant(x, 0.0));
}
// The decomposition counts true elements. The count may be rounded, but it is 0 only if there are none.
Tensor truths(const Tensor& x) { return x.to(kBool).to(kF32); }
Tensor count(const Tensor& ones, const Attrs& attrs) { return call(kSum, {ones}, attrs); }

}  // namespace

// ints: {mask, keepdim}, as for every reduction
constexpr OpDef kAnyTrue = {
    .name = "any",
    .kind = OpKind::kReduction,
    .infer = &infer_bool,
    .host = {&cpu::any_kernel},
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = count(truths(in[0]), attrs).to(kBool); },
    .lower = [](LoopBuilder& b) { b.output(0, b.reduce(LoopOp::kReduceMax, truth_of(b))); },
    .trait = trait::Fold{},
};
constexpr OpDef kAllTrue = {
    .name = "all",
    .kind = OpKind::kReduction,
    .infer = &infer_bool,
    .host = {&cpu::all_kernel},
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = (1.0 - truths(count(1.0 - truths(in[0]), attrs))).to(kBool); },
    .lower = [](LoopBuilder& b) { b.output(0, b.reduce(LoopOp::kReduceMin, truth_of(b))); },
    .trait = trait::Fold{},
};

Tensor isfinite(TensorArg x) { return call(kIsFinite, {x}); }
Tensor isinf(TensorArg x) { return call(kIsInf, {x}); }
Tensor isnan(TensorArg x) { return call(kIsNan, {x}); }
Tensor any(TensorArg x, const ReduceDims& dims, bool keepdim) {
  return call(kAnyTrue, {x}, reduction_attrs("any", x, dims, keepdim));
}
Tensor all(TensorArg x, const ReduceDims& dims, bool keepdim) {
  return call(kAllTrue, {x}, reduction_attrs("all", x, dims, keepdim));
}

constexpr OpList kPredicateOps = {&kIsFinite, &kIsInf, &kIsNan, &kAnyTrue, &kAllTrue};

}  // namespace rondo::ops
