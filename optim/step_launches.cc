#include "rondo/optim/step_launches.h"

#include <algorithm>
#include <span>
#include <utility>

#include "rondo/compile/compile.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/optim/host_code.h"
#include "rondo/optim/norm.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/runtime/base/hash_map.h"

namespace rondo::optim {
namespace {

// Returns the operands of one item, in the order in which StepLaunches::fill_table writes them.
std::vector<ArraySpec> arrays_of(const ParamSlot& slot, size_t sweep, bool zero_grad, std::optional<DType> copy) {
  const DType dtype = slot.param.dtype(), compute = compute_dtype(dtype);
  const bool last = sweep + 1 == slot.plan->sweeps.size();
  std::vector<ArraySpec> list = {{.dtype = slot.weights().dtype()}, {.dtype = dtype, .zero = zero_grad && last}};
  for (size_t k = 0; k < slot.plan->states.size(); ++k) {
    const StateSpec& spec = slot.plan->states[k];
    const StateArray& array = slot.state.arrays[k];
    const Format coded = spec.nonnegative ? Format::kUnsigned8 : Format::kSigned8;
    list.push_back({.dtype = spec.transient ? compute : array.values.dtype(),
                    .format = array.scales.defined() ? coded : Format::kPlain,
                    .layout = spec.layout,
                    .fresh = spec.transient});
  }
  for (int k = 0; k < slot.plan->sweeps[sweep].body.n_sums; ++k) list.push_back({.role = Role::kSum, .dtype = kF64});
  if (last && slot.average.defined()) list.push_back({.role = Role::kAverage, .dtype = compute});
  if (last && slot.master.defined()) list.push_back({.role = Role::kCopy, .dtype = dtype});
  if (last && copy) list.push_back({.role = Role::kCopy, .dtype = *copy, .fresh = true});
  return list;
}

void count_outcome(std::span<const std::shared_ptr<Foreach>> passes, bool eager) {
  const bool compiled = std::all_of(passes.begin(), passes.end(), [](const auto& pass) { return pass->compiled(); });
  if (compiled && !eager) compile::count(compile::Outcome::kCompiled);
  else compile::count(compile::Outcome::kEager, "a compiled optimizer's step");
}

}  // namespace

StepLaunches::StepLaunches(Optimizer& optimizer, OptimizerState& state, std::vector<StepUpdate>& updates,
                           const Tensor& decision)
    : optimizer_(optimizer), state_(state), updates_(updates), decision_(decision), device_(state.device()) {
  state_.queue.start(device_);
}

StepLaunches::~StepLaunches() {
  state_.queue.start(device_);
  for (Signature& signature : state_.signatures) {
    for (size_t k = 0; k < signature.plan->states.size(); ++k)
      if (signature.plan->states[k].transient)
        for (size_t i : signature.updates) updates_[i].slot->state.arrays[k] = {};
    signature.updates.clear();
  }
}

void StepLaunches::prepare(bool zero_grad) {
  make_states();
  if (zero_grad) copy_shared_gradients();
  for (const StepUpdate& u : updates_) {
    u.slot->refresh_master();
    u.slot->refresh_average();
  }
  sort_by_signature(zero_grad);
  prepare_scalars();
  for (Signature& signature : state_.signatures)
    if (!signature.updates.empty()) queue_sweeps(signature);
}

void StepLaunches::make_states() {
  std::shared_ptr<StepCount> first;
  for (const StepUpdate& u : updates_) {
    if (!u.slot->state.exists()) {
      if (first == nullptr) first = std::make_shared<StepCount>(0, device_);
      u.slot->state = u.slot->new_state(first);
    }
    if (u.slot->wants_master() && !u.slot->master.defined()) u.slot->make_master();
    if (state_.averaging && !u.slot->average.defined()) u.slot->make_average();
  }
}

// The pass zeroes each gradient that it has read. If two parameters share a gradient, the second one reads a copy of
// it.
void StepLaunches::copy_shared_gradients() {
  HashSet<const void*> read;
  for (StepUpdate& u : updates_) {
    if (u.numel() == 0 || read.insert(u.grad).second) continue;
    u.dense_grad = u.slot->param.grad().detach().clone();
    u.grad = u.dense_grad.address();
  }
}

void StepLaunches::sort_by_signature(bool zero_grad) {
  std::vector<Signature>& signatures = state_.signatures;
  if (signatures.empty() || zero_grad != state_.zero_grad || state_.passes.postponed()) {
    signatures.clear();
    for (ParamSlot& slot : state_.slots) slot.signature = -1;
    state_.zero_grad = zero_grad;
  }
  for (size_t i = 0; i < updates_.size(); ++i) {
    ParamSlot& slot = *updates_[i].slot;
    const Tensor& written = updates_[i].copy;
    const std::optional<DType> copy = written.defined() ? std::optional(written.dtype()) : std::nullopt;
    const Signature* known = slot.signature < 0 ? nullptr : &signatures[static_cast<size_t>(slot.signature)];
    if (known == nullptr || known->dtype != slot.param.dtype() || known->copy != copy) {
      Signature wanted{slot.plan, slot.param.dtype(), copy, {}, {}};
      for (size_t k = 0; k < slot.plan->sweeps.size(); ++k)
        wanted.sweeps.push_back(state_.passes.pass_for(optimizer_.name(), device_, slot.plan->sweeps[k].body,
                                                       arrays_of(slot, k, zero_grad, copy)));
      const auto found = std::find_if(signatures.begin(), signatures.end(), [&](const Signature& s) {
        return s.plan == wanted.plan && s.sweeps == wanted.sweeps && s.copy == copy;
      });
      slot.signature = static_cast<int>(found - signatures.begin());
      if (found == signatures.end()) signatures.push_back(std::move(wanted));
    }
    signatures[static_cast<size_t>(slot.signature)].updates.push_back(i);
  }
}

void StepLaunches::queue_sweeps(Signature& signature) {
  const UpdatePlan& plan = *signature.plan;
  make_transients(signature);
  const bool eager = compile::stance() == compile::Stance::kForceEager;
  // Sweeps before a prepare() run at once, because prepare() reads their results.
  size_t first_kept = plan.sweeps.size();
  while (first_kept > 0 && !(first_kept < plan.sweeps.size() && plan.sweeps[first_kept].prepare)) --first_kept;
  for (size_t sweep = 0; sweep < plan.sweeps.size(); ++sweep) {
    state_.queue.keep(sweep >= first_kept);
    if (plan.sweeps[sweep].prepare)
      for (size_t i : signature.updates) prepare_update(sweep, updates_[i]);
    if (plan.sweeps[sweep].program) queue_program(signature, sweep);
    make_room_for_sums(signature, sweep);
    fill_table(state_.queue.table(), signature, sweep);
    state_.queue.add(signature.sweeps[sweep], decided(), eager);
  }
  if (state_.passes.report().compiled) count_outcome(signature.sweeps, eager && runs_host_code(device_));
}

void StepLaunches::make_transients(const Signature& signature) {
  const UpdatePlan& plan = *signature.plan;
  for (size_t k = 0; k < plan.states.size(); ++k) {
    if (!plan.states[k].transient) continue;
    for (size_t i : signature.updates) {
      const ParamSlot& slot = *updates_[i].slot;
      StateArray& array = updates_[i].slot->state.arrays[k];
      array.values = Tensor::empty(sizes_of(plan.states[k], slot.param.sizes()),
                                   {compute_dtype(signature.dtype), slot.param.device()});
      array.locate();
    }
  }
}

void StepLaunches::prepare_update(size_t sweep, StepUpdate& u) {
  ParamSlot& slot = *u.slot;
  Optimizer::PreparedParam param{state_.queue,
                                 device_,
                                 slot.group,
                                 slot.weights(),
                                 u.dense_grad.defined() ? u.dense_grad : slot.param.grad(),
                                 decision_,
                                 std::span(slot.state.arrays).first(slot.plan->states.size()),
                                 values_,
                                 u.row};
  optimizer_.prepare(static_cast<int>(sweep), param);
  for (size_t k = 0; k < slot.plan->states.size(); ++k)
    if (slot.plan->states[k].transient) slot.state.arrays[k].locate();
}

// Adds up the sums of the previous sweep over all rows, and calls the sweep's program with the totals.
void StepLaunches::queue_program(const Signature& signature, size_t sweep) {
  const auto n_sums = static_cast<size_t>(signature.plan->sweeps[sweep - 1].body.n_sums);
  const RowProgram& program = *signature.plan->sweeps[sweep].program;
  const Storage totals = Storage::allocate(signature.updates.size() * n_sums * sizeof(double), device_);
  state_.queue.hold(totals);
  auto* total = reinterpret_cast<double*>(totals.data());
  const auto* sums = reinterpret_cast<const double*>(sums_.data());
  const std::shared_ptr<Foreach> pass = scalar_pass(device_, program.body);
  std::vector<ListSum> lists;
  ForeachTable table;
  for (size_t i : signature.updates) {
    const StepUpdate& u = updates_[i];
    if (u.numel() == 0) continue;
    double* values = row(u.row);
    const std::span<void*> operands = add_call(table, *pass, values + kSweepNumbers);
    size_t next = 0;
    for (size_t k = 0; k < n_sums; ++k) {
      lists.push_back({sums + u.sums + k * u.sum_rows, static_cast<int64_t>(u.sum_rows), total});
      operands[next++] = total++;
    }
    for (int k : program.reads) operands[next++] = values + kFirstScalar + k;
    for (int k : program.writes) operands[next++] = values + kFirstScalar + k;
  }
  queue_sums(state_.queue, device_, lists);
  state_.queue.table() = std::move(table);
  state_.queue.add(pass, compile::Condition{&decided()->updates, 1});
}

// Allocates one number for each row and sum of a parameter: all rows of the first sum, then all rows of the second.
void StepLaunches::make_room_for_sums(const Signature& signature, size_t sweep) {
  const int n_sums = signature.plan->sweeps[sweep].body.n_sums;
  if (n_sums == 0) return;
  size_t room = 0;
  for (size_t i : signature.updates) {
    StepUpdate& u = updates_[i];
    const int64_t width = signature.plan->matrices ? u.slot->columns : signature.sweeps[sweep]->row_width();
    u.sums = room;
    u.sum_rows = static_cast<size_t>(width == 0 ? 0 : (u.numel() + width - 1) / width);
    room += u.sum_rows * static_cast<size_t>(n_sums);
  }
  sums_ = Storage::allocate(room * sizeof(double), device_);
  state_.queue.hold(sums_);
}

// Writes the operands of every item, in the order of arrays_of(). For a plan with matrices, each matrix is an item.
void StepLaunches::fill_table(ForeachTable& table, const Signature& signature, size_t sweep) const {
  const UpdatePlan& plan = *signature.plan;
  const Foreach& pass = *signature.sweeps[sweep];
  const bool last = sweep + 1 == plan.sweeps.size();
  const int n_sums = plan.sweeps[sweep].body.n_sums;
  const DType compute = compute_dtype(signature.dtype);
  for (size_t i : signature.updates) {
    const StepUpdate& u = updates_[i];
    const ParamSlot& slot = *u.slot;
    if (u.numel() == 0) continue;
    const int64_t count = plan.matrices ? slot.matrices : 1, numel = u.numel() / count;
    const int64_t width = plan.matrices ? slot.columns : pass.row_width();
    const double* scalars = row(u.row);
    for (int64_t m = 0; m < count; ++m) {
      // Returns the address of matrix m in an array that has `size` elements for each matrix.
      const auto part = [m](const void* data, DType dtype, int64_t size) -> void* {
        return static_cast<std::byte*>(const_cast<void*>(data)) + m * size * static_cast<int64_t>(size_of(dtype));
      };
      const std::span<void*> operands = table.add(pass.item(numel, width, scalars), pass.n_operands());
      size_t next = 0, next_scale = static_cast<size_t>(pass.n_arrays());
      if (slot.master_data != nullptr) operands[next++] = part(slot.master_data, kF32, numel);
      else operands[next++] = part(u.param, signature.dtype, numel);
      operands[next++] = part(u.grad, signature.dtype, numel);
      for (size_t k = 0; k < plan.states.size(); ++k) {
        const StateArray& array = slot.state.arrays[k];
        const Layout layout = plan.states[k].layout;
        const int64_t size = layout == Layout::kFull ? numel : layout == Layout::kPerRow ? numel / width : width;
        operands[next++] = m == 0 ? array.values_data : part(array.values_data, array.values.dtype(), size);
        if (array.scales_data != nullptr) operands[next_scale++] = array.scales_data;
      }
      for (int k = 0; k < n_sums; ++k)
        operands[next++] = reinterpret_cast<double*>(sums_.data()) + u.sums + static_cast<size_t>(k) * u.sum_rows +
                           static_cast<size_t>(m) * (u.sum_rows / static_cast<size_t>(count));
      if (last && slot.average_data != nullptr) operands[next++] = part(slot.average_data, compute, numel);
      if (last && slot.master_data != nullptr) operands[next++] = part(u.param, signature.dtype, numel);
      if (last && u.copy.defined()) operands[next++] = part(u.copy.impl()->data(), u.copy.dtype(), numel);
    }
  }
}

}  // namespace rondo::optim
