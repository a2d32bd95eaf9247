// The calls of users: hooks on modules, and the recording of their calls.
#include "rondo/compile/compile.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <optional>
#include <typeindex>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/capture/loop_steps.h"
#include "rondo/compile/exec/check_units.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/compile/region/hooks_aside.h"
#include "rondo/compile/region/marks.h"
#include "rondo/compile/region/region.h"
#include "rondo/compile/region/replay.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/modules/eager_scope.h"
#include "rondo/modules/layers/decode_step.h"
#include "rondo/runtime/autograd/anomaly.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/hash_map.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::compile {
namespace {

// The recording of one call of a region's module.
class RegionTrace final : public FollowingTrace {
 public:
  // `random`: shared by all ops of the call. `in_pieces`: loops over time run in pieces, those that the region knows
  // from their first step on.
  RegionTrace(Region& region, const nn::ModuleCall& call, SharedRandomState& random, bool in_pieces)
      : FollowingTrace(&random),
        region_(region),
        call_(call),
        random_(random),
        finds_loops_(in_pieces),
        loops_(in_pieces ? region.loops().steps() : nullptr) {}

  // Compares the calls to come with what `latest`, which ran before, was recorded from. Null: there is none.
  void follow(std::shared_ptr<const Binding> latest) {
    if (latest == nullptr || loops_ != nullptr) return;
    KnownRecording known = latest->entry()->known();
    if (known.graph == nullptr) return;
    piece_device_ = known.device;
    FollowingTrace::follow(std::move(known));
    latest_ = std::move(latest);
  }
  // At the end: what the whole call ran. Null: it ran in several pieces, or eagerly.
  std::shared_ptr<const Binding> take_latest() { return std::move(latest_); }

  void record(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override {
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
      // A view whose base was written to since gets its new history here, as in eager, and not when all of this runs.
      // The recording goes on: no recorded op writes, so none can change the base's history meanwhile.
      const bool differentiable = std::any_of(outputs.begin(), outputs.end(),
                                              [](const Tensor& t) { return t.impl()->requires_grad; });
      if (differentiable)
        for (const Tensor* input : inputs)
          if (is_stale_view(*input)) {
            // What has read the base since the write adds its gradient to the base's after this view does: it is a
            // piece of its own, so that exact mode sums in eager's order.
            if (overwrote_ && region_.options().exact && reads(input->storage()))
              graph_break("a view is read again whose base was written to", where);
            look_again(*input);
          }
      const bool may_loop = finds_loops_ && !has_writes();
      if (may_loop && (loops_ != nullptr || loop_.is_running()) &&
          runs_at_once_in_loop(op, inputs, attrs, outputs, where))
        return;
      if (dense_parts_.empty()) Trace::record(op, inputs, attrs, outputs, in_place, where);
      else record_of_dense_parts(op, inputs, attrs, outputs, where);
      if (may_loop && !loop_.is_running() && LoopSteps::is_time_to_search(graph.nodes.size(), region_.varies()) &&
          loop_.search(lines(), region_.varies()))
        region_.loops().add(loop_.step());
      return;
    }
    const char* why = loop_.is_running() || !dense_parts_.empty() ? "a loop over time runs in pieces"
                                                                  : record_write(op, inputs, attrs, outputs[0], where);
    if (why == nullptr) return;
    // Any other write runs now, in its place in the program. Where it goes through a view, the base's history changes,
    // too: of the version that the view shows now, since nobody holds an earlier one.
    const bool is_recorded = inputs[0]->impl()->recorder == this;
    const Tensor base = is_recorded ? handle(graph.value(value_of(*inputs[0], where)).root) : Tensor();
    graph_break(absl::StrCat(op.name, " in place: ", why), where);
    overwrote_ = true;
    RecorderScope eager(nullptr);
    std::vector<TensorArg> args;
    for (const Tensor* input : inputs) args.emplace_back(*input, where);
    call_in_place(op, args, attrs);
  }
  void flush(const TensorImpl&, std::source_location where) override { graph_break("a value is read", where); }

  void flush_gradient(const TensorImpl& tensor, std::source_location where) override {
    if (has_writes()) return graph_break("a gradient is watched", where);
    // The ops that have already read the tensor go into a piece of their own, behind the hook.
    region_.break_graph("a gradient is watched" + describe_location(where));
    broken_ = true;
    stop_following();
    Tail tail = cut(graph.value(tensor.recorded_value).producer);
    finish();
    resume(std::move(tail));
  }

  void before_write(const Storage& storage, std::source_location where) override {
    if (running_) return;  // the program writes its results
    written_by_pointer_.push_back(storage);
    const bool reads_part = std::any_of(dense_parts_.begin(), dense_parts_.end(),
                                        [&](const auto& part) { return part.second.of.storage() == storage; });
    if (reads_part || reads(storage)) graph_break("memory that a recorded op reads is written", where);
  }

  void before_history_change(const Tensor& tensor, std::source_location where) override {
    if (running_) return;  // the program's results get their histories
    changed_history_ = true;
    if (has_read(tensor)) graph_break("a tensor that a recorded op reads gets another history", where);
  }

  void before_read(const Storage& storage, std::source_location where) override {
    if (!running_ && writes(storage)) graph_break("memory that a recorded op writes is read", where);
  }

  void interrupt(const char* what, std::source_location where) override { graph_break(what, where); }

  // The recording is gone afterwards, also if this throws: it must not run twice.
  void finish() {
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

  // finish(), at the end of a call whose recording may be replayed. Null: it may not.
  std::shared_ptr<const Replay> finish_for_replay(std::span<const GeneratorState> drawn, std::string& why_not) {
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

 private:
  bool has_read(const Tensor& tensor) const {
    return dense_parts_.contains(tensor.impl()) ||
           std::any_of(external().begin(), external().end(), [&](const Tensor& t) { return t.is_same(tensor); });
  }
  bool is_stale_view(const Tensor& tensor) const {
    if (!tensor.defined() || tensor.impl()->recorder != nullptr) return false;
    const AutogradMeta* meta = tensor.impl()->autograd.get();
    return meta != nullptr && meta->base.defined() && meta->view_version != tensor.version() &&
           meta->base.requires_grad();
  }
  void look_again(const Tensor& view) {
    autograd::gradient_edge(view);
    history_changed(view);  // it may have been read under no_grad()
  }
  void graph_break(const std::string& reason, std::source_location where) {
    region_.break_graph(reason + describe_location(where));
    broken_ = true;
    finish();
  }
  std::shared_ptr<const Binding> run_piece(int number) {
    return run_now([&] { return region_.run(*this, call_, number); });
  }

  // False: it must be recorded after all.
  bool run_known() {
    std::shared_ptr<const Binding> ran = run_now([&] { return region_.run_known(*this, latest_); });
    if (ran == nullptr) return false;
    latest_ = broken_ ? nullptr : std::move(ran);
    return ++piece_, true;
  }

  template <class Run> std::shared_ptr<const Binding> run_now(const Run& run) {
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
  // The calls of the recording, as lines of a program.
  std::vector<LoopSteps::Line> lines() const {
    std::vector<LoopSteps::Line> lines;
    std::vector<const Tensor*> inputs;
    std::vector<Tensor> outputs;
    static const Tensor kNone;
    for (const GraphNode& node : graph.nodes) {
      inputs.clear();
      outputs.clear();
      for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? &kNone : &handle(id));
      for (ValueId id : node.outputs) outputs.push_back(handle(id));
      lines.push_back(LoopSteps::line_of(*node.op, inputs, node.attrs, outputs, node.where));
    }
    return lines;
  }
  // Before a call is recorded: runs the piece that is complete. True: the call has been made.
  bool runs_at_once_in_loop(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                            std::span<Tensor> outputs, std::source_location where) {
    const LoopSteps::Line line = LoopSteps::line_of(op, inputs, attrs, outputs, where);
    if (!loop_.is_running() && !begins_known_loop(line)) {
      // Zeros that a loop begins with would be a piece of their own.
      if (inputs.empty() && graph.nodes.empty()) return call_now(op, inputs, attrs, outputs, where), true;
      // The op that puts all steps together has as many operands as there are steps.
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
    // The strides of a part depend on how many steps there are: dense, it is the same recording for all.
    RecorderScope eager(nullptr);
    for (const Tensor& part : outputs)
      if (!is_contiguous(part.sizes(), part.strides())) dense_parts_[part.impl()] = {part, part.contiguous()};
    return true;
  }
  bool begins_known_loop(const LoopSteps::Line& line) {
    if (loops_ == nullptr) return false;
    const bool begins = std::any_of(loops_->begin(), loops_->end(),
                                    [&](const LoopSteps::Step& known) { return loop_.begin(known, line); });
    if (begins && !graph.nodes.empty()) run_steps(0);
    return begins;
  }
  static void call_now(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                       std::span<Tensor> outputs, std::source_location where) {
    RecorderScope eager(nullptr);
    std::vector<TensorArg> args;
    for (const Tensor* input : inputs) args.emplace_back(*input, where);
    call(op, args, attrs, outputs);
  }
  void record_of_dense_parts(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                             std::span<Tensor> outputs, std::source_location where) {
    absl::InlinedVector<const Tensor*, kUsualInputs> operands(inputs.begin(), inputs.end());
    for (const Tensor*& operand : operands)
      if (const auto found = dense_parts_.find(operand->impl());
          found != dense_parts_.end() && op.kind != OpKind::kView)
        operand = &found->second.dense;
    Trace::record(op, operands, attrs, outputs, /*in_place=*/false, where);
  }
  // Runs the recording: `steps` steps, or with 0 the piece in which the loop was found. If that throws, the loop is
  // over, because its last steps can no longer be run.
  void run_steps(int steps) {
    absl::Cleanup forget_loop = [this] { loop_.forget(); };
    const absl::Cleanup forget = [this] { forget_recording(); };
    in_pieces_ = true;
    region_.count_loop_piece();
    run_piece(piece_ + std::bit_width(static_cast<unsigned>(steps)));
    random_.restart();
    std::move(forget_loop).Cancel();
  }
  // Runs the steps that are left in pieces of few lengths, so that few recordings serve all numbers of steps.
  void run_steps_left() {
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
  void end_loop() {
    run_steps_left();
    loop_.forget();
    piece_ += 1 + std::bit_width(static_cast<unsigned>(LoopSteps::kSteps));
  }
  void forget_recording() {
    abandon();
    dense_parts_.clear();
  }

  Region& region_;
  const nn::ModuleCall& call_;
  SharedRandomState& random_;
  std::shared_ptr<const Binding> latest_;  // of an earlier call, until finish()
  int piece_ = 0;
  Device piece_device_;  // of the ops that are recorded now
  bool running_ = false;
  std::vector<Storage> written_by_pointer_;  // a replay would leave that out
  bool changed_history_ = false;             // a replay would leave that out, too
  bool overwrote_ = false;                   // by an op of this call, so that views may be read again
  bool broken_ = false;                      // also by what happened before the first op, which makes no piece
  const bool finds_loops_;
  const std::shared_ptr<const KnownLoops::Steps> loops_;  // that run in pieces at once; null: none
  LoopSteps loop_;
  bool in_pieces_ = false;  // a loop has run in pieces
  struct DensePart {
    Tensor of, dense;
  };
  HashMap<const TensorImpl*, DensePart> dense_parts_;  // that this piece reads in place of views
};

// Why calls run op by op now; null: they do not. Under DetectAnomaly each op is checked by itself.
const char* why_bypassed() {
  if (stance() == Stance::kForceEager) return "Stance::kForceEager";
  if (nn::EagerScope::active()) return "EagerScope";
  if (autograd::detecting_anomaly()) return "DetectAnomaly";
  return nullptr;
}

// Note [Used, but never called]. Only a call of a compiled module runs compiled: `model(x)`. A program may use its
// parts instead, in a function of the model's own or by `model.forward(x)`, and would run eagerly without knowing. So a
// module that was compiled and not called yet watches two things: that a parameter of it gets a gradient (RegionHook),
// and the first call of each module below it (PartHook). The module's first call ends the watch, so that steps do not
// pay.
class RegionHook final : public nn::CallHook {
 public:
  RegionHook(std::shared_ptr<Region> region, nn::ModuleBase& module)
      : region_(std::move(region)), calls_(region_->add_layer()) {
    for (const nn::NamedTensor& p : module.named_parameters()) {
      if (!p.tensor.requires_grad() || !p.tensor.is_leaf()) continue;
      const auto note = [this, name = p.name] { note_use(absl::StrCat("its parameter ", name, " got a gradient")); };
      watched_.emplace_back(p.tensor, autograd::on_accumulated(p.tensor, note));
    }
  }
  ~RegionHook() override { end_watch(); }

  // Notes which part of the module was used.
  void note_use(const std::string& what) {
    // Generation calls the parts of a model on purpose: blocks run compiled in its steps, the whole does not.
    if (HooksAside::active() || why_bypassed() != nullptr || nn::in_decode_step()) return;
    if (active_recorder() != nullptr) called_ = true;  // it is part of another recording
    if (!called_) region_->note_use_without_call(what);
  }

  void around(const nn::ModuleCall& call, absl::FunctionRef<void()> forward) override {
    if (!called_.exchange(true)) end_watch();
    // A block inside another recording is part of that recording, so it only runs its forward.
    if (active_recorder() != nullptr) return forward();
    if (const char* why = why_bypassed(); why != nullptr) {
      count(Outcome::kBypassed, why);
      return forward();
    }
    const Capture capture = region_->options().capture;
    const std::shared_ptr<const Replay> known = capture == Capture::kRecord ? nullptr : calls_->find(call);
    const bool replays = known != nullptr && capture == Capture::kReplay;
    region_->begin_call(call, replays);
    enter_stage("record");
    if (replays) return known->run(call);
    SharedRandomState random;
    std::vector<GeneratorState> drawn;  // from
    std::optional<GeneratorScope> note;
    if (capture != Capture::kRecord) note.emplace(GeneratorScope::kNote, drawn);
    // What a replay is compared with was recorded in one piece, perhaps before a longer call made its loop known, or
    // before several recordings made a short loop enough (LoopSteps::is_time_to_search()).
    RegionTrace trace(*region_, call, random, /*in_pieces=*/known == nullptr);
    if (capture == Capture::kRecord) trace.follow(calls_->latest());
    try {
      RecorderScope record(&trace);
      forward();
    } catch (...) {
      // What was recorded before the throw has happened, as in eager: handles that escaped get their values.
      trace.finish();
      throw;
    }
    if (capture == Capture::kRecord) {
      trace.finish();
      return calls_->set_latest(trace.take_latest());
    }
    if (known != nullptr) region_->verify_replay(trace, known->binding());
    std::string why_not;
    const std::shared_ptr<const Replay> made = trace.finish_for_replay(drawn, why_not);
    if (known != nullptr) return;
    if (made == nullptr) return region_->refuse_replay(why_not);
    calls_->add(made);
  }

 private:
  void end_watch() {
    for (const auto& [parameter, id] : std::exchange(watched_, {})) autograd::remove_on_accumulated(parameter, id);
  }

  std::shared_ptr<Region> region_;
  std::atomic<bool> called_ = false;
  std::vector<std::pair<Tensor, int64_t>> watched_;  // until the first call: on_accumulated()
  const std::shared_ptr<RecentCalls> calls_;
};

// Hook of a module inside a compiled one. It sees the first call, tells the outer region of it, and goes.
class PartHook final : public nn::CallHook {
 public:
  explicit PartHook(std::weak_ptr<RegionHook> compiled) : compiled_(std::move(compiled)) {}

  void around(const nn::ModuleCall& call, absl::FunctionRef<void()> forward) override {
    if (why_bypassed() == nullptr) {
      if (call.module.call_hook.get() == this) call.module.call_hook = nullptr;
      if (const std::shared_ptr<RegionHook> compiled = compiled_.lock()) note_call(call.module, *compiled);
    }
    forward();
  }
  bool is_over() const { return compiled_.expired(); }

 private:
  static void note_call(const nn::ModuleBase& part, RegionHook& compiled) {
    std::string name;
    const nn::ModuleBase* module = &part;
    for (; module != nullptr && module->call_hook.get() != &compiled; module = module->parent())
      name = name.empty() ? module->name() : absl::StrCat(module->name(), ".", name);
    if (module != nullptr) compiled.note_use(absl::StrCat("its part ", name, " was called"));
  }

  const std::weak_ptr<RegionHook> compiled_;
};

void set_hooks(nn::ModuleBase& module, const std::shared_ptr<Region>& region) {
  const auto hook = std::make_shared<RegionHook>(region, module);
  module.call_hook = hook;
  const auto part = std::make_shared<PartHook>(hook);
  for (const nn::NamedModule& inner : module.named_modules()) {
    std::shared_ptr<nn::CallHook>& now = inner.module.call_hook;
    const auto* const older = dynamic_cast<const PartHook*>(now.get());
    if (now == nullptr || (older != nullptr && older->is_over())) now = part;
  }
}

}  // namespace

std::vector<RegionReport> Regions::report() const try {
  std::vector<RegionReport> reports;
  for (const auto& region : regions_) reports.push_back(region->report());
  return reports;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Regions::report");
}

namespace {
void prepare(const CompileOptions& options) {
  log::configure_from_environment();
  disabled_stages();  // RONDO_DISABLE and RONDO_CHECK are read: a typing error is found at once
  checks_units();
  if (options.recompute_budget < 0)
    throw Error(formatted("compile: recompute_budget must not be negative: %d", options.recompute_budget));
  if (options.max_entries < 1)
    throw Error(formatted("compile: max_entries must be at least 1: %d", options.max_entries));
  if (options.recompile_limit < 0)
    throw Error(formatted("compile: recompile_limit must not be negative: %d", options.recompile_limit));
  if (!jit_available()) {
    const std::string path = toolchain_path();
    throw Error(absl::StrCat(
        "compile: there is no code generator for the devices that are here. Build Rondo with LLVM 19 or newer for the "
        "CPU",
        path.empty() ? "" : absl::StrCat(" (the file ", path, ", or the one that RONDO_JIT_LIBRARY names)"),
        ", install NVRTC (pip: nvidia-cuda-nvrtc) for CUDA, or run without compilation"));
  }
  check_options(options.dynamic);
}
}  // namespace

Regions compile_regions(nn::ModuleBase& model, CompileOptions options) try {
  prepare(options);
  std::vector<std::shared_ptr<Region>> regions;
  std::map<std::pair<nn::ModuleBase*, std::type_index>, std::shared_ptr<Region>> by_class;  // of each list
  for (nn::ModuleBase* block : model.repeated_blocks()) {
    std::shared_ptr<Region>& region = by_class[{block->parent(), typeid(*block)}];
    if (!region) regions.push_back(region = std::make_shared<Region>(block->type_name(), options));
    set_hooks(*block, region);
  }
  if (regions.empty())
    throw Error(
        formatted("compile_regions: %s has no blocks, that is, no nn::ModuleList of modules; compile the whole "
                  "model with compile_module(model)",
                  model.type_name()));
  return Regions(std::move(regions));
} catch (const std::bad_alloc&) {
  throw_out_of_memory("compile_regions");
}

Regions compile_module(nn::ModuleBase& module, CompileOptions options) try {
  prepare(options);
  auto region = std::make_shared<Region>(module.type_name(), options);
  set_hooks(module, region);
  return Regions({region});
} catch (const std::bad_alloc&) {
  throw_out_of_memory("compile_module");
}

}  // namespace rondo::compile
