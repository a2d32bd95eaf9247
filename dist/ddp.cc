#include "rondo/dist/ddp.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

constexpr const char* kWho = "DistributedDataParallel";

// Note [Tags]. Two elements at the end of a bucket prove that it was reduced, in this step, with the same bucket of
// every rank: `tag`, the same number on all ranks, and rank + 1. Their averages are known beforehand, and differ from
// what a rank itself wrote: a collective that silently did nothing, or met another one, is seen. Both sums are whole
// numbers below 2^24. A third one is 1 on a rank that cannot send what it should: by its average every rank leaves the
// same buckets alone.
// With allow_unused, one more for each slot follows: 1 on a rank that has its gradient. Its average is above 0 if some
// rank has.
constexpr int64_t kTagElements = 3;
constexpr int64_t kMaxSentence = 512;

double tag_of(int64_t step, size_t bucket) {
  io::Checksum sum;
  sum.update(&step, sizeof step);
  sum.update(&bucket, sizeof bucket);
  return static_cast<double>(1 + sum.digest() % 1023);
}

uint64_t hash_of(const Tensor& tensor) {
  const Tensor dense = tensor.detach().contiguous().to(kCPU);
  io::Checksum sum;
  sum.update(dense.raw_data(), static_cast<size_t>(dense.nbytes()));
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

struct DistributedDataParallel::Parcel {
  Tensor flat;                // rows of the bucket's elements, each with the tag at its end; one row without shards
  int64_t row = 0;            // elements of a row, without the tag
  Tensor averages;            // what comes back: `flat`, or one row
  std::vector<Tensor> views;  // of its slots, without shards: a whole parameter has its shape, a piece is a line
  std::optional<ShardLayout> layout;
  std::vector<bool> there;         // with shards: slots that have an average
  std::vector<bool> filled;        // there was a gradient to send
  std::vector<size_t> parameters;  // of the slots
  size_t waiting = 0;              // slots whose gradient has not arrived in this step
  Work work;
};

struct DistributedDataParallel::Arrivals {
  explicit Arrivals(DistributedDataParallel& ddp) : ddp(ddp) {}
  DistributedDataParallel& ddp;
  bool local = false;             // under no_sync
  std::vector<size_t> order;      // parameters, as their gradients became final
  std::vector<bool> arrived;      // by parameter
  std::vector<bool> sent;         // by parameter: the first piece is on its way
  std::vector<Tensor> held;       // by parameter: gradients that wait for finish(), in a step that learns
  std::vector<Tensor> assembled;  // by parameter: averages of pieces

  void start_over(size_t n) {
    order.clear();
    arrived.assign(n, false);
    sent.assign(n, false);
    held.assign(n, Tensor());
    assembled.assign(n, Tensor());
  }
};

DistributedDataParallel::DistributedDataParallel(nn::ModuleBase& model, std::shared_ptr<ProcessGroup> group,
                                                 BucketOptions options)
    : model_(model), group_(std::move(group)), options_(options), arrivals_(std::make_shared<Arrivals>(*this)) {
  for (nn::NamedTensor& p : model.named_parameters())
    if (p.tensor.requires_grad()) parameters_.push_back(std::move(p));
  for (const nn::NamedTensor& p : state_of(model)) check_device(p.tensor.device(), p.name);
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
  for (size_t i = 0; i < parameters_.size(); ++i) {
    autograd::claim_gradient(parameters_[i].tensor, GradientClaim::kChanges, kWho);
    hooks_.push_back(
        autograd::on_accumulated(parameters_[i].tensor, [arrivals = std::weak_ptr<Arrivals>(arrivals_), i] {
          if (const std::shared_ptr<Arrivals> now = arrivals.lock()) now->ddp.arrive(i);
        }));
  }
}

void DistributedDataParallel::check_device(Device device, std::string_view what) {
  if (has_host_memory(device)) return;
  throw Error(absl::StrCat(kWho, ": ", std::string(what), " is on ", to_string(device),
                           ", and processes average gradients in host memory only; train on the CPU, or in one "
                           "process"));
}

DistributedDataParallel::~DistributedDataParallel() {
  for (size_t i = 0; i < hooks_.size(); ++i) {
    autograd::remove_on_accumulated(parameters_[i].tensor, hooks_[i]);
    autograd::unclaim_gradient(parameters_[i].tensor, GradientClaim::kChanges);
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

void DistributedDataParallel::compare_plans(const std::string& text) {
  io::Checksum sum;
  sum.update(text);
  const std::string mine = absl::StrCat(sum.digest(), " ", text.size());
  const std::vector<std::string> hashes = gather_texts(*group_, mine, 64, "hash of the plan");
  size_t other = 1;
  while (other < hashes.size() && hashes[other] == hashes[0]) ++other;
  if (other >= hashes.size()) return;
  size_t longest = 0;
  for (const std::string& hash : hashes) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(hash, ' ');
    longest = std::max(longest, static_cast<size_t>(std::stoull(parts.second)));
  }
  const std::vector<std::string> texts = gather_texts(*group_, text, static_cast<int64_t>(longest), "plan");
  const std::vector<std::string> theirs = absl::StrSplit(texts[other], '\n'), first = absl::StrSplit(texts[0], '\n');
  size_t line = 0;
  while (line < theirs.size() && line < first.size() && theirs[line] == first[line]) ++line;
  const auto at = [line](const std::vector<std::string>& lines) {
    return line < lines.size() && !lines[line].empty() ? absl::StrCat("\"", lines[line], "\"")
                                                       : std::string("nothing more");
  };
  throw MismatchError(absl::StrCat("DistributedDataParallel: rank ", other, " has another plan than rank 0; line ",
                                   line + 1, " is ", at(theirs), " there, and ", at(first),
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
  check_device(parameter.device(), parameters_[i].name);  // the model may have been moved
  if (now.sent[i] || now.held[i].defined())
    throw Error(absl::StrCat(kWho, ": the gradient of ", parameters_[i].name,
                             " changed after it was sent; call finish() once per step, and put all but the last "
                             "backward of a step under no_sync()"));
  if (now.arrived[i]) return;  // several contributions before its bucket is full
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
  while (!listeners_.empty() && next_delivered_ < next_bucket_ && parcels_[next_delivered_].work.is_done())
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

int64_t DistributedDataParallel::tag_elements(const Bucket& bucket) const {
  return kTagElements + (options_.allow_unused ? static_cast<int64_t>(bucket.slots.size()) : 0);
}

void DistributedDataParallel::make_parcels() {
  loads_.clear();
  std::unordered_map<const TensorImpl*, size_t> position;
  for (size_t i = 0; i < parameters_.size(); ++i) position[parameters_[i].tensor.impl()] = i;
  parcels_.clear();
  buckets_of_.assign(parameters_.size(), {});
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    Parcel& parcel = parcels_.emplace_back();
    parcel.filled.resize(bucket.slots.size());
    parcel.waiting = bucket.slots.size();
    for (const BucketSlot& slot : bucket.slots) {
      const size_t i = position.at(slot.parameter.impl());
      parcel.parameters.push_back(i);
      buckets_of_[i].push_back(b);
    }
    if (bucket.taker != 0) {
      make_sharded(b);
      continue;
    }
    parcel.row = bucket.numel;
    parcel.averages = parcel.flat = Tensor::zeros({bucket.numel + tag_elements(bucket)}, {bucket.dtype, kCPU});
    for (const BucketSlot& slot : bucket.slots) {
      const Dims sizes = slot.whole() ? slot.parameter.sizes() : Dims{slot.numel};
      parcel.views.push_back(
          Tensor::from_storage(parcel.flat.storage(), slot.offset, sizes, contiguous_strides(sizes), bucket.dtype));
    }
  }
}

// See Note [Shards].
void DistributedDataParallel::make_sharded(size_t b) {
  const Bucket& bucket = plan_.buckets[b];
  Parcel& parcel = parcels_[b];
  loads_.resize(shards_.size());
  std::vector<int64_t>& load = loads_[bucket.taker - 1];
  load.resize(static_cast<size_t>(group_->world_size()));
  parcel.layout = lay_out_shards(bucket, load);
  parcel.row = parcel.layout->row;
  const int64_t all = parcel.row + tag_elements(bucket);
  parcel.flat = Tensor::zeros({group_->world_size(), all}, {bucket.dtype, kCPU});
  parcel.averages = Tensor::zeros({all}, {bucket.dtype, kCPU});
  for (const Tensor* made : {&parcel.flat, &parcel.averages}) made->storage().set_purpose(Purpose::kGradients);
}

// Each shards' buckets, once every rank has the order; then the averages of the step.
void DistributedDataParallel::hand_to_shards() {
  if (!learned_)
    for (size_t i = 0; i < shards_.size(); ++i) {
      std::vector<ShardedBucket> buckets;
      for (size_t b = 0; b < parcels_.size(); ++b)
        if (plan_.buckets[b].taker == i + 1)
          buckets.push_back({b, plan_.buckets[b], *parcels_[b].layout, parcels_[b].flat, parcels_[b].averages});
      shards_[i]->begin(std::move(buckets));
    }
  learned_ = true;
  for (size_t b = 0; b < parcels_.size(); ++b)
    if (const size_t taker = plan_.buckets[b].taker; taker != 0) shards_[taker - 1]->take(b, parcels_[b].there);
}

// Copies the gradient of a slot, zeros if there is none, to where it leaves from.
void DistributedDataParallel::fill(size_t b, size_t k, Tensor& grad) {
  const BucketSlot& slot = plan_.buckets[b].slots[k];
  Parcel& parcel = parcels_[b];
  if (!parcel.layout && slot.whole()) {
    Tensor& view = parcel.views[k];
    if (!grad.defined()) view.zero_();
    else if (!(grad.storage() == view.storage() && grad.storage_offset() == view.storage_offset())) view.copy_(grad);
    return;
  }
  if (grad.defined() && !grad.is_contiguous()) grad = grad.contiguous();
  const auto copy = [&](Tensor to, int64_t begin) {
    if (grad.defined()) to.copy_(grad.view({grad.numel()}).slice(0, {begin, begin + to.numel()}));
    else to.zero_();
  };
  if (!parcel.layout) return copy(parcel.views[k], slot.begin);
  for (const ShardSpan& span : parcel.layout->spans[k])
    copy(parcel.flat.select(0, span.rank).slice(0, {span.offset, span.offset + span.numel}), slot.begin + span.begin);
}

// Every rank sends every bucket, even one that lacks a gradient: otherwise the others would wait for it. finish() tells
// them all.
void DistributedDataParallel::send(size_t b) {
  const NoGrad off;
  const Bucket& bucket = plan_.buckets[b];
  Parcel& parcel = parcels_[b];
  if (learned_ && bucket.taker != 0 && shards_[bucket.taker - 1] != nullptr) shards_[bucket.taker - 1]->before_send(b);
  for (size_t k = 0; k < bucket.slots.size(); ++k) {
    const BucketSlot& slot = bucket.slots[k];
    const size_t i = parcel.parameters[k];
    Tensor parameter = slot.parameter;
    if (!arrivals_->arrived[i] && !arrivals_->sent[i]) {
      if (!options_.allow_unused) note(absl::StrCat("the gradient of ", slot.name, " did not arrive"));
      else if (!parameter.grad().defined()) unused_now_.push_back(slot.name);
    }
    // Taken with its first piece, so that no further backward before finish() can change what is sent.
    if (slot.begin == 0 && !arrivals_->held[i].defined()) arrivals_->held[i] = parameter.grad();
    if (slot.begin == 0) parameter.set_grad(Tensor());
    arrivals_->sent[i] = true;
    Tensor& grad = arrivals_->held[i];
    parcel.filled[k] = grad.defined();
    fill(b, k, grad);
    if (slot.last_piece()) grad = Tensor();  // frees what backward made
  }
  std::vector<double> tag = {tag_of(step_, b), group_->rank() + 1.0, trouble_.empty() ? 0.0 : 1.0};
  if (options_.allow_unused) tag.insert(tag.end(), parcel.filled.begin(), parcel.filled.end());
  const auto n = static_cast<int64_t>(tag.size());
  parcel.flat.view({parcel.flat.numel() / (parcel.row + n), parcel.row + n})
      .slice(1, {parcel.row})
      .copy_(Tensor::from(tag, {n}, kCPU));  // of each row
  const std::string name = absl::StrCat("bucket ", b, " of step ", step_);
  parcel.work = parcel.layout ? group_->reduce_scatter(parcel.averages, parcel.flat, ReduceOp::kAverage, name)
                              : group_->all_reduce(parcel.flat, ReduceOp::kAverage, name);
}

// Ends a bucket: its averages become gradients, and listeners are told.
void DistributedDataParallel::deliver(size_t b) {
  const NoGrad off;
  const Bucket& bucket = plan_.buckets[b];
  const Parcel& parcel = parcels_[b];
  parcels_[b].work.wait();
  if (!check_tag(b)) spoilt_ = true;
  if (spoilt_) return;
  std::vector<Tensor> final_ones;
  std::vector<bool> there = parcel.filled;
  if (options_.allow_unused) {
    const std::vector<double> flags = parcel.averages.slice(0, {parcel.row + kTagElements}).to_vector<double>();
    there.assign(flags.size(), false);
    for (size_t k = 0; k < flags.size(); ++k) there[k] = flags[k] > 0;
  }
  if (parcel.layout) {
    parcels_[b].there = std::move(there);
    return;
  }
  for (size_t k = 0; k < bucket.slots.size(); ++k) {
    const BucketSlot& slot = bucket.slots[k];
    if (!there[k]) continue;
    Tensor parameter = slot.parameter, average = parcel.views[k];
    if (!slot.whole()) {
      Tensor& all = arrivals_->assembled[parcel.parameters[k]];
      if (slot.begin == 0) all = Tensor::empty(parameter.sizes(), {parameter.dtype(), kCPU});
      all.view({all.numel()}).slice(0, {slot.begin, slot.begin + slot.numel}).copy_(average);
      if (!slot.last_piece()) continue;
      average = std::exchange(all, Tensor());
    }
    parameter.set_grad(parameter.dtype() == average.dtype() ? average : average.to(parameter.dtype()));
    final_ones.push_back(parameter);
  }
  for (const auto& [id, listener] : listeners_) listener(final_ones);
}

// See Note [Tags]. False if the average is of no use.
bool DistributedDataParallel::check_tag(size_t b) {
  const std::vector<double> tag = parcels_[b].averages.slice(0, {parcels_[b].row}).to_vector<double>();
  const double expected[] = {tag_of(step_, b), (group_->world_size() + 1) / 2.0};
  for (size_t i = 0; i < 2; ++i) {
    if (std::abs(tag[i] - expected[i]) <= 1e-5 * expected[i]) continue;
    note(absl::StrCat("the ", parcels_[b].layout ? "reduce-scatter" : "all-reduce", " of bucket ", b, " (",
                      plan_.buckets[b].slots[0].name, " and what follows) did not happen in this step"));
    return false;
  }
  return tag[2] == 0;
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
  if (!learned_) agree_on_order();
  while (next_bucket_ < parcels_.size()) send(next_bucket_++);
  while (next_delivered_ < parcels_.size()) deliver(next_delivered_++);
  check_no_stranger();
  const int64_t step = step_++;
  const std::string mine = std::exchange(trouble_, "");
  unused_ = std::exchange(unused_now_, {});
  next_bucket_ = next_delivered_ = 0;
  spoilt_ = false;
  arrivals_->start_over(parameters_.size());
  for (Parcel& parcel : parcels_) parcel.waiting = parcel.parameters.size();
  const std::vector<std::string> troubles = gather_texts(*group_, mine, kMaxSentence,
                                                         absl::StrCat("end of step ", step));
  for (size_t r = 0; r < troubles.size(); ++r)
    if (!troubles[r].empty())
      throw MismatchError(absl::StrCat("DistributedDataParallel, step ", step, ", rank ", r, ": ", troubles[r]));
  hand_to_shards();  // every gradient arrived on every rank
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(ddp) {
  if (ddp.arrivals_->local) throw Error("DistributedDataParallel::no_sync: there is one already");
  if (!ddp.arrivals_->order.empty())
    throw Error("DistributedDataParallel::no_sync: gradients are under way; call finish() before the next step");
  ddp.arrivals_->local = true;
}

DistributedDataParallel::NoSync::~NoSync() { ddp_.arrivals_->local = false; }

uint64_t DistributedDataParallel::check_parameters() {
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
