#include "rondo/compile/exec/eager_ops.h"

#include <memory>
#include <mutex>

#include "rondo/compile/capture/recording_key.h"
#include "rondo/compile/exec/program.h"
#include "rondo/compile/log.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/recent_cache.h"
#include "rondo/runtime/dispatch/op_compiler.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/channels_last.h"

namespace rondo::compile {
namespace {

// Returns the call as a graph of one node.
Graph graph_of(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, size_t n_outputs,
               std::source_location where) {
  Graph graph;
  GraphNode node;
  node.op = &op;
  node.attrs = attrs;
  node.where = where;
  for (const Tensor* input : inputs) {
    if (!input->defined()) {
      node.inputs.push_back(kNoValue);
      continue;
    }
    const auto id = static_cast<ValueId>(graph.values.size());
    Value& value = graph.values.emplace_back();
    value.dtype = input->dtype();
    value.sizes = input->sizes();
    value.strides = input->strides();
    value.root = id;
    graph.inputs.push_back(id);
    node.inputs.push_back(id);
  }
  const auto first = static_cast<ValueId>(graph.values.size());
  for (size_t i = 0; i < n_outputs; ++i) {
    const auto id = static_cast<ValueId>(graph.values.size());
    Value& value = graph.values.emplace_back();
    value.producer = 0;
    value.root = id;
    node.outputs.push_back(id);
    graph.outputs.push_back(id);
  }
  graph.nodes.push_back(std::move(node));
  const std::vector<TensorMeta> metas = infer_results(graph, graph.nodes[0], Operands::kAsTheyAre);
  for (size_t i = 0; i < n_outputs; ++i) {
    Value& value = graph.value(first + static_cast<ValueId>(i));
    value.dtype = metas[i].dtype;
    value.sizes = metas[i].sizes;
    value.strides = metas[i].strides;
  }
  return graph;
}

class EagerOps final : public OpCompiler {
 public:
  void hint(std::string_view text) override { log::write(log::Topic::kPerfHints, text); }
  bool run(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
           std::source_location where, std::span<const Tensor> homes) override {
    const bool in_parts = op.lower == nullptr;
    if (in_parts && (!op.fuse_parts || op.kind == OpKind::kContraction || op.overwrites >= 0)) return false;
    Graph graph = graph_of(op, inputs, attrs, outputs.size(), where);
    if (const Value& result = graph.value(graph.outputs[0]);
        op.kind == OpKind::kElementwise && !is_contiguous(result.sizes, result.strides))
      return run_in_memory_order(op, inputs, attrs, outputs, where);
    const Device device = inputs[0]->device();
    const std::shared_ptr<const Program> program = program_for(graph, device, in_parts);
    if (program == nullptr) return false;
    std::vector<Tensor> given;
    for (const Tensor* input : inputs)
      if (input->defined()) given.push_back(*input);
    // A decomposition may compute with the call's floats, so each set of floats has its own plan.
    const auto floats = in_parts || attrs.floats.size() == 0
                            ? program->floats()
                            : std::make_shared<const Floats>(floats_for(program->plan(), graph));
    std::vector<Tensor> results = program->run(given, floats, nullptr, homes);
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = std::move(results[i]);
    return true;
  }
  EagerOpsReport report() {
    std::lock_guard lock(mutex_);
    return report_;
  }

 private:
  // Generated kernels compute results in the order of their dimensions. So this runs the call on views, as in Note
  // [Recorded in memory order] in capture/trace.h.
  static bool run_in_memory_order(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                  std::span<Tensor> outputs, std::source_location where) {
    const NoGrad off;
    const RecorderScope eager(nullptr);
    std::vector<TensorArg> args;
    for (const Tensor* input : inputs) args.emplace_back(*input, where);
    call_channels_last(op, args, attrs, outputs);
    return true;
  }
  struct Entry {
    std::shared_ptr<const Program> program;  // null: the output is empty, or the plan has a library call
  };

  std::shared_ptr<const Program> program_for(const Graph& graph, Device device, bool in_parts) {
    RecordingKey key = pack(graph, in_parts ? PackFloats::kYes : PackFloats::kNo);
    key.push_back(static_cast<uint64_t>(device.backend) << 8 | static_cast<uint8_t>(device.index));
    // A device number may stand for another architecture later: compile_for() opens and closes devices.
    key.push_back(reinterpret_cast<uintptr_t>(find_target(device)));
    const std::shared_ptr<const Entry> entry = entries_.get(key, [&] { return compile(graph, device, in_parts); });
    std::lock_guard lock(mutex_);
    ++(entry->program == nullptr ? report_.refused : report_.calls);
    return entry->program;
  }
  std::shared_ptr<const Entry> compile(const Graph& graph, Device device, bool in_parts) {
    std::shared_ptr<const Program> program;
    if (graph.value(graph.outputs[0]).sizes.numel() > 0) {
      // Compiles in exact mode, which rounds as eager kernels do. A single kernel is compiled for all sizes. The parts
      // of a decomposition are compiled for constant sizes: a fused kernel reads a row only once if it knows its
      // length.
      program = Program::compile(graph, {.plan = {.exact = true, .epilogues = Epilogues::kNever},
                                         .sizes = in_parts ? Sizes::kConstant : Sizes::kAny,
                                         .device = device});
      std::lock_guard lock(mutex_);
      report_.compiled += program->stats().compiled;
      ++report_.plans;
      if (program->stats().library_calls > 0) program = nullptr;
    }
    return std::make_shared<const Entry>(Entry{std::move(program)});
  }

  RecentCache<RecordingKey, Entry> entries_{4096};
  std::mutex mutex_;  // guards report_
  EagerOpsReport report_;
};

// Never destroyed: tensors with static lifetime may call ops.
EagerOps& eager_ops() {
  static auto* const ops = new EagerOps;
  return *ops;
}

}  // namespace

EagerOpsReport eager_ops_report() { return eager_ops().report(); }

}  // namespace rondo::compile

extern "C" rondo::OpCompiler* rondo_op_compiler() { return &rondo::compile::eager_ops(); }
