#include "rondo/dist/ddp/ddp.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/dist/ddp/arrivals.h"
#include "rondo/dist/ddp/parcel.h"
#include "rondo/dist/ddp/row_parcel.h"
#include "rondo/dist/ddp/shared_buffers.h"
#include "rondo/dist/groups/agreement.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/gradient_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

// Every tensor that ranks must share.
std::vector<nn::NamedTensor> state_of(const nn::ModuleBase& model) {
  std::vector<nn::NamedTensor> state = model.named_parameters();
  for (nn::NamedTensor& buffer : model.named_buffers()) state.push_back(std::move(buffer));
  std::erase_if(state, [](const nn::NamedTensor& t) { return !t.tensor.defined(); });
  return state;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::ModuleBase& model, std::shared_ptr<ProcessGroup> group,
                                                 BucketOptions options)
    : model_(model),
      group_(std::move(group)),
      options_(options),
      buffers_(std::make_unique<SharedBuffers>(model, options.buffers)),
      arrivals_(std::make_shared<Arrivals>(*this)) {
  if (group_ == nullptr)
    throw Error(absl::StrCat(kDdp, ": no process group; subgroup() returns null on ranks outside it"));
  for (nn::NamedTensor& p : model.named_parameters())
    if (p.tensor.requires_grad()) parameters_.push_back(std::move(p));
  if (const auto device = group_->device(); device && !has_host_memory(*device)) device_ = *device, late_ = true;
  check_places();
  for (const nn::NamedTensor& p : parameters_)
    if (const char* other = autograd::gradient_claim(p.tensor, GradientClaim::kUsesUp); other != nullptr)
      throw Error(absl::StrCat(kDdp, ": ", other,
                               " would use the gradients before they are averaged; make it from this, after "
                               "wrapping the model: UpdateAtSeams(ddp, optimizer)"));
  const std::vector<optim::Seam> seams = optim::plan_seams(model);
  std::unordered_map<const TensorImpl*, const std::string*> paths;
  for (const optim::Seam& seam : seams)
    for (const Tensor& p : seam.parameters) paths[p.impl()] = &seam.path;
  for (const nn::NamedTensor& p : parameters_) path_of_.push_back(*paths.at(p.tensor.impl()));
  plan_ = plan_buckets(model, seams, options);
  compare_plans(absl::StrCat(plan_.text, describe_state(model),
                             options.allow_unused ? "parameters may be unused\n" : "", "buffers are ",
                             options.buffers == BufferSync::kBroadcast ? "rank 0's"
                             : options.buffers == BufferSync::kAverage ? "averaged"
                                                                       : "left alone",
                             "\n"));
  if (parameters_.empty())
    throw Error(absl::StrCat(kDdp, ": ", model.type_name(),
                             " has no parameter that requires a gradient, so there is nothing to average. Modules find "
                             "parameters that parameter() or child() has registered"));
  broadcast_state();
  for (const nn::NamedTensor& p : parameters_)
    if (const char* other = autograd::gradient_claim(p.tensor, GradientClaim::kChanges); other != nullptr)
      throw Error(absl::StrCat(kDdp, ": the gradients of this model are already averaged by ", other));
  arrivals_->start_over(parameters_.size());
  claimed_.assign(parameters_.size(), false);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    set_claim(i, true);
    homes_.push_back(std::make_unique<autograd::GradientHome>(parameters_[i].tensor));
    hooks_.push_back(
        autograd::on_accumulated(parameters_[i].tensor, [arrivals = std::weak_ptr<Arrivals>(arrivals_), i] {
          if (const std::shared_ptr<Arrivals> now = arrivals.lock()) now->ddp.arrive(i);
        }));
  }
  watch_uses();
}

void DistributedDataParallel::watch_uses() {
  in_two_parts_.clear();
  rows_.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    rows_[i] = std::make_unique<RowParcel>(parameters_[i].tensor, *arrivals_, [this, i] { take(i); });
    homes_[i]->set_parts(rows_[i].get());
  }
}

void DistributedDataParallel::check_device(Device device, std::string_view what) {
  if (has_host_memory(device) || backend_of(device).call_library != nullptr) return;
  throw Error(absl::StrCat(kDdp, ": ", std::string(what), " is on ", to_string(device),
                           ", for which there is no library of collectives; train on the CPU or on CUDA, or in one "
                           "process"));
}

// What is wrong with the place of a parameter or buffer; empty: nothing.
std::string DistributedDataParallel::misplaced(Device device, std::string_view what) const {
  if (late_ ? device == device_ : has_host_memory(device)) return "";
  return absl::StrCat(std::string(what), " is on ", to_string(device), ", and ",
                      late_ ? absl::StrCat("the process group serves ", to_string(device_),
                                           "; call model.to(device) before wrapping the model")
                            : "the process group exchanges host memory only; connect it with GroupOptions::device, or "
                              "train on the CPU");
}

// A collective: a rank that is alone with its mistake must not leave the others waiting.
void DistributedDataParallel::check_places() {
  std::string mine;
  if (!late_ || !parameters_.empty())  // otherwise there is nothing to average, and that is the error
    for (const nn::NamedTensor& t : state_of(model_))
      if (mine.empty()) mine = misplaced(t.tensor.device(), t.name);
  const std::vector<std::string> all = gather_texts(*group_, mine, kMaxSentence, "places of the parameters");
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty())
      throw Error(all.size() == 1 ? absl::StrCat(kDdp, ": ", all[r]) : absl::StrCat(kDdp, ", rank ", r, ": ", all[r]));
}

DistributedDataParallel::~DistributedDataParallel() {
  for (size_t i = 0; i < hooks_.size(); ++i) {
    autograd::remove_on_accumulated(parameters_[i].tensor, hooks_[i]);
    set_claim(i, false);
  }
}

int64_t DistributedDataParallel::on_final(Listener listener) {
  const int64_t id = listeners_.empty() ? 1 : listeners_.back().first + 1;
  listeners_.emplace_back(id, std::move(listener));
  return id;
}
void DistributedDataParallel::remove_on_final(int64_t id) {
  std::erase_if(listeners_, [id](const auto& listener) { return listener.first == id; });
}
void DistributedDataParallel::check_finished() const {
  if (!arrivals_->order.empty())
    throw Error(absl::StrCat(kDdp, ": gradients of this step are not averaged yet; call finish() first"));
}

void DistributedDataParallel::add_shards(GradientShards& shards) {
  if (step_ > 1 || !arrivals_->order.empty())
    throw Error(absl::StrCat(kDdp, ": gradients are under way; make a ShardedOptimizer before the first backward"));
  shards_.push_back(&shards);
}
void DistributedDataParallel::remove_shards(GradientShards& shards) {
  if (step_ == 1 && parcels_.empty()) std::erase(shards_, &shards);
  else std::replace(shards_.begin(), shards_.end(), &shards, static_cast<GradientShards*>(nullptr));
}

GradientTaker DistributedDataParallel::taker_of(const Tensor& parameter) const {
  for (size_t i = 0; i < shards_.size(); ++i)
    if (shards_[i] != nullptr && shards_[i]->takes(parameter)) return {i + 1, shards_[i]->needs_whole(parameter)};
  return {};
}

std::string DistributedDataParallel::describe_shards() const {
  std::string text;
  for (const GradientShards* shards : shards_)
    if (shards != nullptr) absl::StrAppend(&text, "shards: ", shards->describe(), "\n");
  return text;
}

// The buckets of each GradientShards, once every rank has the order; then the averages of the step.
void DistributedDataParallel::hand_to_shards(bool first) {
  for (size_t i = 0; first && i < shards_.size(); ++i) {
    std::vector<ShardedBucket> buckets;
    for (size_t b = 0; b < parcels_.size(); ++b)
      if (plan_.buckets[b].taker == i + 1)
        buckets.push_back({b, plan_.buckets[b], *parcels_[b].layout(), parcels_[b].sent(), parcels_[b].averages()});
    shards_[i]->begin(std::move(buckets));
  }
  shards_begun_ = true;
  for (size_t b = 0; b < parcels_.size(); ++b)
    if (plan_.buckets[b].taker != 0 && !parcels_[b].is_taken) hand_over(b);
}

void DistributedDataParallel::hand_over(size_t b) {
  parcels_[b].is_taken = true;
  shards_[plan_.buckets[b].taker - 1]->take(b, parcels_[b].there);
}

// Somebody wants averages before finish().
bool DistributedDataParallel::delivers_early() const {
  return !listeners_.empty() || std::any_of(shards_.begin(), shards_.end(), [](const GradientShards* shards) {
    return shards != nullptr && shards->takes_early();
  });
}

void DistributedDataParallel::compare_plans(const std::string& text) {
  io::Checksum sum;
  sum.update(text);
  const std::string mine = absl::StrCat(sum.digest(), " ", text.size());
  const std::vector<std::string> hashes = gather_texts(*group_, mine, 64, "hash of the plan");
  if (!first_difference(hashes)) return;
  size_t longest = 0;
  for (const std::string& hash : hashes) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(hash, ' ');
    longest = std::max(longest, static_cast<size_t>(std::stoull(parts.second)));
  }
  const std::optional<TextDifference> found = first_difference(
      gather_texts(*group_, text, static_cast<int64_t>(longest), "plan"));
  invariant(found.has_value(), "plans with different hashes are equal");
  throw MismatchError(absl::StrCat(kDdp, ": rank ", found->rank, " has another plan than rank 0; line ",
                                   found->line + 1, " is ", found->there, " there, and ", found->first,
                                   " on rank 0. Every rank must make the same model, frozen in the same places"));
}

void DistributedDataParallel::broadcast_state() {
  const NoGrad off;
  struct Sent {
    Tensor target, dense;
    Work work;
  };
  std::vector<Sent> sent;
  for (const nn::NamedTensor& t : state_of(model_)) {
    const Tensor dense = t.tensor.is_contiguous() ? t.tensor : t.tensor.contiguous();
    sent.push_back({t.tensor, dense, group_->broadcast(dense, 0, t.name)});
  }
  if (late_) group_->check_sequence("", "parameters of rank 0");
  for (Sent& s : sent) {
    s.work.wait();
    if (!s.dense.is_same(s.target)) s.target.copy_(s.dense);
  }
}

// Called by backward when the gradient of a parameter is final.
void DistributedDataParallel::arrive(size_t i) {
  Arrivals& now = *arrivals_;
  if (now.local) return;
  check_arrival(i);
  const bool in_parts = rows_[i] != nullptr && rows_[i]->has_left();
  if (in_parts ? now.sent[i] && now.complete[i] : now.sent[i] || now.held[i].defined())
    throw Error(absl::StrCat(kDdp, ": the gradient of ", parameters_[i].name,
                             " changed after it was sent; call finish() once per step, and put all but the last "
                             "backward of a step under no_sync()"));
  now.complete[i] = true;
  if (rows_[i] != nullptr) rows_[i]->end_of_uses();
  if (!in_parts) return take(i);
  if (Tensor parameter = parameters_[i].tensor; now.sent[i]) {
    rows_[i]->set_rest(parameter.grad());
    parameter.set_grad(Tensor());
  }
  send_what_is_ready();
}

void DistributedDataParallel::check_arrival(size_t i) {
  if (const std::string wrong = misplaced(parameters_[i].tensor.device(), parameters_[i].name); !wrong.empty())
    throw Error(absl::StrCat(kDdp, ": ", wrong));  // the model was moved
  if (late_) group_->check_usable(kDdp);
}

// The gradient, or its first part (Note [Two parts]), is in .grad and may leave.
void DistributedDataParallel::take(size_t i) {
  Arrivals& now = *arrivals_;
  check_arrival(i);
  if (now.arrived[i]) return;  // several contributions before its bucket is full
  set_claim(i, true);
  now.arrived[i] = true;
  now.order.push_back(i);
  if (!learned_) {
    Tensor parameter = parameters_[i].tensor;
    now.held[i] = parameter.grad();
    parameter.set_grad(Tensor());
    return;
  }
  for (size_t b : buckets_of_[i]) --parcels_[b].waiting;
  send_what_is_ready();
}

void DistributedDataParallel::send_what_is_ready() {
  while (next_bucket_ < parcels_.size() && parcels_[next_bucket_].waiting == 0) send(next_bucket_++);
  while (next_bucket_ == parcels_.size() && next_rows_ < in_two_parts_.size() &&
         arrivals_->complete[in_two_parts_[next_rows_]])
    send_rows(next_rows_++);
  // Delivers what has come back by now. When that happens differs from run to run, the result does not.
  while (!late_ && next_delivered_ < next_bucket_ && parcels_[next_delivered_].work.is_done() && delivers_early())
    deliver(next_delivered_++);
}

// See Note [Two parts]. Returns what must be equal on every rank.
std::string DistributedDataParallel::agree_on_parts() {
  std::vector<RowParcel::Uses> uses;
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    tensors.push_back(parameters_[i].tensor);
    const bool may = rows_[i] != nullptr && taker_of(tensors[i]).index == 0;
    uses.push_back(may ? rows_[i]->uses() : RowParcel::Uses());
  }
  const std::vector<int64_t> capacity = agree_on_rows(*group_, uses, tensors);
  std::string text;
  in_two_parts_.clear();
  first_part_at_.clear();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (capacity[i] == 0) {
      homes_[i]->set_parts(nullptr);
      rows_[i].reset();
      continue;
    }
    const DType wire = travels_as(tensors[i].dtype(), options_);
    rows_[i]->travel_in_parts(uses[i], capacity[i], wire, group_->world_size());
    in_two_parts_.push_back(i);
    first_part_at_.push_back(uses[i].position);
    absl::StrAppend(&text, "in two parts: ", parameters_[i].name, ", ", capacity[i], " rows\n");
  }
  return text;
}

// Makes the plan in the order that rank 0 has observed. See Note [Bucket order].
void DistributedDataParallel::agree_on_order() {
  const std::string in_parts = agree_on_parts();
  std::vector<int64_t> order;
  for (size_t k = 0; k <= arrivals_->order.size(); ++k) {
    for (size_t p = 0; p < in_two_parts_.size(); ++p)
      if (first_part_at_[p] == k) order.push_back(static_cast<int64_t>(in_two_parts_[p]));
    if (const auto& seen = arrivals_->order; k < seen.size() && rows_[seen[k]] == nullptr)
      order.push_back(static_cast<int64_t>(seen[k]));
  }
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (!arrivals_->arrived[i]) order.push_back(static_cast<int64_t>(i));
  const Tensor agreed = Tensor::from(order, {static_cast<int64_t>(order.size())}, kCPU);
  group_->broadcast(agreed, 0, "order of the gradients").wait();
  std::vector<optim::Seam> parts;
  std::unordered_map<const TensorImpl*, size_t> position;
  for (size_t i = 0; i < parameters_.size(); ++i) position[parameters_[i].tensor.impl()] = i;
  bool apart = true;
  for (const int64_t at : agreed.to_vector<int64_t>()) {
    const auto i = static_cast<size_t>(at);
    const std::string& path = path_of_.at(i);
    if (apart || parts.back().path != path || rows_[i] != nullptr) parts.push_back({path, {}, true});
    parts.back().parameters.push_back(parameters_[i].tensor);
    apart = rows_[i] != nullptr;  // its bucket need not wait for another parameter
  }
  for (optim::Seam& part : parts) {  // Note [Bucket order]
    const bool is_block = !part.path.empty();
    int64_t bytes = 0;
    for (const Tensor& p : part.parameters) bytes += p.nbytes();
    if (!is_block && bytes > options_.max_bytes) continue;
    std::sort(part.parameters.begin(), part.parameters.end(), [&](const Tensor& a, const Tensor& b) {
      const size_t x = position.at(a.impl()), y = position.at(b.impl());
      return is_block ? x > y : x < y;
    });
  }
  plan_ = plan_buckets(model_, parts, options_, [this](const Tensor& p) { return taker_of(p); });
  compare_plans(plan_.text + in_parts + describe_shards());
  make_parcels();
}

void DistributedDataParallel::make_parcels() {
  std::unordered_map<const TensorImpl*, size_t> position;
  for (size_t i = 0; i < parameters_.size(); ++i) position[parameters_[i].tensor.impl()] = i;
  parcels_.clear();
  buckets_of_.assign(parameters_.size(), {});
  // How much each rank has got, for each GradientShards.
  std::vector<std::vector<int64_t>> loads(shards_.size(),
                                          std::vector<int64_t>(static_cast<size_t>(group_->world_size())));
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    std::vector<size_t> parameters;
    for (const BucketSlot& slot : plan_.buckets[b].slots) {
      parameters.push_back(position.at(slot.parameter.impl()));
      buckets_of_[parameters.back()].push_back(b);
    }
    std::optional<ShardLayout> layout;
    if (const size_t taker = plan_.buckets[b].taker; taker != 0)
      layout = lay_out_shards(plan_.buckets[b], loads[taker - 1]);
    parcels_.emplace_back(plan_.buckets[b], std::move(parameters), device_, options_.allow_unused, std::move(layout),
                          group_->world_size());
  }
}

// Every rank sends every bucket, even one that lacks a gradient: otherwise the others would wait for it. finish() tells
// them all.
void DistributedDataParallel::send(size_t b) {
  const NoGrad off;
  Parcel& parcel = parcels_[b];
  const size_t taker = parcel.bucket().taker;
  if (learned_ && taker != 0 && shards_[taker - 1] != nullptr) shards_[taker - 1]->before_send(b);
  for (size_t k = 0; k < parcel.parameters().size(); ++k) put(parcel, k);
  if (!late_) parcel.write_tag({.step = step_, .bucket = b, .rank = group_->rank(), .troubled = !trouble_.empty()});
  parcel.reduce(*group_, absl::StrCat("bucket ", b, " of step ", step_));
}

void DistributedDataParallel::send_rows(size_t p) {
  const NoGrad off;
  const size_t i = in_two_parts_[p];
  rows_[i]->send(*group_, tag_of_rows(i), absl::StrCat(parameters_[i].name, " of step ", step_));
}

// One for each parameter and step. Those of a step are apart from those of the next.
int64_t DistributedDataParallel::tag_of_rows(size_t i) const {
  return step_ * static_cast<int64_t>(parameters_.size()) + static_cast<int64_t>(i);
}

void DistributedDataParallel::put(Parcel& parcel, size_t k) {
  const BucketSlot& slot = parcel.bucket().slots[k];
  const size_t i = parcel.parameters()[k];
  Tensor parameter = slot.parameter;
  Tensor& grad = arrivals_->held[i];
  if (!arrivals_->arrived[i] && !arrivals_->sent[i]) {
    if (!options_.allow_unused)
      note(absl::StrCat("the gradient of ", slot.name,
                        " did not arrive; if a step may leave parameters out, set "
                        "BucketOptions::allow_unused"));
    else if (!parameter.grad().defined()) unused_now_.push_back(slot.name);
  }
  // Taken with its first piece, so that no further backward before finish() can change what is sent.
  if (slot.begin == 0) {
    if (!grad.defined()) grad = parameter.grad();
    parameter.set_grad(Tensor());
    homes_[i]->set(Tensor());
    if (!slot.whole() && grad.defined() && !grad.is_contiguous()) grad = grad.contiguous();
    arrivals_->alone[i] = grad.defined() && autograd::is_only_holder(grad);
  }
  arrivals_->sent[i] = true;
  parcel.put(k, grad, arrivals_->alone[i]);
  if (parcel.is_adopted() && !slot.whole()) arrivals_->assembled[i] = grad;
  if (slot.last_piece()) grad = Tensor();  // frees what backward made
}

// Host memory: see Note [Tags]. False if the average is of no use.
bool DistributedDataParallel::is_usable(size_t b) {
  const Parcel::Arrived arrived = parcels_[b].read_tag(step_, b, group_->world_size());
  if (arrived == Parcel::Arrived::kNotReduced)
    note(absl::StrCat("the ", parcels_[b].layout() ? "reduce-scatter" : "all-reduce", " of bucket ", b, " (",
                      plan_.buckets[b].slots[0].name, " and what follows) did not happen in this step"));
  return arrived == Parcel::Arrived::kWell;
}

// Ends a bucket: its averages become gradients, and listeners are told.
void DistributedDataParallel::deliver(size_t b) {
  const NoGrad off;
  Parcel& parcel = parcels_[b];
  std::exchange(parcel.work, Work()).wait();
  if (!late_ && !is_usable(b)) spoilt_ = true;
  if (spoilt_) return;
  const std::vector<bool> flags = !options_.allow_unused ? std::vector<bool>()
                                  : late_                ? somewhere_[b]
                                                         : parcel.read_flags();
  if (parcel.layout()) {
    parcel.there = flags;
    for (size_t k = 0; flags.empty() && k < parcel.parameters().size(); ++k)
      parcel.there.push_back(parcel.has_gradient(k));
    for (size_t k = 0; k < parcel.there.size(); ++k)
      if (parcel.there[k]) arrivals_->delivered[parcel.parameters()[k]] = true;
    const GradientShards* const shards = shards_[parcel.bucket().taker - 1];
    if (shards_begun_ && shards != nullptr && shards->takes_early()) hand_over(b);
    return;
  }
  std::vector<Tensor> final_ones;
  for (size_t k = 0; k < parcel.parameters().size(); ++k) {
    const BucketSlot& slot = parcel.bucket().slots[k];
    if (!(flags.empty() ? parcel.has_gradient(k) : flags[k])) continue;
    Tensor parameter = slot.parameter, average = parcel.take_average(k);
    if (!slot.whole()) {
      Tensor& all = arrivals_->assembled[parcel.parameters()[k]];
      const DType dtype = rows_[parcel.parameters()[k]] == nullptr ? parameter.dtype() : parcel.bucket().dtype;
      if (!all.defined()) all = Tensor::empty(parameter.sizes(), {dtype, device_});
      if (!parcel.is_adopted()) all.view({all.numel()}).slice(0, {slot.begin, slot.begin + slot.numel}).copy_(average);
      if (!slot.last_piece()) continue;
      average = std::exchange(all, Tensor());
    }
    if (const size_t i = parcel.parameters()[k]; rows_[i] != nullptr) {
      arrivals_->assembled[i] = average;
      continue;
    }
    parameter.set_grad(average.to(parameter.dtype()));
    arrivals_->delivered[parcel.parameters()[k]] = true;
    final_ones.push_back(parameter);
  }
  for (const auto& [id, listener] : listeners_) listener(final_ones);
}

// After the ranks have told each other what they have: Note [Two parts].
void DistributedDataParallel::deliver_second_parts() {
  std::vector<Tensor> final_ones;
  for (const size_t i : in_two_parts_) {
    const std::string name = absl::StrCat(parameters_[i].name, " of step ", step_ - 1);
    const Tensor average = rows_[i]->complete(std::exchange(arrivals_->assembled[i], Tensor()), *group_, name);
    if (!average.defined()) continue;
    Tensor parameter = parameters_[i].tensor;
    parameter.set_grad(average.to(parameter.dtype()));
    arrivals_->delivered[i] = true;
    final_ones.push_back(parameter);
  }
  for (const auto& [id, listener] : listeners_)
    if (!final_ones.empty()) listener(final_ones);
}

}  // namespace rondo::dist
