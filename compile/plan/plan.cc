#include "rondo/compile/plan/plan.h"

#include <algorithm>

namespace rondo::compile {

void number_floats(Plan& plan) {
  int32_t scalars = 0, calls = 0;
  for (LoweredUnit& unit : plan.kernels) {
    unit.first_scalar = scalars;
    for (const Scalar& scalar : unit.scalars) scalars += scalar.kind == Scalar::Kind::kArgument;
  }
  for (Launch& launch : plan.launches) {
    if (launch.kind != Launch::Kind::kLibraryCall) continue;
    const bool any = plan.graph.node(launch.op()).attrs.floats.size() > 0;
    launch.floats = any ? calls++ : -1;
  }
}

std::vector<Launch::Check> checks_of(const Plan& plan, const Launch& launch) {
  std::vector<Launch::Check> checks;
  const LoweredUnit& unit = plan.kernel_of(launch);
  for (size_t i = 0; i < unit.operands.size(); ++i) {
    if (!unit.kernel.operands[i].is_check) continue;
    const auto found = std::find_if(launch.nodes.begin(), launch.nodes.end(), [&](int32_t n) {
      const GraphNode& node = plan.graph.node(n);
      return node.op->checks && node.op->lower != nullptr && node.inputs.size() == 1 &&
             node.inputs[0] == unit.operands[i];
    });
    checks.push_back({static_cast<int32_t>(i), found == launch.nodes.end() ? -1 : *found});
  }
  return checks;
}

bool has_waiting_checks(const Plan& plan) {
  return std::any_of(plan.launches.begin(), plan.launches.end(), [](const Launch& l) { return !l.checks.empty(); });
}

std::vector<ValueId> touched(const Plan& plan, const Launch& launch) {
  std::vector<ValueId> values(launch.inputs.begin(), launch.inputs.end());
  values.insert(values.end(), launch.outputs.begin(), launch.outputs.end());
  if (!launch.runs_kernel()) return values;
  const LoweredUnit& unit = plan.kernel_of(launch);
  if (launch.kind != Launch::Kind::kCombine) return unit.operands;
  for (const ColumnResult& result : unit.column_results) values.push_back(result.value);
  return values;
}

std::vector<ValueId> written(const Plan& plan, const Launch& launch) {
  if (!launch.runs_kernel()) return {launch.outputs.begin(), launch.outputs.end()};
  if (launch.kind == Launch::Kind::kCombine) return touched(plan, launch);
  const LoweredUnit& unit = plan.kernel_of(launch);
  std::vector<ValueId> values;
  for (size_t i = 0; i < unit.operands.size(); ++i)
    if (unit.kernel.operands[i].is_output) values.push_back(unit.operands[i]);
  return values;
}

int64_t partial_stride(const LoweredUnit& unit, int64_t alignment) {
  if (unit.column_results.empty()) return 0;
  return aligned(chunks(unit.kernel) * unit.kernel.cols * 8, alignment);
}
int64_t partial_bytes(const LoweredUnit& unit, int64_t alignment) {
  return static_cast<int64_t>(unit.column_results.size()) * partial_stride(unit, alignment);
}

}  // namespace rondo::compile
