// Ends a step of DistributedDataParallel.
#include <algorithm>
#include <exception>
#include <optional>
#include <unordered_set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/ddp/arrivals.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/parcel.h"
#include "rondo/dist/ddp/row_parcel.h"
#include "rondo/dist/ddp/shared_buffers.h"
#include "rondo/dist/groups/agreement.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

constexpr int64_t kMaxFacts = 1 << 24;

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

uint64_t hash_of(const Tensor& tensor) {
  const Tensor dense = tensor.detach().contiguous().to(kCPU);
  io::Checksum sum;
  sum.update(dense.raw_data(), static_cast<size_t>(dense.nbytes()));
  return sum.digest();
}

}  // namespace

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

// Host memory: as is_usable(), for rows.
void DistributedDataParallel::check_rows() {
  for (const size_t i : in_two_parts_) {
    rows_[i]->wait();
    if (!rows_[i]->has_come(tag_of_rows(i)))
      note(absl::StrCat("the all-gather of rows of ", parameters_[i].name, " did not happen in this step"));
  }
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
  while (next_rows_ < in_two_parts_.size()) send_rows(next_rows_++);
  const auto deliver_all = [this] {
    while (next_delivered_ < parcels_.size()) deliver(next_delivered_++);
  };
  // What listens fails: the others must not wait for the exchange. Memory may be there the next time.
  std::exception_ptr failed;
  if (!late_) {
    try {
      deliver_all();
    } catch (const OutOfMemoryError&) {
      throw;
    } catch (const std::exception& error) {
      failed = std::current_exception();
      note(absl::StrCat("what uses the gradients failed: ", error.what()));
    }
    check_rows();
  }
  check_no_stranger();
  const int64_t step = step_++;
  const absl::Cleanup over = [this] { start_over(); };
  const std::vector<std::string> troubles = exchange_end_of_step(step);
  for (size_t r = 0; r < troubles.size(); ++r) {
    if (troubles[r].empty()) continue;
    // The next step writes into the buckets: after the all-reduces of this one.
    for (; next_delivered_ < parcels_.size(); ++next_delivered_) parcels_[next_delivered_].work.wait();
    for (const size_t i : in_two_parts_) rows_[i]->wait();
    if (failed) std::rethrow_exception(failed);
    throw MismatchError(absl::StrCat(kDdp, ", step ", step, ", rank ", r, ": ", troubles[r]));
  }
  const bool first = !std::exchange(learned_, true);  // every gradient arrived on every rank
  deliver_all();
  deliver_second_parts();
  buffers_->share(*group_, step);
  hand_to_shards(first);
  for (size_t i = 0; i < parameters_.size() && options_.allow_unused; ++i) set_claim(i, arrivals_->delivered[i]);
}

// An optimizer takes a claimed parameter without a gradient for one whose finish() was forgotten. So a parameter that
// no rank has used is not claimed until it gets a gradient again.
void DistributedDataParallel::set_claim(size_t i, bool claims) {
  if (claimed_[i] == claims) return;
  if (claims) autograd::claim_gradient(parameters_[i].tensor, GradientClaim::kChanges, kDdp, this);
  else autograd::unclaim_gradient(parameters_[i].tensor, GradientClaim::kChanges);
  claimed_[i] = claims;
}

// What is wrong on each rank, in one exchange. Before it the ranks say: a hash of the updates that optimizers have made
// since the exchange before; what their second parts are (RowParcel::news); on a device with allow_unused, slot by
// slot, what they have a gradient for: four slots in a character. On a device they compare what they have issued, too.
std::vector<std::string> DistributedDataParallel::exchange_end_of_step(int64_t step) {
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
  for (const size_t i : in_two_parts_) text += rows_[i]->news();
  const size_t flags_at = text.size();
  for (const int f : flags) text += static_cast<char>('A' + f);
  const size_t head = text.size();
  text += std::exchange(trouble_, "").substr(0, kMaxSentence);
  std::vector<std::string> texts = group_->check_sequence(text, absl::StrCat("end of step ", step),
                                                          static_cast<int64_t>(head));
  for (size_t p = 0; p < in_two_parts_.size(); ++p) {
    std::vector<std::string> heard;
    for (const std::string& other : texts)
      heard.push_back(other.substr(sizeof hash + p * RowParcel::kNewsBytes, RowParcel::kNewsBytes));
    rows_[in_two_parts_[p]]->hear(heard);
  }
  for (const std::string& other : texts)
    for (size_t i = 0; i < flags.size(); ++i) flags[i] |= other.at(flags_at + i) - 'A';
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
  next_bucket_ = next_rows_ = next_delivered_ = 0;
  spoilt_ = false;
  arrivals_->start_over(parameters_.size());
  if (!learned_) watch_uses();
  for (const size_t i : in_two_parts_) rows_[i]->start_over();
  for (Parcel& parcel : parcels_) {
    parcel.waiting = parcel.parameters().size();
    parcel.is_taken = false;
    for (size_t k = 0; k < parcel.parameters().size(); ++k) homes_[parcel.parameters()[k]]->set(parcel.home(k));
  }
}

// With allow_unused, finish() itself sends zeros.
void DistributedDataParallel::finish_with_zeros() {
  if (!arrivals_->order.empty())
    throw Error(absl::StrCat(kDdp, "::finish_with_zeros: there was a backward in this step; call finish()"));
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
