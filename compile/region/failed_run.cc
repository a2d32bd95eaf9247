#include "rondo/compile/region/failed_run.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/compile/exec/run_eagerly.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/compile/transform/passed_ops.h"
#include "rondo/runtime/autograd/hooks.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::compile {
namespace {

// The recorder of values that a failed run did not compute: reading one throws the reason. There is one recorder for
// each reason, and it is never freed, because such errors are rare and their reasons few. Beyond kMostTexts reasons,
// further ones share a recorder with a general text.
class Missing final : public Recorder {
 public:
  explicit Missing(std::string reason) : reason_(std::move(reason)) {}
  void record(const OpDef&, std::span<const Tensor* const>, const Attrs&, std::span<Tensor>, bool,
              std::source_location where) override {
    throw_internal("a value that was never computed records", where);
  }
  void flush(const TensorImpl&, std::source_location where) override { throw_op_error("data", reason_, where); }
  void interrupt(const char*, std::source_location where) override { throw_op_error("data", reason_, where); }

 private:
  const std::string reason_;
};

class FailedRun final : public RegionNode, public std::enable_shared_from_this<FailedRun> {
 public:
  FailedRun(std::shared_ptr<const Binding> binding, std::span<const Tensor> inputs) : binding_(std::move(binding)) {
    const Graph& graph = binding_->graph();
    n_outputs = static_cast<int>(graph.outputs.size());
    edges.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      saved_.emplace_back(inputs[i], false);
      if (graph.value(graph.inputs[i]).requires_grad) edges[i] = autograd::gradient_edge(inputs[i]);
    }
  }
  std::shared_ptr<Node> history(int) override { return shared_from_this(); }

  void backward(std::span<Tensor> grads_out, std::span<Tensor> grads_in) override {
    autograd::apply_extras(*this, grads_out);
    if (grads_in.empty()) return;
    count(Outcome::kReplayed, "a run that failed");
    const Graph& graph = binding_->graph();
    RecorderScope eager(nullptr);
    const bool create_graph = grad_enabled();
    GradMode on(true);
    ValueMap<bool> wanted(graph, false);  // by value
    for (size_t i = 0; i < grads_out.size(); ++i)
      if (grads_out[i].defined()) wanted[graph.outputs[i]] = true;
    const auto is_wanted = [&](ValueId id) { return wanted[id]; };
    for (size_t n = graph.nodes.size(); n-- > 0;) {
      const GraphNode& node = graph.nodes[n];
      if (std::none_of(node.outputs.begin(), node.outputs.end(), is_wanted)) continue;
      if (node.op->is<trait::Exchange>())
        throw Error(absl::StrCat("backward of ", node.op->name,
                                 ": its region failed, and to run it again would repeat the collective, which the "
                                 "other processes do not",
                                 describe_location(node.where)));
      for (ValueId id : node.inputs)
        if (id != kNoValue) wanted[id] = true;
    }
    ValueMap<Tensor> values(graph);
    std::vector<Tensor> targets, roots, seeds;
    std::vector<size_t> positions;  // of the targets, among the inputs
    for (size_t i = 0; i < graph.inputs.size(); ++i) {
      if (!is_wanted(graph.inputs[i])) continue;
      Tensor& value = values[graph.inputs[i]] = saved_[i].get(name(), {});
      if (edges[i].node == nullptr) continue;
      // Gradients stop at views of the inputs: one input may be computed from another.
      Dims same;
      for (int d = 0; d < value.rank(); ++d) same.push_back(d);
      targets.push_back(value = ops::permute(value, same));
      positions.push_back(i);
    }
    compile::run_eagerly(graph, values, &wanted);
    for (size_t i = 0; i < grads_out.size(); ++i) {
      if (!grads_out[i].defined()) continue;
      roots.push_back(values[graph.outputs[i]]);
      seeds.push_back(grads_out[i]);
    }
    const std::vector<Tensor> grads = autograd::grad(roots, targets, seeds, true, create_graph, true);
    for (size_t i = 0; i < grads.size(); ++i) grads_in[positions[i]] = grads[i];
  }

 private:
  std::shared_ptr<const Binding> binding_;
  std::vector<SavedTensor> saved_;
};
}  // namespace

Recorder* recorder_of_missing(const std::string& reason) {
  constexpr size_t kMostTexts = 256;
  static std::mutex mutex;
  static auto* const known = new std::map<std::string, std::unique_ptr<Missing>>;
  std::lock_guard lock(mutex);
  const std::string text = known->size() < kMostTexts || known->contains(reason)
                               ? reason
                               : "the compiled region that was to make the value failed";
  std::unique_ptr<Missing>& missing = (*known)[text];
  if (missing == nullptr) missing = std::make_unique<Missing>("the tensor has no value: " + text);
  return missing.get();
}

CollectivesOfRun::CollectivesOfRun(const Entry& entry, std::span<const Tensor> inputs) {
  if (entry.communicates() && (!entry.recording().versions.empty() || has_waiting_checks(entry.forward().plan()) ||
                               std::any_of(inputs.begin(), inputs.end(), &SharedRandomState::is_state)))
    note_.emplace(CollectiveScope::kNote, log_);
}

void CollectivesOfRun::with_sums(CollectiveScope::Mode mode, absl::FunctionRef<void()> fn) {
  note_.reset();
  const CollectiveScope known(mode, log_);
  fn();
}

void take_back_draws(const Graph& recorded, std::span<const Tensor> inputs, size_t failed) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!SharedRandomState::is_state(inputs[i])) continue;
    uint64_t draws = 0;
    for (size_t n = failed + 1; n < recorded.nodes.size(); ++n) {
      const ValueIds& operands = recorded.nodes[n].inputs;
      draws += std::find(operands.begin(), operands.end(), recorded.inputs[i]) != operands.end();
    }
    SharedRandomState::take_back(inputs[i], draws);
  }
}

void take_back_draws(const Graph& recorded, std::span<const Tensor> inputs, CollectivesOfRun& collectives) {
  if (std::none_of(inputs.begin(), inputs.end(), &SharedRandomState::is_state)) return;
  ValueMap<Tensor> values(recorded);
  for (size_t i = 0; i < inputs.size(); ++i) values[recorded.inputs[i]] = inputs[i];
  size_t made = 0;
  try {
    collectives.rerun_without_sending(
        [&] { compile::run_eagerly(recorded, values, nullptr, [&](const GraphNode&) { ++made; }); });
  } catch (const std::exception&) {
    take_back_draws(recorded, inputs, made);
  }
}

std::shared_ptr<RegionNode> make_node_of_failed_run(std::shared_ptr<const Binding> binding,
                                                    std::span<const Tensor> inputs) {
  return std::make_shared<FailedRun>(std::move(binding), inputs);
}

}  // namespace rondo::compile
