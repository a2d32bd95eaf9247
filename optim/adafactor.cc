#include "rondo/optim/adafactor.h"

#include <algorithm>
#include <cmath>

#include "rondo/runtime/backend.h"
#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/parallel.h"

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

// Sums of (factor * g)^2 over the rows and the columns of some rows of a matrix, in f64.
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
    double lanes[kLanes] = {};
    for (int64_t c = 0; c < n_cols; ++c) lanes[c % kLanes] += squares[static_cast<size_t>(c)];
    row = combine_lanes(lanes, [](double a, double b) { return a + b; });
    g += n_cols;
  }
}

// var += weight (sum / n - var). The mean of var.
template <class C> double move_towards(C* var, std::span<const double> sums, double n, double weight) {
  double total = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    var[i] = static_cast<C>(static_cast<double>(var[i]) + weight * (sums[i] / n - static_cast<double>(var[i])));
    total += static_cast<double>(var[i]);
  }
  return total / static_cast<double>(sums.size());
}

// Moves row_var and col_var to this step's squares, and fills the third state: row_var / max(mean(row_var), eps1).
// Columns are summed in chunks of rows, as ops/reduction_order.h has it, so any number of threads gives the same bits.
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

}  // namespace

void Adafactor::add(std::span<const Tensor> params, const AdafactorOptions& o) {
  if (!(o.lr >= 0 && o.eps1 >= 0 && o.eps2 >= 0 && o.weight_decay >= 0 && o.d >= 1 && o.beta2_decay <= 0))
    throw Error("Adafactor: lr, eps1, eps2, weight_decay must not be negative, d not below 1, beta2_decay not above 0");
  static const UpdatePlan vector = {{{.name = "variance", .nonnegative = true}},
                                    {{body_of<AdafactorVectorGather>("adafactor_vector_gather"), true},
                                     {body_of<AdafactorVectorApply>("adafactor_vector_apply"), true}}};
  static const UpdatePlan matrix = {{{.name = "row_var", .layout = Layout::kPerRow},
                                     {.name = "col_var", .layout = Layout::kPerColumn},
                                     {.name = "row_factor", .layout = Layout::kPerRow, .transient = true}},
                                    {{body_of<AdafactorMatrixGather>("adafactor_matrix_gather"), true},
                                     {body_of<AdafactorMatrixApply>("adafactor_matrix_apply"), true}},
                                    /*matrices=*/true};
  add_group(params, [](const Tensor& p) -> const UpdatePlan& { return p.rank() > 1 ? matrix : vector; },
            {.format = o.state});
  groups_.push_back(o);
}

Adafactor::Adafactor(std::vector<Tensor> params, AdafactorOptions options)
    : Adafactor({ParamGroup<AdafactorOptions>{std::move(params), options}}) {}
Adafactor::Adafactor(std::vector<ParamGroup<AdafactorOptions>> groups) {
  add_groups(groups, [this](const auto& group) { add(group.params, group.options); });
}

void Adafactor::visit_options(int group, OptionVisitor visit) {
  AdafactorOptions& o = groups_[static_cast<size_t>(group)];
  visit("lr", o.lr);
  visit("beta2_decay", o.beta2_decay);
  visit("eps2", o.eps2);
  visit("d", o.d);
  visit("weight_decay", o.weight_decay);
}

ScalarRule Adafactor::scalars(int group) const {
  return {groups_[static_cast<size_t>(group)], [](const AdafactorOptions& o, int64_t step, std::span<double> out) {
            const double t = static_cast<double>(step);
            const double weight = std::pow(t, o.beta2_decay), rho = std::min(o.lr, 1 / std::sqrt(t));
            const double values[] = {o.maximize ? -1.0 : 1.0, weight, 0.0, 1 - o.lr * o.weight_decay, rho};
            static_assert(std::size(values) == AdafactorScalars::kScalars);
            std::copy(std::begin(values), std::end(values), out.begin());
          }};
}

void Adafactor::prepare(int sweep, PreparedParam& param) {
  const AdafactorOptions& o = groups_[static_cast<size_t>(param.group)];
  const double eps1 = o.eps1 > 0 ? o.eps1 : epsilon_of(param.param.dtype());
  const auto enqueue_update = [&](auto work) {
    enqueue(param.device, [scalars = param.scalars, decision = param.decision, work = std::move(work)] {
      if (decision->go == Decision::kUpdate) work(scalars);
    });
  };
  if (sweep == 0) {
    enqueue_update([eps1](double* scalars) { scalars[AdafactorScalars::kEps] = eps1 * eps1; });
    if (param.states.size() == 1 || param.grad.numel() == 0) return;
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
    enqueue_update([move, decision = param.decision](const double* scalars) {
      move(decision->factor, scalars[AdafactorScalars::kWeight]);
    });
    return;
  }
  const double n = static_cast<double>(std::max<int64_t>(param.param.numel(), 1));
  enqueue_update([n, eps2 = o.eps2, d = o.d, sums = param.sums](double* scalars) {
    const double size = std::max(eps2, std::sqrt(sums.total(0) / n)), update = std::sqrt(sums.total(1) / n);
    scalars[AdafactorScalars::kStep] *= size / std::max(1.0, update / d);
  });
}

}  // namespace rondo::optim
