// How an elementwise op is written: one scalar body, from which the eager kernel, the lowering for generated kernels
// and shape inference all follow.
//
//   constexpr OpDef kTanh = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::tanh(x); }>(
//       "tanh", {.outputs = kFirst}, [](const GradContext& g) { ... });
#pragma once

#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::ops {

enum Domain { kFloatingOnly, kNumeric };  // kNumeric: floats, i64, i32 and u8

template <Domain kDomain, int kInputs, int kScalars, auto kBody> struct ElementwiseImpl {
  static_assert(kInputs >= 1 && kInputs <= kMaxElementwiseInputs);
  static void infer(InferContext& c) {
    Dims sizes = c.sizes(0);
    for (int i = 1; i < kInputs; ++i) {
      if (c.dtype(i) != c.dtype(0)) c.fail("operands must have the same dtype");
      if (!(c.sizes(i) == sizes) && !broadcast_shapes(Dims(sizes), c.sizes(i), sizes))
        c.fail("shapes do not broadcast");
    }
    if (kDomain == kFloatingOnly) c.require_floating(0);
    if (c.dtype(0) == kBool) c.fail("arithmetic on bool; cast to a number first");
    c.output(0, c.dtype(0), sizes);
  }

  template <class T> static void run(const ElementwiseRun& rows, const double* scalars) {
    using C = ComputeType<T>;
    const auto loop = [&](const auto& body) {
      if constexpr (kInputs == 1) elementwise_run<T, T>(rows, body);
      else if constexpr (kInputs == 2) elementwise_run<T, T, T>(rows, body);
      else elementwise_run<T, T, T, T>(rows, body);
    };
    if constexpr (kScalars == 0) {
      loop([](auto... x) { return kBody(x...); });
    } else if constexpr (kScalars == 1) {
      const C s = convert<C>(scalars[0]);
      loop([s](auto... x) { return kBody(x..., s); });
    } else {
      static_assert(kScalars == 2);
      const C s = convert<C>(scalars[0]), t = convert<C>(scalars[1]);
      loop([s, t](auto... x) { return kBody(x..., s, t); });
    }
  }
  static constexpr ElementwiseBody kHostBody = [] {
    constexpr auto run_of = [](auto tag) { return &run<typename decltype(tag)::type>; };
    if constexpr (kDomain == kFloatingOnly) return elementwise_body<double, float, BFloat16, Float16>(kInputs, run_of);
    else return elementwise_body<double, float, BFloat16, Float16, int64_t, int32_t, uint8_t>(kInputs, run_of);
  }();

  static void lower(LoopBuilder& b) {
    [&]<int... I, int... S>(std::integer_sequence<int, I...>, std::integer_sequence<int, S...>) {
      b.output(0, kBody(b.input(I)..., b.scalar(S)...));
    }
    (std::make_integer_sequence<int, kInputs>(), std::make_integer_sequence<int, kScalars>());
  }
};

// Defines an elementwise op. `saved` and `grad` are those of OpDef. Only a gradient op without `grad` needs
// `decompose`: its own gradient is that of its decomposition.
template <Domain kDomain, int kInputs, int kScalars, auto kBody>
constexpr OpDef elementwise(const char* name, SavedSpec saved, GradFn grad, DecomposeFn decompose = nullptr,
                            AmpPolicy amp = AmpPolicy::kNone) {
  using Impl = ElementwiseImpl<kDomain, kInputs, kScalars, kBody>;
  return OpDef{.name = name,
               .kind = OpKind::kElementwise,
               .saved = saved,
               .amp = amp,
               .infer = &Impl::infer,
               .host = {&cpu::elementwise_kernel},
               .body = &Impl::kHostBody,
               .decompose = decompose,
               .grad = grad,
               .lower = &Impl::lower};
}

// Defines an elementwise op whose result has no gradient. Impl has `infer`, kHostBody and `lower`, as ElementwiseImpl
// has.
template <class Impl> constexpr OpDef elementwise_without_gradient(const char* name) {
  return OpDef{.name = name,
               .kind = OpKind::kElementwise,
               .infer = &Impl::infer,
               .host = {&cpu::elementwise_kernel},
               .body = &Impl::kHostBody,
               .lower = &Impl::lower};
}

// Returns `op`, marked as an op that a product can apply to its own result.
constexpr OpDef as_epilogue(Epilogue epilogue, OpDef op) {
  op.epilogue = epilogue;
  return op;
}

}  // namespace rondo::ops
