#include "rondo/dist/ddp.h"

#include <cmath>
#include <optional>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

constexpr const char* kWho = "DistributedDataParallel";

// Note [Tags]. Two elements at the end of a bucket prove that it was reduced, in this step, with the same bucket of
// every rank: `tag`, the same number on all ranks, and rank + 1. Their averages are known beforehand, and differ from
// what a rank itself wrote: a collective that silently did nothing, or met another one, is seen. Both sums are whole
// numbers below 2^24. A third one is 1 on a rank that cannot send what it should: by its average every rank leaves the
// same buckets alone.
constexpr int64_t kTagElements = 3;
constexpr int64_t kMaxSentence = 512;

double tag_of(int64_t step, size_t bucket) {
  io::Checksum sum;
  sum.update(&step, sizeof step);
  sum.update(&bucket, sizeof bucket);
  return static_cast<double>(1 + sum.digest() % 1023);
}

uint64_t hash_of(const Tensor& tensor) {
  const Tensor dense = tensor.is_contiguous() ? tensor : tensor.detach().contiguous();
  io::Checksum sum;
  sum.update(dense.raw_data(), static_cast<size_t>(dense.nbytes()));
  return sum.digest();
}

}  // namespace

struct DistributedDataParallel::Parcel {
  Tensor flat;                // the bucket's elements, then the tag
  std::vector<Tensor> views;  // of its slots, in the shape of the parameters
  std::vector<bool> filled;   // there was a gradient to send
  Work work;
};

struct DistributedDataParallel::Arrivals {
  bool local = false;                      // under no_sync
  std::vector<std::vector<bool>> arrived;  // by bucket and slot, in this step
  std::vector<bool> sent;
  std::vector<std::vector<int64_t>> hooks;
};

DistributedDataParallel::DistributedDataParallel(nn::ModuleBase& model, std::shared_ptr<ProcessGroup> group,
                                                 BucketOptions options)
    : model_(model), group_(std::move(group)), arrivals_(std::make_shared<Arrivals>()) {
  for (const Tensor& p : model.parameters())
    if (const char* other = autograd::gradient_claim(p, GradientClaim::kUsesUp); other != nullptr)
      throw Error(absl::StrCat(kWho, ": ", other,
                               " would use the gradients up before they are averaged; make it from this, after "
                               "wrapping the model: UpdateAtSeams(ddp, optimizer)"));
  seams_ = std::make_unique<compile::Seams>(model, [this](const compile::Seam& seam) { reach_seam(seam); });
  plan_ = plan_buckets(model, seams_->plan(), options);
  compare_plans();
  broadcast_state();
  const size_t n = plan_.buckets.size();
  for (size_t b = 0; b < n; ++b)
    for (const BucketSlot& slot : plan_.buckets[b].slots)
      if (const char* other = autograd::gradient_claim(slot.parameter, GradientClaim::kChanges); other != nullptr)
        throw Error(absl::StrCat(kWho, ": the gradients of this model are already averaged by ", other));
  for (size_t b = 0; b < n; ++b)
    for (const BucketSlot& slot : plan_.buckets[b].slots)
      autograd::claim_gradient(slot.parameter, GradientClaim::kChanges, kWho);
  arrivals_->sent.resize(n);
  arrivals_->arrived.resize(n);
  arrivals_->hooks.resize(n);
  for (size_t b = 0; b < n; ++b) {
    const Bucket& bucket = plan_.buckets[b];
    Parcel& parcel = parcels_.emplace_back();
    parcel.flat = Tensor::zeros({bucket.numel + kTagElements}, {bucket.dtype});
    arrivals_->arrived[b].resize(bucket.slots.size());
    parcel.filled.resize(bucket.slots.size());
    for (size_t i = 0; i < bucket.slots.size(); ++i) {
      const BucketSlot& slot = bucket.slots[i];
      const Dims& sizes = slot.parameter.sizes();
      parcel.views.push_back(
          Tensor::from_storage(parcel.flat.storage(), slot.offset, sizes, contiguous_strides(sizes), bucket.dtype));
      arrivals_->hooks[b].push_back(autograd::on_accumulated(
          slot.parameter, [arrivals = std::weak_ptr<Arrivals>(arrivals_), b, i, name = slot.name] {
            const std::shared_ptr<Arrivals> now = arrivals.lock();
            if (!now || now->local) return;
            if (now->sent[b] && now->arrived[b][i])
              throw Error(
                  absl::StrCat("DistributedDataParallel: the gradient of ", name,
                               " changed after it was sent; call finish() once per step, and put all but the last "
                               "backward of a step under no_sync()"));
            now->arrived[b][i] = true;
          }));
    }
  }
}

DistributedDataParallel::~DistributedDataParallel() {
  for (size_t b = 0; b < arrivals_->hooks.size(); ++b)
    for (size_t i = 0; i < arrivals_->hooks[b].size(); ++i) {
      autograd::remove_on_accumulated(plan_.buckets[b].slots[i].parameter, arrivals_->hooks[b][i]);
      autograd::unclaim_gradient(plan_.buckets[b].slots[i].parameter, GradientClaim::kChanges);
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
  if (next_bucket_ > 0)
    throw Error(absl::StrCat(kWho, ": gradients of this step are on their way; call finish() first"));
}

void DistributedDataParallel::compare_plans() {
  io::Checksum sum;
  sum.update(plan_.text);
  const std::string mine = absl::StrCat(sum.digest(), " ", plan_.text.size());
  const std::vector<std::string> hashes = gather_texts(*group_, mine, 64, "hash of the plan");
  size_t other = 1;
  while (other < hashes.size() && hashes[other] == hashes[0]) ++other;
  if (other >= hashes.size()) return;
  size_t longest = 0;
  for (const std::string& hash : hashes) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(hash, ' ');
    longest = std::max(longest, static_cast<size_t>(std::stoull(parts.second)));
  }
  const std::vector<std::string> texts = gather_texts(*group_, plan_.text, static_cast<int64_t>(longest), "plan");
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
  std::vector<nn::NamedTensor> all = model_.named_parameters();
  for (nn::NamedTensor& buffer : model_.named_buffers()) all.push_back(std::move(buffer));
  struct Sent {
    Tensor target, dense;
    Work work;
  };
  std::vector<Sent> sent;
  for (const nn::NamedTensor& t : all) {
    if (!t.tensor.defined()) continue;
    const Tensor dense = t.tensor.is_contiguous() ? t.tensor : t.tensor.contiguous();
    sent.push_back({t.tensor, dense, group_->broadcast(dense, 0, t.name)});
  }
  for (Sent& s : sent) {
    s.work.wait();
    if (!s.dense.is_same(s.target)) s.target.copy_(s.dense);
  }
}

void DistributedDataParallel::reach_seam(const compile::Seam& seam) {
  if (arrivals_->local) return;
  const size_t now = next_seam_++;
  while (next_bucket_ < plan_.buckets.size() && plan_.buckets[next_bucket_].seam == now)
    send(next_bucket_++, seam.complete);
  // What is there by now. Which seam finds it differs from run to run, what is done with it does not.
  while (!listeners_.empty() && next_delivered_ < next_bucket_ && parcels_[next_delivered_].work.is_done())
    deliver(next_delivered_++);
}

// Every rank sends every bucket, even one that lacks a gradient: else the others would wait for it in vain. finish()
// tells them all.
void DistributedDataParallel::send(size_t b, bool complete) {
  const NoGrad off;
  const Bucket& bucket = plan_.buckets[b];
  Parcel& parcel = parcels_[b];
  for (size_t i = 0; i < bucket.slots.size(); ++i) {
    Tensor parameter = bucket.slots[i].parameter;
    const Tensor grad = parameter.grad();
    Tensor& view = parcel.views[i];
    if (!complete && !arrivals_->arrived[b][i])
      note(absl::StrCat("the gradient of ", bucket.slots[i].name, " did not arrive"));
    parcel.filled[i] = grad.defined();
    if (!grad.defined()) view.zero_();
    else if (!(grad.storage() == view.storage() && grad.storage_offset() == view.storage_offset())) view.copy_(grad);
    // Frees what backward made. And a backward that should not be, before finish(), cannot write to what is under way.
    parameter.set_grad(Tensor());
  }
  Tensor tag = parcel.flat.slice(0, {bucket.numel});
  tag[0].fill_(tag_of(step_, b));
  tag[1].fill_(group_->rank() + 1);
  tag[2].fill_(trouble_.empty() ? 0 : 1);
  arrivals_->sent[b] = true;
  parcel.work = group_->all_reduce(parcel.flat, ReduceOp::kAverage, absl::StrCat("bucket ", b, " of step ", step_));
}

// Ends a bucket: its averages become gradients, and listeners hear of them.
void DistributedDataParallel::deliver(size_t b) {
  const NoGrad off;
  const Bucket& bucket = plan_.buckets[b];
  parcels_[b].work.wait();
  if (!check_tag(b)) spoilt_ = true;
  if (spoilt_) return;
  std::vector<Tensor> parameters;
  for (size_t i = 0; i < bucket.slots.size(); ++i) {
    if (!parcels_[b].filled[i]) continue;
    Tensor& parameter = parameters.emplace_back(bucket.slots[i].parameter);
    const Tensor& average = parcels_[b].views[i];
    parameter.set_grad(parameter.dtype() == average.dtype() ? average : average.to(parameter.dtype()));
  }
  for (const auto& [id, listener] : listeners_) listener(parameters);
}

// See Note [Tags]. False if the average is of no use.
bool DistributedDataParallel::check_tag(size_t b) {
  const std::vector<double> tag = parcels_[b].flat.slice(0, {plan_.buckets[b].numel}).to_vector<double>();
  const double expected[] = {tag_of(step_, b), (group_->world_size() + 1) / 2.0};
  for (size_t i = 0; i < 2; ++i) {
    if (std::abs(tag[i] - expected[i]) <= 1e-5 * expected[i]) continue;
    note(absl::StrCat("the all-reduce of bucket ", b, " (", plan_.buckets[b].slots[0].name,
                      " and what follows) did not happen in this step"));
    return false;
  }
  return tag[2] == 0;
}

void DistributedDataParallel::check_no_stranger() {
  std::unordered_set<const TensorImpl*> known;
  for (const Bucket& bucket : plan_.buckets)
    for (const BucketSlot& slot : bucket.slots) known.insert(slot.parameter.impl());
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
  const NoGrad off;
  seams_->finish();
  while (next_delivered_ < parcels_.size()) deliver(next_delivered_++);
  check_no_stranger();
  const int64_t step = step_++;
  const std::string mine = std::exchange(trouble_, "");
  next_seam_ = next_bucket_ = next_delivered_ = 0;
  spoilt_ = false;
  for (size_t b = 0; b < parcels_.size(); ++b) {
    arrivals_->sent[b] = false;
    arrivals_->arrived[b].assign(arrivals_->arrived[b].size(), false);
  }
  const std::vector<std::string> troubles = gather_texts(*group_, mine, kMaxSentence,
                                                         absl::StrCat("end of step ", step));
  for (size_t r = 0; r < troubles.size(); ++r)
    if (!troubles[r].empty())
      throw MismatchError(absl::StrCat("DistributedDataParallel, step ", step, ", rank ", r, ": ", troubles[r]));
}

DistributedDataParallel::NoSync::NoSync(DistributedDataParallel& ddp) : ddp_(ddp) {
  if (ddp.arrivals_->local) throw Error("DistributedDataParallel::no_sync: there is one already");
  if (ddp.next_bucket_ > 0)
    throw Error("DistributedDataParallel::no_sync: gradients are on their way; call finish() before the next step");
  ddp.arrivals_->local = true;
}

DistributedDataParallel::NoSync::~NoSync() {
  ddp_.seams_->finish();  // its callbacks do nothing yet; then it starts over
  ddp_.arrivals_->local = false;
}

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
  Tensor mine = Tensor::from(hashes, {n}), all = Tensor::zeros({group_->world_size(), n}, {kI64});
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
