#include "rondo/compile/region/replay.h"

#include <algorithm>
#include <optional>

#include "rondo/compile/region/run.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::compile {

namespace {
constexpr uint64_t kDefaultGenerator = 0;  // GeneratorState::id
}  // namespace

std::shared_ptr<const Replay> Replay::make(const nn::ModuleCall& call, const WritingTrace& trace,
                                           std::span<const GeneratorState> drawn,
                                           std::shared_ptr<const Binding> binding, std::string& why_not) {
  const Graph& graph = trace.graph;
  const auto refuse = [&](const char* reason) {
    why_not = reason;
    return nullptr;
  };
  if (call.result == nullptr) return refuse("forward does not take tensors and return one");
  const auto is_written = [&](ValueId id) { return trace.written_tensor(id) != nullptr; };
  const auto result = std::find_if_not(graph.outputs.begin(), graph.outputs.end(), is_written);
  if (result == graph.outputs.end() || !std::all_of(result + 1, graph.outputs.end(), is_written) ||
      !call.result->defined() || trace.handle(*result).impl() != call.result->impl())
    return refuse("forward returns no value of its own, or others outlive it");
  if (graph.value(*result).root != *result) return refuse("forward returns a view");
  const auto gets_history = [&](ValueId id) { return is_written(id) && !trace.keeps_history(id); };
  if (std::any_of(graph.outputs.begin(), graph.outputs.end(), gets_history))
    return refuse("forward writes a value with a gradient into a tensor that it does not return");

  auto replay = std::make_shared<Replay>();
  replay->result_ = static_cast<size_t>(result - graph.outputs.begin());
  for (const WriteBack& back : write_backs(graph))
    if (back.input >= 0) replay->written_.push_back(back.input);
  replay->binding_ = std::move(binding);
  replay->slots_ = call.module.tensor_slots();
  for (const Tensor* slot : replay->slots_) {
    replay->in_slots_.push_back(slot->impl());
    replay->slot_kinds_.push_back(slot->defined() ? Kind::of(*slot) : Kind{});
  }
  std::vector<const TensorImpl*> arguments;
  for (const Tensor* input : call.inputs) {
    if (!input->defined()) return refuse("an argument is undefined");
    if (std::count(arguments.begin(), arguments.end(), input->impl()) > 0 ||
        std::count(replay->in_slots_.begin(), replay->in_slots_.end(), input->impl()) > 0)
      return refuse("an argument is passed twice, or is a parameter");
    const auto is_read = [&](const Tensor& outside) { return outside.is_same(*input); };
    if (trace.writes(input->impl()->storage) && std::none_of(trace.external().begin(), trace.external().end(), is_read))
      return refuse("an argument lies in memory that forward writes, in a place that the recording fixes");
    arguments.push_back(input->impl());
    replay->arguments_.push_back(Kind::of(*input));
  }
  if (drawn.size() > 1 || (drawn.size() == 1 && drawn[0].id != kDefaultGenerator))
    return refuse("forward draws random numbers from a generator of its own");
  if (drawn.size() == 1) {
    if (default_generator().seed() != drawn[0].seed || default_generator().offset() < drawn[0].offset)
      return refuse("forward sets the stream of random numbers");
    replay->draws_ = default_generator().offset() - drawn[0].offset;
  }
  for (const Tensor& input : trace.external()) {
    const auto at = [&](const std::vector<const TensorImpl*>& list) {
      return static_cast<int32_t>(std::find(list.begin(), list.end(), input.impl()) - list.begin());
    };
    if (const int32_t i = at(arguments); i < std::ssize(arguments)) replay->sources_.push_back({Source::kArgument, i});
    else if (const int32_t k = at(replay->in_slots_); k < std::ssize(replay->in_slots_))
      replay->sources_.push_back({Source::kSlot, k});
    else if (drawn.size() == 1 && SharedRandomState::is_state_at(input, drawn[0])) {
      replay->sources_.push_back({Source::kRandomState});
      replay->random_device_ = input.device();
    } else return refuse("forward reads a tensor that is no argument, parameter or buffer: a mask it makes");
  }
  call.module.apply([&](nn::ModuleBase& module) {
    replay->modules_.push_back({&module, module.is_training(), module.children().size()});
  });
  replay->tree_version_ = call.module.tree_version();
  replay->grad_mode_ = grad_enabled();
  replay->autocast_ = amp::autocast_dtype();
  replay->default_device_ = default_device();
  return replay;
}

bool Replay::matches(const nn::ModuleCall& call) const {
  // Checked first: after a change of the module tree, the pointers of this replay may dangle.
  if (call.module.tree_version() != tree_version_) return false;
  if (call.result == nullptr || call.inputs.size() != arguments_.size() || grad_enabled() != grad_mode_ ||
      amp::autocast_dtype() != autocast_ || !(default_device() == default_device_))
    return false;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Tensor& input = *call.inputs[i];
    if (!input.defined() || !input.impl()->storage || !arguments_[i].is_of(input)) return false;
    for (size_t k = 0; k < i; ++k)
      if (call.inputs[k]->impl() == input.impl()) return false;
    if (std::count(in_slots_.begin(), in_slots_.end(), input.impl()) > 0) return false;
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i]->impl() != in_slots_[i]) return false;
    if (in_slots_[i] == nullptr) continue;
    // The kind of one tensor changes by to(dtype), to(device) or requires_grad_() only.
    const Kind& kind = slot_kinds_[i];
    if (slots_[i]->dtype() != kind.dtype || !(slots_[i]->device() == kind.device) ||
        slots_[i]->requires_grad() != kind.requires_grad || !(slots_[i]->sizes() == kind.sizes) ||
        !(slots_[i]->strides() == kind.strides))
      return false;
  }
  return writes_alone(call) && std::all_of(modules_.begin(), modules_.end(), [](const ModuleState& s) {
           return s.module->is_training() == s.training && s.module->children().size() == s.children;
         });
}

bool Replay::writes_alone(const nn::ModuleCall& call) const {
  for (const int32_t written : written_) {
    const Storage& memory = tensor_of(sources_[static_cast<size_t>(written)], call).impl()->storage;
    for (size_t i = 0; i < sources_.size(); ++i)
      if (i != static_cast<size_t>(written) && sources_[i].kind != Source::kRandomState &&
          tensor_of(sources_[i], call).impl()->storage == memory)
        return false;
  }
  return true;
}

Tensor Replay::next_random_state() const {
  Tensor state = rondo::next_random_state(default_generator(), random_device_).state;
  for (uint64_t i = 1; i < draws_; ++i) default_generator().next_offset();
  return state;
}

void Replay::run(const nn::ModuleCall& call) const {
  std::optional<SharedRandomState> own;  // its state is that of the first draw
  if (draws_ > 0) own.emplace();
  const Tensor random_state = draws_ > 0 ? next_random_state() : Tensor();
  std::vector<Tensor> inputs;
  inputs.reserve(sources_.size());
  for (const Source& source : sources_)
    inputs.push_back(source.kind == Source::kRandomState ? random_state : tensor_of(source, call));
  if (autograd::LeafNotes* const notes = autograd::LeafNotes::now(); notes != nullptr && !grad_enabled())
    for (const Tensor& input : inputs) notes->note(input);
  const RunResult run = compile::run(binding_, inputs);
  if (run.error != nullptr) std::rethrow_exception(run.error);
  Tensor result = run.values[result_];
  const Graph& recorded = binding_->entry()->recording();
  if (run.node != nullptr && recorded.value(recorded.outputs[result_]).requires_grad)
    autograd::set_history(result, run.node->history(static_cast<int>(result_)), static_cast<int>(result_));
  if (is_marked(inputs)) binding_->entry()->result_marks().propagate(inputs, run.values);
  *call.result = std::move(result);
}

}  // namespace rondo::compile
