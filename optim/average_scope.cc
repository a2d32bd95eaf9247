#include "rondo/optim/average_scope.h"

#include <exception>
#include <source_location>

#include "absl/strings/str_cat.h"
#include "rondo/optim/foreach_map.h"
#include "rondo/optim/step.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::optim {

AverageScope::AverageScope(Optimizer& optimizer) : optimizer_(optimizer) {
  const OptimizerState& state = Step::state_of(optimizer);
  if (!state.averaging)
    throw Error(absl::StrCat("AverageScope: ", optimizer.name(), " tracks no averages; call track_average() first"));
  std::vector<Tensor> averages = optimizer.averages();  // refuses states that are spread over processes
  std::vector<Tensor> params;
  for (const ParamSlot& slot : state.slots) params.push_back(slot.param);
  begin(std::move(params), std::move(averages));
}

AverageScope::AverageScope(Optimizer& optimizer, std::vector<Tensor> params, std::vector<Tensor> averages)
    : optimizer_(optimizer) {
  begin(std::move(params), std::move(averages));
}

void AverageScope::begin(std::vector<Tensor> params, std::vector<Tensor> averages) {
  OptimizerState& state = Step::state_of(optimizer_);
  if (state.mid_step)
    throw Error(absl::StrCat("AverageScope: ", optimizer_.name(), " is in the middle of a step; finish it first"));
  if (state.averages_swapped)
    throw Error(absl::StrCat("AverageScope: the averages of ", optimizer_.name(), " are in the parameters already"));
  if (params.size() != averages.size())
    throw Error(absl::StrCat("AverageScope: ", averages.size(), " averages for ", params.size(), " parameters"));
  for (size_t i = 0; i < params.size(); ++i)
    if (!(params[i].sizes() == averages[i].sizes()) || !(params[i].device() == averages[i].device()))
      throw Error(absl::StrCat("AverageScope: the average of ", slot_name(i), " is ", to_string(averages[i].sizes()),
                               " on ", to_string(averages[i].device()), ", the parameter ",
                               to_string(params[i].sizes()), " on ", to_string(params[i].device())));
  const RecordingPause pause("AverageScope is made", std::source_location::current());
  const NoGrad off;
  if (state.buffers != nullptr) {
    const std::vector<Tensor> buffer_averages = state.buffers->averages();
    params.insert(params.end(), state.buffers->buffers().begin(), state.buffers->buffers().end());
    averages.insert(averages.end(), buffer_averages.begin(), buffer_averages.end());
  }
  std::vector<Tensor> rounded;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].numel() == 0 || params[i].address() == averages[i].address()) continue;  // there is no average
    if (params[i].dtype() != averages[i].dtype()) {
      copied_.emplace_back(params[i], params[i].detach().clone());
      rounded.push_back(averages[i]);
    } else {
      values_.push_back(params[i]);
      averages_.push_back(averages[i]);
    }
  }
  swap();
  active_ = state.averages_swapped = true;
  for (size_t i = 0; i < copied_.size(); ++i) copied_[i].first.detach().copy_(rounded[i]);
  for (ParamSlot& slot : state.slots) slot.refresh_copy();
}

void AverageScope::swap() {
  if (values_.empty()) return;
  foreach_map(
      [](auto& value, auto& average) {
        const auto held = value;
        value = average;
        average = held;
      },
      values_, averages_);
}

void AverageScope::end() {
  if (!active_) return;
  OptimizerState& state = Step::state_of(optimizer_);
  const RecordingPause pause("AverageScope ends", std::source_location::current());
  const NoGrad off;
  active_ = false;
  swap();
  for (auto& [value, own] : copied_) value.detach().copy_(own);
  for (ParamSlot& slot : state.slots) slot.refresh_copy();
  state.averages_swapped = false;
}

AverageScope::~AverageScope() {
  try {
    end();
  } catch (const std::exception&) {
    // The optimizer's next step reports it: averages_swapped is still set.
  }
}

}  // namespace rondo::optim
