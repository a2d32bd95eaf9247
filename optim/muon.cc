#include "rondo/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "rondo/compile/compile.h"
#include "rondo/optim/formula_code.h"
#include "rondo/optim/norm.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::optim {
namespace {

// Returns x (rows <= columns, spectral norm at most 1) with its singular values moved towards 1, by the quintic
// iteration of the post (muon.h).
Tensor newton_schulz(Tensor x, const std::array<double, 3>& coefficients, int steps) {
  const auto [a, b, c] = coefficients;
  for (int i = 0; i < steps; ++i) {
    const Tensor gram = ops::matmul(x, x.t());
    const Tensor update = gram * b + ops::matmul(gram, gram) * c;
    x = x * a + ops::matmul(update, x);
  }
  return x;
}

// Computes 1 / max(norm, eps). In: the square of the norm. Number: eps.
struct InverseNorm {
  static constexpr size_t kIn = 1, kNumbers = 1, kOut = 1;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& numbers) {
    const T norm = scalar::sqrt(in[0]);
    return {scalar::constant(norm, 1.0) / scalar::select(scalar::lt(norm, numbers[0]), numbers[0], norm)};
  }
};

const UpdatePlan& muon_plan(const MuonOptions& /*o*/, const Tensor& param) {
  if (param.rank() != 2) throw Error("Muon: parameters must be matrices; give the others to AdamW");
  static const UpdatePlan& plan = *new UpdatePlan{
      {{"momentum_buffer"}, {.name = "step", .transient = true}},
      {{body_of<MuonGather>("muon_gather")}, {body_of<MuonApply>("muon_apply"), true}},
      /*matrices=*/false,
      /*own_scalars=*/true};
  return plan;
}

ScalarRule muon_rule(const MuonOptions& o) {
  static_assert(MuonScalars::kScalars == 5);
  return {.values = {1 - o.momentum, o.nesterov ? o.momentum : 1.0, o.nesterov ? 1 - o.momentum : 0.0,
                     1 - o.lr * o.weight_decay, o.lr}};
}

}  // namespace

void Muon::check(const MuonOptions& o) {
  check_not_negative(kName, {{"lr", o.lr}, {"weight_decay", o.weight_decay}, {"momentum", o.momentum}});
  if (!(o.ns_steps >= 0 && o.ns_steps < 100))
    throw Error(absl::StrCat("Muon: ns_steps must be from 0 to 99, got ", o.ns_steps));
  if (!(o.eps > 0)) throw Error(absl::StrCat("Muon: eps must be positive, got ", o.eps));
  if (!is_floating(o.ns_dtype)) throw Error("Muon: ns_dtype must be a floating dtype");
}

FormulaCode<MuonOptions> Muon::code() { return {&muon_plan, &muon_rule}; }

// Makes the step matrices of a group orthogonal. Runs in a compiled region if the optimizer is compiled.
struct Muon::Iterations {
  Tensor operator()(const Tensor& matrix, const MuonOptions& o, bool compiled);

  struct Function {
    std::array<double, 3> coefficients;
    int steps;
    Tensor operator()(const Tensor& x) const { return newton_schulz(x, coefficients, steps); }
    bool operator==(const Function&) const = default;
  };
  std::optional<Function> compiled_for;  // the function that `region` compiles; a loaded state may change its options
  std::optional<compile::Compiled<Function>> region;
};

Tensor Muon::Iterations::operator()(const Tensor& matrix, const MuonOptions& o, bool compiled) {
  Tensor inverse = Tensor::empty({}, {kF64, matrix.device()});  // becomes 1 / max(norm, eps)
  auto* at = reinterpret_cast<double*>(inverse.mutable_address());
  const NormOperand all[] = {{matrix.address(), matrix.dtype(), matrix.numel()}};
  enqueue_sum_of_squares(matrix.device(), all, at);
  const Storage numbers = numbers_on(matrix.device(), {o.eps});
  call_program(matrix.device(), program_body<InverseNorm>("muon_inverse_norm"), {at, at}, f64_of(numbers));
  const bool tall = matrix.size(0) > matrix.size(1);
  Tensor x = matrix * inverse.to(matrix.dtype());
  if (tall) x = x.t().contiguous();
  if (matrix.dtype() != kF64 && o.ns_dtype != kF64) x = x.to(o.ns_dtype);
  const Function function{o.ns_coefficients, o.ns_steps};
  if (compiled) {
    if (compiled_for != function) {
      region.emplace(function, compile::CompileOptions{.exact = true});
      compiled_for = function;
    }
    x = (*region)(x);
  } else {
    x = function(x);
  }
  x = x.to(matrix.dtype());
  return tall ? x.t().contiguous() : x.contiguous();
}

void Muon::prepare(int /*sweep*/, PreparedParam& param) {
  if (param.param.numel() == 0) return;
  Tensor& direction = param.states[1].values;
  const auto group = static_cast<size_t>(param.group);
  while (iterations_.size() <= group) iterations_.push_back(std::make_shared<Iterations>());
  direction = (*iterations_[group])(direction, options(param.group), compiled());
}

void Muon::own_scalars(int group, const Tensor& param, std::span<double> scalars, std::span<double> /*numbers*/) const {
  if (param.numel() == 0) return;
  const double rows = static_cast<double>(param.size(0)), cols = static_cast<double>(param.size(1));
  scalars[MuonScalars::kScalars - 1] *= options(group).adjust_lr == MuonOptions::kOriginal
                                            ? std::sqrt(std::max(1.0, rows / cols))
                                            : 0.2 * std::sqrt(std::max(rows, cols));
}

}  // namespace rondo::optim
