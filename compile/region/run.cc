#include "rondo/compile/region/run.h"

#include <utility>

#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/exec/run_eagerly.h"
#include "rondo/compile/region/compiled_node.h"
#include "rondo/compile/region/failed_run.h"
#include "rondo/compile/region/write_back.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/runtime/base/cause.h"

namespace rondo::compile {
namespace {

// Returns what remains of a run that threw `e`. `finished`: the results that were complete, or none. REQUIRES: the
// caller is handling `e`.
RunResult after_error(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs,
                      std::vector<Tensor> finished, CollectivesOfRun& collectives, const std::exception& e) {
  const Entry& entry = *binding->entry();
  RunResult result;
  // An InternalError is a bug of this library. Running op by op again would find no error of the program.
  const bool waits = has_waiting_checks(entry.forward().plan()) && dynamic_cast<const InternalError*>(&e) == nullptr;
  if (entry.recording().versions.empty() && !waits) {
    take_back_draws(binding->graph(), inputs, collectives);
    // The caller may catch the error and go on with what was complete.
    if (!finished.empty()) result.node = make_node_of_failed_run(binding, inputs);
    result.values = std::move(finished);
  } else if (!must_not_repeat(entry.recording(), inputs, finished)) {
    // Nothing is written yet. Op by op, the program has the effects that come before its first error, then
    // throws that error.
    collectives.rerun([&] { result = run_op_by_op(binding->graph(), inputs); });
    return result;
  }
  result.binding = std::move(binding);
  result.error = std::current_exception();
  return result;
}

}  // namespace

RunResult run(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs) {
  const Entry& entry = *binding->entry();
  const memory::Cause cause("region ", entry.ledger().name(), std::source_location::current());
  std::vector<Tensor> results, finished;
  {
    CollectivesOfRun collectives(entry, inputs);
    try {
      count(Outcome::kCompiled);
      results = run_checked(entry.forward(), inputs, binding->forward(), &finished);
      write_back(entry.recording(), inputs, results);
    } catch (const std::exception& e) {
      entry.ledger().add_failed_run(e);
      return after_error(std::move(binding), inputs, std::move(finished), collectives, e);
    }
  }
  RunResult result;
  if (entry.backward().program != nullptr) result.node = make_compiled_node(binding, inputs, results);
  result.binding = std::move(binding);
  result.values = std::move(results);
  return result;
}

RunResult run_op_by_op(const Graph& recorded, std::span<const Tensor> inputs) {
  RunResult result;
  ValueMap<Tensor> values(recorded);
  for (size_t i = 0; i < inputs.size(); ++i) values[recorded.inputs[i]] = inputs[i];
  size_t made = 0;
  try {
    run_eagerly(recorded, values, nullptr, [&](const GraphNode& node) {
      ++made;
      write_versions(recorded, node, inputs, values);
    });
  } catch (...) {
    result.error = std::current_exception();
    take_back_draws(recorded, inputs, made);
  }
  for (ValueId id : recorded.outputs) result.values.push_back(values[id]);
  return result;
}

}  // namespace rondo::compile
