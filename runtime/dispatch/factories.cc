// Tensor's factories. Most fill memory directly; those that draw random numbers call ops.
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/factory.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/promotion.h"
#include "rondo/runtime/ops/random_draw.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/random/random.h"
#include "rondo/runtime/random/random_state.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo {

namespace {
// Throws Error, with the name of the factory, if a size is negative or the tensor is larger than any memory.
void require_sizes(const char* factory, const Dims& sizes, DType dtype, std::source_location where) {
  for (int64_t d : sizes)
    if (d < 0) throw_op_error(factory, "negative size in " + rondo::to_string(sizes), where);
  constexpr int64_t kMaxBytes = int64_t{1} << 60;
  const int64_t numel = checked_numel(sizes);
  if (numel < 0 || numel > kMaxBytes / static_cast<int64_t>(size_of(dtype)))
    throw_op_error(factory, rondo::to_string(sizes) + " is more than memory can hold", where);
}
// Allocates the result of a factory.
Tensor made(const char* factory, const Dims& sizes, TensorOptions options, std::source_location where) {
  require_sizes(factory, sizes, options.dtype, where);
  const size_t bytes = static_cast<size_t>(sizes.numel()) * size_of(options.dtype);
  const memory::Cause cause("", "empty", {});
  return Tensor::over(Storage::allocate(bytes, options.device), 0, sizes, contiguous_strides(sizes), options.dtype);
}
// Makes a tensor filled with `value`. In a recording this is a call of `op`.
Tensor filled(const char* factory, const OpDef& op, const Dims& sizes, Scalar value, TensorOptions options,
              std::source_location where) {
  const FloatingPointScope floating_point;
  if (!is_floating(options.dtype)) ops::require_in_range(factory, value, options.dtype, where);
  require_sizes(factory, sizes, options.dtype, where);
  const Tensor recorded = active_recorder() == nullptr ? Tensor() : ops::record_filled(op, sizes, value, options);
  return recorded.defined() ? recorded : ops::filled(made(factory, sizes, options, where), value);
}
}  // namespace

Tensor Tensor::empty(const Dims& sizes, TensorOptions options, std::source_location where) {
  return made("Tensor::empty", sizes, options, where);
}
Tensor Tensor::zeros(const Dims& sizes, TensorOptions options, std::source_location where) {
  return filled("Tensor::zeros", ops::kZeros, sizes, 0.0, options, where);
}
Tensor Tensor::ones(const Dims& sizes, TensorOptions options, std::source_location where) {
  return filled("Tensor::ones", ops::kFilled, sizes, 1.0, options, where);
}
Tensor Tensor::full(const Dims& sizes, Scalar value, TensorOptions options, std::source_location where) {
  return filled("Tensor::full", ops::kFilled, sizes, value, options, where);
}

Tensor Tensor::copy_of(const void* values, size_t count, DType dtype, const Dims& sizes, TensorOptions options,
                       std::source_location where) {
  if (static_cast<int64_t>(count) != checked_numel(sizes))
    throw_op_error("Tensor::from", absl::StrCat(count, " values for shape ", rondo::to_string(sizes)), where);
  const Device first = dtype == options.dtype ? options.device : kCPU;
  Tensor result = made("Tensor::from", sizes, {dtype, first}, where);
  {
    const memory::Cause cause("", "from", {});
    copy_bytes(first, result.mutable_address(), kCPU, values, static_cast<size_t>(result.nbytes()));
  }
  if (dtype == options.dtype) return result;
  const NoGrad off;
  const RecorderScope run(nullptr);
  return result.to(options.dtype, where).to(options.device, where);
}
Tensor Tensor::from(std::initializer_list<double> literals, const Dims& sizes, Device device,
                    std::source_location where) {
  const FloatingPointScope floating_point;
  const std::vector<float> rounded(literals.begin(), literals.end());
  return copy_of(rounded.data(), rounded.size(), kF32, sizes, {kF32, device}, where);
}
namespace {
// Makes a tensor of n elements: element i is first + i * step.
Tensor counted(const char* factory, int64_t n, Scalar first, Scalar step, TensorOptions options,
               std::source_location where) {
  Attrs attrs = ops::arange_attrs(options.dtype, n, first, step);
  if (active_recorder() != nullptr && attrs.ints.size() == 3) {
    require_sizes(factory, {n}, options.dtype, where);
    const DeviceScope device(options.device);
    return call(ops::kArange, {}, std::move(attrs));
  }
  for (size_t i = 0; i < attrs.floats.size(); ++i)
    attrs.floats[i] = attrs.floats[i].value();  // kernels take plain numbers
  Tensor result = made(factory, {n}, options, where);
  run_kernel({ops::kArange, {}, {&result, 1}, attrs, {}});
  return result;
}
}  // namespace

Tensor Tensor::arange(Scalar begin, Scalar end, Scalar step, ArangeOptions given, std::source_location where) {
  constexpr const char* kName = "Tensor::arange";
  const bool integers = begin.is_integer() && end.is_integer() && step.is_integer();
  const TensorOptions options{given.dtype.value_or(integers ? kI64 : kF32), given.device};
  if (integers) {
    const int64_t first = begin.integer(), last = end.integer(), by = step.integer();
    if (by == 0) throw_op_error(kName, "the step must not be 0", where);
    // The span is computed with unsigned numbers, because it may exceed an int64_t.
    const uint64_t span = by > 0 ? static_cast<uint64_t>(last) - static_cast<uint64_t>(first)
                                 : static_cast<uint64_t>(first) - static_cast<uint64_t>(last);
    const uint64_t size = by > 0 ? static_cast<uint64_t>(by) : -static_cast<uint64_t>(by);
    if (first != last && (first < last) != (by > 0)) ops::throw_wrong_step(begin.real(), end.real(), by, where);
    const auto n = static_cast<int64_t>(first == last ? 0 : (span - 1) / size + 1);
    return counted(kName, n, begin, step, options, where);
  }
  const int64_t n = ops::arange_size(begin.real(), end.real(), step.real(), where);
  return counted(kName, n, begin.real(), step.real(), options, where);
}
Tensor Tensor::arange(Scalar begin, Scalar end, ArangeOptions options, std::source_location where) {
  return arange(begin, end, 1, options, where);
}
Tensor Tensor::arange(Scalar end, ArangeOptions options, std::source_location where) {
  return arange(0, end, 1, options, where);
}

namespace {
void require_kind(const char* op, DType dtype, bool floating, std::source_location where) {
  const char* const kind = floating ? "a floating one, see randint" : "an integer one";
  if (is_floating(dtype) != floating)
    throw_op_error(op, absl::StrCat("the dtype must be ", kind, "; it is ", std::string(name_of(dtype))), where);
}

// Checks the sizes and returns the random state of a random tensor. Unlike the results of the other factories, this
// tensor is the result of an op, so that regions record it.
RandomState random_state(const char* factory, const Dims& sizes, TensorOptions options, Generator* generator,
                         std::source_location where) {
  require_sizes(factory, sizes, options.dtype, where);
  return next_random_state(generator != nullptr ? *generator : default_generator(), options.device);
}
Tensor drawn(const char* factory, ops::Distribution distribution, const Dims& sizes, TensorOptions options,
             Generator* generator, std::source_location where) {
  require_kind(factory, options.dtype, true, where);
  const RandomState random = random_state(factory, sizes, options, generator, where);
  Attrs attrs{.ints = {static_cast<int64_t>(distribution), random.increment, static_cast<int64_t>(options.dtype)}};
  attrs.ints.append(std::span(sizes.begin(), sizes.end()));
  return call(ops::kDraw, {{random.state, where}}, std::move(attrs));
}
}  // namespace

Tensor Tensor::randn(const Dims& sizes, TensorOptions options, Generator* generator, std::source_location where) {
  return drawn("Tensor::randn", ops::Distribution::kNormal, sizes, options, generator, where);
}
Tensor Tensor::rand(const Dims& sizes, TensorOptions options, Generator* generator, std::source_location where) {
  return drawn("Tensor::rand", ops::Distribution::kUniform, sizes, options, generator, where);
}
Tensor Tensor::randint(int64_t low, int64_t high, const Dims& sizes, TensorOptions options, Generator* generator,
                       std::source_location where) {
  constexpr const char* kName = "Tensor::randint";
  require_kind(kName, options.dtype, false, where);
  if (high <= low) throw_op_error(kName, absl::StrCat("empty range [", low, ", ", high, ")"), where);
  for (const int64_t bound : {low, high - 1}) {
    ops::require_in_range(kName, bound, options.dtype, where);
    if (bound < 0 && options.dtype == kU8)
      throw_op_error(kName, absl::StrCat("the value ", bound, " is out of range for u8"), where);
  }
  // The span is computed with unsigned numbers, because it may exceed an int64_t.
  const auto span = static_cast<int64_t>(static_cast<uint64_t>(high) - static_cast<uint64_t>(low));
  const RandomState random = random_state(kName, sizes, options, generator, where);
  Attrs attrs{.ints = {random.increment, static_cast<int64_t>(options.dtype), low, span}};
  attrs.ints.append(std::span(sizes.begin(), sizes.end()));
  return call(ops::kDrawIntegers, {{random.state, where}}, std::move(attrs));
}

}  // namespace rondo
