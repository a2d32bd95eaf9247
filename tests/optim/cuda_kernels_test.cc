// The kernels of a step as the CUDA target emits them, on the machine that runs such kernels on the host: the bits of
// the host's own.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/cuda/emit.h"
#include "rondo/compile/codegen/cuda/schedule.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/formula_code.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/optim/step_programs.h"
#include "rondo/tests/cuda_on_host/kernel_files.h"

namespace rondo::optim {
namespace {

using cuda_on_host::DeviceBuffer;
using cuda_on_host::Order;

// Items of `numel` elements, each with scalars of its own.
void check(const Foreach& pass, const std::vector<int64_t>& numels, const std::function<double(size_t k)>& value,
           const std::function<double(size_t k)>& scalar) {
  compile::LoopKernel kernel = pass.kernel();
  compile::cuda::split(kernel);
  ASSERT_TRUE(kernel.split_columns);
  const compile::cuda::Schedule schedule = compile::cuda::schedule(kernel);
  const std::string text = absl::StrCat(std::string(compile::cuda::kTableLayout), "\n",
                                        compile::cuda::emit_table(kernel, schedule));
  const cuda_on_host::KernelFiles files(kernel.name, text);
  for (Order order : cuda_on_host::kEveryOrder) {
    std::vector<std::vector<double>> scalars;
    std::vector<std::unique_ptr<DeviceBuffer>> buffers[2];  // the host's, the kernel's
    ForeachTable table, of_kernel;
    std::vector<compile::cuda::RondoTableRow> rows;
    for (size_t n = 0; n < numels.size(); ++n) {
      std::vector<double>& own = scalars.emplace_back();
      for (int32_t k = 0; k < kernel.n_scalars; ++k) own.push_back(scalar(static_cast<size_t>(k)));
    }
    for (size_t n = 0; n < numels.size(); ++n) {
      const ForeachItem item = pass.item(numels[n], numels[n], scalars[n].data());
      const std::span<void*> a = table.add(item, pass.n_operands()), b = of_kernel.add(item, pass.n_operands());
      for (size_t k = 0; k < kernel.operands.size(); ++k) {
        const DType dtype = kernel.operands[k].dtype;
        const size_t bytes = static_cast<size_t>(numels[n]) * size_of(dtype);
        for (int who = 0; who < 2; ++who)
          (who == 0 ? a : b)[k] =
              buffers[who].emplace_back(std::make_unique<DeviceBuffer>(bytes, DeviceBuffer::Side::kEnd))->data();
        visit_floating(dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          for (int64_t i = 0; i < numels[n]; ++i) static_cast<T*>(a[k])[i] = static_cast<T>(value(k));
        });
        std::memcpy(b[k], a[k], bytes);
      }
    }
    const size_t per_item = kernel.operands.size();
    for (size_t n = 0; n < numels.size(); ++n)
      rows.push_back({-1, 0, numels[n], numels[n], scalars[n].data(), of_kernel.operands.data() + n * per_item});
    pass.run_eager(table);
    const compile::cuda::Grid grid = compile::cuda::table_grid(kernel, schedule, rows);
    const compile::cuda::RondoTableRow* first = rows.data();
    int64_t n_items = std::ssize(rows);
    const double* when = nullptr;
    double equals = 0;
    const unsigned failed = 0, *at_failed = &failed;
    void* parameters[] = {&first, &n_items, &when, &equals, &at_failed};
    ASSERT_NO_THROW(cuda_on_host::launch(files.kernel(0), {grid.x, grid.y, grid.threads}, parameters, order));
    for (size_t i = 0; i < buffers[0].size(); ++i) {
      EXPECT_EQ(std::memcmp(buffers[0][i]->data(), buffers[1][i]->data(), buffers[0][i]->size()), 0)
          << kernel.name << ": item " << i / per_item << ", operand " << i % per_item;
      EXPECT_TRUE(buffers[1][i]->is_intact());
    }
  }
}

TEST(CudaStep, ItsDecisionAndItsCounts) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  for (double sum : {0.0, 3.7, 1e308, kInf, kNaN})
    check(
        *scalar_pass(kCPU, decide_measured()), {1}, [&](size_t k) { return k == 0   ? sum
                                                                           : k == 1 ? 128.0
                                                                                    : 5.0; },
        [](size_t k) { return k == 0 ? 3.0 : 0.7; });
  check(
      *scalar_pass(kCPU, decide_unmeasured()), {1}, [](size_t) { return 7.0; }, [](size_t) { return kNaN; });
  check(
      *scalar_pass(kCPU, count_step()), {1, 1, 1}, [](size_t k) { return k == 0 ? 9007199254740990.0 : 1.0; },
      [](size_t) { return 0.0; });
}

TEST(CudaStep, ItsBiasCorrections) {
  int64_t step = 0;
  // Many items, each at another step.
  const Body body = bias_corrections();
  check(
      *scalar_pass(kCPU, body), std::vector<int64_t>(300, 1),
      [&](size_t k) { return k == 1 ? static_cast<double>(1 + step++ % 300 * 37) : 0.5; },
      [](size_t k) { return k == 0   ? 3e-4
                            : k == 1 ? 0.9
                                     : 0.999; });
}

TEST(CudaStep, ThePassAndWhatIsLeftOfASkippedOne) {
  std::mt19937 random(3);
  std::uniform_real_distribution<> uniform(0.01, 2);
  const auto value = [&](size_t) { return uniform(random); };
  const Body body = body_of<AdamFormula<false>>("adam");
  for (DType dtype : {kF32, kBF16}) {
    const Foreach pass(body, {{.dtype = dtype},
                              {.dtype = dtype, .zero = true},
                              {},
                              {},
                              {.role = Role::kAverage},
                              {.role = Role::kCopy, .dtype = kF16}});
    const std::vector<int64_t> items = {1, 1000, 4097, 64};
    check(pass, items, value, value);
    ASSERT_NE(pass.if_skipped(), nullptr);
    check(*pass.if_skipped(), items, value, value);
  }
}

}  // namespace
}  // namespace rondo::optim
