// Gradients at the ends of a dtype's range (tests/gradient_ranges.h), compiled: in exact mode eager's bits, in default
// mode as accurate.
#include <gtest/gtest.h>

#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/module.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/gradient_ranges.h"

namespace rondo {
namespace {

using namespace test;

struct Rule : nn::Module<Rule> {
  const RangeCase* rule = nullptr;
  RangeGrid grid;
  Tensor forward(const Tensor& b) {
    grid.b = b;
    return rule->forward(grid);
  }
};

TEST(CompiledGradientRange, IsEagers) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  for (const RangeCase& rule : range_cases())
    for (const DType dtype : {kF32, kBF16, kF16})
      for (const bool exact : {true, false}) {
        SCOPED_TRACE(std::string(rule.name) + " of " + std::string(name_of(dtype)) + (exact ? ", exact" : ""));
        const RangeGrid grid = grid_of(rule, dtype);
        Rule module;
        module.rule = &rule;
        module.grid = grid;
        const compile::Regions regions = compile::compile_module(module, {.exact = exact});
        const auto eager = gradient_of(rule, grid, [&](const RangeGrid& g) { return rule.forward(g); });
        const auto compiled = gradient_of(rule, grid, [&](const RangeGrid& g) { return module(g.b); });
        const compile::RegionReport report = regions.report()[0];
        ASSERT_EQ(report.failed_compilations, 0) << report.last_failed_compilation;
        ASSERT_EQ(report.eager_runs, 0);
        const Limits limits = limits_of(dtype);
        for (size_t i = 0; i < eager.size(); ++i) {
          if (eager[i] == compiled[i] || (std::isnan(eager[i]) && std::isnan(compiled[i]))) continue;
          const bool fair = rule.is_fair(grid.a_values[i], grid.b_values[i], grid.g_values[i], limits);
          const double expected = rule.derivative(grid.a_values[i], grid.b_values[i]) * grid.g_values[i];
          EXPECT_FALSE(exact) << i << ": " << compiled[i] << ", not " << eager[i];
          EXPECT_TRUE(!fair || std::abs(compiled[i] - expected) <= rule.ulps * limits.epsilon * std::abs(expected))
              << i << ": " << compiled[i] << ", not " << expected;
        }
      }
}

}  // namespace
}  // namespace rondo
