#include "rondo/optim/buffer_averages.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "rondo/compile/options.h"
#include "rondo/optim/launch_queue.h"
#include "rondo/optim/scalar_program.h"
#include "rondo/optim/step_passes.h"
#include "rondo/optim/step_programs.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::optim {

BufferAverages::BufferAverages(std::vector<Tensor> buffers) : buffers_(std::move(buffers)) {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!is_floating(buffers_[i].dtype())) continue;
    entries_.push_back({i, ops::cast(buffers_[i].detach(), compute_dtype(buffers_[i].dtype())).clone()});
    entries_.back().average.storage().set_purpose(Purpose::kStates);
  }
  updates_ = std::make_unique<StepCount>(0, buffers_[0].device());
}

void BufferAverages::refresh() const {
  const NoGrad off;
  if (!moved_)
    for (const Entry& entry : entries_) entry.average.detach().copy_(buffers_[entry.buffer].detach());
}

std::vector<Tensor> BufferAverages::averages() const {
  refresh();
  std::vector<Tensor> list;
  for (const Tensor& buffer : buffers_) list.push_back(buffer.detach());
  for (const Entry& entry : entries_) list[entry.buffer] = entry.average;
  return list;
}

// Throws Error if the model was moved or converted after track_average(), so that an average no longer fits its buffer.
void BufferAverages::check_fits(const Entry& entry, const char* optimizer, Device device) const {
  const Tensor& buffer = buffers_[entry.buffer];
  if (!(buffer.device() == device && entry.average.device() == device))
    throw Error(absl::StrCat(optimizer, ": buffer ", entry.buffer, " is on ", to_string(buffer.device()),
                             ", its average on ", to_string(entry.average.device()), " and the parameters on ",
                             to_string(device), "; move the model before track_average()"));
  if (entry.average.dtype() != compute_dtype(buffer.dtype()))
    throw Error(absl::StrCat(optimizer, ": buffer ", entry.buffer, " is now ", std::string(name_of(buffer.dtype())),
                             ", its average ", std::string(name_of(entry.average.dtype())),
                             "; convert the model before track_average()"));
}

void BufferAverages::queue(const Joined& step, LaunchQueue& queue, const Decision* decision) {
  const Device device = step.device;
  for (const Entry& entry : entries_) check_fits(entry, step.optimizer, device);
  refresh();

  // The scalars of a pass: the factor of gradients (which nothing reads) and the weight. Then a 1, for `always`.
  const Storage scalars = numbers_on(device, {0, 1 - step.decay, 1});
  queue.hold(scalars);
  auto* weight = const_cast<double*>(f64_of(scalars)) + kAverageWeight;
  const compile::Condition always{weight + 1, 1};
  queue.keep(false);  // writes nothing that lasts: the second place of the count, and the weight
  const auto call = [&](const Body& program, std::initializer_list<const double*> values,
                        const compile::Condition& when) {
    const std::shared_ptr<Foreach> pass = scalar_pass(device, program);
    add_call(queue.table(), *pass, values, nullptr);
    queue.add(pass, when);
  };
  call(count_step(), {updates_->now(), &decision->updates, updates_->next()}, always);
  if (step.warmup) call(warm_average(), {updates_->next(), weight, weight}, always);
  queue.keep(true);

  std::map<DType, std::vector<const Entry*>> by_dtype;
  for (const Entry& entry : entries_) by_dtype[buffers_[entry.buffer].dtype()].push_back(&entry);
  for (const auto& [dtype, entries] : by_dtype) {
    const std::shared_ptr<Foreach> pass = step.passes.pass_for(step.optimizer, device, average_of_buffer(),
                                                               {{.dtype = compute_dtype(dtype)}, {.dtype = dtype}});
    ForeachTable& table = queue.table();
    for (const Entry* entry : entries) {
      const Tensor& buffer = buffers_[entry->buffer];
      if (buffer.numel() == 0) continue;
      const std::span<void*> operands = table.add(pass->item(buffer.numel(), pass->row_width(), f64_of(scalars)),
                                                  pass->n_operands());
      operands[0] = const_cast<std::byte*>(entry->average.address());
      operands[1] = const_cast<std::byte*>(buffer.address());
    }
    queue.add(pass, compile::Condition{&decision->updates, 1}, compile::stance() == compile::Stance::kForceEager);
  }
}

void BufferAverages::advance() {
  updates_->advance();
  moved_ = true;
  for (const Entry& entry : entries_) entry.average.storage().bump_version();
}

namespace {
std::string key_of(size_t buffer) { return absl::StrCat("buffer.", buffer, ".average"); }
}  // namespace

void BufferAverages::list_state(std::vector<nn::NamedTensor>& out) const {
  refresh();
  list_targets(out, updates_->value().to(kI64));
}

void BufferAverages::list_targets(std::vector<nn::NamedTensor>& out, const Tensor& updates) const {
  for (const Entry& entry : entries_) out.push_back({key_of(entry.buffer), entry.average.detach()});
  out.push_back({"buffer.updates", updates});
}

void BufferAverages::note_loaded(int64_t updates) {
  updates_ = std::make_unique<StepCount>(updates, updates_->device);
  moved_ = updates > 0;
}

void BufferAverages::forget() { note_loaded(0); }

}  // namespace rondo::optim
