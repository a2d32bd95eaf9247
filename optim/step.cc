// Optimizer::step: collect and check the updates, measure the gradients and decide, count, then run each signature's
// sweeps. All work on values is enqueued on the parameters' device: Note [Steps].
#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/compile/stages/outcomes.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/host_code.h"
#include "rondo/optim/norm.h"
#include "rondo/optim/optimizer.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/optim/step_programs.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/lowered.h"
#include "rondo/runtime/memory.h"
#include "rondo/runtime/recorder.h"

namespace rondo::optim {

void Optimizer::check_options(const StepOptions& o) const {
  if (!(o.grad_scale > 0) || !std::isfinite(o.grad_scale))
    throw Error(absl::StrCat(name(), ": grad_scale must be positive and finite, got ", o.grad_scale));
  if (!(o.max_norm >= 0)) throw Error(absl::StrCat(name(), ": max_norm must not be negative, got ", o.max_norm));
  const Tensor& scale = o.device_scale;
  if (scale.defined() && !(scale.dtype() == kF64 && scale.numel() == 1 && scale.device() == device()))
    throw Error(absl::StrCat(name(), ": device_scale must be one f64 on ", to_string(device()), ", got ",
                             std::string(name_of(scale.dtype())), to_string(scale.sizes()), " on ",
                             to_string(scale.device())));
}

// Adds the update of a parameter that has a gradient.
void Optimizer::collect(size_t i, std::vector<Update>& updates) {
  ParamSlot& slot = slots_[i];
  const Tensor& param = slot.param;
  const Tensor& grad = param.grad();
  if (!grad.defined()) return;
  if (grad.dtype() != param.dtype() || !(grad.sizes() == param.sizes()))
    throw Error(absl::StrCat(name(), ": ", slot_name(i), " is ", std::string(name_of(param.dtype())),
                             to_string(param.sizes()), ", its gradient ", std::string(name_of(grad.dtype())),
                             to_string(grad.sizes())));
  const Device device = slots_[0].param.impl()->device;
  const StepCount* count = slot.state.count.get();
  if (!(param.impl()->device == device && grad.impl()->device == device) ||
      (count != nullptr && !(count->device == device))) [[unlikely]]
    throw_two_devices(i);
  if (slot.fits != param.dtype()) check_states(i);
  Update& update = updates.emplace_back();
  update.slot = &slot;
  if (!grad.is_contiguous()) update.dense_grad = grad.detach().contiguous();
  update.param = const_cast<std::byte*>(param.address());
  update.grad = (update.dense_grad.defined() ? update.dense_grad : grad).address();
  update.copy = slot.copy;
  if (const std::optional<DType> used = amp::copy_in_use(param); used && !update.copy.defined())
    update.copy = amp::copy_to_write(param, *used);
}

// A model may be converted after its first step.
void Optimizer::check_states(size_t i) {
  ParamSlot& slot = slots_[i];
  const Tensor& param = slot.param;
  const bool wide = compute_dtype(param.dtype()) == kF64;
  for (const Tensor* held : {&slot.state.arrays[0].values, &slot.average})
    if (held->defined() && wide != (held->dtype() == kF64))
      throw Error(absl::StrCat(name(), ": ", slot_name(i), " is now ", std::string(name_of(param.dtype())),
                               ", its state ", std::string(name_of(held->dtype())),
                               "; convert the model before its first step"));
  if (param.dtype() == kF64 && slot.init.format != StateFormat::kFull)
    throw Error(absl::StrCat(name(), ": ", slot_name(i), " is now f64; f64 state has no shorter format"));
  slot.fits = param.dtype();
}

// Slot i is not where slot 0 is, or not all of it.
void Optimizer::throw_two_devices(size_t i) const {
  const ParamSlot& slot = slots_[i];
  const std::string here = to_string(slot.param.device());
  if (!(slot.param.device() == device()))
    throw Error(absl::StrCat(name(), ": ", slot_name(i), " is on ", here, " and ", slot_name(0), " on ",
                             to_string(device()), "; the parameters of one optimizer are on one device"));
  if (const Device grad = slot.param.grad().device(); !(grad == device()))
    throw Error(absl::StrCat(name(), ": ", slot_name(i), " is on ", here, ", its gradient on ", to_string(grad),
                             "; move one with .to(Device)"));
  throw Error(absl::StrCat(name(), ": ", slot_name(i), " is now on ", here, ", its state on ",
                           to_string(slot.state.count->device),
                           "; move the model before its first step, or load the state into a new optimizer"));
}

// Gradients that are missing although they should be there.
void Optimizer::check_any_gradient(const std::vector<Update>& updates) const {
  if (updates.size() == slots_.size()) return;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Tensor& param = slots_[i].param;
    if (param.grad().defined()) continue;
    if (const char* holder = autograd::gradient_claim(param, GradientClaim::kChanges); holder != nullptr)
      throw Error(absl::StrCat(name(), ": ", slot_name(i), " has no gradient, because ", holder,
                               " averages it: call its finish() after backward() and before step()"));
  }
}

namespace {

bool measures(const StepOptions& o) {
  return o.check_finite || o.grad_scale != 1 || o.device_scale.defined() || std::isfinite(o.max_norm);
}

}  // namespace

// A Decision on the device.
Tensor Optimizer::decide(const std::vector<Update>& updates, const StepOptions& options) {
  const Device device = this->device();
  static_assert(sizeof(Decision) == 4 * sizeof(double));
  Tensor decision = Tensor::empty({4}, {kF64, device});
  auto* d = reinterpret_cast<Decision*>(decision.mutable_address());
  const bool measured = measures(options);
  if (measured && (skipped_ == nullptr || !(skipped_->device == device)))
    skipped_ = std::make_unique<StepCount>(skipped_steps(), device);
  measured_ = measured;
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const Storage kept = numbers_on(device, {options.grad_scale, options.max_norm, /*no device_scale:*/ 1, kNaN});
  const double* numbers = f64_of(kept);
  // What stays if a kernel has found its data wrong: nothing below runs then.
  backend_of(device).fill(device.index, d, 0, sizeof(Decision));
  if (!measured) {
    call_program(device, decide_unmeasured(), {&d->norm, &d->factor, &d->updates, &d->skipped}, numbers + 3);
    return decision;
  }
  const Tensor sum = Tensor::empty({}, {kF64, device});
  auto* squares = reinterpret_cast<double*>(const_cast<std::byte*>(sum.address()));
  std::vector<NormOperand> operands;
  operands.reserve(updates.size());
  for (const Update& u : updates) operands.push_back({u.grad, u.slot->param.dtype(), u.numel()});
  enqueue_sum_of_squares(device, operands, squares);
  const double* scale = options.device_scale.defined() ? reinterpret_cast<const double*>(options.device_scale.address())
                                                       : numbers + 2;
  call_program(device, decide_measured(),
               {squares, scale, skipped_->now(), &d->norm, &d->factor, &d->updates, &d->skipped, skipped_->next()},
               numbers);
  return decision;
}

StepReport Optimizer::step(const StepOptions& options) {
  return step(options, [](LaunchQueue&, const Decision*) {});
}

StepReport Optimizer::step(const StepOptions& options, JoinedWork joined) {
  const memory::Cause cause("a step of ", name(), {});
  check_options(options);
  const RecordingPause pause("Optimizer::step() is called", std::source_location::current());
  if (at_seams_)
    throw Error(absl::StrCat(name(),
                             ": its parameters are updated at seams; end the step with UpdateAtSeams::finish(), not "
                             "with step() (update_at_seams.h)"));
  const NoGrad off;
  std::vector<Update> updates;
  updates.reserve(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) collect(i, updates);
  check_any_gradient(updates);
  if (updates.empty() && !options.allow_no_gradients) throw_no_gradients();
  const Tensor decision = decide(updates, options);
  update(updates, decision, options.zero_grad, joined);
  stepped_ = stepped_ || !updates.empty();
  return measures(options) ? StepReport(decision) : StepReport();
}

void Optimizer::throw_no_gradients() const {
  throw Error(absl::StrCat(name(), ": none of the ", slots_.size(),
                           " parameters has a gradient. Call backward() before the step, on a loss that depends on "
                           "them; a step that may find no gradients needs {.allow_no_gradients = true}"));
}

// Updates all parameters, or some: each has its own items in the passes, so the bits are the same either way.
void Optimizer::update(std::vector<Update>& updates, const Tensor& decision, bool zero_grad, JoinedWork joined) {
  Running running{device(), decision, {}, {}, {}};
  queue_.start(running.device);
  const absl::Cleanup drop = [&] {
    queue_.start(running.device);
    drop_transients(updates);
  };
  if (!updates.empty()) prepare_launches(updates, running, zero_grad);
  joined(queue_, running.decided());
  queue_.make_ready();
  // Nothing below fails for lack of memory.
  for (Update& u : updates) open_for_writing(u);
  take_counts(updates, running);
  queue_.submit();
  for (Update& u : updates) {
    if (u.copy.defined()) amp::set_copy(u.slot->param, u.copy);
    // The pass has zeroed the copy that it has read. It replaces a gradient that is not contiguous, whose elements may
    // share memory (stride 0), and one that another parameter has, too.
    if (zero_grad && u.dense_grad.defined()) u.slot->param.set_grad(u.dense_grad);
  }
}

// Everything of a step that may fail: Note [Steps change nothing before they are ready].
void Optimizer::prepare_launches(std::vector<Update>& updates, Running& running, bool zero_grad) {
  make_states(updates, running.device);
  if (zero_grad) {
    // The pass zeroes each gradient that it has read. If two parameters share one, the second reads a copy.
    absl::flat_hash_set<const void*> read;
    for (Update& u : updates) {
      if (u.numel() == 0 || read.insert(u.grad).second) continue;
      u.dense_grad = u.slot->param.grad().detach().clone();
      u.grad = u.dense_grad.address();
    }
  }
  for (const Update& u : updates) u.slot->refresh_average();
  sort_by_signature(updates, zero_grad);
  count_and_fill_scalars(updates, running);
  for (Signature& signature : signatures_)
    if (!signature.updates.empty()) queue_sweeps(signature, updates, running);
}

void Optimizer::make_states(const std::vector<Update>& updates, Device device) {
  std::shared_ptr<StepCount> first;
  for (const Update& u : updates) {
    if (!u.slot->state.exists()) {
      if (first == nullptr) first = std::make_shared<StepCount>(0, device);
      u.slot->state = u.slot->new_state(first);
    }
    if (averaging_ && !u.slot->average.defined()) u.slot->make_average();
  }
}

// The operands of one item, in the order that fill_table writes them.
std::vector<ArraySpec> Optimizer::arrays(const ParamSlot& slot, size_t sweep, bool zero_grad,
                                         std::optional<DType> copy) const {
  const DType dtype = slot.param.dtype(), compute = compute_dtype(dtype);
  const bool last = sweep + 1 == slot.plan->sweeps.size();
  std::vector<ArraySpec> list = {{.dtype = dtype}, {.dtype = dtype, .zero = zero_grad && last}};
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
  if (last && copy) list.push_back({.role = Role::kCopy, .dtype = *copy});
  return list;
}

std::shared_ptr<Foreach> Optimizer::pass_for(const Body& body, std::vector<ArraySpec> arrays) {
  const bool generated = report_.compiled || !runs_host_code(device());
  for (const auto& pass : passes_)
    if (pass->is(body, arrays)) {
      if (generated) compile_pass(*pass);
      return pass;
    }
  const std::shared_ptr<Foreach> pass = passes_.emplace_back(std::make_shared<Foreach>(body, std::move(arrays)));
  if (generated) compile_pass(*pass);
  return pass;
}

void Optimizer::compile_pass(Foreach& pass) {
  if (pass.compiled()) return;
  // Where no host code runs there is no eager pass to fall back on: no stance puts the compiled one off, and only a
  // step that was asked to be compiled can be refused.
  const compile::Stance stance = compile::stance();
  postponed_ = runs_host_code(device()) &&
               (stance == compile::Stance::kForceEager || (stepped_ && stance == compile::Stance::kEagerOnRecompile));
  if (postponed_) return;
  if (stepped_ && report_.compiled && stance == compile::Stance::kFailOnRecompile)
    throw Error(absl::StrCat(name(), ": a step needs a new kernel, and the stance forbids it:\n",
                             compile::to_string(pass.kernel())));
  const auto start = std::chrono::steady_clock::now();
  const int compilations = pass.compile(device());
  report_.compile_ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  report_.kernels += 1;
  report_.compilations += compilations;
  report_.late += stepped_ ? compilations : 0;
  if (stepped_ && compile::log::enabled(compile::log::Topic::kRecompiles))
    compile::log::write(
        compile::log::Topic::kRecompiles,
        absl::StrCat(name(), ": other dtypes or step options need another kernel, ", pass.kernel().name));
  if (compile::log::enabled(compile::log::Topic::kOutputCode))
    compile::log::write(compile::log::Topic::kOutputCode, compile::to_string(pass.kernel()));
}

void Optimizer::sort_by_signature(std::vector<Update>& updates, bool zero_grad) {
  if (signatures_.empty() || zero_grad != zero_grad_ || postponed_) {
    signatures_.clear();
    for (ParamSlot& slot : slots_) slot.signature = -1;
    zero_grad_ = zero_grad;
  }
  for (Signature& signature : signatures_) signature.updates.clear();
  for (size_t i = 0; i < updates.size(); ++i) {
    ParamSlot& slot = *updates[i].slot;
    const Tensor& written = updates[i].copy;
    const std::optional<DType> copy = written.defined() ? std::optional(written.dtype()) : std::nullopt;
    const Signature* known = slot.signature < 0 ? nullptr : &signatures_[static_cast<size_t>(slot.signature)];
    if (known == nullptr || known->dtype != slot.param.dtype() || known->copy != copy) {
      Signature wanted{slot.plan, slot.param.dtype(), copy, {}, {}};
      for (size_t k = 0; k < slot.plan->sweeps.size(); ++k)
        wanted.sweeps.push_back(pass_for(slot.plan->sweeps[k].body, arrays(slot, k, zero_grad, copy)));
      const auto found = std::find_if(signatures_.begin(), signatures_.end(), [&](const Signature& s) {
        return s.plan == wanted.plan && s.sweeps == wanted.sweeps && s.copy == copy;
      });
      slot.signature = static_cast<int>(found - signatures_.begin());
      if (found == signatures_.end()) signatures_.push_back(std::move(wanted));
    }
    signatures_[static_cast<size_t>(slot.signature)].updates.push_back(i);
  }
}

// Parameters of one group that have one count share their scalars, unless each has its own
// (UpdatePlan::own_scalars). Parameters of a count of which not all are updated get a new one.
void Optimizer::count_and_fill_scalars(std::vector<Update>& updates, Running& running) {
  struct Row {
    size_t cohort, group;
    const Tensor* own;  // the only parameter, if it has scalars of its own
  };
  auto& cohorts = running.cohorts;
  absl::InlinedVector<Row, 4> rows;
  for (Update& u : updates) {
    const ParamSlot& slot = *u.slot;
    const std::shared_ptr<StepCount>& count = slot.state.count;
    if (count->cohort >= cohorts.size() || cohorts[count->cohort].before != count) {
      count->cohort = cohorts.size();
      cohorts.push_back({count, nullptr});
    }
    ++cohorts[count->cohort].size;
    const size_t group = static_cast<size_t>(slot.group);
    if (slot.plan->own_scalars || rows.empty() || rows.back().cohort != count->cohort || rows.back().group != group)
      rows.push_back({count->cohort, group, slot.plan->own_scalars ? &slot.param : nullptr});
    u.row = rows.size() - 1;
  }
  for (Running::Cohort& cohort : cohorts) {
    const bool whole = cohort.before.use_count() == cohort.size + 1;  // all slots of the count, and `before`
    cohort.after = whole ? cohort.before : std::make_shared<StepCount>(0, running.device);
  }

  // What the host knows.
  absl::InlinedVector<ScalarRule, 2> rules;  // by group
  for (int group = 0; group < n_groups(); ++group) rules.push_back(scalars(group));
  std::vector<double> values(rows.size() * kRowValues + 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<double> out = std::span(values).subspan(i * kRowValues, kRowValues);
    const ScalarRule& rule = rules[rows[i].group];
    out[kAverageWeight] = 1 - average_decay_;
    std::copy(rule.values.begin(), rule.values.end(), out.begin() + kFirstScalar);
    std::copy(rule.numbers.begin(), rule.numbers.end(), out.begin() + kRuleNumbers);
    if (rows[i].own != nullptr)
      own_scalars(static_cast<int>(rows[i].group), *rows[i].own, out.subspan(kFirstScalar, kMaxScalars - kFirstScalar),
                  out.subspan(kSweepNumbers, kMaxNumbers));
  }
  values.back() = 1;
  running.values = numbers_on(running.device, values);

  // What the device knows. A new count is written whatever becomes of the step.
  const Decision* decision = running.decided();
  const compile::Condition always{running.row(rows.size()), 1};
  const std::shared_ptr<Foreach> counting = scalar_pass(running.device, count_step());
  queue_.keep(false);
  ForeachTable& counts = queue_.table();
  for (const Running::Cohort& cohort : cohorts)
    add_call(counts, *counting, {cohort.before->now(), &decision->updates, cohort.after->next()}, nullptr);
  queue_.add(counting, always);
  absl::InlinedVector<const RowProgram*, 2> programs;
  const auto program_of = [&](const Row& row) {
    const RowProgram* program = rules[row.group].program;
    return program == nullptr ? &no_step() : program;
  };
  for (const Row& row : rows)
    if (std::find(programs.begin(), programs.end(), program_of(row)) == programs.end())
      programs.push_back(program_of(row));
  for (const RowProgram* program : programs) {
    const std::shared_ptr<Foreach> pass = scalar_pass(running.device, program->body);
    ForeachTable& table = queue_.table();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (program_of(rows[i]) != program) continue;
      double* out = running.row(i);
      const std::span<void*> operands = add_call(table, *pass, out + kRuleNumbers);
      operands[0] = const_cast<double*>(&decision->factor);
      operands[1] = cohorts[rows[i].cohort].after->next();
      operands[2] = out + kGradFactor;
      for (size_t k = 0; k < program->writes.size(); ++k) operands[3 + k] = out + kFirstScalar + program->writes[k];
    }
    queue_.add(pass, compile::Condition{&decision->updates, 1});
  }
}

// The step counts: its launches are ready.
void Optimizer::take_counts(const std::vector<Update>& updates, Running& running) {
  if (measured_) skipped_->advance();
  measured_ = false;
  for (const Running::Cohort& cohort : running.cohorts) cohort.after->advance();
  for (const Update& u : updates) u.slot->state.count = running.cohorts[u.slot->state.count->cohort].after;
}

// Tells the tape, by versions, that the pass writes the parameter, its average, its copy and maybe its gradient.
void Optimizer::open_for_writing(Update& u) {
  ParamSlot& slot = *u.slot;
  static_cast<void>(slot.param.mutable_address());
  for (const Tensor* written : {&slot.average, &u.copy})
    if (written->defined()) written->storage().bump_version();
  slot.copy_of = {u.param, slot.param.impl()->storage.version()};
  slot.average_moved = true;
  if (zero_grad_ && !u.dense_grad.defined()) {
    Tensor grad = slot.param.grad();
    static_cast<void>(grad.mutable_address());
  }
}

namespace {
void count_outcome(std::span<const std::shared_ptr<Foreach>> passes, bool eager) {
  const bool compiled = std::all_of(passes.begin(), passes.end(), [](const auto& pass) { return pass->compiled(); });
  if (compiled && !eager) compile::count(compile::Outcome::kCompiled);
  else compile::count(compile::Outcome::kEager, "a compiled optimizer's step");
}
}  // namespace

void Optimizer::queue_sweeps(Signature& signature, std::vector<Update>& updates, Running& running) {
  const UpdatePlan& plan = *signature.plan;
  for (size_t k = 0; k < plan.states.size(); ++k) {
    if (!plan.states[k].transient) continue;
    for (size_t i : signature.updates) {
      const ParamSlot& slot = *updates[i].slot;
      StateArray& array = updates[i].slot->state.arrays[k];
      array.values = Tensor::empty(sizes_of(plan.states[k], slot.param.sizes()),
                                   {compute_dtype(signature.dtype), slot.param.device()});
      array.locate();
    }
  }
  const bool eager = compile::stance() == compile::Stance::kForceEager;
  // What comes before a prepare() runs at once, because prepare() reads it.
  size_t first_kept = plan.sweeps.size();
  while (first_kept > 0 && !(first_kept < plan.sweeps.size() && plan.sweeps[first_kept].prepare)) --first_kept;
  for (size_t sweep = 0; sweep < plan.sweeps.size(); ++sweep) {
    queue_.keep(sweep >= first_kept);
    if (plan.sweeps[sweep].prepare)
      for (size_t i : signature.updates) prepare_update(sweep, updates[i], running);
    if (plan.sweeps[sweep].program) queue_program(signature, sweep, updates, running);
    make_room_for_sums(signature, sweep, updates, running);
    fill_table(queue_.table(), signature, sweep, updates, running);
    queue_.add(signature.sweeps[sweep], running.decided(), eager);
  }
  if (report_.compiled) count_outcome(signature.sweeps, eager && runs_host_code(running.device));
}

void Optimizer::drop_transients(const std::vector<Update>& updates) {
  for (const Signature& signature : signatures_)
    for (size_t k = 0; k < signature.plan->states.size(); ++k)
      if (signature.plan->states[k].transient)
        for (size_t i : signature.updates) updates[i].slot->state.arrays[k] = {};
}

void Optimizer::prepare_update(size_t sweep, Update& u, const Running& running) {
  ParamSlot& slot = *u.slot;
  PreparedParam param{queue_,
                      running.device,
                      slot.group,
                      slot.param,
                      u.dense_grad.defined() ? u.dense_grad : slot.param.grad(),
                      running.decision,
                      std::span(slot.state.arrays).first(slot.plan->states.size()),
                      running.values,
                      u.row};
  prepare(static_cast<int>(sweep), param);
  for (size_t k = 0; k < slot.plan->states.size(); ++k)
    if (slot.plan->states[k].transient) slot.state.arrays[k].locate();
}

// The sums of the sweep before, over all rows, and what the sweep's program makes of them.
void Optimizer::queue_program(const Signature& signature, size_t sweep, const std::vector<Update>& updates,
                              Running& running) {
  const auto n_sums = static_cast<size_t>(signature.plan->sweeps[sweep - 1].body.n_sums);
  const RowProgram& program = *signature.plan->sweeps[sweep].program;
  const Storage totals = Storage::allocate(signature.updates.size() * n_sums * sizeof(double), running.device);
  queue_.hold(totals);
  auto* total = reinterpret_cast<double*>(totals.data());
  const auto* sums = reinterpret_cast<const double*>(running.sums.data());
  const std::shared_ptr<Foreach> pass = scalar_pass(running.device, program.body);
  std::vector<ListSum> lists;
  ForeachTable table;
  for (size_t i : signature.updates) {
    const Update& u = updates[i];
    if (u.numel() == 0) continue;
    double* row = running.row(u.row);
    const std::span<void*> operands = add_call(table, *pass, row + kSweepNumbers);
    size_t next = 0;
    for (size_t k = 0; k < n_sums; ++k) {
      lists.push_back({sums + u.sums + k * u.sum_rows, static_cast<int64_t>(u.sum_rows), total});
      operands[next++] = total++;
    }
    for (int k : program.reads) operands[next++] = row + kFirstScalar + k;
    for (int k : program.writes) operands[next++] = row + kFirstScalar + k;
  }
  queue_sums(queue_, running.device, lists);
  queue_.table() = std::move(table);
  queue_.add(pass, compile::Condition{&running.decided()->updates, 1});
}

// One number for each row and sum of a parameter: all rows of the first sum, then all rows of the second.
void Optimizer::make_room_for_sums(const Signature& signature, size_t sweep, std::vector<Update>& updates,
                                   Running& running) {
  const int n_sums = signature.plan->sweeps[sweep].body.n_sums;
  if (n_sums == 0) return;
  size_t room = 0;
  for (size_t i : signature.updates) {
    Update& u = updates[i];
    const int64_t width = signature.plan->matrices ? u.slot->columns : signature.sweeps[sweep]->row_width();
    u.sums = room;
    u.sum_rows = static_cast<size_t>(width == 0 ? 0 : (u.numel() + width - 1) / width);
    room += u.sum_rows * static_cast<size_t>(n_sums);
  }
  running.sums = Storage::allocate(room * sizeof(double), running.device);
  queue_.hold(running.sums);
}

// The operands of every item, in the order of arrays(). A plan with matrices has an item for each matrix.
void Optimizer::fill_table(ForeachTable& table, const Signature& signature, size_t sweep,
                           const std::vector<Update>& updates, const Running& running) {
  const UpdatePlan& plan = *signature.plan;
  const Foreach& pass = *signature.sweeps[sweep];
  const bool last = sweep + 1 == plan.sweeps.size();
  const int n_sums = plan.sweeps[sweep].body.n_sums;
  const DType compute = compute_dtype(signature.dtype);
  for (size_t i : signature.updates) {
    const Update& u = updates[i];
    const ParamSlot& slot = *u.slot;
    if (u.numel() == 0) continue;
    const int64_t count = plan.matrices ? slot.matrices : 1, numel = u.numel() / count;
    const int64_t width = plan.matrices ? slot.columns : pass.row_width();
    const double* scalars = running.row(u.row);
    for (int64_t m = 0; m < count; ++m) {
      // Matrix m of an array with `size` elements for each matrix.
      const auto part = [m](const void* data, DType dtype, int64_t size) -> void* {
        return static_cast<std::byte*>(const_cast<void*>(data)) + m * size * static_cast<int64_t>(size_of(dtype));
      };
      const std::span<void*> operands = table.add(pass.item(numel, width, scalars), pass.n_operands());
      size_t next = 0, next_scale = static_cast<size_t>(pass.n_arrays());
      operands[next++] = part(u.param, signature.dtype, numel);
      operands[next++] = part(u.grad, signature.dtype, numel);
      for (size_t k = 0; k < plan.states.size(); ++k) {
        const StateArray& array = slot.state.arrays[k];
        const Layout layout = plan.states[k].layout;
        const int64_t size = layout == Layout::kFull ? numel : layout == Layout::kPerRow ? numel / width : width;
        operands[next++] = m == 0 ? array.values_data : part(array.values_data, array.values.dtype(), size);
        if (array.scales_data != nullptr) operands[next_scale++] = array.scales_data;
      }
      for (int k = 0; k < n_sums; ++k)
        operands[next++] = reinterpret_cast<double*>(running.sums.data()) + u.sums +
                           static_cast<size_t>(k) * u.sum_rows +
                           static_cast<size_t>(m) * (u.sum_rows / static_cast<size_t>(count));
      if (last && slot.average_data != nullptr) operands[next++] = part(slot.average_data, compute, numel);
      if (last && u.copy.defined()) operands[next++] = part(u.copy.impl()->data(), u.copy.dtype(), numel);
    }
  }
}

KernelReport Optimizer::kernels() const { return report_; }

KernelReport compile(Optimizer& optimizer) {
  compile::log::configure_from_environment();
  if (!compile::jit_available(optimizer.device()))
    throw Error(absl::StrCat(optimizer.name(), ": cannot be compiled: there is no code generator for ",
                             to_string(optimizer.device()), " (LLVM for the CPU, NVRTC for CUDA)"));
  if (optimizer.report_.compiled) return optimizer.report_;
  optimizer.report_.compiled = true;
  for (const auto& pass : optimizer.passes_) optimizer.compile_pass(*pass);
  optimizer.stepped_ = false;  // from here on counts what is late
  return optimizer.report_;
}

}  // namespace rondo::optim
