#include "rondo/dist/ddp.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/dist/agreement.h"
#include "rondo/dist/parcel.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/autograd_extras.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/gradient_memory.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

constexpr const char* kWho = "DistributedDataParallel";

constexpr int64_t kMaxSentence = 512, kMaxFacts = 1 << 24;

uint64_t hash_of(const Tensor& tensor) {
  const Tensor dense = tensor.detach().contiguous().to(kCPU);
  io::Checksum sum;
  sum.update(dense.raw_data(), static_cast<size_t>(dense.nbytes()));
  return sum.digest();
}

// 0: there were no updates.
uint64_t hash_of(const std::vector<UpdateFacts>& updates) {
  if (updates.empty()) return 0;
  io::Checksum sum;
  for (const UpdateFacts& facts : updates) {
    const uint64_t hash = facts.hash();
    sum.update(&hash, sizeof hash);
  }
  return sum.digest();
}

// Every tensor that ranks must share.
std::vector<nn::NamedTensor> state_of(const nn::ModuleBase& model) {
  std::vector<nn::NamedTensor> state = model.named_parameters();
  for (nn::NamedTensor& buffer : model.named_buffers()) state.push_back(std::move(buffer));
  std::erase_if(state, [](const nn::NamedTensor& t) { return !t.tensor.defined(); });
  return state;
}

}  // namespace

struct DistributedDataParallel::Arrivals {
  explicit Arrivals(DistributedDataParallel& ddp) : ddp(ddp) {}
  DistributedDataParallel& ddp;
  bool local = false;             // under no_sync
  std::vector<size_t> order;      // parameters, as their gradients became final
  std::vector<bool> arrived;      // by parameter
  std::vector<bool> sent;         // by parameter: the first piece is on its way
  std::vector<bool> delivered;    // by parameter: it has the average
  std::vector<bool> alone;        // by parameter: nobody else sees the memory of the gradient that is sent
  std::vector<Tensor> held;       // by parameter: gradients that wait for finish(), in a step that learns
  std::vector<Tensor> assembled;  // by parameter: averages of pieces

  void start_over(size_t n) {
    order.clear();
    arrived.assign(n, false);
    sent.assign(n, false);
    delivered.assign(n, false);
    alone.assign(n, false);
    held.assign(n, Tensor());
    assembled.assign(n, Tensor());
  }
};

DistributedDataParallel::DistributedDataParallel(nn::ModuleBase& model, std::shared_ptr<ProcessGroup> group,
                                                 BucketOptions options)
    : model_(model), group_(std::move(group)), options_(options), arrivals_(std::make_shared<Arrivals>(*this)) {
  if (group_ == nullptr)
    throw Error(absl::StrCat(kWho, ": no process group; subgroup() returns null on ranks outside it"));
  for (nn::NamedTensor& p : model.named_parameters())
    if (p.tensor.requires_grad()) parameters_.push_back(std::move(p));
  if (const auto device = group_->device(); device && !has_host_memory(*device)) device_ = *device, late_ = true;
  check_places();
  for (const nn::NamedTensor& p : parameters_)
    if (const char* other = autograd::gradient_claim(p.tensor, GradientClaim::kUsesUp); other != nullptr)
      throw Error(absl::StrCat(kWho, ": ", other,
                               " would use the gradients before they are averaged; make it from this, after "
                               "wrapping the model: UpdateAtSeams(ddp, optimizer)"));
  const std::vector<optim::Seam> seams = optim::plan_seams(model);
  std::unordered_map<const TensorImpl*, const std::string*> paths;
  for (const optim::Seam& seam : seams)
    for (const Tensor& p : seam.parameters) paths[p.impl()] = &seam.path;
  for (const nn::NamedTensor& p : parameters_) path_of_.push_back(*paths.at(p.tensor.impl()));
  plan_ = plan_buckets(model, seams, options);
  compare_plans(plan_.text + describe_state(model) + (options.allow_unused ? "parameters may be unused\n" : ""));
  if (parameters_.empty())
    throw Error(absl::StrCat(kWho, ": ", model.type_name(),
                             " has no parameter that requires a gradient, so there is nothing to average. Modules find "
                             "parameters that parameter() or child() has registered"));
  broadcast_state();
  for (const nn::NamedTensor& p : parameters_)
    if (const char* other = autograd::gradient_claim(p.tensor, GradientClaim::kChanges); other != nullptr)
      throw Error(absl::StrCat(kWho, ": the gradients of this model are already averaged by ", other));
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
}

void DistributedDataParallel::check_device(Device device, std::string_view what) {
  if (has_host_memory(device) || backend_of(device).call_library != nullptr) return;
  throw Error(absl::StrCat(kWho, ": ", std::string(what), " is on ", to_string(device),
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
      throw Error(all.size() == 1 ? absl::StrCat(kWho, ": ", all[r]) : absl::StrCat(kWho, ", rank ", r, ": ", all[r]));
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
    throw Error(absl::StrCat(kWho, ": gradients of this step are not averaged yet; call finish() first"));
}

void DistributedDataParallel::add_shards(GradientShards& shards) {
  if (step_ > 1 || !arrivals_->order.empty())
    throw Error(absl::StrCat(kWho, ": gradients are under way; make a ShardedOptimizer before the first backward"));
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
  throw MismatchError(absl::StrCat(kWho, ": rank ", found->rank, " has another plan than rank 0; line ",
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
  Tensor parameter = parameters_[i].tensor;
  if (const std::string wrong = misplaced(parameter.device(), parameters_[i].name); !wrong.empty())
    throw Error(absl::StrCat(kWho, ": ", wrong));  // the model was moved
  if (late_) group_->check_usable(kWho);
  if (now.sent[i] || now.held[i].defined())
    throw Error(absl::StrCat(kWho, ": the gradient of ", parameters_[i].name,
                             " changed after it was sent; call finish() once per step, and put all but the last "
                             "backward of a step under no_sync()"));
  if (now.arrived[i]) return;  // several contributions before its bucket is full
  set_claim(i, true);
  now.arrived[i] = true;
  now.order.push_back(i);
  if (!learned_) {
    now.held[i] = parameter.grad();
    parameter.set_grad(Tensor());
    return;
  }
  for (size_t b : buckets_of_[i]) --parcels_[b].waiting;
  while (next_bucket_ < parcels_.size() && parcels_[next_bucket_].waiting == 0) send(next_bucket_++);
  // Delivers what has come back by now. When that happens differs from run to run, the result does not.
  while (!late_ && next_delivered_ < next_bucket_ && parcels_[next_delivered_].work.is_done() && delivers_early())
    deliver(next_delivered_++);
}

// Makes the plan in the order that rank 0 has observed. See Note [Bucket order].
void DistributedDataParallel::agree_on_order() {
  std::vector<int64_t> order(arrivals_->order.begin(), arrivals_->order.end());
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (!arrivals_->arrived[i]) order.push_back(static_cast<int64_t>(i));
  const Tensor agreed = Tensor::from(order, {static_cast<int64_t>(order.size())}, kCPU);
  group_->broadcast(agreed, 0, "order of the gradients").wait();
  std::vector<optim::Seam> parts;
  for (const int64_t i : agreed.to_vector<int64_t>()) {
    const std::string& path = path_of_.at(static_cast<size_t>(i));
    if (parts.empty() || parts.back().path != path) parts.push_back({path, {}, true});
    parts.back().parameters.push_back(parameters_[static_cast<size_t>(i)].tensor);
  }
  plan_ = plan_buckets(model_, parts, options_, [this](const Tensor& p) { return taker_of(p); });
  compare_plans(plan_.text + describe_shards());
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
      if (!all.defined()) all = Tensor::empty(parameter.sizes(), {parameter.dtype(), device_});
      if (!parcel.is_adopted()) all.view({all.numel()}).slice(0, {slot.begin, slot.begin + slot.numel}).copy_(average);
      if (!slot.last_piece()) continue;
      average = std::exchange(all, Tensor());
    }
    parameter.set_grad(parameter.dtype() == average.dtype() ? average : average.to(parameter.dtype()));
    arrivals_->delivered[parcel.parameters()[k]] = true;
    final_ones.push_back(parameter);
  }
  for (const auto& [id, listener] : listeners_) listener(final_ones);
}

void DistributedDataParallel::check_no_stranger() {
  std::unordered_set<const TensorImpl*> known;
  for (const nn::NamedTensor& p : parameters_) known.insert(p.tensor.impl());
  bool strange = false;
  for (const Tensor* slot : model_.tensor_slots())
    strange = strange || (slot->defined() && slot->requires_grad() && !known.contains(slot->impl()));
  if (!strange) return;
  for (const nn::NamedTensor& p : model_.named_parameters())
    if (p.tensor.requires_grad() && !known.contains(p.tensor.impl()))
      return note(absl::StrCat("the parameter ", p.name,
                               " is in no bucket; it was made, or unfrozen, after the model was wrapped"));
}

void DistributedDataParallel::note(std::string trouble) {
  if (trouble_.empty()) trouble_ = std::move(trouble);
}

void DistributedDataParallel::finish() {
  if (arrivals_->local)
    throw Error("DistributedDataParallel::finish: under no_sync(); end its scope before the last backward");
  for (const GradientShards* shards : shards_)
    if (shards == nullptr)
      throw Error("DistributedDataParallel::finish: the ShardedOptimizer that gets these gradients is gone");
  const NoGrad off;
  if (late_) group_->check_usable("DistributedDataParallel::finish");
  if (!learned_) agree_on_order();
  while (next_bucket_ < parcels_.size()) send(next_bucket_++);
  const auto deliver_all = [this] {
    while (next_delivered_ < parcels_.size()) deliver(next_delivered_++);
  };
  if (!late_) deliver_all();
  check_no_stranger();
  const int64_t step = step_++;
  const absl::Cleanup over = [this] { start_over(); };
  const std::vector<std::string> troubles = exchange_end_of_step(step);
  for (size_t r = 0; r < troubles.size(); ++r) {
    if (troubles[r].empty()) continue;
    // The next step writes into the buckets: after the all-reduces of this one.
    for (; next_delivered_ < parcels_.size(); ++next_delivered_) parcels_[next_delivered_].work.wait();
    throw MismatchError(absl::StrCat(kWho, ", step ", step, ", rank ", r, ": ", troubles[r]));
  }
  const bool first = !std::exchange(learned_, true);  // every gradient arrived on every rank
  deliver_all();
  hand_to_shards(first);
  for (size_t i = 0; i < parameters_.size() && options_.allow_unused; ++i) set_claim(i, arrivals_->delivered[i]);
}

// An optimizer takes a claimed parameter without a gradient for one whose finish() was forgotten. So a parameter that
// no rank has used is not claimed until it gets a gradient again.
void DistributedDataParallel::set_claim(size_t i, bool claims) {
  if (claimed_[i] == claims) return;
  if (claims) autograd::claim_gradient(parameters_[i].tensor, GradientClaim::kChanges, kWho, this);
  else autograd::unclaim_gradient(parameters_[i].tensor, GradientClaim::kChanges);
  claimed_[i] = claims;
}

// What is wrong on each rank, in one exchange of 32 bytes if nothing is. The ranks compare a hash of the updates that
// optimizers have made since the exchange before and, on a device, what they have issued. On a device with allow_unused
// they also say, slot by slot, what they have a gradient for: four slots in a character.
std::vector<std::string> DistributedDataParallel::exchange_end_of_step(int64_t step) {
  const std::string name = absl::StrCat("end of step ", step);
  const std::string mine = std::exchange(trouble_, "").substr(0, kMaxSentence);
  std::vector<int> flags;  // 0 to 15
  size_t slots = 0;
  const auto for_each_slot = [&](const auto& visit) {
    slots = 0;
    for (size_t b = 0; late_ && options_.allow_unused && b < parcels_.size(); ++b)
      for (size_t k = 0; k < parcels_[b].parameters().size(); ++k, ++slots) visit(b, k);
  };
  for_each_slot([&](size_t b, size_t k) {
    if (slots % 4 == 0) flags.push_back(0);
    if (parcels_[b].has_gradient(k)) flags.back() |= 1 << slots % 4;
  });
  const std::vector<UpdateFacts> updates = std::exchange(updates_, {});
  const uint64_t hash = hash_of(updates);
  std::string text(reinterpret_cast<const char*>(&hash), sizeof hash);
  for (const int f : flags) text += static_cast<char>('A' + f);
  const size_t head = text.size();
  text += mine;
  std::vector<std::string> texts = group_->check_sequence(text, name, static_cast<int64_t>(head));
  for (const std::string& other : texts)
    for (size_t i = 0; i < flags.size(); ++i) flags[i] |= other.at(sizeof hash + i) - 'A';
  if (late_) somewhere_.assign(parcels_.size(), {});
  for_each_slot([&](size_t b, size_t) { somewhere_[b].push_back((flags[slots / 4] >> slots % 4 & 1) != 0); });
  const bool updates_differ = std::any_of(texts.begin(), texts.end(), [&](const std::string& other) {
    return other.compare(0, sizeof hash, texts[0], 0, sizeof hash) != 0;
  });
  for (std::string& other : texts) other.erase(0, head);
  if (updates_differ) note_other_updates(updates, texts);
  return texts;
}

// A collective: adds to `troubles` the first rank whose optimizers made other updates than those of rank 0.
void DistributedDataParallel::note_other_updates(const std::vector<UpdateFacts>& updates,
                                                 std::vector<std::string>& troubles) {
  std::string mine;
  for (const UpdateFacts& facts : updates) mine += facts.text();
  const std::optional<TextDifference> found = first_difference(
      gather_texts(*group_, mine, kMaxFacts, "options of the optimizers"));
  invariant(found.has_value(), "updates with different hashes are equal");
  std::string& trouble = troubles[found->rank];
  if (!trouble.empty()) return;
  trouble = absl::StrCat(
      "its last update of the parameters was another one than that of rank 0: ", found->there, " there, and ",
      found->first,
      " on rank 0. Every rank must make the same optimizers, set the same options, load the same states "
      "and make the same steps");
}

void DistributedDataParallel::start_over() {
  unused_ = std::exchange(unused_now_, {});
  next_bucket_ = next_delivered_ = 0;
  spoilt_ = false;
  arrivals_->start_over(parameters_.size());
  for (Parcel& parcel : parcels_) {
    parcel.waiting = parcel.parameters().size();
    parcel.is_taken = false;
    for (size_t k = 0; k < parcel.parameters().size(); ++k) homes_[parcel.parameters()[k]]->set(parcel.home(k));
  }
}

// With allow_unused, finish() itself sends zeros.
void DistributedDataParallel::finish_with_zeros() {
  if (!arrivals_->order.empty())
    throw Error(absl::StrCat(kWho, "::finish_with_zeros: there was a backward in this step; call finish()"));
  const NoGrad off;
  for (size_t i = parameters_.size(); i-- > 0 && !options_.allow_unused;) {  // from the last: as a backward would
    Tensor parameter = parameters_[i].tensor;
    if (!parameter.grad().defined())  // otherwise backwards under no_sync() have added it up
      parameter.set_grad(Tensor::zeros(parameter.sizes(), {parameter.dtype(), parameter.device()}));
    arrive(i);
  }
  finish();
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(ddp) {
  if (ddp.arrivals_->local) throw Error("DistributedDataParallel::no_sync: there is one already");
  if (!ddp.arrivals_->order.empty())
    throw Error("DistributedDataParallel::no_sync: gradients are under way; call finish() before the next step");
  ddp.arrivals_->local = true;
}

DistributedDataParallel::NoSync::~NoSync() { ddp_.arrivals_->local = false; }

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

}  // namespace rondo::dist
