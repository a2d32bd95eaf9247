// How an elementwise op is written: one scalar body, from which the eager CPU kernel, the lowering for generated
// kernels and shape inference all follow.
//
//   constexpr OpDef kTanh = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::tanh(x); }>(
//       "tanh", {.outputs = kFirst}, [](const GradContext& g) { ... });
#pragma once

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/lowering.h"
#include "rondo/runtime/op.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/scalar_math.h"

namespace rondo::ops {

enum Domain { kFloatingOnly, kNumeric };  // kNumeric: also i64, i32, u8

// A scalar attribute in a kernel's type.
template <class C> C scalar_as(double value) {
  if constexpr (std::is_integral_v<C>) return cpu::to_integer<C>(value);
  else return static_cast<C>(value);
}

// Masks of SavedSpec.
inline constexpr uint32_t kFirst = 1, kSecond = 2, kThird = 4;

template <Domain kDomain, int kInputs, int kScalars, auto kBody> struct ElementwiseImpl {
  static_assert(kInputs == 1 || kInputs == 2);
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

  template <class T> static void run(const KernelContext& context) {
    using C = cpu::ComputeType<T>;
    const auto loop = [&](const auto& body) {
      if constexpr (kInputs == 1) cpu::elementwise<T, T>(context, body);
      else cpu::elementwise<T, T, T>(context, body);
    };
    if constexpr (kScalars == 0) {
      loop([](auto... x) { return kBody(x...); });
    } else if constexpr (kScalars == 1) {
      const C s = scalar_as<C>(context.attrs.floats[0]);
      loop([s](auto... x) { return kBody(x..., s); });
    } else {
      static_assert(kScalars == 2);
      const C s = scalar_as<C>(context.attrs.floats[0]), t = scalar_as<C>(context.attrs.floats[1]);
      loop([s, t](auto... x) { return kBody(x..., s, t); });
    }
  }

  static void kernel(const KernelContext& context) {
    const DType dtype = context.out().dtype();
    if constexpr (kDomain == kNumeric) {
      if (dtype == kI64) return run<int64_t>(context);
      if (dtype == kI32) return run<int32_t>(context);
      if (dtype == kU8) return run<uint8_t>(context);
    }
    visit_floating(dtype, [&](auto tag) { run<typename decltype(tag)::type>(context); });
  }

  static void lower(LoopBuilder& b) {
    [&]<int... I, int... S>(std::integer_sequence<int, I...>, std::integer_sequence<int, S...>) {
      b.output(0, kBody(b.input(I)..., b.scalar(S)...));
    }
    (std::make_integer_sequence<int, kInputs>(), std::make_integer_sequence<int, kScalars>());
  }
};

// `saved` and `grad` as in OpDef. `decompose` is needed only by gradient ops, to be differentiated once more.
template <Domain kDomain, int kInputs, int kScalars, auto kBody>
constexpr OpDef elementwise(const char* name, SavedSpec saved, GradFn grad, DecomposeFn decompose = nullptr,
                            AmpPolicy amp = AmpPolicy::kNone) {
  using Impl = ElementwiseImpl<kDomain, kInputs, kScalars, kBody>;
  return OpDef{.name = name,
               .kind = OpKind::kElementwise,
               .saved = saved,
               .amp = amp,
               .infer = &Impl::infer,
               .kernel = {&Impl::kernel},
               .decompose = decompose,
               .grad = grad,
               .lower = &Impl::lower};
}

// `op`, which a product can also do on its own result.
constexpr OpDef as_epilogue(Epilogue epilogue, OpDef op) {
  op.epilogue = epilogue;
  return op;
}

}  // namespace rondo::ops
