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

// x (rows <= columns, spectral norm at most 1) with its singular values moved towards 1: the quintic iteration of the
// post.
Tensor newton_schulz(Tensor x, const std::array<double, 3>& coefficients, int steps) {
  const auto [a, b, c] = coefficients;
  for (int i = 0; i < steps; ++i) {
    const Tensor gram = ops::matmul(x, x.t());
    const Tensor update = gram * b + ops::matmul(gram, gram) * c;
    x = x * a + ops::matmul(update, x);
  }
  return x;
}

// 1 / max(norm, eps). In: the square of the norm. Number: eps.
struct InverseNorm {
  static constexpr size_t kIn = 1, kNumbers = 1, kOut = 1;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& numbers) {
    const T norm = scalar::sqrt(in[0]);
    return {scalar::constant(norm, 1.0) / scalar::select(scalar::lt(norm, numbers[0]), numbers[0], norm)};
  }
};

}  // namespace

// Makes the directions of a group orthogonal, if it is compiled in a region of its own.
struct Muon::Iterations {
  explicit Iterations(const MuonOptions& o) : options(o) {}
  Tensor operator()(const Tensor& matrix, bool compiled);

  struct Function {
    std::array<double, 3> coefficients;
    int steps;
    Tensor operator()(const Tensor& x) const { return newton_schulz(x, coefficients, steps); }
  };
  MuonOptions options;
  std::optional<compile::Compiled<Function>> region;
};

void Muon::add_param_group(const ParamGroup<MuonOptions>& group) {
  add_between_steps([&] {
    const MuonOptions& o = group.options;
    if (!(o.lr >= 0 && o.weight_decay >= 0 && o.momentum >= 0 && o.ns_steps >= 0 && o.eps > 0))
      throw Error("Muon: lr, weight_decay, momentum and ns_steps must not be negative, eps must be positive");
    if (!is_floating(o.ns_dtype)) throw Error("Muon: ns_dtype must be a floating dtype");
    for (const Tensor& p : group.params)
      if (p.defined() && p.rank() != 2) throw Error("Muon: parameters must be matrices; give the others to AdamW");
    static const UpdatePlan plan = {{{"momentum_buffer"}, {.name = "step", .transient = true}},
                                    {{body_of<MuonGather>("muon_gather")}, {body_of<MuonApply>("muon_apply"), true}},
                                    /*matrices=*/false,
                                    /*own_scalars=*/true};
    add_group(group.params, plan, {.format = o.state});
    groups_.push_back(o);
    iterations_.push_back(std::make_unique<Iterations>(o));
  });
}

Muon::Muon(std::vector<Tensor> params, MuonOptions options)
    : Muon({ParamGroup<MuonOptions>{std::move(params), options}}) {}
Muon::Muon(std::vector<ParamGroup<MuonOptions>> groups) { add_groups(*this, groups); }
Muon::~Muon() = default;

void Muon::visit_options(int group, OptionVisitor visit) {
  MuonOptions& o = groups_[static_cast<size_t>(group)];
  visit("lr", o.lr);
  visit("weight_decay", o.weight_decay);
  visit("momentum", o.momentum);
}

ScalarRule Muon::scalars(int group) const {
  const MuonOptions& o = groups_[static_cast<size_t>(group)];
  static_assert(MuonScalars::kScalars == 5);
  return {.values = {1 - o.momentum, o.nesterov ? o.momentum : 1.0, o.nesterov ? 1 - o.momentum : 0.0,
                     1 - o.lr * o.weight_decay, o.lr}};
}

Tensor Muon::Iterations::operator()(const Tensor& matrix, bool compiled) {
  const MuonOptions& o = options;
  Tensor inverse = Tensor::empty({}, {kF64, matrix.device()});  // of the norm
  auto* at = reinterpret_cast<double*>(inverse.mutable_address());
  const NormOperand all[] = {{matrix.address(), matrix.dtype(), matrix.numel()}};
  enqueue_sum_of_squares(matrix.device(), all, at);
  const Storage numbers = numbers_on(matrix.device(), {o.eps});
  call_program(matrix.device(), program_body<InverseNorm>("muon_inverse_norm"), {at, at}, f64_of(numbers));
  const bool tall = matrix.size(0) > matrix.size(1);
  Tensor x = matrix * inverse.to(matrix.dtype());
  if (tall) x = x.t().contiguous();
  if (matrix.dtype() != kF64 && o.ns_dtype != kF64) x = x.to(o.ns_dtype);
  if (compiled) {
    if (!region) region.emplace(Function{o.ns_coefficients, o.ns_steps}, compile::CompileOptions{.exact = true});
    x = (*region)(x);
  } else {
    x = newton_schulz(x, o.ns_coefficients, o.ns_steps);
  }
  x = x.to(matrix.dtype());
  return tall ? x.t().contiguous() : x.contiguous();
}

void Muon::prepare(int /*sweep*/, PreparedParam& param) {
  if (param.param.numel() == 0) return;
  Tensor& direction = param.states[1].values;
  direction = (*iterations_[static_cast<size_t>(param.group)])(direction, compiled());
}

void Muon::own_scalars(int group, const Tensor& param, std::span<double> scalars, std::span<double> /*numbers*/) const {
  if (param.numel() == 0) return;
  const double rows = static_cast<double>(param.size(0)), cols = static_cast<double>(param.size(1));
  scalars[MuonScalars::kScalars - 1] *= groups_[static_cast<size_t>(group)].adjust_lr == MuonOptions::kOriginal
                                            ? std::sqrt(std::max(1.0, rows / cols))
                                            : 0.2 * std::sqrt(std::max(rows, cols));
}

}  // namespace rondo::optim
