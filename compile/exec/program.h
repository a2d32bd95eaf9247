// Program: a compiled graph, that is, a plan and its code for one device. Immutable; several threads may run it at
// once.
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
  int kernels = 0;   // generated
  int compiled = 0;  // of these, the ones for which code had to be generated
  int fresh = 0;     // and the ones whose code this process did not have: generated, or from disk or an artifact
  int library_calls = 0;
  int64_t arena_bytes = 0;
  double compile_ms = 0;  // all of it: passes, planning, code
};

// How a graph whose inputs have marked dimensions would look at other sizes of these.
struct OtherSizes {
  std::optional<Graph> next;               // at the next size of each; nothing: it cannot be told
  std::optional<Graph> smallest, largest;  // nothing: as before, or there is no bound
};
struct SizeMarks {
  absl::AnyInvocable<OtherSizes() const> graph_at;
  // Code for these ranges of sizes exists, so whatever serves is taken.
  bool ranges_met = false;
};

struct ProgramOptions {
  PlanOptions plan = {};
  Sizes sizes = Sizes::kConstant;
  Device device = kCPU;
  // If not null, for the time of compile(): code reads what depends on marked dimensions when it runs, whatever `sizes`
  // says, and assumes that they stay within their ranges.
  const SizeMarks* marks = nullptr;
  // The program's floats have the graph as it was before all passes (Floats::source): for checks of its numbers.
  bool keeps_source = false;
};

class Program : public std::enable_shared_from_this<Program> {
 public:
  static std::shared_ptr<const Program> compile(Graph graph, const ProgramOptions& options = {});

  // Executor::run(), with these floats (for this plan). Its numbers are not checked: regions call run_checked()
  // (exec/check_units.h).
  std::vector<Tensor> run(std::span<const Tensor> inputs, const std::shared_ptr<const Floats>& floats,
                          std::vector<Tensor>* finished = nullptr, std::span<const Tensor> homes = {},
                          const TakeResults& take = nullptr) const;
  // The same; donated inputs that nobody but `inputs` holds are written over.
  std::vector<Tensor> run_and_release(std::vector<Tensor> inputs, const std::shared_ptr<const Floats>& floats,
                                      std::span<const Tensor> homes = {}, const TakeResults& take = nullptr) const;
  // True if run_and_release() could write over anything.
  bool reuses_inputs() const { return plan_.reuses_inputs; }

  const Plan& plan() const { return plan_; }
  const Code& code() const { return code_; }
  const std::shared_ptr<const Floats>& floats() const { return floats_; }  // of the graph that was compiled
  // The floats for another call of the recording that the graph was derived from (FloatTrace).
  std::shared_ptr<const Floats> floats_at(std::span<const double> recorded) const;
  const Graph& graph() const { return plan_.graph; }
  const ProgramStats& stats() const { return stats_; }
  const PlanOptions& how() const { return how_; }  // it was made: for checks of its numbers

  // A graph before all passes. Its floats: those of all nodes, in order.
  struct Source {
    Graph graph;
    FloatFormulas formulas;
  };
  Program(Plan plan, Code code, FloatFormulas formulas, std::optional<Source> source, ProgramStats stats,
          PlanOptions how);

 private:
  // Kept for launches that run late.
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
