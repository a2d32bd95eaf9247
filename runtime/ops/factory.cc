#include "rondo/runtime/ops/factory.h"

#include "rondo/runtime/lowering.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

constexpr OpDef kArange = {
    .name = "arange",
    .kind = OpKind::kElementwise,
    .infer =
        [](InferContext& c) {
          if (c.has(0) && (c.dtype(0) != kF64 || !c.sizes(0).empty())) c.fail("the operand must be an f64 scalar");
          if (c.attrs().ints.size() < 3 || c.attrs().floats.size() != 2) c.fail("numbers are missing");
          if (c.integer(1) < 0) c.fail("a negative number of elements");
          c.output(0, static_cast<DType>(-c.integer(0)), {c.integer(1)});
        },
    .on = {{&cpu::arange_kernel}, {&cuda::arange_kernel}},
    .lower =
        [](LoopBuilder& b) {
          const DType compute = b.integer(2) != 0 ? kI64 : kF64;
          const auto in_compute = [&](LoopValue v) { return b.emit(LoopOp::kCast, compute, v); };
          const LoopValue first = in_compute(b.scalar(0)), step = in_compute(b.scalar(1));
          b.output(0, first + in_compute(b.index(0)) * step);
        },
};

Attrs arange_attrs(DType dtype, int64_t n, Scalar first, Scalar step) {
  const bool whole = first.is_integer() && step.is_integer();
  Attrs attrs{.ints = {-static_cast<int64_t>(dtype), n, whole}, .floats = {first.real(), step.real()}};
  if (whole && !(is_exact_attribute(first) && is_exact_attribute(step)))
    attrs.ints.append({first.integer(), step.integer()});
  return attrs;
}

Attrs fill_attrs(Scalar value) {
  return is_exact_attribute(value) ? Attrs{.floats = {value.real()}} : Attrs{.ints = {value.integer()}};
}

constexpr OpList kFactoryOps = {&kArange};

}  // namespace rondo::ops
