#include "rondo/dist/ddp/ddp.h"

#include <exception>
#include <unordered_map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/ddp/average_delivery.h"
#include "rondo/dist/ddp/bucket_sender.h"
#include "rondo/dist/ddp/end_of_step.h"
#include "rondo/dist/ddp/plan_agreement.h"
#include "rondo/dist/ddp/shard_takers.h"
#include "rondo/dist/ddp/shared_buffers.h"
#include "rondo/dist/ddp/step_state.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

// Returns every parameter and buffer of the model: all ranks must have the same values.
std::vector<nn::NamedTensor> state_of(const nn::ModuleBase& model) {
  std::vector<nn::NamedTensor> state = model.named_parameters();
  for (nn::NamedTensor& buffer : model.named_buffers()) state.push_back(std::move(buffer));
  std::erase_if(state, [](const nn::NamedTensor& t) { return !t.tensor.defined(); });
  return state;
}

// Returns an error message if a parameter or buffer (`what`) on `device` is in the wrong place, otherwise "".
std::string misplaced(const StepState& step, Device device, std::string_view what) {
  if (step.async_device ? device == step.device : has_host_memory(device)) return "";
  return absl::StrCat(std::string(what), " is on ", to_string(device), ", and ",
                      step.async_device
                          ? absl::StrCat("the process group serves ", to_string(step.device),
                                         "; call model.to(device) before wrapping the model")
                          : "the process group exchanges host memory only; connect it with GroupOptions::device, "
                            "or train on the CPU");
}

// Throws Error unless all parameters and buffers are on the group's device, or in host memory if the group has none. A
// collective: a mistake on one rank is an error on every rank. Otherwise the other ranks would wait for the rank that
// has failed.
void check_places(const nn::ModuleBase& model, const StepState& step) {
  std::string mine;
  if (!step.async_device || !step.gradients.empty())  // without gradients, the constructor reports another error
    for (const nn::NamedTensor& t : state_of(model))
      if (mine.empty()) mine = misplaced(step, t.tensor.device(), t.name);
  const std::vector<std::string> all = gather_texts(step.group, mine, kMaxErrorBytes, "places of the parameters");
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty())
      throw Error(all.size() == 1 ? absl::StrCat(kDdp, ": ", all[r]) : absl::StrCat(kDdp, ", rank ", r, ": ", all[r]));
}

void broadcast_state(const nn::ModuleBase& model, const StepState& step) {
  const NoGrad off;
  struct Sent {
    Tensor target, dense;
    Work work;
  };
  std::vector<Sent> sent;
  for (const nn::NamedTensor& t : state_of(model)) {
    const Tensor dense = t.tensor.is_contiguous() ? t.tensor : t.tensor.contiguous();
    sent.push_back({t.tensor, dense, step.group.broadcast(dense, 0, t.name)});
  }
  if (step.async_device) step.group.check_sequence("", "parameters of rank 0");
  for (Sent& s : sent) {
    s.work.wait();
    if (!s.dense.is_same(s.target)) s.target.copy_(s.dense);
  }
}

void check_arrival(const StepState& step, const StepGradient& gradient) {
  if (const std::string wrong = misplaced(step, gradient.parameter.device(), gradient.name); !wrong.empty())
    throw Error(absl::StrCat(kDdp, ": ", wrong));  // the model was moved
  if (step.async_device) step.group.check_usable(kDdp);
}

void note_unknown_parameters(const nn::ModuleBase& model, StepState& step) {
  bool has_unknown = false;
  const auto is_known = [&](const Tensor& parameter) { return step.positions.contains(parameter.impl()); };
  for (const Tensor* slot : model.tensor_slots())
    has_unknown = has_unknown || (slot->defined() && slot->requires_grad() && !is_known(*slot));
  if (!has_unknown) return;
  for (const nn::NamedTensor& p : model.named_parameters())
    if (p.tensor.requires_grad() && !is_known(p.tensor))
      return step.note(absl::StrCat("the parameter ", p.name,
                                    " is in no bucket; it was made, or unfrozen, after the model was wrapped"));
}

uint64_t hash_of(const Tensor& tensor) {
  const Tensor dense = tensor.detach().contiguous().to(kCPU);
  io::Checksum sum;
  sum.update(dense.raw_data(), static_cast<size_t>(dense.nbytes()));
  return sum.digest();
}

}  // namespace

// ---- Construction and destruction

DistributedDataParallel::DistributedDataParallel(nn::ModuleBase& model, std::shared_ptr<ProcessGroup> group,
                                                 BucketOptions options)
    : model_(model),
      group_(std::move(group)),
      buffers_(std::make_unique<SharedBuffers>(model, options.buffers)),
      takers_(std::make_unique<ShardTakers>()) {
  if (group_ == nullptr)
    throw Error(absl::StrCat(kDdp, ": no process group; subgroup() returns null on ranks outside it"));
  step_ = std::make_shared<StepState>(model, *group_, options);
  check_places(model, *step_);
  for (const StepGradient& gradient : step_->gradients)
    if (const char* other = autograd::gradient_claim(gradient.parameter, GradientClaim::kOptimizer); other != nullptr)
      throw Error(absl::StrCat(kDdp, ": ", other,
                               " would use the gradients before they are averaged; make it from this, after "
                               "wrapping the model: UpdateAtSeams(ddp, optimizer)"));
  const std::vector<optim::Seam> seams = optim::plan_seams(model);
  std::unordered_map<const TensorImpl*, const std::string*> paths;
  for (const optim::Seam& seam : seams)
    for (const Tensor& p : seam.parameters) paths[p.impl()] = &seam.path;
  for (StepGradient& gradient : step_->gradients) gradient.block = *paths.at(gradient.parameter.impl());
  BucketPlan plan = plan_buckets(model, seams, options);
  compare_plans(*group_, absl::StrCat(plan.text, describe_state(model),
                                      options.allow_unused ? "parameters may be unused\n" : "", "buffers are ",
                                      options.buffers == BufferSync::kBroadcast ? "rank 0's"
                                      : options.buffers == BufferSync::kAverage ? "averaged"
                                                                                : "left alone",
                                      "\n"));
  if (step_->gradients.empty())
    throw Error(absl::StrCat(kDdp, ": ", model.type_name(),
                             " has no parameter that requires a gradient, so there is nothing to average. Modules find "
                             "parameters that parameter() or child() has registered"));
  broadcast_state(model, *step_);
  for (const StepGradient& gradient : step_->gradients)
    if (const char* other = autograd::gradient_claim(gradient.parameter, GradientClaim::kAverager); other != nullptr)
      throw Error(absl::StrCat(kDdp, ": the gradients of this model are already averaged by ", other));
  sender_ = std::make_unique<BucketSender>(*step_, *takers_, std::move(plan));
  delivery_ = std::make_unique<AverageDelivery>(*step_, *takers_, *sender_);
  for (size_t i = 0; i < step_->gradients.size(); ++i) {
    StepGradient& gradient = step_->gradients[i];
    set_claim(gradient, true);
    gradient.home = std::make_unique<autograd::GradientHome>(gradient.parameter);
    gradient.hook = autograd::on_accumulated(gradient.parameter, [this, step = std::weak_ptr<StepState>(step_), i] {
      if (const std::shared_ptr<StepState> alive = step.lock()) arrive(i);
    });
  }
  watch_uses();
}

DistributedDataParallel::~DistributedDataParallel() {
  for (StepGradient& gradient : step_->gradients) {
    autograd::remove_on_accumulated(gradient.parameter, gradient.hook);
    set_claim(gradient, false);
  }
}

void DistributedDataParallel::watch_uses() {
  step_->in_two_parts.clear();
  for (size_t i = 0; i < step_->gradients.size(); ++i) {
    StepGradient& gradient = step_->gradients[i];
    gradient.rows = std::make_unique<RowGather>(gradient.parameter, *step_, [this, i] { take(i); });
    gradient.home->set_parts(gradient.rows.get());
  }
}

void DistributedDataParallel::check_device(Device device, std::string_view what) {
  if (has_host_memory(device) || backend_of(device).call_library != nullptr) return;
  throw Error(absl::StrCat(kDdp, ": ", std::string(what), " is on ", to_string(device),
                           ", for which there is no library of collectives; train on the CPU or on CUDA, or in one "
                           "process"));
}

// If a claimed parameter has no gradient, an optimizer concludes that finish() was forgotten. So a parameter that no
// rank has used is not claimed until it gets a gradient again.
void DistributedDataParallel::set_claim(StepGradient& gradient, bool claims) {
  if (gradient.claimed == claims) return;
  if (claims) autograd::claim_gradient(gradient.parameter, GradientClaim::kAverager, kDdp, this);
  else autograd::unclaim_gradient(gradient.parameter, GradientClaim::kAverager);
  gradient.claimed = claims;
}

// ---- Access to the plan, listeners and shards

const BucketPlan& DistributedDataParallel::plan() const { return sender_->plan(); }

int64_t DistributedDataParallel::on_final(Listener listener) { return delivery_->add_listener(std::move(listener)); }
void DistributedDataParallel::remove_on_final(int64_t id) { delivery_->remove_listener(id); }
void DistributedDataParallel::check_finished() const {
  if (!step_->order.empty())
    throw Error(absl::StrCat(kDdp, ": gradients of this step are not averaged yet; call finish() first"));
}

void DistributedDataParallel::add_shards(GradientShards& shards) {
  if (step_->number > 1 || !step_->order.empty())
    throw Error(absl::StrCat(kDdp, ": gradients are under way; make a ShardedOptimizer before the first backward"));
  takers_->add(shards);
}
void DistributedDataParallel::remove_shards(GradientShards& shards) {
  takers_->remove(shards, /*planned=*/step_->number > 1 || !sender_->reducers().empty());
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(ddp) {
  if (ddp.step_->local) throw Error("DistributedDataParallel::no_sync: there is one already");
  if (!ddp.step_->order.empty())
    throw Error("DistributedDataParallel::no_sync: gradients are under way; call finish() before the next step");
  ddp.step_->local = true;
}

DistributedDataParallel::NoSync::~NoSync() { ddp_.step_->local = false; }

uint64_t DistributedDataParallel::check_parameters() {
  group_->check_usable("DistributedDataParallel::check_parameters");
  const std::vector<nn::NamedTensor> parameters = model_.named_parameters();
  const auto n = static_cast<int64_t>(parameters.size());
  std::vector<int64_t> hashes;
  io::Checksum total;
  for (const nn::NamedTensor& p : parameters) {
    const uint64_t hash = hash_of(p.tensor);
    hashes.push_back(static_cast<int64_t>(hash));
    total.update(&hash, sizeof hash);
  }
  Tensor mine = Tensor::from(hashes, {n}, kCPU), all = Tensor::zeros({group_->world_size(), n}, {kI64, kCPU});
  group_->all_gather(all, mine, "hashes of the parameters").wait();
  const int64_t* at = all.data<int64_t>();
  for (int r = 1; r < group_->world_size(); ++r)
    for (int64_t i = 0; i < n; ++i)
      if (at[r * n + i] != at[i])
        throw MismatchError(absl::StrCat("the ranks have drifted apart: ", parameters[static_cast<size_t>(i)].name,
                                         " on rank ", r, " is not that of rank 0"));
  return total.digest();
}

// ---- During backward

// Called by backward when the gradient of a parameter is final.
void DistributedDataParallel::arrive(size_t i) {
  if (step_->local) return;
  StepGradient& now = step_->gradients[i];
  check_arrival(*step_, now);
  const bool in_parts = now.rows != nullptr && now.rows->first_part_taken();
  if (in_parts ? now.sent && now.complete : now.sent || now.held.defined())
    throw Error(absl::StrCat(kDdp, ": the gradient of ", now.name,
                             " changed after it was sent; call finish() once per step, and put all but the last "
                             "backward of a step under no_sync()"));
  now.complete = true;
  if (now.rows != nullptr) now.rows->end_of_uses();
  if (!in_parts) return take(i);
  if (now.sent) {
    now.rows->set_rest(now.parameter.grad());
    now.parameter.set_grad(Tensor());
  }
  send_ready();
}

// Marks the parameter's gradient as arrived. Call when the gradient, or its first part (Note [Two parts]), is in .grad
// and may be sent.
void DistributedDataParallel::take(size_t i) {
  StepGradient& now = step_->gradients[i];
  check_arrival(*step_, now);
  if (now.arrived) return;  // a further contribution, made before the bucket is full
  set_claim(now, true);
  now.arrived = true;
  step_->order.push_back(i);
  if (!learned_) {
    now.held = now.parameter.grad();
    now.parameter.set_grad(Tensor());
    return;
  }
  sender_->take(i);
  send_ready();
}

void DistributedDataParallel::send_ready() {
  sender_->send_ready();
  delivery_->deliver_ready();
}

// ---- The end of a step

void DistributedDataParallel::finish() {
  if (step_->local)
    throw Error("DistributedDataParallel::finish: under no_sync(); end its scope before the last backward");
  if (takers_->any_removed())
    throw Error("DistributedDataParallel::finish: the ShardedOptimizer that gets these gradients is gone");
  const NoGrad off;
  if (step_->async_device) group_->check_usable("DistributedDataParallel::finish");
  if (!learned_) sender_->set_plan(agree_on_plan(model_, *step_, *takers_));
  sender_->send_all();
  // If a listener throws, or memory runs out, this rank still takes part in the exchange, and throws afterwards: the
  // other ranks must not wait.
  std::exception_ptr failed;
  if (!step_->async_device) {
    try {
      delivery_->deliver_all();
    } catch (const std::exception&) {
      failed = std::current_exception();
    }
    delivery_->check_rows();
  }
  note_unknown_parameters(model_, *step_);
  const absl::Cleanup over = [this] { start_over(); };
  const std::vector<std::string> troubles = exchange_end_of_step(*step_, sender_->reducers(),
                                                                 std::exchange(updates_, {}));
  for (size_t r = 0; r < troubles.size(); ++r) {
    if (troubles[r].empty()) continue;
    delivery_->abandon();
    if (failed) std::rethrow_exception(failed);
    throw MismatchError(absl::StrCat(kDdp, ", step ", step_->number, ", rank ", r, ": ", troubles[r]));
  }
  learned_ = true;  // every gradient arrived on every rank
  delivery_->deliver_all();
  delivery_->deliver_second_parts();
  buffers_->share(*group_, step_->number);
  delivery_->deliver_to_shards();
  if (step_->options.allow_unused)
    for (StepGradient& gradient : step_->gradients) set_claim(gradient, gradient.delivered);
}

// Sets missing gradients to zeros, and ends the step. With allow_unused, finish() itself sends the zeros.
void DistributedDataParallel::finish_with_zeros() {
  if (!step_->order.empty())
    throw Error(absl::StrCat(kDdp, "::finish_with_zeros: there was a backward in this step; call finish()"));
  const NoGrad off;
  // Parameters in reverse order, because backward would make their gradients in that order.
  for (size_t i = step_->gradients.size(); i-- > 0 && !step_->options.allow_unused;) {
    Tensor parameter = step_->gradients[i].parameter;
    if (!parameter.grad().defined())  // otherwise backwards under no_sync() have accumulated it
      parameter.set_grad(Tensor::zeros(parameter.sizes(), {parameter.dtype(), parameter.device()}));
    arrive(i);
  }
  finish();
}

void DistributedDataParallel::start_over() {
  unused_ = std::exchange(step_->unused, {});
  step_->start_over();
  if (!learned_) watch_uses();
  for (const size_t i : step_->in_two_parts) step_->gradients[i].rows->start_over();
  sender_->start_over();
  delivery_->start_over();
}

}  // namespace rondo::dist
