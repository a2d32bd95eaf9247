#include "rondo/runtime/ops/factory.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/op/lowering.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/attributes.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
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
    .host = {&cpu::arange_kernel},
    .lower =
        [](LoopBuilder& b) {
          const DType compute = b.integer(2) != 0 ? kI64 : kF64;
          const auto in_compute = [&](LoopValue v) { return b.emit(LoopOp::kCast, compute, v); };
          const LoopValue first = in_compute(b.scalar(0)), step = in_compute(b.scalar(1));
          b.output(0, first + in_compute(b.index(0)) * step);
        },
};

void throw_wrong_step(double first, double end, double step, std::source_location where) {
  throw_op_error("Tensor::arange", absl::StrCat("a step of ", step, " does not lead from ", first, " to ", end), where);
}

int64_t arange_size(double first, double end, double step, std::source_location where) {
  constexpr const char* kName = "Tensor::arange";
  const FloatingPointScope floating_point;
  const double n = std::ceil((floating_point.here(end) - first) / step);
  if (!(step != 0) || !std::isfinite(first) || !std::isfinite(end) || !std::isfinite(step))
    throw_op_error(
        kName, absl::StrCat("needs finite bounds and a finite step other than 0, got ", first, ", ", end, ", ", step),
        where);
  if (end != first && (end > first) != (step > 0)) throw_wrong_step(first, end, step, where);
  if (n >= 0x1p62) throw_op_error(kName, absl::StrCat(n, " elements are more than memory can hold"), where);
  return static_cast<int64_t>(std::max(n, 0.0));
}

Attrs arange_attrs(DType dtype, int64_t n, Scalar first, Scalar step) {
  const bool whole = first.is_integer() && step.is_integer();
  Attrs attrs{.ints = {-static_cast<int64_t>(dtype), n, whole}, .floats = {first.real(), step.real()}};
  if (whole && !(is_exact_attribute(first) && is_exact_attribute(step)))
    attrs.ints.append({first.integer(), step.integer()});
  return attrs;
}

namespace {

template <size_t kFloats> void filled_infer(InferContext& c) {
  if (c.has(0) && (c.dtype(0) != kF64 || !c.sizes(0).empty())) c.fail("the operand must be an f64 scalar");
  if (c.attrs().ints.empty() || c.attrs().floats.size() != kFloats) c.fail("numbers are missing");
  Dims sizes;
  for (size_t i = 1; i < c.attrs().ints.size(); ++i) sizes.push_back(c.attrs().ints[i]);
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; })) c.fail("a negative size");
  c.output(0, static_cast<DType>(-c.integer(0)), sizes);
}

}  // namespace

constexpr OpDef kFilled = {
    .name = "full",
    .kind = OpKind::kElementwise,
    .infer = &filled_infer<1>,
    .host = {&cpu::fill_kernel},
    .lower = [](LoopBuilder& b) { b.output(0, b.scalar(0)); },
    .trait = trait::Fill{.first_size_int = 1},
};

constexpr OpDef kZeros = {
    .name = "zeros",
    .kind = OpKind::kElementwise,
    .infer = &filled_infer<0>,
    .host = {&cpu::zeros_kernel},
    .lower = [](LoopBuilder& b) { b.output(0, b.constant(0, kF64)); },
    .trait = trait::Fill{.first_size_int = 1, .zeros = true},
};

Tensor record_filled(const OpDef& op, const Dims& sizes, Scalar value, TensorOptions options) {
  Attrs attrs = fill_attrs(value);
  if (sizes.empty() || !attrs.ints.empty()) return Tensor();
  if (&op == &kZeros) attrs.floats = {};
  attrs.ints.push_back(-static_cast<int64_t>(options.dtype));
  attrs.ints.append(std::span(sizes.begin(), sizes.end()));
  const DeviceScope device(options.device);
  return call(op, {}, std::move(attrs));
}

Tensor number_tensor(Scalar value, const Dims& sizes, TensorOptions options) {
  if (active_recorder() == nullptr) return Tensor::full({}, value, options);
  if (sizes.empty()) return reshape(number_tensor(value, {1}, options), {});
  if (is_exact_attribute(value)) return Tensor::full(sizes, value, options);
  if (options.dtype == kI64) {
    const int64_t low = value.integer() & UINT32_MAX;
    return add(Tensor::full(sizes, value.integer() - low, options), low);
  }
  return visit_dtype(options.dtype, [&](auto tag) {
    const auto element = convert<typename decltype(tag)::type>(value.integer());
    return Tensor::full(sizes, static_cast<double>(element), options);
  });
}

Tensor filled(Tensor made, Scalar value) {
  const Scalar known = value.visit([](auto number) { return Scalar(number); });  // kernels take plain numbers
  run_kernel({kFill, {}, {&made, 1}, fill_attrs(known), {}});
  return made;
}

Attrs fill_attrs(Scalar value) {
  return is_exact_attribute(value) ? Attrs{.floats = {value.real()}} : Attrs{.ints = {value.integer()}};
}

constexpr OpList kFactoryOps = {&kArange, &kFilled, &kZeros};

}  // namespace rondo::ops
