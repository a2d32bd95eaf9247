#include "rondo/optim/adafactor.h"

#include <algorithm>
#include <cmath>

#include "rondo/optim/formula_code.h"
#include "rondo/optim/host_code.h"
#include "rondo/optim/launch_queue.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/cpu/row_reduce.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::optim {
namespace {

double epsilon_of(DType dtype) {
  switch (dtype) {
    case kF64: return 0x1p-52;
    case kBF16: return 0x1p-7;
    case kF16: return 0x1p-10;
    default: return 0x1p-23;
  }
}
double eps1_of(const AdafactorOptions& o, DType dtype) { return o.eps1 > 0 ? o.eps1 : epsilon_of(dtype); }

// Computes the sum of (factor * g)^2 for each row and for each column, over some rows of a matrix, in f64.
template <class T>
void sums_of_squares(const T* g, double factor, int64_t n_cols, std::span<double> rows, double* cols) {
  std::vector<double> squares(static_cast<size_t>(n_cols));
  std::fill_n(cols, n_cols, 0.0);
  for (double& row : rows) {
    for (int64_t c = 0; c < n_cols; ++c) {
      const double value = static_cast<double>(g[c]) * factor;
      squares[static_cast<size_t>(c)] = value * value;
      cols[c] += squares[static_cast<size_t>(c)];
    }
    row = cpu::sum_row<double>(n_cols, [&](int64_t c) { return squares[static_cast<size_t>(c)]; });
    g += n_cols;
  }
}

// Updates moving averages: var += weight (sum / n - var). Returns the mean of `var` afterwards.
template <class C> double move_towards(C* var, std::span<const double> sums, double n, double weight) {
  for (size_t i = 0; i < sums.size(); ++i)
    var[i] = static_cast<C>(static_cast<double>(var[i]) + weight * (sums[i] / n - static_cast<double>(var[i])));
  return cpu::sum_row<double>(std::ssize(sums), [&](int64_t i) { return static_cast<double>(var[i]); }) /
         static_cast<double>(sums.size());
}

// Updates the moving averages row_var and col_var with this step's squares, and fills the third state: row_var /
// max(mean(row_var), eps1). Columns are summed in chunks of rows (ops/reduction_order.h), so any number of threads
// gives the same bits.
struct MoveFactors {
  const std::byte* grad;
  DType grad_dtype, state_dtype;
  int64_t matrices, n_rows, n_cols;
  std::byte* states[3];
  double eps1;

  void operator()(double factor, double weight) const {
    const int64_t chunk = column_chunk_rows(n_rows), chunks = (n_rows + chunk - 1) / chunk;
    std::vector<double> rows(static_cast<size_t>(matrices * n_rows)),
        cols(static_cast<size_t>(matrices * chunks * n_cols));
    visit_floating(grad_dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* g = reinterpret_cast<const T*>(grad);
      const int64_t grain = std::max<int64_t>(1, kForeachGrain / (chunk * n_cols));
      parallel_for(matrices * chunks, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t m = i / chunks, first = i % chunks * chunk, n = std::min(chunk, n_rows - first),
                        row = m * n_rows + first;
          sums_of_squares(g + row * n_cols, factor, n_cols,
                          std::span(rows).subspan(static_cast<size_t>(row), static_cast<size_t>(n)),
                          cols.data() + i * n_cols);
        }
      });
    });
    for (int64_t m = 0; m < matrices; ++m) {
      double* col = cols.data() + m * chunks * n_cols;
      for (int64_t k = 1; k < chunks; ++k)
        for (int64_t c = 0; c < n_cols; ++c) col[c] += col[k * n_cols + c];
      visit_floating(state_dtype, [&](auto tag) {
        using C = typename decltype(tag)::type;
        const auto state = [&](size_t k, int64_t at) { return reinterpret_cast<C*>(states[k]) + at; };
        C* row_var = state(0, m * n_rows);
        const std::span<const double> row_sums(rows.data() + m * n_rows, static_cast<size_t>(n_rows));
        const double mean = std::max(move_towards(row_var, row_sums, static_cast<double>(n_cols), weight), eps1);
        move_towards(state(1, m * n_cols), std::span<const double>(col, static_cast<size_t>(n_cols)),
                     static_cast<double>(n_rows), weight);
        C* row_factor = state(2, m * n_rows);
        for (int64_t r = 0; r < n_rows; ++r) row_factor[r] = static_cast<C>(static_cast<double>(row_var[r]) / mean);
      });
    }
  }
};

// Computes the size of the step: step * max(rms of the parameter, eps2) / max(rms of the update / d, 1). In: the sums
// of the squares of the parameter and of the update, and the step. Numbers: elements, eps2, d.
struct StepSize {
  static constexpr size_t kIn = 3, kNumbers = 3, kOut = 1;
  template <class T>
  static std::array<T, kOut> run(const std::array<T, kIn>& in, const std::array<T, kNumbers>& numbers) {
    const auto& [n, eps2, d] = numbers;
    const T rms = scalar::sqrt(in[0] / n), update = scalar::sqrt(in[1] / n) / d, one = scalar::constant(n, 1.0);
    const T size = scalar::select(scalar::lt(eps2, rms), rms, eps2);
    return {in[2] * (size / scalar::select(scalar::lt(one, update), update, one))};
  }
};

}  // namespace

void Adafactor::check(const AdafactorOptions& o) {
  check_not_negative(kName, {{"lr", o.lr}, {"eps1", o.eps1}, {"eps2", o.eps2}, {"weight_decay", o.weight_decay}});
  if (!(o.d >= 1)) throw Error(absl::StrCat("Adafactor: d must be at least 1, got ", o.d));
  if (!(o.beta2_decay <= 0))
    throw Error(absl::StrCat("Adafactor: beta2_decay must not be positive, got ", o.beta2_decay));
}

namespace {
// Computes the weight of the new square, and the step min(lr, 1 / sqrt(t)) at step t. Numbers: beta2_decay, lr.
struct WeightAndRho {
  static constexpr size_t kNumbers = 2, kOut = 2;
  template <class T> static std::array<T, kOut> run(T step, const std::array<T, kNumbers>& numbers) {
    const auto& [beta2_decay, lr] = numbers;
    const T rho = scalar::rsqrt(step);
    return {scalar::pow(step, beta2_decay), scalar::select(scalar::lt(rho, lr), rho, lr)};
  }
};

const UpdatePlan& adafactor_plan(const AdafactorOptions& /*o*/, const Tensor& param) {
  static const RowProgram& step_size = *new RowProgram{
      program_body<StepSize>("adafactor_step_size"), {AdafactorScalars::kStep}, {AdafactorScalars::kStep}};
  static const UpdatePlan& vector = *new UpdatePlan{
      {{.name = "variance", .nonnegative = true}},
      {{body_of<AdafactorVectorGather>("adafactor_vector_gather")},
       {.body = body_of<AdafactorVectorApply>("adafactor_vector_apply"), .program = step_size}},
      /*matrices=*/false,
      /*own_scalars=*/true};
  static const UpdatePlan& matrix = *new UpdatePlan{
      {{.name = "row_var", .layout = Layout::kPerRow},
       {.name = "col_var", .layout = Layout::kPerColumn},
       {.name = "row_factor", .layout = Layout::kPerRow, .transient = true}},
      {{body_of<AdafactorMatrixGather>("adafactor_matrix_gather"), true},
       {.body = body_of<AdafactorMatrixApply>("adafactor_matrix_apply"), .program = step_size}},
      /*matrices=*/true,
      /*own_scalars=*/true};
  return param.rank() > 1 ? matrix : vector;
}

ScalarRule adafactor_rule(const AdafactorOptions& o) {
  static const RowProgram& program = *new RowProgram(
      step_program<WeightAndRho>("adafactor_rates", {AdafactorScalars::kWeight, AdafactorScalars::kStep}));
  static_assert(AdafactorScalars::kScalars == 5);
  return {.values = {o.maximize ? -1.0 : 1.0, /*weight=*/0, /*eps=*/0, 1 - o.lr * o.weight_decay, /*step=*/0},
          .program = &program,
          .numbers = {o.beta2_decay, o.lr}};
}
}  // namespace

FormulaCode<AdafactorOptions> Adafactor::code() { return {&adafactor_plan, &adafactor_rule}; }

void Adafactor::own_scalars(int group, const Tensor& param, std::span<double> scalars,
                            std::span<double> numbers) const {
  const AdafactorOptions& o = options(group);
  const double eps1 = eps1_of(o, param.dtype());
  scalars[AdafactorScalars::kEps] = eps1 * eps1;
  numbers[0] = static_cast<double>(std::max<int64_t>(param.numel(), 1));
  numbers[1] = o.eps2;
  numbers[2] = o.d;
}

namespace {
// The work of MoveFactors in ops, for devices that run no host code: the same arithmetic in the same order.
void move_factors(LaunchQueue& queue, const Tensor& grad, std::span<StateArray> states, const Tensor& decision,
                  const Tensor& weight, double eps1) {
  const int64_t n_rows = grad.size(-2), n_cols = grad.size(-1), matrices = grad.numel() / (n_rows * n_cols);
  const DType dtype = states[0].values.dtype();
  const Tensor factor = decision.select(0, 1), updates = ops::equal(decision.select(0, 2), 1.0);
  // `number` makes a tensor, because a division by a number of the host multiplies by its inverse, which rounds in
  // another way.
  const auto number = [&](int64_t n) { return Tensor::full({}, static_cast<double>(n), {kF64, grad.device()}); };
  const auto moved = [&](const Tensor& var, const Tensor& sums, int64_t n) {
    const Tensor before = var.to(kF64);
    return (before + weight * (sums / number(n) - before)).to(dtype);
  };
  // Copies the bytes: both tensors are contiguous and have the same dtype.
  const auto copy = [](const Tensor& to, const Tensor& from) {
    backend_of(to.device())
        .copy(to.device().index, const_cast<std::byte*>(to.address()), from.address(),
              static_cast<size_t>(to.nbytes()));
  };
  const auto write = [&](const Tensor& var, const Tensor& value) {
    queue.add([copy, var, next = ops::where(updates, value, var)] { copy(var, next); });
  };
  for (int64_t m = 0; m < matrices; ++m) {
    const auto part = [&](const Tensor& all, const Dims& sizes) {
      return all.detach().reshape({matrices, sizes[0], sizes[1]}).select(0, m);
    };
    const Tensor scaled = part(grad, {n_rows, n_cols}).to(kF64) * factor, squares = scaled * scaled;
    const Tensor row_var = part(states[0].values, {1, n_rows}), col_var = part(states[1].values, {1, n_cols});
    const Tensor rows = moved(row_var, ops::sum(squares, {1}).reshape({1, n_rows}), n_cols);
    const Tensor mean = ops::sum(rows.to(kF64), {1}, true) / number(n_rows);
    write(col_var, moved(col_var, ops::sum(squares, {0}, true), n_rows));
    write(row_var, rows);
    ops::copy_(part(states[2].values, {1, n_rows}), rows.to(kF64) / ops::maximum(mean, eps1));
  }
}
}  // namespace

// Called before the first sweep of a matrix: updates the moving averages of its rows and columns.
void Adafactor::prepare(int /*sweep*/, PreparedParam& param) {
  if (param.grad.numel() == 0) return;
  const double eps1 = eps1_of(options(param.group), param.param.dtype());
  if (!runs_host_code(param.device))
    return move_factors(param.queue, param.grad, param.states, param.decision, param.scalar(AdafactorScalars::kWeight),
                        eps1);
  const int64_t n_rows = param.grad.size(-2), n_cols = param.grad.size(-1);
  MoveFactors move{param.grad.address(),
                   param.grad.dtype(),
                   param.states[0].values.dtype(),
                   param.grad.numel() / (n_rows * n_cols),
                   n_rows,
                   n_cols,
                   {},
                   eps1};
  for (size_t k = 0; k < 3; ++k) move.states[k] = param.states[k].values_data;
  const auto* decision = reinterpret_cast<const Decision*>(param.decision.address());
  param.queue.add([device = param.device, move, decision, weight = param.scalar_at(AdafactorScalars::kWeight)] {
    enqueue_host_code(device, [move, decision, weight] {
      if (decision->updates == 1) move(decision->factor, *weight);
    });
  });
}

}  // namespace rondo::optim
