#include "rondo/optim/optimizer_state.h"

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/error.h"

namespace rondo::optim {

// While a step is under way, nothing may change the options: all updates of the step share them.
void check_between_steps(const char* optimizer, const OptimizerState& state, const char* what) {
  if (state.mid_step)
    throw Error(absl::StrCat(optimizer, "::", what,
                             ": a step is under way, some blocks are updated and others are not; end it with "
                             "UpdateAtSeams::finish(), or with abandon() after an exception"));
}

void check_not_swapped(const char* optimizer, const OptimizerState& state, const char* what) {
  if (state.averages_swapped)
    throw Error(absl::StrCat(optimizer, "::", what,
                             ": an AverageScope has put the averages into the parameters; end it first"));
}

void check_not_sharded(const char* optimizer, const OptimizerState& state, const char* what, const char* instead) {
  if (state.shards != nullptr)
    throw Error(absl::StrCat(optimizer, "::", what, ": the states are spread over processes; ", instead,
                             " (dist/ddp/sharded_optimizer.h)"));
}

void refresh(std::vector<ParamSlot>& slots) {
  const NoGrad off;
  for (ParamSlot& slot : slots) {
    slot.refresh_average();
    slot.refresh_copy();
  }
}

std::string slot_name(size_t slot) { return absl::StrCat("parameter ", slot); }

}  // namespace rondo::optim
