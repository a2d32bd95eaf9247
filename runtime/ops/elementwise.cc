// Elementwise arithmetic and activations. To add one: an OpDef here, its line in table.cc, its function in ops.h.
#include <cmath>

#include "rondo/runtime/ops/elementwise_def.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"

namespace rondo::ops {

// ---- Two tensors

constexpr OpDef kAdd = as_epilogue(Epilogue::kAdd, elementwise<kNumeric, 2, 0, [](auto a, auto b) { return a + b; }>(
                                                       "add", {}, [](const GradContext& g) {
                                                         if (g.needs(0)) g.set_reduced(0, g.grad_out());
                                                         if (g.needs(1)) g.set_reduced(1, g.grad_out());
                                                       }));
constexpr OpDef kSub = elementwise<kNumeric, 2, 0, [](auto a, auto b) { return a - b; }>(
    "sub", {}, [](const GradContext& g) {
      if (g.needs(0)) g.set_reduced(0, g.grad_out());
      if (g.needs(1)) g.set_reduced(1, neg(g.grad_out()));
    });
constexpr OpDef kMul = elementwise<kNumeric, 2, 0, [](auto a, auto b) { return a * b; }>(
    "mul", {.inputs = kFirst | kSecond}, [](const GradContext& g) {
      if (g.needs(0)) g.set_reduced(0, g.grad_out() * g.input(1));
      if (g.needs(1)) g.set_reduced(1, g.grad_out() * g.input(0));
    });
// Integers divide towards zero; dividing one by 0 gives 0.
struct Divide {
  template <class T> auto operator()(T a, T b) const {
    // The lowest number over -1 has no quotient of its own type (and traps): it wraps around.
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>)
      return static_cast<T>(b == 0 ? 0 : b == -1 ? T(0 - static_cast<std::make_unsigned_t<T>>(a)) : a / b);
    else if constexpr (std::is_integral_v<T>) return static_cast<T>(b == 0 ? 0 : a / b);
    else return a / b;
  }
};
constexpr OpDef kDiv = elementwise<kNumeric, 2, 0, Divide{}>(
    "div", {.inputs = kFirst | kSecond}, [](const GradContext& g) {
      const Tensor quotient = g.grad_out() / g.input(1);
      if (g.needs(0)) g.set_reduced(0, quotient);
      if (g.needs(1)) g.set_reduced(1, neg(quotient * (g.input(0) / g.input(1))));
    });

// ---- A tensor and a run-time scalar

constexpr OpDef kAddScalar = elementwise<kNumeric, 1, 1, [](auto a, auto s) { return a + s; }>(
    "add_scalar", {}, [](const GradContext& g) { g.set(0, g.grad_out()); });
constexpr OpDef kMulScalar = elementwise<kNumeric, 1, 1, [](auto a, auto s) { return a * s; }>(
    "mul_scalar", {}, [](const GradContext& g) { g.set(0, g.grad_out() * g.scalar(0)); });
constexpr OpDef kRsubScalar = elementwise<kNumeric, 1, 1, [](auto a, auto s) { return s - a; }>(
    "rsub_scalar", {}, [](const GradContext& g) { g.set(0, neg(g.grad_out())); });
constexpr OpDef kRdivScalar = elementwise<kFloatingOnly, 1, 1, [](auto a, auto s) { return s / a; }>(
    "rdiv_scalar", {.inputs = kFirst, .outputs = kFirst},
    [](const GradContext& g) { g.set(0, neg(g.grad_out() * (g.output(0) / g.input(0)))); });

// ---- One tensor

constexpr OpDef kNeg = elementwise<kNumeric, 1, 0, [](auto x) { return -x; }>(
    "neg", {}, [](const GradContext& g) { g.set(0, neg(g.grad_out())); });
constexpr OpDef kExp = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::exp(x); }>(
    "exp", {.outputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() * g.output(0)); });
constexpr OpDef kLog = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::log(x); }>(
    "log", {.inputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() / g.input(0)); }, nullptr,
    AmpPolicy::kFloat32);
constexpr OpDef kSqrt = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::sqrt(x); }>(
    "sqrt", {.outputs = kFirst}, [](const GradContext& g) { g.set(0, g.grad_out() / g.output(0) * 0.5); });
constexpr OpDef kRsqrt = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::rsqrt(x); }>(
    "rsqrt", {.outputs = kFirst}, [](const GradContext& g) {
      const Tensor& y = g.output(0);
      g.set(0, g.grad_out() * (y * y * y) * -0.5);
    });
constexpr OpDef kTanh = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::tanh(x); }>(
    "tanh", {.outputs = kFirst},
    [](const GradContext& g) { g.set(0, g.grad_out() * (1.0 - g.output(0) * g.output(0))); });
constexpr OpDef kSigmoid = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::sigmoid(x); }>(
    "sigmoid", {.outputs = kFirst},
    [](const GradContext& g) { g.set(0, g.grad_out() * (g.output(0) * (1.0 - g.output(0)))); });

constexpr OpDef kReluGrad = elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) { return scalar::relu_grad(x, g); }>(
    "relu_grad", {.inputs = kFirst}, [](const GradContext& g) {
      if (g.needs(0)) g.set(0, g.input(0) * 0.0);  // zero almost everywhere
      if (g.needs(1)) g.set(1, call(kReluGrad, {g.input(0), g.grad_out()}));
    });
// No epilogue of a product: the library's turns NaN into 0.
constexpr OpDef kRelu = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::relu(x); }>(
    "relu", {.inputs = kFirst}, [](const GradContext& g) {
      g.set(0, call(kReluGrad, {g.input(0), g.grad_out()}));
    });

// ---- GELU. The gradient ops compute grad_out * gelu'(x) in one pass; decomposed, they can be differentiated again.

void decompose_gelu_tanh_grad(std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
  constexpr double kScale = 0.7978845608028654, kCubic = 0.044715;  // sqrt(2 / pi)
  const Tensor &x = in[0], &g = in[1];
  const Tensor t = tanh((x + x * x * x * kCubic) * kScale);
  const Tensor inner = (x * x * (3 * kCubic) + 1.0) * kScale;
  out[0] = g * ((t + 1.0) * 0.5 + x * (1.0 - t * t) * inner * 0.5);
}
void decompose_gelu_erf_grad(std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) {
  constexpr double kInverseSqrt2Pi = 0.3989422804014327;
  const Tensor &x = in[0], &g = in[1];
  // Phi(x) = gelu(x) / x has no removable form in public ops; its derivative is the density, so integrate by parts:
  // gelu'(x) = Phi(x) + x phi(x), with Phi(x) = (1 + erf(x / sqrt 2)) / 2.
  out[0] = g * ((erf(x * 0.7071067811865476) + 1.0) * 0.5 + x * exp(x * x * -0.5) * kInverseSqrt2Pi);
}
constexpr OpDef kGeluTanhGrad =
    elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) { return scalar::gelu_tanh_grad(x, g); }>(
        "gelu_tanh_grad", {}, nullptr, &decompose_gelu_tanh_grad);
constexpr OpDef kGeluTanh = as_epilogue(Epilogue::kGeluTanh,
                                        elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::gelu_tanh(x); }>(
                                            "gelu_tanh", {.inputs = kFirst}, [](const GradContext& g) {
                                              g.set(0, call(kGeluTanhGrad, {g.input(0), g.grad_out()}));
                                            }));
constexpr OpDef kGeluErfGrad =
    elementwise<kFloatingOnly, 2, 0, [](auto x, auto g) { return scalar::gelu_erf_grad(x, g); }>(
        "gelu_erf_grad", {}, nullptr, &decompose_gelu_erf_grad);
constexpr OpDef kGeluErf = as_epilogue(Epilogue::kGelu,
                                       elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::gelu_erf(x); }>(
                                           "gelu_erf", {.inputs = kFirst}, [](const GradContext& g) {
                                             g.set(0, call(kGeluErfGrad, {g.input(0), g.grad_out()}));
                                           }));
constexpr OpDef kErf = elementwise<kFloatingOnly, 1, 0, [](auto x) { return scalar::erf(x); }>(
    "erf", {.inputs = kFirst}, [](const GradContext& g) {
      g.set(0, g.grad_out() * exp(g.input(0) * g.input(0) * -1.0) * 1.1283791670955126);  // 2 / sqrt(pi)
    });

// ---- Comparisons: bool outputs, no gradient

template <auto kBody> struct ComparisonImpl {
  static void infer(InferContext& c) {
    Dims sizes;
    if (!broadcast_shapes(c.sizes(0), c.sizes(1), sizes)) c.fail("shapes do not broadcast");
    c.require_same_dtype(0, 1);
    c.output(0, kBool, sizes);
  }
  static void kernel(const KernelContext& context) {
    visit_dtype(context.in(0).dtype(),
                [&](auto tag) { cpu::elementwise<2, bool, typename decltype(tag)::type>(context, kBody); });
  }
  static void lower(LoopBuilder& b) { b.output(0, kBody(b.input(0), b.input(1))); }
};
template <auto kBody> constexpr OpDef comparison(const char* name) {
  using Impl = ComparisonImpl<kBody>;
  return OpDef{.name = name,
               .kind = OpKind::kElementwise,
               .infer = &Impl::infer,
               .kernel = {&Impl::kernel},
               .lower = &Impl::lower};
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
    .kernel = {[](const KernelContext& context) {
      // Elements are only moved, so their width is all that matters.
      auto run = [&]<class T>(T) {
        const std::array<const Tensor*, 4> operands = {&context.out(), &context.in(0), &context.in(1), &context.in(2)};
        T* out = reinterpret_cast<T*>(context.out().impl()->data());
        const bool* condition = reinterpret_cast<const bool*>(context.in(0).impl()->data());
        const T *a = reinterpret_cast<const T*>(context.in(1).impl()->data()),
                *b = reinterpret_cast<const T*>(context.in(2).impl()->data());
        if (context.out().numel() == 0) return;
        cpu::StridedLoop<4>(context.out().sizes(), operands).run([&](const auto& at, const auto& step, int64_t n) {
          for (int64_t i = 0; i < n; ++i)
            out[at[0] + i * step[0]] = condition[at[1] + i * step[1]] ? a[at[2] + i * step[2]] : b[at[3] + i * step[3]];
        });
      };
      switch (size_of(context.out().dtype())) {
        case 1: return run(uint8_t{});
        case 2: return run(uint16_t{});
        case 4: return run(uint32_t{});
        default: return run(uint64_t{});
      }
    }},
    .grad =
        [](const GradContext& g) {
          if (g.needs(1)) g.set_reduced(1, where(g.input(0), g.grad_out(), 0.0));
          if (g.needs(2)) {
            const Tensor zero = Tensor::zeros({}, {g.grad_out().dtype()});
            g.set_reduced(2, where(g.input(0), zero, g.grad_out()));
          }
        },
    .lower = [](LoopBuilder& b) { b.output(0, scalar::select(b.input(0), b.input(1), b.input(2))); },
};

// ---- Casts, copies and fills

// Float to integer truncates, as C++ does; a value out of range, or NaN, gives an unspecified integer.
template <class Out, class In> Out convert(In value) {
  if constexpr (std::is_same_v<Out, bool>) return value != In(0);
  else if constexpr (std::is_same_v<Out, BFloat16> || std::is_same_v<Out, Float16>)
    return Out(static_cast<float>(value));
  else return static_cast<Out>(value);
}
void convert_kernel(const KernelContext& context) {
  visit_dtype(context.out().dtype(), [&](auto out) {
    visit_dtype(context.in(0).dtype(), [&](auto in) {
      using Out = typename decltype(out)::type;
      using C = cpu::ComputeType<typename decltype(in)::type>;
      cpu::elementwise<1, Out, typename decltype(in)::type>(context, [](C v) { return convert<Out>(v); });
    });
  });
}

// ints: {dtype}
constexpr OpDef kCast = as_epilogue(
    Epilogue::kWiden, {
                          .name = "cast",
                          .kind = OpKind::kElementwise,
                          .infer = [](InferContext& c) { c.output(0, static_cast<DType>(c.integer(0)), c.sizes(0)); },
                          .kernel = {&convert_kernel},
                          .grad = [](const GradContext& g) { g.set(0, cast(g.grad_out(), g.input_dtype(0))); },
                          .lower = [](LoopBuilder& b) { b.output(0, b.input(0)); },
                          .converts = true,
                      });

void copy_infer(InferContext& c) {
  Dims sizes;
  if (!broadcast_shapes(c.sizes(0), c.sizes(1), sizes) || !(sizes == c.sizes(0)))
    c.fail("the source does not broadcast to the target");
  c.output(0, c.dtype(0), c.sizes(0));
}
constexpr OpDef kCopy = {
    .name = "copy",
    .kind = OpKind::kOpaque,
    .infer = &copy_infer,
    .kernel = {[](const KernelContext& context) {
      const Tensor* source[] = {context.inputs[1]};
      convert_kernel({context.op, source, context.outputs, context.attrs, context.where});
    }},
    .grad =
        [](const GradContext& g) {
          // Zero, whatever arrives: infinity times 0 is not.
          if (g.needs(0)) g.set(0, Tensor::zeros(g.input_sizes(0), {g.input_dtype(0)}));
          if (g.needs(1)) g.set_reduced(1, g.grad_out());
        },
    .overwrites = 0,
};
constexpr OpDef kFill = {
    .name = "fill",
    .kind = OpKind::kOpaque,
    .infer = [](InferContext& c) { c.output(0, c.dtype(0), c.sizes(0)); },
    .kernel = {[](const KernelContext& context) {
      visit_dtype(context.out().dtype(), [&](auto tag) {
        using T = typename decltype(tag)::type;
        const T value = convert<T>(context.attrs.floats[0]);
        using C = cpu::ComputeType<T>;
        cpu::elementwise<1, T, T>(context, [value](C) { return value; });
      });
    }},
    .grad = [](const GradContext& g) { g.set(0, Tensor::zeros(g.input_sizes(0), {g.input_dtype(0)})); },
    .overwrites = 0,
};

// ---- Public functions

DType common_dtype(const Tensor& a, const Tensor& b) {
  if (is_floating(a.dtype()) == is_floating(b.dtype()) && a.rank() != b.rank()) {
    if (a.rank() == 0) return b.dtype();
    if (b.rank() == 0) return a.dtype();
  }
  return promote(a.dtype(), b.dtype());
}

namespace {

Tensor binary(const OpDef& op, TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_defined(op.name, operand);
  if (a.tensor.dtype() == b.tensor.dtype()) return call(op, {a, b});
  const DType dtype = common_dtype(a.tensor, b.tensor);
  const Tensor left = a.tensor.to(dtype, a.where), right = b.tensor.to(dtype, b.where);
  return call(op, {{left, a.where}, {right, b.where}});
}
// Whole numbers cannot take a fraction in place; dropping it in silence would be worse.
void require_fits(const OpDef& op, TensorArg a, bool fraction) {
  if (fraction && a.tensor.defined() && !is_floating(a.tensor.dtype()))
    throw_op_error(op.name,
                   "a floating-point result cannot be written in place into " + std::string(name_of(a.tensor.dtype())),
                   a.where);
}
void binary_(const OpDef& op, TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_defined(op.name, operand);
  require_fits(op, a, is_floating(b.tensor.dtype()));
  const Tensor right = b.tensor.to(a.tensor.dtype(), b.where);
  call_in_place(op, {a, {right, b.where}});
}
bool is_whole(double s) { return std::trunc(s) == s; }
void with_scalar_(const OpDef& op, TensorArg a, Scalar s) {
  require_fits(op, a, !is_whole(s.real()));
  call_in_place(op, {a}, {.floats = {s.real()}});
}
Tensor with_scalar(const OpDef& op, TensorArg a, Scalar s) {
  const bool whole = is_whole(s.real());
  if (a.tensor.defined() && !is_floating(a.tensor.dtype()) && !whole) {
    const Tensor real = a.tensor.to(kF32, a.where);  // an integer with a fraction is a float, as in PyTorch
    return call(op, {{real, a.where}}, {.floats = {s.real()}});
  }
  return call(op, {a}, {.floats = {s.real()}});
}

}  // namespace

Tensor add(TensorArg a, TensorArg b) { return binary(kAdd, a, b); }
Tensor sub(TensorArg a, TensorArg b) { return binary(kSub, a, b); }
Tensor mul(TensorArg a, TensorArg b) { return binary(kMul, a, b); }
Tensor div(TensorArg a, TensorArg b) {
  if (a.tensor.defined() && b.tensor.defined() && !is_floating(a.tensor.dtype()) && !is_floating(b.tensor.dtype())) {
    const Tensor left = a.tensor.to(kF32, a.where), right = b.tensor.to(kF32, b.where);  // true division
    return call(kDiv, {{left, a.where}, {right, b.where}});
  }
  return binary(kDiv, a, b);
}
Tensor add(TensorArg a, Scalar s) { return with_scalar(kAddScalar, a, s); }
Tensor mul(TensorArg a, Scalar s) { return with_scalar(kMulScalar, a, s); }
Tensor div(TensorArg a, Scalar s) { return with_scalar(kMulScalar, a, 1.0 / s.real()); }
Tensor rsub(TensorArg a, Scalar s) { return with_scalar(kRsubScalar, a, s); }
Tensor rdiv(TensorArg a, Scalar s) { return with_scalar(kRdivScalar, a, s); }
Tensor neg(TensorArg x) { return call(kNeg, {x}); }
Tensor exp(TensorArg x) { return call(kExp, {x}); }
Tensor log(TensorArg x) { return call(kLog, {x}); }
Tensor sqrt(TensorArg x) { return call(kSqrt, {x}); }
Tensor rsqrt(TensorArg x) { return call(kRsqrt, {x}); }
Tensor tanh(TensorArg x) { return call(kTanh, {x}); }
Tensor erf(TensorArg x) { return call(kErf, {x}); }
Tensor sigmoid(TensorArg x) { return call(kSigmoid, {x}); }
Tensor relu(TensorArg x) { return call(kRelu, {x}); }
Tensor gelu(TensorArg x, GeluKind kind) { return call(kind == GeluKind::kTanh ? kGeluTanh : kGeluErf, {x}); }
Tensor cast(TensorArg x, DType dtype) { return call(kCast, {x}, {.ints = {static_cast<int64_t>(dtype)}}); }

Tensor equal(TensorArg a, TensorArg b) { return binary(kEqual, a, b); }
Tensor not_equal(TensorArg a, TensorArg b) { return binary(kNotEqual, a, b); }
Tensor less(TensorArg a, TensorArg b) { return binary(kLess, a, b); }
Tensor less_equal(TensorArg a, TensorArg b) { return binary(kLessEqual, a, b); }
Tensor greater(TensorArg a, TensorArg b) { return binary(kLess, b, a); }
Tensor greater_equal(TensorArg a, TensorArg b) { return binary(kLessEqual, b, a); }

Tensor where(TensorArg condition, TensorArg a, TensorArg b) {
  for (const TensorArg& operand : {a, b}) require_defined("where", operand);
  const DType dtype = common_dtype(a.tensor, b.tensor);
  const Tensor left = a.tensor.to(dtype, a.where), right = b.tensor.to(dtype, b.where);
  return call(kWhere, {condition, {left, a.where}, {right, b.where}});
}
void add_(TensorArg a, TensorArg b) { binary_(kAdd, a, b); }
void sub_(TensorArg a, TensorArg b) { binary_(kSub, a, b); }
void mul_(TensorArg a, TensorArg b) { binary_(kMul, a, b); }
void div_(TensorArg a, TensorArg b) { binary_(kDiv, a, b); }
void add_(TensorArg a, Scalar s) { with_scalar_(kAddScalar, a, s); }
void mul_(TensorArg a, Scalar s) { with_scalar_(kMulScalar, a, s); }
void copy_(TensorArg target, TensorArg source) { call_in_place(kCopy, {target, source}); }
void fill_(TensorArg target, Scalar value) { call_in_place(kFill, {target}, {.floats = {value.real()}}); }

}  // namespace rondo::ops
