#include "rondo/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/optim/optimizer_state.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/checksum.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::optim {

Optimizer::Optimizer() try : state_(std::make_unique<OptimizerState>()) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory("an optimizer");
}
Optimizer::~Optimizer() = default;

Device Optimizer::device() const { return state_->device(); }
int Optimizer::n_groups() const { return static_cast<int>(state_->group_sizes.size()); }
bool Optimizer::compiled() const { return state_->passes.report().compiled; }
KernelReport Optimizer::kernels() const { return state_->passes.report(); }
int64_t Optimizer::skipped_steps() const {
  return state_->skipped == nullptr ? 0 : static_cast<int64_t>(state_->skipped->value().item());
}

void Optimizer::add_group(std::span<const Tensor> params) {
  check_between_steps(name(), *state_, "add_param_group");
  check_not_sharded(name(), *state_, "add_param_group", "add groups before the ShardedOptimizer is made");
  if (state_->at_seams)
    throw Error(absl::StrCat(name(),
                             "::add_param_group: an UpdateAtSeams makes the steps and would not know the group; "
                             "make it after adding groups"));
  const size_t first = state_->slots.size();
  const int group = n_groups();
  const FloatingPointScope floating_point;  // a host may trap invalid operations, such as a comparison with NaN
  check_options(group);
  visit_options(group, [this](std::string_view option, Saved, double& value) {
    if (!std::isfinite(value))
      throw Error(absl::StrCat(name(), ": ", std::string(option), " must be finite, got ", value));
  });
  add_slots(params);
  state_->signatures.clear();
  if (first == 0 || !state_->slots[0].copy.defined()) return;
  const NoGrad off;
  for (size_t i = first; i < state_->slots.size(); ++i) {
    state_->slots[i].copy = ops::cast(state_->slots[i].param.detach(), state_->slots[0].copy.dtype());
    state_->slots[i].copy_of = Contents::of(state_->slots[i].param);
  }
}

void Optimizer::add_slots(std::span<const Tensor> params) try {
  const int group = n_groups();
  const StateInit init = state_init(group);
  const size_t before = state_->slots.size();
  absl::Cleanup forget = [&] { state_->slots.resize(before); };
  for (const Tensor& param : params) {
    const auto fail = [&](std::string_view why) {
      throw Error(absl::StrCat(name(), ": ", slot_name(state_->slots.size()), " ", std::string(why)));
    };
    if (!param.defined()) fail("is undefined");
    if (!is_floating(param.dtype()))
      fail(absl::StrCat("is ", std::string(name_of(param.dtype())), ", not floating point"));
    if (!param.is_leaf()) fail("is the result of an op, not a leaf");
    if (const Device all = state_->slots.empty() ? param.device() : device(); !(param.device() == all))
      fail(absl::StrCat("is on ", to_string(param.device()), " and ", slot_name(0), " on ", to_string(all),
                        "; make one optimizer for each device"));
    if (!param.is_contiguous()) fail("is not contiguous; make it so with .contiguous() before it becomes a parameter");
    if (param.dtype() == kF64 && init.format != StateFormat::kFull)
      fail("is f64: its state is f64 too and has no shorter format");
    ParamSlot& slot = state_->slots.emplace_back();
    slot.param = param;
    slot.group = group;
    slot.plan = &update_plan(group, param);
    slot.init = init;
    if (slot.plan->matrices) {
      slot.columns = param.size(-1);
      slot.matrices = param.numel() == 0 ? 0 : param.numel() / (param.size(-1) * param.size(-2));
    }
  }
  std::vector<const TensorImpl*> all;
  for (const ParamSlot& slot : state_->slots) all.push_back(slot.param.impl());
  std::sort(all.begin(), all.end());
  if (std::adjacent_find(all.begin(), all.end()) != all.end())
    throw Error(absl::StrCat(name(), ": a parameter is given twice; parameters() lists tied ones once"));
  std::move(forget).Cancel();
  state_->group_sizes.push_back(static_cast<int64_t>(params.size()));
  io::Checksum sum;
  for (size_t i = before; i < state_->slots.size(); ++i)
    sum.update(absl::StrCat(to_string(state_->slots[i].param.sizes()), state_->slots[i].plan->sweeps[0].body.name,
                            static_cast<int>(init.format), " "));
  state_->group_hashes.push_back(sum.digest());
  state_->fact_names = nullptr;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Optimizer");
}

void Optimizer::check_has_parameters() const {
  if (state_->slots.empty())
    throw Error(absl::StrCat(name(),
                             ": there is no parameter to update. Modules find parameters that parameter() or "
                             "child() has registered"));
}

void Optimizer::zero_grad(bool set_to_none) try {
  if (state_->shards != nullptr) state_->shards->zero_grad(set_to_none);
  for (ParamSlot& slot : state_->slots) slot.param.zero_grad(set_to_none);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("zero_grad");
}

namespace {

using VisitOptions = absl::FunctionRef<void(OptionVisitor visitor)>;

// Returns the option "lr" of a group. `visit` visits the options of the group.
double& lr_among(const Optimizer& optimizer, int group, VisitOptions visit) {
  if (group < 0 || group >= optimizer.n_groups())
    throw Error(absl::StrCat(optimizer.name(), ": group ", group, " of ", optimizer.n_groups(), " does not exist"));
  double* found = nullptr;
  visit([&](std::string_view name, Saved, double& value) {
    if (name == "lr") found = &value;
  });
  invariant(found != nullptr, "an optimizer lacks an option");
  return *found;
}

}  // namespace

double Optimizer::lr(int group) const {
  return lr_among(*this, group,
                  [&](OptionVisitor visitor) { const_cast<Optimizer*>(this)->visit_options(group, visitor); });
}
void Optimizer::set_lr(int group, double lr) {
  check_between_steps(name(), *state_, "set_lr");
  if (!std::isfinite(lr) || lr < 0) throw Error(absl::StrCat(name(), ": lr must be finite and not negative, got ", lr));
  lr_among(*this, group, [&](OptionVisitor visitor) { visit_options(group, visitor); }) = lr;
}
void Optimizer::set_lr(double lr) {
  for (int group = 0; group < n_groups(); ++group) set_lr(group, lr);
}

void Optimizer::set_lr(const std::vector<Schedule>& schedules, int64_t step) {
  if (static_cast<int>(schedules.size()) != n_groups())
    throw Error(absl::StrCat(name(), "::set_lr: ", schedules.size(), " schedules for ", n_groups(), " groups"));
  std::vector<double> rates;
  for (const Schedule& schedule : schedules) {
    if (schedule == nullptr)
      throw Error(absl::StrCat(name(), "::set_lr: the schedule of group ", rates.size(), " is empty"));
    rates.push_back(schedule(step));
    if (!std::isfinite(rates.back()) || rates.back() < 0)
      throw Error(absl::StrCat(name(), "::set_lr: the rate of group ", rates.size() - 1, " at step ", step,
                               " must be finite and not negative, got ", rates.back()));
  }
  for (int group = 0; group < n_groups(); ++group) set_lr(group, rates[static_cast<size_t>(group)]);
}

namespace {

void check_buffers(const Optimizer& optimizer, const OptimizerState& state, const std::vector<Tensor>& buffers) {
  if (!buffers.empty() && state.buffers != nullptr)
    throw Error(absl::StrCat(optimizer.name(), "::track_average: ", state.buffers->buffers().size(),
                             " buffers are averaged already"));
  std::map<const std::byte*, const std::byte*> taken;  // begin and end of memory; they do not overlap
  // Marks the memory of a tensor as taken. Returns false if some of it is taken already.
  const auto take = [&](const Tensor& tensor) {
    const std::byte* const begin = tensor.address();
    const std::byte* const end = begin + tensor.nbytes();
    const auto after = taken.lower_bound(end);
    if (begin == end || (after != taken.begin() && std::prev(after)->second > begin)) return begin == end;
    taken.emplace(begin, end);
    return true;
  };
  for (const ParamSlot& slot : state.slots) take(slot.param);
  for (size_t i = 0; i < buffers.size(); ++i) {
    const auto fail = [&](std::string_view why) {
      throw Error(absl::StrCat(optimizer.name(), "::track_average: buffer ", i, " ", std::string(why)));
    };
    if (!buffers[i].defined()) fail("is undefined");
    if (!buffers[i].is_contiguous()) fail("is not contiguous");
    if (!(buffers[i].device() == state.device()))
      fail(absl::StrCat("is on ", to_string(buffers[i].device()), ", the parameters are on ",
                        to_string(state.device())));
    if (!take(buffers[i]))
      fail("is a parameter of this optimizer, is given twice, or shares memory with such a tensor");
  }
}

}  // namespace

void Optimizer::track_average(AverageOptions options) try {
  check_between_steps(name(), *state_, "track_average");
  check_not_swapped(name(), *state_, "track_average");
  check_buffers(*this, *state_, options.buffers);
  set_average_decay(options.decay);
  state_->average_warmup = options.warmup;
  const NoGrad off;
  if (!options.buffers.empty()) state_->buffers = std::make_unique<BufferAverages>(std::move(options.buffers));
  if (state_->averaging) return;
  state_->averaging = true;
  for (ParamSlot& slot : state_->slots)
    if (slot.param.requires_grad() || slot.state.exists()) slot.make_average();
  state_->signatures.clear();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("track_average");
}

void Optimizer::set_average_decay(double decay) {
  check_between_steps(name(), *state_, "set_average_decay");
  if (!std::isfinite(decay) || decay < 0 || decay > 1)
    throw Error(absl::StrCat(name(), ": an average's decay must be in [0, 1], got ", decay));
  state_->average_decay = decay;
}

std::vector<Tensor> Optimizer::averages() const try {
  check_not_sharded(name(), *state_, "averages", "use ShardedOptimizer::averages()");
  check_not_swapped(name(), *state_, "averages");
  refresh(state_->slots);
  std::vector<Tensor> list;
  for (const ParamSlot& slot : state_->slots)
    list.push_back(state_->averaging && !slot.average.defined() ? slot.param.detach() : slot.average);
  return list;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("averages");
}

std::vector<Tensor> Optimizer::buffer_averages() const try {
  check_not_swapped(name(), *state_, "buffer_averages");
  return state_->buffers == nullptr ? std::vector<Tensor>() : state_->buffers->averages();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("buffer_averages");
}

void Optimizer::keep_copies(DType dtype) try {
  check_between_steps(name(), *state_, "keep_copies");
  check_not_sharded(name(), *state_, "keep_copies", "keep copies before the ShardedOptimizer is made");
  if (!is_low_precision(dtype))
    throw Error(absl::StrCat(name(), ": copies of the parameters are bf16 or f16, not ", std::string(name_of(dtype))));
  const NoGrad off;
  for (ParamSlot& slot : state_->slots) {
    slot.copy = ops::cast(slot.param.detach(), dtype);
    slot.copy_of = Contents::of(slot.param);
  }
  state_->signatures.clear();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("keep_copies");
}

std::vector<Tensor> Optimizer::copies() const try {
  check_not_sharded(name(), *state_, "copies", "use ShardedOptimizer::copies()");
  refresh(state_->slots);
  std::vector<Tensor> list;
  for (const ParamSlot& slot : state_->slots) list.push_back(slot.copy);
  return list;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("copies");
}

}  // namespace rondo::optim
