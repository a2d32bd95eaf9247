#include "rondo/compile/region/region_trace.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/floating_point_scope.h"

namespace rondo::compile {

void RegionTrace::follow(std::shared_ptr<const Binding> latest) {
  if (latest == nullptr || loops_ != nullptr) return;
  KnownRecording known = latest->entry()->known();
  if (known.graph == nullptr) return;
  piece_device_ = known.device;
  FollowingTrace::follow(std::move(known));
  latest_ = std::move(latest);
}

void RegionTrace::append(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                         std::span<Tensor> outputs, bool in_place, std::source_location where) {
  const absl::Cleanup recorded = [&] { random_.op_recorded(inputs); };
  if (in_place && append_known_write(op, inputs, attrs, where)) return;
  stop_following();
  if (has_writes())
    for (const Tensor* input : inputs)
      if (input->defined() && !can_read(*input)) {
        graph_break("a tensor is read whose place in memory that was written is unknown", where);
        break;
      }
  // A recording is on one device.
  const Device device = outputs[0].impl()->device;
  if (!graph.nodes.empty() && !(device == piece_device_)) graph_break("an op runs on another device", where);
  piece_device_ = device;
  if (!in_place) {
    // A view whose base was written to after the view was made gets its new history here, as in eager
    // execution, not when the recording runs. The recording can go on: no recorded op writes, so none can
    // change the base's history meanwhile.
    const bool differentiable = std::any_of(outputs.begin(), outputs.end(),
                                            [](const Tensor& t) { return t.impl()->requires_grad; });
    if (differentiable)
      for (const Tensor* input : inputs)
        if (is_stale_view(*input)) {
          // Ops that read the base after the write must add to its gradient after this view does. They become a piece
          // of their own, so that exact mode sums in eager's order.
          if (overwrote_ && region_.options().exact && reads(input->storage()))
            graph_break("a view is read again whose base was written to", where);
          renew_history(*input);
        }
    const bool may_loop = finds_loops_ && !has_writes();
    if (may_loop && (loops_ != nullptr || loop_.is_running()) &&
        runs_at_once_in_loop(op, inputs, attrs, outputs, where))
      return;
    if (dense_parts_.empty()) Trace::append(op, inputs, attrs, outputs, in_place, where);
    else record_of_dense_parts(op, inputs, attrs, outputs, where);
    if (may_loop && !loop_.is_running() && LoopSteps::is_time_to_search(graph.nodes.size(), region_.varies()) &&
        loop_.search(lines(), region_.varies()))
      region_.loops().add(loop_.step());
    return;
  }
  const char* why = loop_.is_running() || !dense_parts_.empty() ? "a loop over time runs in pieces"
                                                                : record_write(op, inputs, attrs, outputs[0], where);
  if (why == nullptr) return;
  // A write that cannot be recorded runs now. If it goes through a view, it also changes the history of the base.
  // `base` holds the version that the view shows now, so that the graph break gives it memory and history.
  const bool is_recorded = inputs[0]->impl()->recorder == this;
  const Tensor base = is_recorded ? handle(graph.value(value_of(*inputs[0], where)).root) : Tensor();
  graph_break(absl::StrCat(op.name, " in place: ", why), where);
  overwrote_ = true;
  RecorderScope eager(nullptr);
  std::vector<TensorArg> args;
  for (const Tensor* input : inputs) args.emplace_back(*input, where);
  call_in_place(op, args, attrs);
}

void RegionTrace::flush_gradient(const TensorImpl& tensor, std::source_location where) {
  if (has_writes()) return graph_break("a gradient is watched", where);
  // Runs the recording up to the op that makes this tensor. The ops recorded since, among them those that read the
  // tensor, become the next piece. So in backward the hook runs between the two pieces, on the sum of the readers'
  // gradients.
  region_.break_graph("a gradient is watched" + describe_location(where));
  broken_ = true;
  stop_following();
  Tail tail = cut(graph.value(tensor.recorded_value).producer);
  finish();
  resume(std::move(tail));
}

void RegionTrace::before_write(const Storage& storage, std::source_location where) {
  if (running_) return;  // the program writes its results
  written_by_pointer_.push_back(storage);
  const bool reads_part = std::any_of(dense_parts_.begin(), dense_parts_.end(),
                                      [&](const auto& part) { return part.second.of.storage() == storage; });
  if (reads_part || reads(storage)) graph_break("memory that a recorded op reads is written", where);
}

void RegionTrace::before_history_change(const Tensor& tensor, std::source_location where) {
  if (running_) return;  // the program's results get their histories
  changed_history_ = true;
  if (has_read(tensor)) graph_break("a tensor that a recorded op reads gets another history", where);
}

void RegionTrace::before_read(const Storage& storage, std::source_location where) {
  if (!running_ && writes(storage)) graph_break("memory that a recorded op writes is read", where);
}

void RegionTrace::finish() {
  const absl::Cleanup forget = [this] {
    loop_.forget();
    forget_recording();
  };
  if (loop_.is_running()) run_steps_left();
  if (follows()) {
    if (is_known() && run_known()) return;
    stop_following();
  }
  latest_ = nullptr;
  if (graph.nodes.empty()) return;
  std::shared_ptr<const Binding> ran = run_piece(piece_++);
  if (!broken_ && !in_pieces_) latest_ = std::move(ran);
}

std::shared_ptr<const Replay> RegionTrace::finish_for_replay(std::span<const GeneratorState> drawn,
                                                             std::string& why_not) {
  if (broken_ || in_pieces_ || graph.nodes.empty()) {
    why_not = broken_ ? "there is a graph break" : in_pieces_ ? "a loop runs in pieces" : "nothing is computed";
    finish();
    return nullptr;
  }
  const std::shared_ptr<const Binding> ran = run_piece(piece_++);
  std::shared_ptr<const Replay> replay;
  if (ran != nullptr) replay = Replay::make(call_, *this, drawn, ran, why_not);
  else why_not = "it ran eagerly";
  const auto is_random_state = [&](const Storage& storage) {
    return std::any_of(external().begin(), external().end(), [&](const Tensor& input) {
      return input.storage() == storage && SharedRandomState::is_state(input);
    });
  };
  if (replay != nullptr && changed_history_) {
    why_not = "forward changes the history of a tensor";
    replay = nullptr;
  }
  if (replay != nullptr && !std::all_of(written_by_pointer_.begin(), written_by_pointer_.end(), is_random_state)) {
    why_not = "forward writes to memory by a pointer";
    replay = nullptr;
  }
  abandon();
  return replay;
}

bool RegionTrace::has_read(const Tensor& tensor) const {
  return dense_parts_.contains(tensor.impl()) ||
         std::any_of(external().begin(), external().end(), [&](const Tensor& t) { return t.is_same(tensor); });
}

bool RegionTrace::is_stale_view(const Tensor& tensor) const {
  if (!tensor.defined() || tensor.impl()->recorder != nullptr) return false;
  const AutogradMeta* meta = tensor.impl()->autograd.get();
  return meta != nullptr && meta->base.defined() && meta->view_version != tensor.version() &&
         meta->base.requires_grad();
}

void RegionTrace::renew_history(const Tensor& view) {
  autograd::gradient_edge(view);
  history_changed(view);  // it may have been read under no_grad()
}

void RegionTrace::graph_break(const std::string& reason, std::source_location where) {
  region_.break_graph(reason + describe_location(where));
  broken_ = true;
  finish();
}

std::shared_ptr<const Binding> RegionTrace::run_piece(int number) {
  return run_now([&] { return region_.run(*this, call_, number); });
}

bool RegionTrace::run_known() {
  std::shared_ptr<const Binding> ran = run_now([&] { return region_.run_known(*this, latest_); });
  if (ran == nullptr) return false;
  latest_ = broken_ ? nullptr : std::move(ran);
  return ++piece_, true;
}

template <class Run> std::shared_ptr<const Binding> RegionTrace::run_now(const Run& run) {
  const FloatingPointScope floating_point;
  RecorderScope eager(nullptr);
  running_ = true;
  const absl::Cleanup done = [this] { running_ = false; };
  absl::Cleanup draw_has_not_happened = [this] { random_.take_back_waiting(); };
  std::shared_ptr<const Binding> ran = run();
  std::move(draw_has_not_happened).Cancel();
  return ran;
}

// ---- Note [Loops over time] (capture/loop_steps.h)

std::vector<LoopSteps::Line> RegionTrace::lines() const {
  std::vector<LoopSteps::Line> lines;
  std::vector<const Tensor*> inputs;
  std::vector<Tensor> outputs;
  static const Tensor& kNone = *new Tensor;
  for (const GraphNode& node : graph.nodes) {
    inputs.clear();
    outputs.clear();
    for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? &kNone : &handle(id));
    for (ValueId id : node.outputs) outputs.push_back(handle(id));
    lines.push_back(LoopSteps::line_of(*node.op, inputs, node.attrs, outputs, node.where));
  }
  return lines;
}

bool RegionTrace::runs_at_once_in_loop(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                       std::span<Tensor> outputs, std::source_location where) {
  const LoopSteps::Line line = LoopSteps::line_of(op, inputs, attrs, outputs, where);
  if (!loop_.is_running() && !begins_known_loop(line)) {
    // Zeros that a loop begins with are made at once: recorded, they would be a piece of their own.
    if (inputs.empty() && graph.nodes.empty()) return call_now(op, inputs, attrs, outputs, where), true;
    // An op that joins all steps has an operand for each. It runs at once: recorded, each number of steps would
    // be another recording.
    if (!in_pieces_ || inputs.size() <= LoopSteps::kSteps) return false;
    finish();
    return call_now(op, inputs, attrs, outputs, where), true;
  }
  const LoopSteps::Next next = loop_.next(line);
  if (next == LoopSteps::Next::kEnd) {
    end_loop();
    return runs_at_once_in_loop(op, inputs, attrs, outputs, where);
  }
  if (next == LoopSteps::Next::kCutAndRecord) run_steps(loop_.complete_steps());
  if (!loop_.moves()) return false;
  const bool of_piece = !inputs.empty() && inputs[0]->impl()->recorder != nullptr;
  if (of_piece) return end_loop(), false;  // a view of what this piece makes
  call_now(op, inputs, attrs, outputs, where);
  if (region_.options().exact) return true;
  // The strides of a part depend on the number of steps. A dense copy has the same strides for all numbers of steps, so
  // one recording is enough for all of them.
  RecorderScope eager(nullptr);
  for (const Tensor& part : outputs)
    if (!is_contiguous(part.sizes(), part.strides())) dense_parts_[part.impl()] = {part, part.contiguous()};
  return true;
}

bool RegionTrace::begins_known_loop(const LoopSteps::Line& line) {
  if (loops_ == nullptr) return false;
  const bool begins = std::any_of(loops_->begin(), loops_->end(),
                                  [&](const LoopSteps::Step& known) { return loop_.begin(known, line); });
  if (begins && !graph.nodes.empty()) run_steps(0);
  return begins;
}

void RegionTrace::call_now(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                           std::span<Tensor> outputs, std::source_location where) {
  RecorderScope eager(nullptr);
  std::vector<TensorArg> args;
  for (const Tensor* input : inputs) args.emplace_back(*input, where);
  call(op, args, attrs, outputs);
}

void RegionTrace::record_of_dense_parts(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                        std::span<Tensor> outputs, std::source_location where) {
  absl::InlinedVector<const Tensor*, kUsualInputs> operands(inputs.begin(), inputs.end());
  for (const Tensor*& operand : operands)
    if (const auto found = dense_parts_.find(operand->impl()); found != dense_parts_.end() && op.kind != OpKind::kView)
      operand = &found->second.dense;
  Trace::append(op, operands, attrs, outputs, /*in_place=*/false, where);
}

void RegionTrace::run_steps(int steps) {
  absl::Cleanup forget_loop = [this] { loop_.forget(); };
  const absl::Cleanup forget = [this] { forget_recording(); };
  in_pieces_ = true;
  region_.count_loop_piece();
  run_piece(piece_ + std::bit_width(static_cast<unsigned>(steps)));
  random_.restart();
  std::move(forget_loop).Cancel();
}

void RegionTrace::run_steps_left() {
  if (loop_.steps_left() == 0) return;
  Tail tail = cut(-1);
  abandon();
  for (int steps = LoopSteps::kSteps, left = loop_.steps_left(); left > 0; steps /= 2) {
    if (left < steps) continue;
    left -= steps;
    resume(tail, static_cast<size_t>(steps * loop_.calls_a_step()));
    run_steps(steps);
  }
  resume(tail, tail.nodes.size());
}

void RegionTrace::end_loop() {
  run_steps_left();
  loop_.forget();
  piece_ += 1 + std::bit_width(static_cast<unsigned>(LoopSteps::kSteps));
}

void RegionTrace::forget_recording() {
  abandon();
  dense_parts_.clear();
}

}  // namespace rondo::compile
