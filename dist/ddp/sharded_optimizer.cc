#include "rondo/dist/ddp/sharded_optimizer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/ddp/parameter_gather.h"
#include "rondo/dist/ddp/sharded_state.h"
#include "rondo/optim/step.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::dist {
namespace {

constexpr const char* kSharded = "ShardedOptimizer";

// True if the update of an element depends on that element alone, so that a parameter can be cut anywhere.
bool is_elementwise(const optim::ParamSlot& slot) {
  const optim::UpdatePlan& plan = *slot.plan;
  const bool one_pass = plan.sweeps.size() == 1 && !plan.sweeps[0].prepare && !plan.sweeps[0].program &&
                        plan.sweeps[0].body.n_sums == 0;
  return one_pass && !plan.matrices && !plan.own_scalars && slot.init.format != optim::StateFormat::k8Bit &&
         std::all_of(plan.states.begin(), plan.states.end(),
                     [](const optim::StateSpec& s) { return s.layout == optim::Layout::kFull; });
}

// Returns elements of a parameter as a one-dimensional tensor that shares its memory.
Tensor line_of(const Tensor& parameter, int64_t begin, int64_t numel) {
  return Tensor::over(parameter.storage(), parameter.storage_offset() + begin, {numel}, {1}, parameter.dtype());
}

// Returns the leaf that the optimizer updates: it shares the parameter's memory, but has its own .grad. The parameter's
// .grad remains free for this rank's next backward.
Tensor leaf_of(const Tensor& parameter, const ShardPiece& piece) {
  Tensor leaf = piece.is_cut ? piece.home.detach() : parameter.detach();
  return leaf.requires_grad_();
}

// The hooks of an optimizer after its ShardedOptimizer is destroyed: a step throws, because the slots are still pieces.
class Gone final : public optim::ShardHooks {
 public:
  void before_step(bool) override { throw_gone(); }
  void sum_over_ranks(const Tensor&) override {}
  void after_step() override {}
  UpdateListener& listener() override { throw_gone(); }
  bool has_gradients() const override { return false; }
  optim::GradientSource& source() override { throw_gone(); }
  std::vector<size_t> slots_of(const Tensor&) const override { return {}; }
  void zero_grad(bool) override {}

 private:
  [[noreturn]] static void throw_gone() {
    throw Error(absl::StrCat(kSharded, ": it is gone, and the optimizer has only this rank's share of the states"));
  }
};

}  // namespace

class ShardedOptimizer::State final : public GradientShards, public optim::ShardHooks, public optim::GradientSource {
 public:
  State(DistributedDataParallel& ddp, optim::Optimizer& optimizer);
  ~State() override;

  // ---- Called by DistributedDataParallel
  bool takes(const Tensor& parameter) const override { return position_.contains(parameter.impl()); }
  bool needs_whole(const Tensor& parameter) const override { return needs_whole_[position_.at(parameter.impl())]; }
  std::string describe() const override {
    return absl::StrCat(optimizer_.name(), has_masters_ ? ", master weights" : "");
  }
  void begin(std::vector<ShardedBucket> buckets) override;
  void before_send(size_t bucket) override;
  bool takes_early() const override { return !listeners_.empty(); }
  void take(size_t bucket, const std::vector<bool>& has_average) override;

  // ---- Called by the optimizer's steps
  void before_step(bool allow_no_gradients) override;
  void sum_over_ranks(const Tensor& sum) override;
  void after_step() override;
  UpdateListener& listener() override { return ddp_; }
  bool has_gradients() const override;
  optim::GradientSource& source() override { return *this; }
  std::vector<size_t> slots_of(const Tensor& parameter) const override;

  // ---- Called by UpdateAtSeams. The gradient of a slot is final when the slot's bucket is taken.
  int64_t on_final(Listener listener) override;
  void remove_on_final(int64_t id) override;
  void check_finished() const override { ddp_.check_finished(); }
  void zero_grad(bool set_to_none) override;

  nn::StateDict whole_state(std::optional<int> only_on, absl::FunctionRef<bool(std::string_view)> wanted);
  std::vector<Tensor> averages();
  void load(const nn::StateDict& whole);
  std::vector<Tensor> copies();
  const optim::Optimizer& optimizer() const { return optimizer_; }
  int64_t elements() const;
  void wait();

 private:
  struct Taken {
    ShardedBucket bucket;
    size_t in_gather = 0;
    std::vector<std::vector<size_t>> slots;  // by slot of the bucket: the optimizer's slots, for this rank's pieces
    std::vector<size_t> pieces;              // by slot of the bucket: this rank's piece in the gather
    bool has_gradients = false;              // the same on every rank
  };
  // Calls fn while the optimizer has no shard hooks. With them, the optimizer's state_dict(), load_state_dict() and
  // copies() throw. Without them, they work on the slots of this rank.
  template <class Fn> auto directly(Fn fn) const {
    kept_.shards = nullptr;
    const absl::Cleanup again = [this] { kept_.shards = const_cast<State*>(this); };
    return fn();
  }
  void claim();
  void cut_slots();
  size_t add_slot(size_t parameter, const Taken* taken, size_t k);
  void add_to_gather(Taken& taken, DType dtype);
  Tensor source_of(size_t slot) const;
  void set_gradient(const Taken& taken, size_t slot, bool has_average);
  void follow(size_t slot);
  void load_masters(const nn::StateDict& cut);
  Taken& taken_at(size_t bucket);

  DistributedDataParallel& ddp_;
  optim::Optimizer& optimizer_;
  optim::OptimizerState& kept_;  // the optimizer's own state: its slots and options
  const std::shared_ptr<ProcessGroup> group_;
  std::vector<Tensor> parameters_, copies_;  // of the optimizer, from before its slots were cut
  std::vector<bool> needs_whole_;
  bool has_masters_ = false;                                // some group keeps master weights
  std::unordered_map<const TensorImpl*, size_t> position_;  // by parameter that DDP averages: its index in parameters_
  std::vector<optim::ParamSlot> before_;                    // the slots of whole parameters, while they are being cut
  std::vector<ShardPiece> pieces_;                          // by slot; empty: not cut yet
  std::vector<Taken> taken_;
  std::unordered_map<size_t, size_t> taken_of_;  // index in taken_, by the bucket's index in the plan
  std::unordered_map<size_t, Tensor> earlier_;   // by slot: its gradient from before the bucket was sent
  ParameterGather gather_;
  std::vector<Tensor> claimed_;
  std::vector<std::pair<int64_t, Listener>> listeners_;
  int64_t step_ = 0;  // the number of steps that have ended
};

ShardedOptimizer::State::State(DistributedDataParallel& ddp, optim::Optimizer& optimizer)
    : ddp_(ddp),
      optimizer_(optimizer),
      kept_(optim::Step::state_of(optimizer)),
      group_(ddp.shared_group()),
      gather_(group_) {
  if (kept_.shards != nullptr)
    throw Error(absl::StrCat(kSharded, ": this ", optimizer.name(), " has or had one already"));
  if (kept_.at_seams)
    throw Error(absl::StrCat(kSharded, ": an UpdateAtSeams makes the steps of this ", optimizer.name(),
                             "; make the ShardedOptimizer first, and UpdateAtSeams(ddp, optimizer) after it"));
  std::unordered_map<const TensorImpl*, bool> known;
  for (const Bucket& bucket : ddp.plan().buckets)
    for (const BucketSlot& slot : bucket.slots) known[slot.parameter.impl()] = true;
  for (size_t i = 0; i < kept_.slots.size(); ++i) {
    const optim::ParamSlot& slot = kept_.slots[i];
    parameters_.push_back(slot.param);
    needs_whole_.push_back(!is_elementwise(slot));
    has_masters_ = has_masters_ || slot.init.masters;
    if (known.contains(slot.param.impl())) position_[slot.param.impl()] = i;
    else if (slot.param.requires_grad())
      throw Error(absl::StrCat(kSharded, ": ", optim::slot_name(i), " of ", optimizer.name(),
                               " requires a gradient and is not a parameter of the model that DistributedDataParallel "
                               "has wrapped, so its gradients are not averaged"));
  }
  if (position_.empty())
    throw Error(absl::StrCat(kSharded, ": this ", optimizer.name(),
                             " has no parameter of the model that DistributedDataParallel has wrapped"));
  ddp_.add_shards(*this);
  absl::Cleanup undo = [this] { ddp_.remove_shards(*this); };
  claim();
  std::move(undo).Cancel();
  kept_.shards = this;
}

void ShardedOptimizer::State::claim() {
  absl::Cleanup undo = [this] {
    for (const Tensor& p : claimed_) autograd::unclaim_gradient(p, GradientClaim::kOptimizer);
  };
  for (const Tensor& p : parameters_)
    if (takes(p)) {
      autograd::claim_gradient(p, GradientClaim::kOptimizer, kSharded);
      claimed_.push_back(p);
    }
  std::move(undo).Cancel();
}

ShardedOptimizer::State::~State() {
  static Gone& gone = *new Gone;
  kept_.shards = pieces_.empty() ? nullptr : &gone;
  for (const Tensor& p : claimed_) autograd::unclaim_gradient(p, GradientClaim::kOptimizer);
  ddp_.remove_shards(*this);
}

// ---- The order of the gradients is known: the optimizer's slots become pieces

void ShardedOptimizer::State::begin(std::vector<ShardedBucket> buckets) {
  const NoGrad off;
  invariant(pieces_.empty(), "an optimizer is sharded twice");
  const nn::StateDict whole = directly([&] { return optimizer_.state_dict(); });
  for (ShardedBucket& bucket : buckets) {
    taken_of_[bucket.index] = taken_.size();
    Taken& taken = taken_.emplace_back();
    taken.bucket = std::move(bucket);
    taken.slots.resize(taken.bucket.bucket.slots.size());
    taken.pieces.resize(taken.bucket.bucket.slots.size(), SIZE_MAX);
  }
  cut_slots();
  for (Taken& taken : taken_) {
    // A bucket's parameters travel in one dtype: their own if they agree, otherwise f32, which holds each of them.
    DType dtype = taken.bucket.bucket.slots[0].parameter.dtype();
    for (const BucketSlot& slot : taken.bucket.bucket.slots)
      if (slot.parameter.dtype() != dtype) dtype = kF32;  // f64 parameters have buckets of their own
    add_to_gather(taken, dtype);
  }
  load(whole);
}

void ShardedOptimizer::State::cut_slots() {
  before_ = std::exchange(kept_.slots, {});
  std::unordered_map<const TensorImpl*, std::vector<std::pair<size_t, size_t>>> places;  // in the order of elements
  for (size_t t = 0; t < taken_.size(); ++t)
    for (size_t k = 0; k < taken_[t].slots.size(); ++k)
      places[taken_[t].bucket.bucket.slots[k].parameter.impl()].emplace_back(t, k);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    copies_.push_back(before_[i].copy);
    gather_.add_parameter(parameters_[i], before_[i].copy);
    if (!takes(parameters_[i])) add_slot(i, nullptr, 0);
    else
      for (const auto& [t, k] : places.at(parameters_[i].impl()))
        taken_[t].slots[k].push_back(add_slot(i, &taken_[t], k));
  }
  before_.clear();
  kept_.signatures.clear();
}

// Adds a slot to the optimizer: parameter i, or this rank's part of the k-th slot of a bucket.
size_t ShardedOptimizer::State::add_slot(size_t i, const Taken* taken, size_t k) {
  const Tensor& parameter = parameters_[i];
  optim::ParamSlot& slot = kept_.slots.emplace_back(before_[i]);
  ShardPiece& piece = pieces_.emplace_back();
  piece.parameter = i;
  slot.signature = -1;
  slot.fits = std::nullopt;
  slot.copy = Tensor();
  if (taken == nullptr) return pieces_.size() - 1;
  slot.state = {};
  slot.drop_master();
  slot.average = Tensor();
  slot.average_data = nullptr;
  slot.average_moved = false;
  slot.average_copied = {};
  piece.bucket = static_cast<size_t>(taken - taken_.data());
  piece.slot_in_bucket = k;
  piece.is_cut = !needs_whole_[i];
  piece.is_mine = false;
  piece.begin = taken->bucket.bucket.slots[k].begin;
  for (const ShardSpan& span : taken->bucket.layout.spans[k])
    if (span.rank == group_->rank()) {
      piece.begin += span.begin;
      piece.numel = span.numel;
      piece.offset = span.offset;
      piece.is_mine = true;
    }
  piece.home = line_of(parameter, piece.begin, piece.numel);
  if (!piece.is_cut && !piece.is_mine) {
    slot.param = Tensor::empty({0}, {parameter.dtype(), parameter.device()});  // holds the place, never has a gradient
    return pieces_.size() - 1;
  }
  piece.has_master = slot.wants_master();
  slot.param = leaf_of(parameter, piece);
  if (piece.has_master) {
    slot.param = slot.param.detach().to(kF32).requires_grad_();
    slot.param.storage().set_purpose(Purpose::kStates);
  }
  return pieces_.size() - 1;
}

// Returns this rank's values of a slot, one-dimensional.
Tensor ShardedOptimizer::State::source_of(size_t slot) const {
  const ShardPiece& piece = pieces_[slot];
  if (!piece.has_master) return piece.home;
  return kept_.slots[slot].param.detach().view({piece.numel});
}

void ShardedOptimizer::State::add_to_gather(Taken& taken, DType dtype) {
  std::vector<ParameterGather::Piece> list;
  for (size_t k = 0; k < taken.slots.size(); ++k) {
    const BucketSlot& slot = taken.bucket.bucket.slots[k];
    const size_t i = position_.at(slot.parameter.impl());
    for (const ShardSpan& span : taken.bucket.layout.spans[k]) {
      Tensor source;
      if (span.rank == group_->rank()) {
        taken.pieces[k] = list.size();
        source = source_of(taken.slots[k].front());
      }
      list.push_back({i, slot.begin + span.begin, span.numel, span.rank, span.offset, source});
    }
  }
  // Updated parameters are sent from the memory that held the gradients, unless their dtype is wider than the
  // gradients'.
  const int64_t row = taken.bucket.layout.row;
  const Tensor& sent = taken.bucket.sent;
  const bool fits = size_of(dtype) <= size_of(sent.dtype());
  const Tensor memory = fits ? sent : Tensor::empty({group_->world_size(), row}, {dtype, sent.device()});
  taken.in_gather = gather_.add_bucket(std::move(list), memory, row, dtype);
}

// ---- Gradients

ShardedOptimizer::State::Taken& ShardedOptimizer::State::taken_at(size_t bucket) {
  return taken_[taken_of_.at(bucket)];
}

void ShardedOptimizer::State::before_send(size_t bucket) {
  Taken& taken = taken_at(bucket);
  gather_.wait(taken.in_gather);
  taken.has_gradients = false;
  const NoGrad off;
  for (const std::vector<size_t>& slots : taken.slots)
    for (const size_t slot : slots) {
      Tensor& param = kept_.slots[slot].param;
      earlier_[slot] = param.grad().defined() ? param.grad().clone() : Tensor();  // .grad is a view of the averages
      param.set_grad(Tensor());
    }
}

void ShardedOptimizer::State::take(size_t bucket, const std::vector<bool>& has_average) {
  Taken& taken = taken_at(bucket);
  for (size_t k = 0; k < taken.slots.size(); ++k)
    for (const size_t slot : taken.slots[k]) set_gradient(taken, slot, has_average[k]);
  const auto has_gradient = [this](size_t slot) { return kept_.slots[slot].param.grad().defined(); };
  taken.has_gradients = std::find(has_average.begin(), has_average.end(), true) != has_average.end();
  for (const std::vector<size_t>& slots : taken.slots)
    taken.has_gradients = taken.has_gradients || std::any_of(slots.begin(), slots.end(), has_gradient);
  if (listeners_.empty()) return;
  const NoGrad off;
  std::vector<Tensor> final_ones;
  for (const std::vector<size_t>& slots : taken.slots)
    for (const size_t slot : slots) {
      follow(slot);
      if (has_gradient(slot)) final_ones.push_back(kept_.slots[slot].param);
    }
  for (const auto& [id, listener] : listeners_) listener(final_ones);
}

int64_t ShardedOptimizer::State::on_final(Listener listener) {
  const int64_t id = listeners_.empty() ? 1 : listeners_.back().first + 1;
  listeners_.emplace_back(id, std::move(listener));
  return id;
}
void ShardedOptimizer::State::remove_on_final(int64_t id) {
  std::erase_if(listeners_, [id](const auto& listener) { return listener.first == id; });
}

bool ShardedOptimizer::State::has_gradients() const {
  return std::any_of(taken_.begin(), taken_.end(), [](const Taken& t) { return t.has_gradients; });
}

std::vector<size_t> ShardedOptimizer::State::slots_of(const Tensor& parameter) const {
  std::vector<size_t> slots;
  for (size_t slot = 0; slot < pieces_.size(); ++slot)
    if (parameters_[pieces_[slot].parameter].is_same(parameter) && pieces_[slot].is_mine) slots.push_back(slot);
  return slots;
}

// Sets the slot's gradient to the average. If the slot has a gradient already, adds the average to it, as the tape
// does.
void ShardedOptimizer::State::set_gradient(const Taken& taken, size_t slot, bool has_average) {
  const NoGrad off;
  const ShardPiece& piece = pieces_[slot];
  Tensor& param = kept_.slots[slot].param;
  const Tensor earlier = std::exchange(earlier_[slot], Tensor());
  if (!has_average || (!piece.is_cut && !piece.is_mine)) return param.set_grad(earlier);
  Tensor average = taken.bucket.averages.slice(0, {piece.offset, piece.offset + piece.numel}).view(param.sizes());
  if (average.dtype() != param.dtype()) average = average.to(param.dtype());
  if (earlier.defined()) average.add_(earlier);
  param.set_grad(average);
}

void ShardedOptimizer::State::zero_grad(bool set_to_none) {
  for (const Tensor& p : claimed_) Tensor(p).zero_grad(set_to_none);
  if (set_to_none)
    for (Taken& taken : taken_) taken.has_gradients = false;
}

// ---- Steps

// Waits for the parameters under way, then throws if the group has failed. The wait comes first because the error of
// the gather says which collective failed.
void ShardedOptimizer::State::wait() {
  gather_.wait();
  group_->check_usable(kSharded);
}

void ShardedOptimizer::State::before_step(bool allow_no_gradients) {
  if (!group_->failure().empty()) wait();  // throws the group's error
  ddp_.check_finished();
  if (pieces_.empty())
    throw Error(absl::StrCat(optimizer_.name(),
                             ": there was no gradient yet; call backward() and "
                             "DistributedDataParallel::finish() before step()"));
  if (!has_gradients() && !allow_no_gradients) optim::Step::throw_no_gradients(optimizer_);
  wait();
  const NoGrad off;
  for (size_t slot = 0; slot < pieces_.size(); ++slot)
    if (pieces_[slot].bucket) follow(slot);
}

// Brings a slot up to date if the model was loaded since the last step, and has other values or other memory.
void ShardedOptimizer::State::follow(size_t slot) {
  ShardPiece& piece = pieces_[slot];
  const Tensor& parameter = parameters_[piece.parameter];
  Tensor& param = kept_.slots[slot].param;
  if (parameter.dtype() != piece.home.dtype() || !(parameter.device() == piece.home.device()) ||
      !parameter.is_contiguous())
    throw Error(absl::StrCat(kSharded, ": ", optim::slot_name(piece.parameter), " of ", optimizer_.name(), " was ",
                             std::string(name_of(piece.home.dtype())), " on ", to_string(piece.home.device()),
                             " and is ", std::string(name_of(parameter.dtype())), " on ", to_string(parameter.device()),
                             "; convert or move the model before the first step"));
  if (!(parameter.storage() == piece.home.storage()) ||
      parameter.storage_offset() + piece.begin != piece.home.storage_offset()) {
    piece.home = line_of(parameter, piece.begin, piece.numel);
    if (!piece.has_master && (piece.is_cut || piece.is_mine)) {
      const Tensor grad = param.grad();
      param = leaf_of(parameter, piece);
      param.set_grad(grad);
    }
    const Taken& taken = taken_[*piece.bucket];
    if (taken.pieces[piece.slot_in_bucket] != SIZE_MAX)
      gather_.set_source(taken.in_gather, taken.pieces[piece.slot_in_bucket], source_of(slot));
  }
  if (!piece.has_master || (!piece.is_unsure && gather_.landed(piece.parameter) == optim::Contents::of(parameter)))
    return;
  piece.is_unsure = false;
  // An element that equals its rounded master weight keeps this master weight. All others get the parameter's value.
  const Tensor master = param.detach().view({piece.numel});
  Tensor(master).copy_(ops::where(master.to(piece.home.dtype()) == piece.home, master, piece.home.to(kF32)));
}

void ShardedOptimizer::State::sum_over_ranks(const Tensor& sum) {
  group_->all_reduce(sum, ReduceOp::kSum, absl::StrCat("squared norm of step ", step_ + 1)).wait();
}

// Sends the updated parameters. Starts with the last bucket, because the next forward uses its parameters first.
void ShardedOptimizer::State::after_step() {
  ++step_;
  for (size_t t = taken_.size(); t-- > 0;)
    if (taken_[t].has_gradients)
      gather_.start(taken_[t].in_gather,
                    absl::StrCat("parameters of bucket ", taken_[t].bucket.index, " after step ", step_));
}

// ---- States

nn::StateDict ShardedOptimizer::State::whole_state(std::optional<int> only_on,
                                                   absl::FunctionRef<bool(std::string_view)> wanted) {
  if (only_on && (*only_on < 0 || *only_on >= group_->world_size()))
    throw Error(absl::StrCat(kSharded, "::state_dict: there is no rank ", *only_on));
  wait();
  nn::StateDict local = directly([&] { return optimizer_.state_dict(); });
  if (pieces_.empty()) {
    if (only_on && *only_on != group_->rank()) local.clear();
    return local;
  }
  for (size_t slot = 0; slot < pieces_.size(); ++slot)
    if (pieces_[slot].has_master && kept_.slots[slot].state.exists())
      local[absl::StrCat("state.", slot, ".master")] = kept_.slots[slot].param.detach();
  nn::StateDict whole = gather_state(*group_, parameters_, pieces_, local, only_on, wanted);
  wait();  // a collective of the device may have failed after it was enqueued
  return whole;
}

std::vector<Tensor> ShardedOptimizer::State::averages() {
  if (!kept_.averaging)
    throw Error(absl::StrCat(kSharded, "::averages: call ", optimizer_.name(), "::track_average() first"));
  wait();
  const nn::StateDict state = whole_state(std::nullopt, [](std::string_view name) { return name == "average"; });
  std::vector<Tensor> list;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto found = state.find(absl::StrCat("state.", i, ".average"));
    list.push_back(found == state.end() ? parameters_[i].detach() : found->second.to(parameters_[i].device()));
  }
  return list;
}

void ShardedOptimizer::State::load(const nn::StateDict& whole) {
  if (pieces_.empty()) {
    directly([&] { optimizer_.load_state_dict(whole); });
    return;
  }
  wait();
  const nn::StateDict cut = cut_state(optimizer_.name(), parameters_, pieces_, kept_.slots, whole);
  directly([&] { optimizer_.load_state_dict(cut); });
  load_masters(cut);
  kept_.states_loaded = false;  // the ranks compare facts of the whole states, because their pieces differ
  kept_.loaded_facts = optim::Step::facts_of_states(optimizer_.name(), whole);
}

// Sets the master weights from the loaded state, or from the parameters if the state has no master weights.
void ShardedOptimizer::State::load_masters(const nn::StateDict& cut) {
  const NoGrad off;
  for (size_t slot = 0; slot < pieces_.size(); ++slot) {
    ShardPiece& piece = pieces_[slot];
    if (!piece.has_master) continue;
    const auto given = cut.find(absl::StrCat("state.", slot, ".master"));
    const Tensor& values = given == cut.end() ? piece.home : given->second;
    if (given == cut.end() && kept_.slots[slot].state.exists()) optim::Step::say_no_masters(optimizer_);
    Tensor master = kept_.slots[slot].param.detach().view({piece.numel});
    master.copy_(values.contiguous().view({piece.numel}).to(master.device()));
    piece.is_unsure = true;  // the model may be loaded later; follow() checks
  }
}

std::vector<Tensor> ShardedOptimizer::State::copies() {
  if (pieces_.empty()) return directly([&] { return optimizer_.copies(); });
  return copies_;
}

int64_t ShardedOptimizer::State::elements() const {
  int64_t sum = 0;
  for (const ShardPiece& piece : pieces_) sum += piece.bucket && piece.is_mine ? piece.numel : 0;
  return sum;
}

// ---- The public class: each function calls State

ShardedOptimizer::ShardedOptimizer(DistributedDataParallel& ddp, optim::Optimizer& optimizer)
    : state_(std::make_shared<State>(ddp, optimizer)) {}
ShardedOptimizer::~ShardedOptimizer() = default;

void ShardedOptimizer::wait() { state_->wait(); }
nn::StateDict ShardedOptimizer::state_dict(std::optional<int> only_on) {
  return state_->whole_state(only_on, [](std::string_view) { return true; });
}
std::vector<Tensor> ShardedOptimizer::averages() { return state_->averages(); }
void ShardedOptimizer::load_state_dict(const nn::StateDict& state) { state_->load(state); }
std::vector<Tensor> ShardedOptimizer::copies() const { return state_->copies(); }
const optim::Optimizer& ShardedOptimizer::optimizer() const { return state_->optimizer(); }
int64_t ShardedOptimizer::elements() const { return state_->elements(); }

}  // namespace rondo::dist
