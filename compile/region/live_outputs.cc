#include "rondo/compile/region/live_outputs.h"

#include "absl/strings/str_cat.h"
#include "rondo/compile/region/failed_run.h"
#include "rondo/compile/region/marks.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::compile {
namespace {

// Returns the base that a view would have in eager execution: the value at which its chain of views starts, after the
// last detach().
ValueId base_of(const WritingTrace& trace, ValueId id) {
  const Graph& graph = trace.recorded();
  ValueId base = kNoValue;
  while (graph.value(id).root != id && graph.value(id).producer >= 0 &&
         (graph.value(id).grad_mode || autograd::is_no_grad_view(trace.handle(id))))
    id = base = graph.node(graph.value(id).producer).inputs[0];
  return base;
}

// Gives the i-th output of the recording the memory and the history of `result`.
void attach_output(WritingTrace& trace, int i, const Tensor& result, RegionNode* node) {
  const Graph& graph = trace.recorded();
  const ValueId id = graph.outputs[static_cast<size_t>(i)];
  Tensor handle = trace.handle(id);
  TensorImpl& impl = *handle.impl();
  if (const Tensor* written = trace.written_tensor(graph.value(id).root); written == nullptr) {
    impl.storage = result.storage();
    impl.offset = result.storage_offset();
  } else if (&impl != written->impl()) {
    impl.storage = written->impl()->storage;
    impl.offset = written->impl()->offset + graph.value(id).offset;
  }
  impl.recorder = nullptr;
  if (graph.value(id).requires_grad && !trace.keeps_history(id)) {
    if (node != nullptr) {
      autograd::set_history(handle, node->history(i), i);
    } else {
      const Edge edge = autograd::gradient_edge(result);
      autograd::set_history(handle, edge.node, edge.output);
    }
  }
  if (const ValueId base = base_of(trace, id); base != kNoValue) {
    const Tensor* const outside = trace.outside_view(base);
    autograd::mark_view(handle, outside != nullptr ? *outside : trace.handle(base), autograd::is_no_grad_view(handle));
    // Makes the view stale (Note [Stale views] in capture/writes.cc): its view_version is out of date, and it has no
    // flag of its own, so requires_grad() asks its base.
    if (trace.is_left_stale(id)) {
      impl.requires_grad = false;
      --impl.autograd->view_version;
    }
  }
}

// Makes reads of outputs that the run did not compute throw an Error with `reason`.
void name_missing(const WritingTrace& trace, const std::string& reason) {
  Recorder* const missing = recorder_of_missing(reason);
  for (ValueId id : trace.recorded().outputs) {
    if (trace.written_tensor(id) != nullptr) continue;
    Recorder*& recorder = trace.handle(id).impl()->recorder;
    if (recorder != nullptr) recorder = missing;
  }
}

[[noreturn]] void throw_error(const WritingTrace& trace, const std::exception_ptr& error, const std::string& region) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    name_missing(trace, absl::StrCat("region ", region, " failed before it was computed: ", e.what()));
    throw;
  }
}

}  // namespace

void choose_outputs(WritingTrace& trace) {
  trace.refresh();
  Graph& graph = trace.graph;
  ValueMap<bool> held(graph, false), based(graph, false);
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.outputs) {
      held[id] = trace.is_alive(id);
      if (!held[id]) continue;
      const ValueId base = base_of(trace, id);
      if (base != kNoValue && trace.outside_view(base) == nullptr) based[base] = true;
    }
  graph.outputs.clear();
  for (const GraphNode& node : graph.nodes)
    for (ValueId id : node.outputs) {
      if (!held[id] && !based[id]) continue;
      // A value that the caller wrote without gradients has kept its own history, so no gradient arrives for it here.
      graph.value(id).hidden = !held[id] || (graph.value(id).requires_grad && trace.keeps_history(id));
      graph.outputs.push_back(id);
    }
}

void attach_outputs(WritingTrace& trace, const RunResult& run, const std::string& region) {
  const std::vector<ValueId>& outputs = trace.recorded().outputs;
  for (size_t i = 0; i < outputs.size() && !run.values.empty(); ++i)
    if (run.values[i].defined()) attach_output(trace, static_cast<int>(i), run.values[i], run.node.get());
  if (run.error != nullptr) throw_error(trace, run.error, region);
  if (run.binding == nullptr || !is_marked(trace.external())) return;
  std::vector<Tensor> handles;
  for (ValueId id : outputs) handles.push_back(trace.handle(id));
  run.binding->entry()->result_marks().propagate(trace.external(), handles);
}

}  // namespace rondo::compile
