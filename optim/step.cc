// Optimizer::step: collect and check, measure the gradients, then one pass for each sweep of each signature.
#include <chrono>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/optim/compile.h"
#include "rondo/optim/norm.h"
#include "rondo/optim/optimizer.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/lowered.h"

namespace rondo::optim {

void Optimizer::check_options(const StepOptions& o) const {
  if (!(o.grad_scale > 0) || !std::isfinite(o.grad_scale))
    throw Error(absl::StrCat(name(), ": grad_scale must be positive and finite, got ", o.grad_scale));
  if (!(o.max_norm >= 0)) throw Error(absl::StrCat(name(), ": max_norm must not be negative, got ", o.max_norm));
}

// Adds a parameter, if it has a gradient.
void Optimizer::collect(size_t i, std::vector<Active>& active) const {
  const Slot& slot = slots_[i];
  const Tensor& param = slot.param;
  const Tensor& grad = param.grad();
  if (!grad.defined()) return;
  if (grad.dtype() != param.dtype() || !(grad.sizes() == param.sizes()))
    throw Error(absl::StrCat(name(), ": ", slot_name(i), " is ", std::string(name_of(param.dtype())),
                             to_string(param.sizes()), ", its gradient ", std::string(name_of(grad.dtype())),
                             to_string(grad.sizes())));
  const DType compute = compute_dtype(param.dtype());
  for (const Tensor* held : {slot.states.empty() ? nullptr : slot.states.data(), &slot.average}) {
    if (held == nullptr || !held->defined()) continue;
    const bool fits = compute == kF64 ? held->dtype() == kF64 : held->dtype() != kF64;
    if (!fits)
      throw Error(absl::StrCat(name(), ": ", slot_name(i), " is now ", std::string(name_of(param.dtype())),
                               ", its state ", std::string(name_of(held->dtype())),
                               "; convert the model before you make its optimizer"));
  }
  Active& a = active.emplace_back();
  a.slot = i;
  a.numel = param.numel();
  if (!grad.is_contiguous()) a.dense = grad.detach().contiguous();
  a.grad = (a.dense.defined() ? a.dense : grad).raw_data();
  a.copy = slot.copy;
  if (const std::optional<DType> used = amp::copy_in_use(param); used && !a.copy.defined())
    a.copy = amp::copy_to_write(param, *used);
}

double Optimizer::measure(const std::vector<Active>& active) const {
  std::vector<NormOperand> operands;
  operands.reserve(active.size());
  for (const Active& a : active) {
    const Tensor& param = slots_[a.slot].param;
    operands.push_back({a.grad, param.dtype(), a.numel});
  }
  return norm_of(operands);
}

StepReport Optimizer::step(const StepOptions& options) {
  check_options(options);
  if (at_seams_)
    throw Error(absl::StrCat(name(),
                             ": its parameters are updated at seams; end the step by UpdateAtSeams::finish(), not by "
                             "step() (update_at_seams.h)"));
  const NoGrad off;
  std::vector<Active> active;
  active.reserve(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) collect(i, active);
  StepReport report;
  double factor = 1 / options.grad_scale;
  if (options.check_finite || options.grad_scale != 1 || std::isfinite(options.max_norm)) {
    const double norm = report.grad_norm = measure(active) / options.grad_scale;
    report.skipped = !std::isfinite(norm);
    factor *= std::min(1.0, options.max_norm / (norm + 1e-6));
  }
  if (report.skipped) {
    ++skipped_;
    if (options.zero_grad) zero_grad(/*set_to_none=*/false);
    return report;
  }
  update(active, factor, options.zero_grad);
  stepped_ = stepped_ || !active.empty();
  return report;
}

// Of all parameters, or some: each has its own items in the passes, so the bits are the same either way.
void Optimizer::update(std::vector<Active>& active, double factor, bool zero_grad) {
  sort_into_buckets(active, zero_grad);
  if (zero_grad) {
    // The pass zeroes each gradient that it has read. Two parameters may have been given one: the second reads a copy.
    absl::flat_hash_set<const void*> read;
    for (Active& a : active) {
      if (a.numel == 0 || read.insert(a.grad).second) continue;
      a.dense = slots_[a.slot].param.grad().detach().clone();
      a.grad = a.dense.raw_data();
    }
  }
  // From here on nothing fails.
  fill_scalars(active, factor);
  for (Bucket& bucket : buckets_)
    if (!bucket.active.empty()) run(bucket, active, factor);
  for (const Active& a : active)
    if (a.copy.defined()) amp::set_copy(slots_[a.slot].param, a.copy);
  if (!zero_grad) return;
  for (const Active& a : active)
    if (a.dense.defined()) slots_[a.slot].param.zero_grad(/*set_to_none=*/false);
}

std::vector<ArraySpec> Optimizer::arrays(const Slot& slot, size_t sweep, bool zero_grad,
                                         std::optional<DType> copy) const {
  const DType dtype = slot.param.dtype(), compute = compute_dtype(dtype);
  const bool last = sweep + 1 == slot.plan->sweeps.size();
  std::vector<ArraySpec> list = {{.dtype = dtype}, {.dtype = dtype, .zero = zero_grad && last}};
  for (size_t k = 0; k < slot.states.size(); ++k) {
    const StateSpec& spec = slot.plan->states[k];
    const Format coded = spec.nonnegative ? Format::kUnsigned8 : Format::kSigned8;
    list.push_back({.dtype = spec.transient ? compute : slot.states[k].dtype(),
                    .format = slot.scales[k].defined() ? coded : Format::kPlain,
                    .layout = spec.layout});
  }
  for (int k = 0; k < slot.plan->sweeps[sweep].body.n_sums; ++k) list.push_back({.role = Role::kSum, .dtype = kF64});
  if (last && slot.average.defined()) list.push_back({.role = Role::kAverage, .dtype = compute});
  if (last && copy) list.push_back({.role = Role::kCopy, .dtype = *copy});
  return list;
}

Foreach* Optimizer::pass_for(const Body& body, std::vector<ArraySpec> arrays) {
  for (const auto& pass : passes_)
    if (pass->is(body, arrays)) {
      if (report_.compiled && !pass->compiled()) compile_pass(*pass);
      return pass.get();
    }
  Foreach& pass = *passes_.emplace_back(std::make_unique<Foreach>(body, std::move(arrays)));
  if (report_.compiled) compile_pass(pass);
  return &pass;
}

void Optimizer::compile_pass(Foreach& pass) {
  const compile::Stance stance = compile::stance();
  postponed_ = stance == compile::Stance::kForceEager || (stepped_ && stance == compile::Stance::kEagerOnRecompile);
  if (postponed_) return;
  if (stepped_ && stance == compile::Stance::kFailOnRecompile)
    throw Error(absl::StrCat(name(), ": a step needs a new kernel, and the stance forbids it:\n",
                             compile::to_string(pass.kernel())));
  const auto start = std::chrono::steady_clock::now();
  const int compilations = pass.compile();
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

void Optimizer::sort_into_buckets(std::vector<Active>& active, bool zero_grad) {
  if (buckets_.empty() || zero_grad != zero_grad_ || postponed_) {
    buckets_.clear();
    for (Slot& slot : slots_) slot.bucket = -1;
    zero_grad_ = zero_grad;
  }
  for (Bucket& bucket : buckets_) bucket.active.clear();
  for (size_t i = 0; i < active.size(); ++i) {
    Slot& slot = slots_[active[i].slot];
    const std::optional<DType> copy = active[i].copy.defined() ? std::optional(active[i].copy.dtype()) : std::nullopt;
    const Bucket* bucket = slot.bucket < 0 ? nullptr : &buckets_[static_cast<size_t>(slot.bucket)];
    if (bucket == nullptr || bucket->dtype != slot.param.dtype() || bucket->copy != copy) {
      Bucket wanted{slot.plan, slot.param.dtype(), copy, {}, {}};
      for (size_t k = 0; k < slot.plan->sweeps.size(); ++k)
        wanted.sweeps.push_back(pass_for(slot.plan->sweeps[k].body, arrays(slot, k, zero_grad, copy)));
      size_t b = 0;
      while (b < buckets_.size() &&
             (buckets_[b].plan != wanted.plan || buckets_[b].sweeps != wanted.sweeps || buckets_[b].copy != copy))
        ++b;
      if (b == buckets_.size()) buckets_.push_back(std::move(wanted));
      slot.bucket = static_cast<int>(b);
    }
    buckets_[static_cast<size_t>(slot.bucket)].active.push_back(i);
  }
}

// Counts the step, and has the scalars of each (group, step) computed once; a parameter that changes its own has a
// copy.
void Optimizer::fill_scalars(std::vector<Active>& active, double grad_factor) {
  scalars_.clear();
  double* shared = nullptr;
  const Slot* of = nullptr;
  for (Active& a : active) {
    Slot& slot = slots_[a.slot];
    const int64_t step = ++*slot.step_at;
    bool own = false;
    for (const Sweep& sweep : slot.plan->sweeps) own = own || sweep.prepare;
    if (own || of == nullptr || of->group != slot.group || *of->step_at != step) {
      std::array<double, kMaxScalars>& list = scalars_.emplace_back();
      list[kGradFactor] = grad_factor;
      list[kAverageWeight] = 1 - average_decay_;
      scalars(slot.group, step, std::span(list).subspan(kFirstScalar));
      shared = list.data();
      of = own ? nullptr : &slot;
    }
    a.scalars = shared;
    refresh_average(slot);
    a.param = slot.param.raw_mutable_data();  // bumps the version
    // What the pass that follows writes beside it may be on a tape, too.
    for (const Tensor* written : {&slot.average, &a.copy})
      if (written->defined()) written->storage().bump_version();
    slot.copied = Seen::of(slot.param);
    slot.moves = true;
    if (zero_grad_ && !a.dense.defined()) {
      Tensor grad = slot.param.grad();
      a.grad = grad.raw_mutable_data();
    }
  }
}

void Optimizer::run(Bucket& bucket, std::vector<Active>& active, double grad_factor) {
  const UpdatePlan& plan = *bucket.plan;
  for (size_t i : bucket.active) {
    Slot& slot = slots_[active[i].slot];
    for (size_t k = 0; k < plan.states.size(); ++k) {
      if (!plan.states[k].transient) continue;
      slot.states[k] = Tensor::empty(sizes_of(plan.states[k], slot.param.sizes()),
                                     {compute_dtype(bucket.dtype), slot.param.device()});
      slot.states_at[k] = slot.states[k].raw_mutable_data();
    }
  }
  for (size_t s = 0; s < plan.sweeps.size(); ++s) {
    for (size_t i : bucket.active)
      if (plan.sweeps[s].prepare)
        prepare(static_cast<int>(s), s == 0 ? 0 : plan.sweeps[s - 1].body.n_sums, active[i], grad_factor);
    make_room_for_sums(bucket, s, active);
    fill_table(bucket, s, active);
    bucket.sweeps[s]->run(table_, /*eager=*/compile::stance() == compile::Stance::kForceEager);
  }
  for (size_t i : bucket.active)
    for (size_t k = 0; k < plan.states.size(); ++k)
      if (plan.states[k].transient) slots_[active[i].slot].states[k] = Tensor();
}

// `n_sums`: of the sweep before.
void Optimizer::prepare(int sweep, int n_sums, Active& a, double grad_factor) {
  Slot& slot = slots_[a.slot];
  std::array<double, kMaxValues> totals{};
  for (int k = 0; k < n_sums; ++k)
    for (size_t row = 0; row < a.sum_rows; ++row)
      totals[static_cast<size_t>(k)] += sums_[a.sums + static_cast<size_t>(k) * a.sum_rows + row];
  PreparedParam param{slot.group,
                      slot.param,
                      a.dense.defined() ? a.dense : slot.param.grad(),
                      grad_factor,
                      slot.states,
                      std::span(totals).first(static_cast<size_t>(n_sums)),
                      std::span(a.scalars + kFirstScalar, kMaxScalars - kFirstScalar)};
  prepare(sweep, param);
  for (size_t k = 0; k < slot.states.size(); ++k)
    if (slot.plan->states[k].transient) slot.states_at[k] = slot.states[k].raw_mutable_data();
}

// A number for each row and sum: of a parameter, first all rows of the first sum.
void Optimizer::make_room_for_sums(const Bucket& bucket, size_t sweep, std::vector<Active>& active) {
  const int n_sums = bucket.plan->sweeps[sweep].body.n_sums;
  if (n_sums == 0) return;
  size_t room = 0;
  for (size_t i : bucket.active) {
    Active& a = active[i];
    const int64_t width = bucket.plan->matrices ? slots_[a.slot].width : bucket.sweeps[sweep]->row_width();
    a.sums = room;
    a.sum_rows = static_cast<size_t>(width == 0 ? 0 : (a.numel + width - 1) / width);
    room += a.sum_rows * static_cast<size_t>(n_sums);
  }
  sums_.resize(room);
}

// The operands of every item, in the order of arrays().
void Optimizer::fill_table(const Bucket& bucket, size_t sweep, const std::vector<Active>& active) {
  const UpdatePlan& plan = *bucket.plan;
  const Foreach& pass = *bucket.sweeps[sweep];
  const bool last = sweep + 1 == plan.sweeps.size();
  const DType compute = compute_dtype(bucket.dtype);
  table_.clear();
  for (size_t i : bucket.active) {
    const Active& a = active[i];
    const Slot& slot = slots_[a.slot];
    if (a.numel == 0) continue;
    const int64_t count = plan.matrices ? slot.matrices : 1, numel = a.numel / count;
    const int64_t width = plan.matrices ? slot.width : pass.row_width();
    for (int64_t m = 0; m < count; ++m) {
      // An array of matrix m.
      const auto at = [m](void* data, DType dtype, int64_t size) {
        return static_cast<std::byte*>(data) + m * size * static_cast<int64_t>(size_of(dtype));
      };
      const std::span<void*> operands = table_.add(pass.item(numel, width, a.scalars), pass.n_operands());
      size_t k = 0, scale = static_cast<size_t>(pass.n_arrays());
      operands[k++] = at(a.param, bucket.dtype, numel);
      operands[k++] = at(const_cast<void*>(a.grad), bucket.dtype, numel);
      for (size_t state = 0; state < plan.states.size(); ++state) {
        const Layout layout = plan.states[state].layout;
        const int64_t size = layout == Layout::kFull ? numel : layout == Layout::kPerRow ? numel / width : width;
        operands[k++] = m == 0 ? slot.states_at[state] : at(slot.states_at[state], slot.states[state].dtype(), size);
        if (slot.scales_at[state] != nullptr) operands[scale++] = slot.scales_at[state];
      }
      for (int sum = 0; sum < plan.sweeps[sweep].body.n_sums; ++sum)
        operands[k++] = sums_.data() + a.sums + static_cast<size_t>(sum) * a.sum_rows +
                        static_cast<size_t>(m) * (a.sum_rows / static_cast<size_t>(count));
      if (last && slot.average_at != nullptr) operands[k++] = at(slot.average_at, compute, numel);
      if (last && a.copy.defined()) operands[k++] = at(a.copy.impl()->data(), kBF16, numel);  // kF16 has the same size
    }
  }
}

KernelReport Optimizer::kernels() const { return report_; }

KernelReport compile(Optimizer& optimizer) {
  compile::log::configure_from_environment();
  if (!compile::jit_available())
    throw Error(absl::StrCat(optimizer.name(), ": cannot be compiled, because Rondo was built without LLVM"));
  if (optimizer.report_.compiled) return optimizer.report_;
  optimizer.report_.compiled = true;
  for (const auto& pass : optimizer.passes_) optimizer.compile_pass(*pass);
  optimizer.stepped_ = false;  // from here on counts what is late
  return optimizer.report_;
}

}  // namespace rondo::optim
