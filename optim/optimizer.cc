#include "rondo/optim/optimizer.h"

#include <algorithm>
#include <deque>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd.h"

namespace rondo::optim {

void Optimizer::add_group(std::span<const Tensor> params, std::span<const char* const> state_names) {
  invariant(state_names.size() <= kMaxStates, "too many states");
  const int group = n_groups_++;
  for (const Tensor& param : params) {
    const auto fail = [&](std::string_view why) {
      throw Error(absl::StrCat("optimizer: ", slot_name(slots_.size()), " ", std::string(why)));
    };
    if (!param.defined()) fail("is undefined");
    if (!is_floating(param.dtype()))
      fail(absl::StrCat("is ", std::string(name_of(param.dtype())), ", not floating point"));
    if (!param.is_leaf()) fail("is the result of an op, not a leaf");
    if (!param.is_contiguous()) fail("is not contiguous; make it so with .contiguous() before it becomes a parameter");
    Slot slot{param, group, Tensor::zeros({}, {kI64}), state_names, {}};
    for (size_t k = 0; k < state_names.size(); ++k)
      slot.states.push_back(Tensor::zeros(param.sizes(), {compute_dtype(param.dtype()), param.device()}));
    slot.step_at = slot.step.mutable_data<int64_t>();
    for (size_t k = 0; k < slot.states.size(); ++k) slot.states_at[k] = slot.states[k].raw_mutable_data();
    slots_.push_back(std::move(slot));
  }
  std::vector<const TensorImpl*> all;
  for (const Slot& slot : slots_) all.push_back(slot.param.impl());
  std::sort(all.begin(), all.end());
  if (std::adjacent_find(all.begin(), all.end()) != all.end())
    throw Error("optimizer: a parameter is given twice; parameters() lists tied ones once");
}

std::string Optimizer::slot_name(size_t i) const { return absl::StrCat("parameter ", i); }

void Optimizer::step() {
  const NoGrad off;
  std::vector<Slot*> active;
  std::vector<Tensor> dense;  // copies of gradients that were not
  std::vector<UpdateItem> items;
  active.reserve(slots_.size());
  items.reserve(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const Tensor& param = slot.param;
    const Tensor& grad = param.grad();
    if (!grad.defined()) continue;
    if (grad.dtype() != param.dtype() || !(grad.sizes() == param.sizes()))
      throw Error(absl::StrCat(name(), ": ", slot_name(i), " is ", std::string(name_of(param.dtype())),
                               to_string(param.sizes()), ", its gradient ", std::string(name_of(grad.dtype())),
                               to_string(grad.sizes())));
    if (!slot.states.empty() && slot.states[0].dtype() != compute_dtype(param.dtype()))
      throw Error(absl::StrCat(name(), ": ", slot_name(i), " is now ", std::string(name_of(param.dtype())),
                               ", its state ", std::string(name_of(slot.states[0].dtype())),
                               "; convert the model before you make its optimizer"));
    const Tensor& read = grad.is_contiguous() ? grad : dense.emplace_back(grad.detach().contiguous());
    active.push_back(&slot);
    items.push_back({param.dtype(), param.numel(), nullptr, read.raw_data(), slot.states_at, nullptr});
  }
  // From here on nothing fails.
  std::deque<std::array<double, kMaxScalars>> scalars;  // one for each (group, step)
  std::vector<int64_t> sizes(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    Slot& slot = *active[i];
    const int64_t step = ++*slot.step_at;
    if (i > 0 && active[i - 1]->group == slot.group && *active[i - 1]->step_at == step) {
      items[i].scalars = items[i - 1].scalars;
    } else {
      this->scalars(slot.group, step, scalars.emplace_back());
      items[i].scalars = scalars.back().data();
    }
    items[i].param = slot.param.raw_mutable_data();  // bumps the version
    sizes[i] = items[i].numel;
  }
  // One pass, or one for each run of groups with the same formula.
  for (size_t begin = 0, end; begin < items.size(); begin = end) {
    const UpdateKernel kernel = this->kernel(active[begin]->group);
    for (end = begin + 1; end < items.size() && this->kernel(active[end]->group) == kernel;) ++end;
    parallel_for_each(std::span(sizes).subspan(begin, end - begin),
                      [&](size_t i, int64_t from, int64_t to) { kernel(items[begin + i], from, to); });
  }
}

void Optimizer::zero_grad(bool set_to_none) {
  for (Slot& slot : slots_) slot.param.zero_grad(set_to_none);
}

double& Optimizer::option(int group, const char* wanted) const {
  if (group < 0 || group >= n_groups_)
    throw Error(absl::StrCat(name(), ": group ", group, " of ", n_groups_, " does not exist"));
  double* found = nullptr;
  const_cast<Optimizer*>(this)->visit_options(group, [&](const char* option_name, double& value) {
    if (std::string_view(option_name) == wanted) found = &value;
  });
  invariant(found != nullptr, "an optimizer lacks an option");
  return *found;
}

double Optimizer::lr(int group) const { return option(group, "lr"); }
void Optimizer::set_lr(int group, double lr) { option(group, "lr") = lr; }
void Optimizer::set_lr(double lr) {
  for (int group = 0; group < n_groups_; ++group) set_lr(group, lr);
}

nn::StateDict Optimizer::state_dict() const {
  nn::StateDict state;
  for (size_t i = 0; i < slots_.size(); ++i) {
    state[absl::StrCat("state.", i, ".step")] = slots_[i].step.detach();
    for (size_t k = 0; k < slots_[i].states.size(); ++k)
      state[absl::StrCat("state.", i, ".", slots_[i].state_names[k])] = slots_[i].states[k].detach();
  }
  for (int group = 0; group < n_groups_; ++group)
    const_cast<Optimizer*>(this)->visit_options(group, [&](const char* option_name, double& value) {
      state[absl::StrCat("group.", group, ".", option_name)] = Tensor::scalar(value);
    });
  return state;
}

void Optimizer::load_state_dict(const nn::StateDict& state) {
  std::vector<nn::NamedTensor> targets;
  // Options are scalars of ours: they are loaded into copies, then taken over.
  for (const auto& [tensor_name, tensor] : state_dict()) targets.push_back({tensor_name, tensor});
  nn::load_tensors(targets, state, true, name());
  nn::StateDict loaded;
  for (const auto& [tensor_name, tensor] : targets) loaded[tensor_name] = tensor;
  for (int group = 0; group < n_groups_; ++group)
    visit_options(group, [&](const char* option_name, double& value) {
      value = loaded.at(absl::StrCat("group.", group, ".", option_name)).item();
    });
}

}  // namespace rondo::optim
