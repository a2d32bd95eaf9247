// state_dict() and load_state_dict() of an optimizer. A state is loaded as a whole or not at all.
#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/optim/optimizer.h"
#include "rondo/optim/optimizer_state.h"
#include "rondo/optim/step.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"

namespace rondo::optim {
namespace {

std::string prefix_of(size_t slot) { return absl::StrCat("state.", slot, "."); }

// Options are saved as tensors in host memory.
Tensor on_host(double value) { return Tensor::full({}, value, {kF64, kCPU}); }
Tensor on_host(int64_t value) { return Tensor::full({}, value, {kI64, kCPU}); }

constexpr const char *kAverageDecay = "average.decay", *kAverageWarmup = "average.warmup";

std::string option_key(int group, std::string_view option) {
  return absl::StrCat("group.", group, ".", absl::string_view(option.data(), option.size()));
}

// Adds the tensors of a slot's state under their names in a state dict.
void list_state(size_t i, const UpdatePlan& plan, const ParamState& state, std::vector<nn::NamedTensor>& out) {
  const std::string prefix = prefix_of(i);
  out.push_back({prefix + "step", state.steps->value().to(kI64)});
  for (size_t k = 0; k < plan.states.size(); ++k) {
    const StateSpec& spec = plan.states[k];
    const StateArray& array = state.arrays[k];
    if (spec.transient) continue;
    out.push_back({prefix + spec.name, array.values.detach()});
    if (array.scales.defined()) out.push_back({absl::StrCat(prefix, spec.name, ".scale"), array.scales.detach()});
  }
}

}  // namespace

nn::StateDict Optimizer::state_dict() const try {
  check_between_steps(name(), *state_, "state_dict");
  check_not_sharded(name(), *state_, "state_dict", "use ShardedOptimizer::state_dict()");
  check_not_swapped(name(), *state_, "state_dict");
  refresh(state_->slots);
  std::vector<nn::NamedTensor> list;
  for (size_t i = 0; i < state_->slots.size(); ++i) {
    const ParamSlot& slot = state_->slots[i];
    if (slot.state.exists()) list_state(i, *slot.plan, slot.state, list);
    if (slot.master.defined()) list.push_back({prefix_of(i) + "master", slot.master.detach()});
    if (slot.average.defined()) list.push_back({prefix_of(i) + "average", slot.average.detach()});
  }
  if (state_->buffers != nullptr) state_->buffers->list_state(list);
  nn::StateDict state;
  for (nn::NamedTensor& entry : list) state[entry.name] = std::move(entry.tensor);
  for (int group = 0; group < n_groups(); ++group) {
    state[absl::StrCat("group.", group, ".params")] = on_host(state_->group_sizes[static_cast<size_t>(group)]);
    const_cast<Optimizer*>(this)->visit_options(group, [&](std::string_view option, Saved saved, double& value) {
      if (saved != Saved::kNever) state[option_key(group, option)] = on_host(value);
    });
  }
  if (state_->averaging) {
    state[kAverageDecay] = on_host(state_->average_decay);
    state[kAverageWarmup] = on_host(state_->average_warmup ? 1.0 : 0.0);
  }
  return state;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Optimizer::state_dict");
}

namespace {
// Reports numbers that would make a later step write NaN: steps below 0, and options that are not finite.
void check_numbers(const nn::StateDict& state, nn::StateDictReport& report) {
  for (const auto& [key, value] : state) {
    const bool is_step = (key.starts_with("state.") && key.ends_with(".step")) || key == "buffer.updates",
               is_option = key.starts_with("group.") || key == kAverageDecay || key == kAverageWarmup;
    if ((!is_step && !is_option) || !value.defined() || value.numel() != 1) continue;
    if (is_step && is_floating(value.dtype())) continue;  // load_tensors() refuses it, because its dtype is wrong
    const double number = value.item();
    if (is_step ? number < 0 : !std::isfinite(number))
      report.mismatched.push_back(absl::StrCat(key, ": ", number, is_step ? " is negative" : " is not finite"));
  }
}
}  // namespace

// A state dict that is being loaded into an optimizer: read, checked as a whole, then kept. Tensors that exist are
// written in place, except step counts.
class Optimizer::LoadedState {
 public:
  LoadedState(Optimizer& optimizer, const nn::StateDict& given)
      : optimizer_(optimizer), now_(*optimizer.state_), given_(given), slots_(now_.slots) {
    for (size_t i = 0; i < slots_.size(); ++i) read_slot(i);
    // A state that was saved before buffers were averaged lacks their averages.
    has_buffers_ = now_.buffers != nullptr && given_.contains("buffer.updates");
    if (has_buffers_) now_.buffers->list_targets(targets_, buffer_updates_);
    for (int group = 0; group < optimizer_.n_groups(); ++group) read_size(group);
    read_average_option(kAverageDecay, decay_, [](double number) { return number >= 0 && number <= 1; });
    read_average_option(kAverageWarmup, warmup_, [](double number) { return number == 0 || number == 1; });
  }

  // Throws nn::StateDictError, and then nothing has changed.
  void load();

 private:
  class Options;

  void read_slot(size_t i) {
    ParamSlot& slot = slots_[i];
    const std::string prefix = prefix_of(i);
    slot.fits = std::nullopt;
    // The state of a run with 16-bit parameters or with masters may hold master weights that this slot does not use.
    if (!slot.wants_master()) given_.erase(prefix + "master");
    const auto first = given_.lower_bound(prefix);
    const bool has_average = given_.contains(prefix + "average"),
               has_any = first != given_.end() && first->first.starts_with(prefix);
    if (given_.contains(prefix + "step") || (has_any && !has_average)) read_state(i);
    else slot.state = {}, slot.drop_master();
    // If the parameter was frozen when the state was saved, the state has no average of it.
    if (now_.averaging && (has_average || slot.state.exists())) {
      if (!slot.average.defined()) slot.make_average();
      targets_.push_back({prefix + "average", slot.average});
      slot.average_moved = true;  // the average is loaded: loading the model later does not change it
    } else if (slot.average.defined()) {
      slot.average_moved = false;  // the average becomes a copy of its parameter again, by refresh() in keep()
      slot.average_copied = {};
    }
  }

  void read_state(size_t i) {
    ParamSlot& slot = slots_[i];
    const std::string prefix = prefix_of(i);
    const std::shared_ptr<StepCount> count = count_of(prefix + "step");
    if (slot.state.exists()) slot.state.steps = CountShare(count);
    else slot.state = slot.new_state(count);
    list_state(i, *slot.plan, slot.state, targets_);
    if (given_.contains(prefix + "master")) {
      if (!slot.master.defined()) slot.make_master();
      targets_.push_back({prefix + "master", slot.master});
      slot.master_of = {};  // the model may be loaded later, so the next step compares the master with the parameter
    } else {
      slot.drop_master();
      lacks_masters_ = lacks_masters_ || slot.wants_master();
    }
  }

  // Parameters at the same step share a count.
  std::shared_ptr<StepCount> count_of(const std::string& key) {
    const auto found = given_.find(key);
    const bool fits = found != given_.end() && found->second.defined() && found->second.dtype() == kI64 &&
                      found->second.numel() == 1;  // if it does not fit, load_tensors() refuses it
    const int64_t steps = fits ? found->second.item<int64_t>() : 0;
    std::shared_ptr<StepCount>& count = counts_[steps];
    if (count == nullptr) count = std::make_shared<StepCount>(steps, optimizer_.device());
    return count;
  }

  void read_size(int group) {
    const std::string key = option_key(group, "params");
    const int64_t n_params = now_.group_sizes[static_cast<size_t>(group)];
    const auto found = given_.find(key);
    if (found == given_.end()) return;  // a file of an earlier version
    targets_.push_back({key, on_host(n_params)});
    if (found->second.defined() && found->second.numel() == 1 && found->second.item() != static_cast<double>(n_params))
      report_.mismatched.push_back(absl::StrCat(key, ": ", n_params, " wanted, ", found->second.item(), " given"));
  }

  // Reads an option of the averages. Files of earlier versions lack these options: then the optimizer keeps its own.
  template <class Allows> void read_average_option(const char* key, const Tensor& target, Allows allows) {
    const auto found = given_.find(key);
    if (!now_.averaging || found == given_.end()) return;
    targets_.push_back({key, target});
    if (found->second.defined() && found->second.numel() == 1 && !allows(found->second.item()))
      report_.mismatched.push_back(absl::StrCat(key, ": ", found->second.item(), " is no value of this option"));
  }

  void keep() {
    for (ParamSlot& slot : slots_) slot.init = optimizer_.state_init(slot.group);
    now_.average_decay = decay_.item();
    now_.average_warmup = warmup_.item() != 0;
    if (has_buffers_) now_.buffers->note_loaded(buffer_updates_.item<int64_t>());
    else if (now_.buffers != nullptr) now_.buffers->forget();
    now_.slots = std::move(slots_);
    now_.signatures.clear();
    now_.states_loaded = true;
    refresh(now_.slots);
    if (lacks_masters_) Step::say_no_masters(optimizer_);
  }

  Optimizer& optimizer_;
  OptimizerState& now_;
  nn::StateDict given_;
  std::vector<ParamSlot> slots_;  // the slots as they will be after loading
  std::vector<nn::NamedTensor> targets_;
  nn::StateDictReport report_;
  std::map<int64_t, std::shared_ptr<StepCount>> counts_;
  bool lacks_masters_ = false, has_buffers_ = false;
  const Tensor buffer_updates_ = on_host(int64_t{0});
  const Tensor decay_ = on_host(now_.average_decay), warmup_ = on_host(now_.average_warmup ? 1.0 : 0.0);
};

// The options that a state dict gives to all groups. They are set while they are checked, and for good by keep().
class Optimizer::LoadedState::Options {
 public:
  Options(Optimizer& optimizer, const nn::StateDict& state) : optimizer_(optimizer) {
    groups_.resize(static_cast<size_t>(optimizer.n_groups()));
    for (int group = 0; group < optimizer.n_groups(); ++group)
      optimizer.visit_options(group, [&](std::string_view name, Saved saved, double& own) {
        Entry& entry = entries(group).emplace_back(Entry{option_key(group, name), own, own});
        if (saved == Saved::kNever) return;
        const auto found = state.find(entry.key);
        if (found == state.end() && saved == Saved::kLater) return;
        targets_.push_back({entry.key, on_host(own)});
        const bool fits = found != state.end() && found->second.defined() && found->second.numel() == 1;
        if (fits && std::isfinite(found->second.item())) entry.given = found->second.item();
      });
  }
  ~Options() {
    for (int group = 0; group < optimizer_.n_groups(); ++group) set(group, &Entry::own);
  }
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  // Returns the tensors that load_tensors() should fill. load_tensors() reports those that are missing or have another
  // dtype.
  const std::vector<nn::NamedTensor>& targets() const { return targets_; }

  void check(const std::vector<ParamSlot>& slots, nn::StateDictReport& report) {
    for (int group = 0; group < optimizer_.n_groups(); ++group) {
      set(group, &Entry::given);
      check_values(group, report);
      set(group, &Entry::own);
      for (Entry& e : entries(group)) {
        if (e.given == e.own) continue;
        const double own = std::exchange(e.own, e.given);  // sets this option alone
        set(group, &Entry::own);
        if (!fits(slots, group))
          report.mismatched.push_back(absl::StrCat(e.key, ": ", own, " wanted, ", e.given,
                                                   " given; it decides which states there are, so make the optimizer "
                                                   "with it"));
        e.own = own;
        set(group, &Entry::own);
      }
    }
  }
  void keep() {
    for (std::vector<Entry>& group : groups_)
      for (Entry& e : group) e.own = e.given;
    for (int group = 0; group < optimizer_.n_groups(); ++group) set(group, &Entry::own);
  }

 private:
  struct Entry {
    std::string key;
    double own, given;
  };
  std::vector<Entry>& entries(int group) { return groups_[static_cast<size_t>(group)]; }

  void set(int group, double Entry::*of) {
    auto entry = entries(group).begin();
    optimizer_.visit_options(group, [&](std::string_view, Saved, double& value) { value = *entry++.*of; });
  }
  // Reports the given values that an option cannot have: such an option shows another value after it was set. REQUIRES:
  // the given options are set.
  void check_values(int group, nn::StateDictReport& report) {
    auto entry = entries(group).begin();
    optimizer_.visit_options(group, [&](std::string_view, Saved, double& value) {
      if (const Entry& e = *entry++; value != e.given)
        report.mismatched.push_back(absl::StrCat(e.key, ": ", e.given, " is no value of this option"));
    });
    try {
      optimizer_.check_options(group);
    } catch (const Error& error) {
      report.mismatched.push_back(absl::StrCat("group.", group, ": ", error.what()));
    }
  }
  // Returns whether the current options give the parameters of the group the same plan and format as their slots have.
  bool fits(const std::vector<ParamSlot>& slots, int group) const {
    const StateInit init = optimizer_.state_init(group);
    return std::all_of(slots.begin(), slots.end(), [&](const ParamSlot& slot) {
      if (slot.group != group || slot.param.numel() == 0) return true;  // empty: another process may have the parameter
      return &optimizer_.update_plan(group, slot.param) == slot.plan && init.format == slot.init.format;
    });
  }

  Optimizer& optimizer_;
  std::vector<std::vector<Entry>> groups_;
  std::vector<nn::NamedTensor> targets_;
};

void Optimizer::LoadedState::load() {
  Options options(optimizer_, given_);
  check_numbers(given_, report_);
  options.check(now_.slots, report_);
  if (!report_.empty()) throw nn::StateDictError(optimizer_.name(), report_);
  targets_.insert(targets_.end(), options.targets().begin(), options.targets().end());
  nn::load_tensors(targets_, given_, true, optimizer_.name());  // checks everything before it writes anything
  options.keep();
  keep();
}

void Optimizer::load_state_dict(const nn::StateDict& state) try {
  check_between_steps(name(), *state_, "load_state_dict");
  check_not_sharded(name(), *state_, "load_state_dict", "use ShardedOptimizer::load_state_dict()");
  check_not_swapped(name(), *state_, "load_state_dict");
  const NoGrad off;
  LoadedState(*this, state).load();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Optimizer::load_state_dict");
}

}  // namespace rondo::optim
