// Rotary position embedding (Su et al., "RoFormer", 2021), in the half-split layout of GPT-NeoX and Llama: dimensions i
// and i + D/2 are rotated together by the angle t * base^(-2i/D).
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

namespace {
// Computes the rotation with slices: (a, b) -> (a cos - b sin, b cos + a sin).
Tensor turn(const Tensor& given, const Tensor& cos, const Tensor& sin, bool inverse) {
  const Tensor x = given.to(compute_dtype(given.dtype()));
  const int64_t half = x.sizes().back() / 2;
  const Tensor a = slice(x, -1, {0, half}), b = slice(x, -1, {half, 2 * half});
  const Tensor s = inverse ? neg(sin) : sin;
  const Tensor parts[] = {a * cos - b * s, b * cos + a * s};
  return cat(parts, -1).to(given.dtype());
}
}  // namespace

// Inputs x (..., T, D), cos and sin (T, D/2) in x's compute dtype. ints: {inverse}. The op is linear in x and
// orthogonal, so its gradient is the inverse rotation.
constexpr OpDef kRotary = {
    .name = "rotary",
    .kind = OpKind::kOpaque,
    .saved = {.inputs = kSecond | kThird},
    .infer =
        [](InferContext& c) {
          c.require_floating(0);
          const Dims& x = c.sizes(0);
          if (x.rank() < 2 || x.back() % 2 != 0) c.fail("x must have shape (..., T, D) with an even D");
          const Dims table = {x[x.rank() - 2], x.back() / 2};
          for (int i = 1; i < 3; ++i)
            if (!(c.sizes(i) == table) || c.dtype(i) != compute_dtype(c.dtype(0)))
              c.fail("cos and sin must have shape (T, D/2) and the compute dtype of x");
          c.output(0, c.dtype(0), x);
        },
    .host = {&cpu::rotary_kernel},
    .decompose = [](std::span<const Tensor> in, const Attrs& attrs,
                    std::span<Tensor> out) { out[0] = turn(in[0], in[1], in[2], attrs.ints[0] != 0); },
    .grad =
        [](const GradContext& g) {
          invariant(!g.needs(1) && !g.needs(2), "rotary's tables need a gradient: rotary_embedding() goes by slices");
          g.set(0, call(kRotary, {g.grad_out(), g.input(1), g.input(2)}, {.ints = {!g.integer(0)}}));
        },
    .fuse_parts = false,
};

RotaryTables rotary_tables(int64_t T, int64_t D, double base, int64_t start, TensorOptions options) {
  if (D <= 0 || D % 2 != 0) throw Error(absl::StrCat("rotary_tables: D must be even and positive, got ", D));
  if (T < 0) throw Error(absl::StrCat("rotary_tables: T must not be negative, got ", T));
  const FloatingPointScope floating_point;
  const NoGrad off;
  const RecorderScope run(nullptr);
  // The rates and angles are f64, because an angle in f32 would be off by t * 2^-24.
  std::vector<double> rates;
  for (int64_t i = 0; i < D / 2; ++i)
    rates.push_back(scalar::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(D)));
  const Tensor position = add(Tensor::arange(T, {kF64, options.device}), static_cast<double>(start));
  const Tensor angle = unsqueeze(position, 1) * Tensor::from(rates, {1, D / 2}, options.device);
  const DType dtype = compute_dtype(options.dtype);
  return {cos(angle).to(dtype), sin(angle).to(dtype)};
}

Tensor rotary_embedding(TensorArg x, const RotaryTables& tables) {
  // The op does not save x, but the gradient of learnt angles needs it. So the angles are applied by slices.
  if (grad_enabled() && x.tensor.defined() && tables.cos.defined() && tables.sin.defined() &&
      (tables.cos.requires_grad() || tables.sin.requires_grad())) {
    const Tensor* const operands[] = {&x.tensor, &tables.cos, &tables.sin};
    const Attrs attrs{.ints = {0}};
    InferContext shapes(kRotary, operands, attrs, x.where);
    kRotary.infer(shapes);
    return turn(x.tensor, tables.cos, tables.sin, false);
  }
  return call(kRotary, {x, {tables.cos, x.where}, {tables.sin, x.where}}, {.ints = {0}});
}

Tensor rotary_embedding(TensorArg x, int64_t start, double base) {
  require_defined("rotary", x);
  if (x.tensor.rank() < 2 || x.tensor.sizes().back() % 2 != 0 || x.tensor.sizes().back() == 0)
    throw_op_error("rotary", "x must have shape (..., T, D) with an even, positive D", x.where);
  return rotary_embedding(
      x, rotary_tables(x.tensor.size(-2), x.tensor.size(-1), base, start, {x.tensor.dtype(), x.tensor.device()}));
}

constexpr OpList kRotaryOps = {&kRotary};

}  // namespace rondo::ops
