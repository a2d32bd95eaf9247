#include "rondo/compile/exec/tune.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/exec/executor.h"
#include "rondo/compile/exec/made_up.h"
#include "rondo/compile/jit/tuner.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::compile {
namespace {

// Appends the dtypes, sizes and strides of values to the text that describes a launch to the Tuner: the launch's time
// depends on them.
void describe(const Graph& graph, const ValueIds& ids, std::string& text) {
  for (ValueId id : ids) {
    if (id == kNoValue) continue;
    const Value& value = graph.value(id);
    absl::StrAppend(&text, std::string(name_of(value.dtype)), rondo::to_string(value.sizes),
                    rondo::to_string(value.strides), "\n");
  }
}
std::string threads() { return absl::StrCat(", ", num_threads(), " threads"); }

class PlanTuner {
 public:
  PlanTuner(Plan& plan, Code& code, bool exact)
      : plan_(plan), code_(code), exact_(exact), floats_(floats_for(plan, plan.graph)), executor_(plan, code, floats_) {
    std::vector<Tensor> inputs;
    for (ValueId id : plan.graph.inputs) inputs.push_back(made_up(plan.graph, id, code.device(), generator_));
    frame_ = executor_.make_frame(inputs, /*release=*/false);
  }

  void run() {
    for (size_t i = 0; i < plan_.launches.size(); ++i) {
      if (plan_.launches[i].kind == Launch::Kind::kKernel) tune_kernel(i);
      else if (code_.prepared(i) != nullptr && !exact_) tune_library_call(i);  // other algorithms add in another order
      make_results(i);
    }
  }

 private:
  // Makes the results of this launch, which later launches read.
  void make_results(size_t index) {
    const Launch& launch = plan_.launches[index];
    // A collective is not called, because the other processes do not take part in the tuning.
    const bool is_collective = std::any_of(launch.nodes.begin(), launch.nodes.end(),
                                           [&](int32_t n) { return plan_.graph.node(n).op->is<trait::Exchange>(); });
    bool made = false;
    if (!is_collective) {
      try {
        executor_.run_launch(index, frame_);
        made = true;
      } catch (const Error&) {  // a custom op may demand more of its operands than made_up() knows
        if (launch.kind != Launch::Kind::kLibraryCall || !plan_.graph.node(launch.op()).op->checks) throw;
      }
    }
    for (const auto& [id, address] : results_of(launch)) {
      if (made && !are_places(plan_.graph, id)) continue;
      Tensor result = frame_.tensor(plan_.graph.value(id), address);
      // With made-up numbers, a launch may compute places that are out of range.
      if (made && are_good_places(plan_.graph, id, result.to(kCPU).to_vector<int64_t>())) continue;
      result.copy_(made_up(plan_.graph, id, code_.device(), generator_));
    }
  }

  std::vector<std::pair<ValueId, Address>> results_of(const Launch& launch) const {
    std::vector<std::pair<ValueId, Address>> results;
    if (launch.kind == Launch::Kind::kCombine) {
      const std::vector<ColumnResult>& sums = plan_.kernel_of(launch).column_results;
      for (size_t i = 0; i < sums.size(); ++i) results.emplace_back(sums[i].value, launch.addresses[2 * i + 1]);
      return results;
    }
    const std::vector<ValueId> all = touched(plan_, launch), made = written(plan_, launch);
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i] != kNoValue && std::find(made.begin(), made.end(), all[i]) != made.end())
        results.emplace_back(all[i], launch.addresses[i]);
    return results;
  }

  void tune_kernel(size_t index) {
    Launch& launch = plan_.launches[index];
    LoweredUnit& unit = plan_.kernel_of(launch);
    const int64_t tile = unit.kernel.chunk_rows, grain = launch.grain;
    struct Choice {
      int64_t grain, tile;
    };
    std::vector<Choice> choices{{grain, tile}};
    if (grain > 0) choices.insert(choices.end(), {{grain / 8, tile}, {grain * 8, tile}, {int64_t{1} << 40, tile}});
    // Other chunks add in another order, so exact mode keeps the planned ones. Only larger chunks are tried: their
    // partial sums need less memory than was planned.
    if (tile > 0 && !exact_)
      for (int64_t times : {2, 4})
        if (tile * times < unit.kernel.rows) choices.push_back({grain, tile * times});
    const std::string what = absl::StrCat("kernel", threads(), ", ", exact_ ? "exact" : "default", "\n",
                                          to_string(unit.kernel));
    const auto choose = [&](const Choice& choice) {
      launch.grain = choice.grain;
      unit.kernel.chunk_rows = unit.extents[1] = choice.tile;
    };
    std::vector<std::function<void()>> candidates;
    for (const Choice& choice : choices)
      candidates.push_back([&, choice] {
        choose(choice);
        executor_.run_launch(index, frame_);
        if (combines_at_once(index)) executor_.run_launch(index + 1, frame_);
      });
    choose(choices[static_cast<size_t>(Tuner::instance().fastest(what, candidates, code_.device()))]);
  }

  // True if the next launch adds up the partial sums of this one.
  bool combines_at_once(size_t index) const {
    if (index + 1 == plan_.launches.size()) return false;
    const Launch& next = plan_.launches[index + 1];
    return next.kind == Launch::Kind::kCombine && next.kernel == plan_.launches[index].kernel;
  }

  void tune_library_call(size_t index) {
    Launch& launch = plan_.launches[index];
    std::vector<std::shared_ptr<const PreparedKernel>> variants{code_.prepared(index)};
    std::vector<int> numbers{0};
    constexpr int kMostVariants = 8;
    for (int variant = 1; variant < kMostVariants; ++variant)
      if (auto prepared = code_.prepare(plan_, launch, variant)) {
        variants.push_back(std::move(prepared));
        numbers.push_back(variant);
      }
    std::vector<std::function<void()>> candidates;
    for (const auto& variant : variants)
      candidates.push_back([&, variant] {
        code_.set_prepared(index, variant);
        executor_.run_launch(index, frame_);
      });
    const GraphNode& node = plan_.graph.node(launch.op());
    std::string what = absl::StrCat(node.op->name, threads(), "\n");
    describe(plan_.graph, launch.inputs, what);
    describe(plan_.graph, launch.outputs, what);
    for (size_t i = 1; i < launch.nodes.size(); ++i)
      absl::StrAppend(&what, plan_.graph.node(launch.nodes[i]).op->name, "\n");
    const auto best = static_cast<size_t>(Tuner::instance().fastest(what, candidates, code_.device()));
    code_.set_prepared(index, variants[best]);
    launch.variant = numbers[best];
  }

  Plan& plan_;
  Code& code_;
  const bool exact_;
  const Floats floats_;
  Generator generator_{1};  // separate: tuning must not draw the program's random numbers
  const Executor executor_;
  Frame frame_;
};

}  // namespace

void tune(Plan& plan, Code& code, bool exact) {
  NoGrad off;
  RecorderScope eager(nullptr);
  PlanTuner(plan, code, exact).run();
}

// Times the product with epilogues and without. Without epilogues, each op is one more pass over the result, with the
// op's own kernel. A product of few rows mostly waits for its weights. A program reads the weights from memory, but
// this timing would read them from the caches. So a product of few rows is not timed and gets no epilogues.
bool epilogues_pay(Device device, const Graph& graph, int32_t index, const std::vector<int32_t>& epilogues) {
  constexpr int64_t kFewRows = 4;
  const Dims& sizes = graph.value(graph.node(index).outputs[0]).sizes;
  if (!sizes.empty() && sizes.numel() <= kFewRows * sizes.back()) return false;
  NoGrad off;
  RecorderScope eager(nullptr);
  const auto node_at = [&](int32_t n) -> const GraphNode& { return graph.node(n); };
  Generator generator(1);
  const auto made_up_value = [&](ValueId id) { return made_up(graph, id, device, generator); };
  const GraphNode& product = node_at(index);
  std::vector<Tensor> operands, added;
  std::vector<const Tensor*> pointers;
  for (ValueId id : product.inputs) operands.push_back(id == kNoValue ? Tensor() : made_up_value(id));
  for (const Tensor& operand : operands) pointers.push_back(&operand);
  Tensor result = made_up_value(product.outputs[0]);
  std::vector<EpilogueCall> calls;
  added.reserve(epilogues.size());
  for (int32_t n : epilogues) {
    added.push_back(made_up_value(product.outputs[0]));
    calls.push_back({node_at(n).op->epilogue, node_at(n).inputs.size() > 1 ? &added.back() : nullptr});
  }
  const auto run_product = [&](std::span<const EpilogueCall> with) {
    run_kernel({*product.op, pointers, {&result, 1}, product.attrs, product.where, with});
  };
  const auto apart = [&] {
    run_product({});
    for (size_t i = 0; i < epilogues.size(); ++i) {
      const GraphNode& node = node_at(epilogues[i]);
      const Tensor* inputs[] = {&result, &added[i]};
      run_kernel({*node.op, {inputs, node.inputs.size()}, {&result, 1}, node.attrs, node.where});
    }
  };
  const std::function<void()> candidates[] = {apart, [&] { run_product(calls); }};
  std::string what = absl::StrCat("epilogues of ", product.op->name, threads(), "\n");
  describe(graph, product.inputs, what);
  for (int32_t n : epilogues) absl::StrAppend(&what, node_at(n).op->name, "\n");
  return Tuner::instance().fastest(what, candidates, device) == 1;
}

}  // namespace rondo::compile
