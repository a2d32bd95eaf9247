// Program: a compiled graph, that is, a plan and its code for one device. Immutable; several threads may run it at the
// same time.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "rondo/compile/exec/code.h"
#include "rondo/compile/exec/executor.h"
#include "rondo/compile/exec/floats.h"
#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/plan/make_plan.h"

namespace rondo::compile {

struct ProgramStats {
  int kernels = 0;   // generated kernels
  int compiled = 0;  // kernels that had to be compiled
  int fresh = 0;     // kernels that this process did not have yet: compiled, or loaded from disk or an artifact
  int library_calls = 0;
  int64_t arena_bytes = 0;
  double compile_ms = 0;  // passes, planning and code together
};

// The program's graph at other sizes of the dimensions that are marked in its inputs.
struct OtherSizes {
  std::optional<Graph> next;               // each marked dimension has its next size; nullopt: unknown
  std::optional<Graph> smallest, largest;  // nullopt: unknown, or no bound
};
struct SizeMarks {
  absl::AnyInvocable<OtherSizes() const> graph_at;
  // True if code for these ranges of sizes was made before. Then any existing code that serves the sizes is used.
  bool ranges_met = false;
};

struct ProgramOptions {
  PlanOptions plan = {};
  Sizes sizes = Sizes::kConstant;
  Device device = kCPU;
  // If not null (needed only during compile()): code reads extents that depend on marked dimensions at run time,
  // regardless of `sizes`, and assumes that the dimensions stay within their ranges.
  const SizeMarks* marks = nullptr;
  // If true, the program's floats keep the graph as it was before all passes (Floats::source), to check its numbers.
  bool keeps_source = false;
};

class Program : public std::enable_shared_from_this<Program> {
 public:
  static std::shared_ptr<const Program> compile(Graph graph, const ProgramOptions& options = {});

  // Runs the program as Executor::run() does. `floats`: made for this plan. The numbers are not checked: regions call
  // run_checked() (exec/check_units.h).
  std::vector<Tensor> run(std::span<const Tensor> inputs, const std::shared_ptr<const Floats>& floats,
                          std::vector<Tensor>* finished = nullptr, std::span<const Tensor> homes = {},
                          const TakeResults& take = nullptr) const;
  // Does what run() does, but writes over donated inputs that only `inputs` holds.
  std::vector<Tensor> run_and_release(std::vector<Tensor> inputs, const std::shared_ptr<const Floats>& floats,
                                      std::span<const Tensor> homes = {}, const TakeResults& take = nullptr) const;
  // True if run_and_release() may write over inputs.
  bool reuses_inputs() const { return plan_.reuses_inputs; }

  const Plan& plan() const { return plan_; }
  const Code& code() const { return code_; }
  const std::shared_ptr<const Floats>& floats() const { return floats_; }  // of the compiled graph itself
  // Returns the floats for another call of the recording from which the graph was derived (FloatTrace).
  std::shared_ptr<const Floats> floats_at(std::span<const double> recorded) const;
  const Graph& graph() const { return plan_.graph; }
  const ProgramStats& stats() const { return stats_; }
  const PlanOptions& how() const { return how_; }  // the options of the plan, for exec/check_units.h

  // A graph before all passes. `formulas`: for the floats of all nodes, in order.
  struct Source {
    Graph graph;
    FloatFormulas formulas;
  };
  Program(Plan plan, Code code, FloatFormulas formulas, std::optional<Source> source, ProgramStats stats,
          PlanOptions how);

 private:
  // Returns an owner that keeps the program and `floats` alive for launches that run asynchronously; null: not needed.
  std::shared_ptr<const void> keep(const std::shared_ptr<const Floats>& floats) const;

  const Plan plan_;
  const Code code_;
  const FloatFormulas formulas_;
  const std::optional<Source> source_;
  const bool floats_vary_;
  const std::shared_ptr<const Floats> floats_;
  const ProgramStats stats_;
  const PlanOptions how_;
};

}  // namespace rondo::compile
