#include "rondo/tests/bench/product_ways.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <vector>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/onednn/onednn_versions.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::bench {
namespace {

namespace dnnl = cpu::dnnl;

// Transposed: columns are the lines.
Tensor random_matrix(int64_t rows, int64_t columns, bool transposed, bool spread, DType dtype) {
  if (transposed) return random_matrix(columns, rows, false, spread, dtype).t();
  return Tensor::randn({rows, columns + (spread ? 16 : 0)}).to(dtype).slice(1, {0, columns});
}

// c = a b as the library runs it alone. Nothing if it has no kernel for the dtype.
std::function<void()> library_product(const Tensor& a, const Tensor& b, const Tensor& c) try {
  const auto desc_of = [](const Tensor& t) {
    const auto type = t.dtype() == kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
    return cpu::Desc({t.size(0), t.size(1)}, type, dnnl::memory::dims{t.strides()[0], t.strides()[1]});
  };
  const auto bound = [](const cpu::Desc& desc, const Tensor& t) {
    return dnnl::memory(desc, cpu::library_engine(), const_cast<void*>(t.raw_data()));
  };
  const cpu::Desc left = desc_of(a), right = desc_of(b), result = desc_of(c);
  const dnnl::matmul product =
      cpu::Kernels<dnnl::matmul>(dnnl::primitive_attr(), left, right, cpu::Desc(), result).make();
  return [=, from = bound(left, a), by = bound(right, b), to = bound(result, c),
          stream = dnnl::stream(cpu::library_engine()), operands = std::vector<Tensor>{a, b, c}]() mutable {
    product.execute(stream, {{DNNL_ARG_SRC, from}, {DNNL_ARG_WEIGHTS, by}, {DNNL_ARG_DST, to}});
  };
} catch (const dnnl::error& error) {
  if (error.status != dnnl_unimplemented) throw;
  return nullptr;
}

}  // namespace

void each_product_way(const ProductSize& size, DType dtype, absl::FunctionRef<void(ProductWay)> use) {
  cpu::library().omp_set_num_threads(num_threads());
  for (const std::string layout : {"nn", "tn", "nt"}) {
    for (const bool spread : {false, true}) {
      const Tensor a = random_matrix(size.m, size.k, layout[0] == 't', spread, dtype);
      const Tensor b = random_matrix(size.k, size.n, layout[1] == 't', spread, dtype);
      use({layout, spread, true, [=] { ops::matmul(a, b); }});
      if (std::function<void()> run = library_product(a, b, Tensor::zeros({size.m, size.n}, {dtype})))
        use({layout, spread, false, std::move(run)});
    }
  }
}

double seconds_of(const ProductWay& way, int runs) {
  // Threads of the other kind must have stopped spinning: of OpenMP's 300,000 turns, a turn takes up to 140 cycles.
  static bool last_was_ours = true;
  if (way.ours != last_was_ours) usleep(way.ours ? 40000 : 1000);
  last_was_ours = way.ours;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  // After a pause, the first milliseconds of either kind are slower.
  for (const auto until = now() + std::chrono::milliseconds(4); now() < until;) way.run();
  const auto start = now();
  for (int i = 0; i < runs; ++i) way.run();
  return std::chrono::duration<double>(now() - start).count();
}

double product_floor_ms(const ProductSize& size, DType dtype) {
  const size_t runs = size.flops() > 2e10 ? 3 : 7;
  double least = std::numeric_limits<double>::infinity();
  each_product_way(size, dtype, [&](const ProductWay& way) {
    std::vector<double> times;
    while (times.size() < runs) times.push_back(1e3 * seconds_of(way, 1));
    std::sort(times.begin(), times.end());
    least = std::min(least, times[runs / 2]);
  });
  return least;
}

}  // namespace rondo::bench
