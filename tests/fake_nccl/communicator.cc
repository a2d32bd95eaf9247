#include "rondo/tests/fake_nccl/communicator.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

extern "C" rondo::cuda::Result cuDeviceGetPCIBusId(char* bus, int length, int device);

namespace rondo::fake_nccl {
namespace {

using fake_cuda::fake;
using Clock = std::chrono::steady_clock;

std::string bus_of(int device) {
  char bus[16] = "";
  cuDeviceGetPCIBusId(bus, sizeof bus, device);
  return bus;
}

uint64_t mixed(uint64_t value) {
  value = (value ^ value >> 31) * 0x9E3779B97F4A7C15u;
  return value ^ value >> 29;
}

const void* offset(const void* address, size_t bytes) { return static_cast<const std::byte*>(address) + bytes; }

}  // namespace

Communicator::Communicator(cuda::OpaqueContext* context, int ranks, int rank, bool blocking)
    : context_(context),
      ranks_(ranks),
      rank_(rank),
      blocking_(blocking),
      comes_up_in_(blocking ? 0 : 1 + static_cast<int>(fake().random() % 4)) {
  // The library works in the device's primary context, and keeps it.
  fake().counted.contexts += context_->retained++ == 0;
  ++fake().counted.communicators;
}

void Communicator::fail(Status error, const std::string& what) {
  if (error_ != Status::kSuccess) return;
  error_ = error;
  last_error_ = what;
}

// ---- Coming up

void Communicator::join(const MeetingPlace& place) {
  if (!passes_fault(kInit, &late_until_)) {
    place_ = place;  // it is tried again whenever time passes
    return;
  }
  place_.reset();
  std::string why;
  clique_ = Clique::join(place, ranks_, rank_, bus_of(device()), &why);
  if (clique_ == nullptr) fail(Status::kSystemError, why);
}

bool Communicator::passes_fault(int64_t number, std::optional<Clock::time_point>* late_until) {
  const Fault* fault = Communicators::instance().behaviour().find(rank_, number);
  if (fault == nullptr) return true;
  switch (fault->what) {
    case Fault::What::kOther: return true;
    case Fault::What::kStall: return false;
    case Fault::What::kDie: kill(getpid(), SIGKILL); return false;
    case Fault::What::kError: fail(static_cast<Status>(fault->value), "as RONDO_FAKE_NCCL says"); return false;
    case Fault::What::kLate:
      if (!late_until->has_value()) *late_until = Clock::now() + std::chrono::milliseconds(fault->value);
      return Clock::now() >= **late_until;
  }
  return true;
}

void Communicator::come_up() {
  if (up_ || error_ != Status::kSuccess || life_ == Life::kAborted) return;
  if (split_.has_value()) advance_split();
  if (place_.has_value()) join(*place_);
  if (clique_ == nullptr || !clique_->all_joined()) return;
  for (int a = 0; a < ranks_; ++a)
    for (int b = 0; b < a; ++b)
      if (std::strcmp(clique_->seat(a).bus, clique_->seat(b).bus) == 0)
        return fail(Status::kInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(b) + " and rank " +
                                               std::to_string(a) + " both on CUDA device " + clique_->seat(a).bus);
  if (comes_up_in_-- > 0) return;
  up_ = true;
  for (int rank = 0; rank < ranks_; ++rank)
    if (!clique_->is_of_this_process(rank)) fake().run_in_background();
}

Collective Communicator::as_issued(Collective collective, int64_t number) const {
  const Fault* fault = Communicators::instance().behaviour().find(rank_, number);
  if (fault == nullptr || fault->what != Fault::What::kOther) return collective;
  switch (collective.kind) {
    case Kind::kBroadcast: collective.root = (collective.root + 1) % ranks_; break;
    case Kind::kAllGather: collective.kind = Kind::kAllReduce; break;
    default: collective.reduction = Reduction::kMax;
  }
  return collective;
}

uint64_t Communicator::say_color(int color, int key) {
  Seat& seat = clique_->own();
  const uint64_t number = seat.splits;
  Split& split = seat.split[number % 2];
  split.color = color;
  split.key = key;
  seat.splits = number + 1;
  return number;
}

void Communicator::join_split(Communicator& parent, uint64_t split, int color) {
  split_ = {&parent, split, color};
  parent.child_ = this;
}

// The ranks of one color, by key and then by their rank in the parent. The first of them makes the meeting place.
void Communicator::advance_split() {
  const auto [parent, number, color] = *split_;
  Clique& old = *parent->clique_;
  for (int rank = 0; rank < old.ranks(); ++rank)
    if (old.seat(rank).splits <= number) return;
  std::vector<int> members;
  for (int rank = 0; rank < old.ranks(); ++rank)
    if (old.seat(rank).split[number % 2].color == color) members.push_back(rank);
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return old.seat(a).split[number % 2].key < old.seat(b).split[number % 2].key; });
  ranks_ = static_cast<int>(members.size());
  rank_ = static_cast<int>(std::find(members.begin(), members.end(), old.rank()) - members.begin());
  Split& first = old.seat(members[0]).split[number % 2];
  if (rank_ == 0 && first.placed != number + 1) {
    first.place = Clique::make_place();
    first.placed = number + 1;
  }
  if (first.placed != number + 1) return;
  place_ = first.place;
  split_.reset();
}

Status Communicator::state_now() const {
  if (error_ != Status::kSuccess) return error_;
  if (!up_ || !waiting_.empty()) return Status::kInProgress;
  if (child_ != nullptr && child_->life_ == Life::kInUse && child_->state_now() == Status::kInProgress)
    return Status::kInProgress;  // [manual] ncclCommSplit: the parent may not be used meanwhile
  if (life_ == Life::kFinalized && !is_quiet()) return Status::kInProgress;
  return Status::kSuccess;
}

Status Communicator::state() {
  come_up();
  if (child_ != nullptr) child_->come_up();
  if (child_ != nullptr && child_->up_) child_ = nullptr;
  if (!waiting_.empty() && calls_reach_in_-- <= 0)
    for (const Call& call : std::exchange(waiting_, {})) push(call);
  return state_now();
}

bool Communicator::is_quiet() const {
  if (!waiting_.empty() || ended_ < issued_) return false;
  for (int rank = 0; rank < ranks_; ++rank)
    if (clique_ != nullptr && !clique_->is_of_this_process(rank) && clique_->seat(rank).finalized == 0) return false;
  return true;
}

// ---- The end

void Communicator::finalize() {
  life_ = Life::kFinalized;
  if (clique_ != nullptr) clique_->own().finalized = 1;
}

void Communicator::leave(Life life) {
  if (life_ == Life::kDestroyed || life_ == Life::kAborted) return;
  life_ = life;
  waiting_.clear();
  --fake().counted.communicators;
  if (--context_->retained > 0) return;
  --fake().counted.contexts;
  fake().release_context(*context_);
}
void Communicator::destroy() {
  if (clique_ != nullptr) clique_->own().finalized = 1;
  leave(Life::kDestroyed);
}
void Communicator::abort() {
  if (clique_ != nullptr) clique_->own().aborted = 1;
  leave(Life::kAborted);
}

// ---- Collectives

std::string Communicator::misuse_of(const Call& call) const {
  const Collective& c = call.collective;
  const size_t send_bytes = c.send_bytes(ranks_), receive_bytes = c.receive_bytes(ranks_);
  if (call.stream->context != context_)
    return "the stream is of " + fake().name_of(*call.stream->context) + ", and the communicator of " +
           fake().name_of(*context_);
  const auto on_device = [&](const void* data, const char* what) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    if (!fake().memory->contains(address)) return std::string(what) + " is no device memory";
    if (fake().memory->device_of(address) != device())
      return std::string(what) + " is memory of device " + std::to_string(fake().memory->device_of(address)) +
             ", and the communicator is of " + fake().name_of(*context_);
    if (address % element_bytes(c.dtype) != 0) return std::string(what) + " is not aligned to its type";
    return std::string();
  };
  std::string wrong = on_device(call.receive, "the receive buffer");
  if (!c.reads(rank_) || !wrong.empty()) return wrong;
  wrong = on_device(call.send, "the send buffer");
  if (!wrong.empty()) return wrong;
  // "In-place Operations" of the manual; other overlaps are undefined.
  const void* const in_place = c.kind == Kind::kReduceScatter
                                   ? offset(call.send, static_cast<size_t>(rank_) * receive_bytes)
                                   : call.send;
  const void* const lands = c.kind == Kind::kAllGather ? offset(call.receive, static_cast<size_t>(rank_) * send_bytes)
                                                       : call.receive;
  const auto send = reinterpret_cast<uintptr_t>(call.send), receive = reinterpret_cast<uintptr_t>(call.receive);
  if (in_place != lands && send < receive + receive_bytes && receive < send + send_bytes)
    return "the two buffers overlap without being in place";
  return "";
}

Status Communicator::enqueue(const std::vector<Call>& calls) {
  if (blocking_) {
    for (const Call& call : calls)
      if (const Status status = push(call); status != Status::kSuccess) return status;
    return Status::kSuccess;
  }
  // A thread of the library launches them: until the state says so, the streams may or may not have them.
  waiting_.insert(waiting_.end(), calls.begin(), calls.end());
  calls_reach_in_ = static_cast<int>(fake().random() % 4) - 1;
  return calls_reach_in_ < 0 ? state() : Status::kInProgress;
}

Status Communicator::push(const Call& call) {
  if (!call.stream->alive) {
    static_cast<void>(fake().misuse(cuda::Result::kInvalidHandle,
                                    "the stream was destroyed before the call's kernel "
                                    "was launched: nothing waited for ncclSuccess"));
    return Status::kUnhandledCudaError;
  }
  const Collective& c = call.collective;
  const auto operation = std::make_shared<Operation>();
  operation->call = call;
  operation->number = issued_++;
  operation->process_wide = Communicators::instance().next_collective();
  operation->call.collective = as_issued(c, operation->process_wide);
  if (!c.reads(rank_)) operation->call.send = call.receive;  // if it is another root
  // A root may end before others have begun: its data lies in buffers of the library then.
  operation->ends_early = c.kind == Kind::kBroadcast && rank_ == c.root && fake().random() % 2 == 0;
  const size_t received = c.receive_bytes(ranks_);
  std::vector<fake_cuda::Access> accesses;
  if (c.reads(rank_)) accesses.push_back({call.send, c.send_bytes(ranks_), false});
  const bool writes = call.send != call.receive || c.kind != Kind::kBroadcast || rank_ != c.root;
  if (writes) accesses.push_back({call.receive, received, true});
  for (const fake_cuda::Access& access : accesses)
    if (fake().require_device_range(*context_, reinterpret_cast<uintptr_t>(access.address), access.bytes,
                                    access.writes ? "the receive buffer" : "the send buffer") != cuda::Result::kSuccess)
      return Status::kInvalidArgument;
  fake_cuda::Clock before = call.stream->clock;
  before.merge(fake().host);
  for (const fake_cuda::Access& access : accesses)
    if (const std::string user = fake().races.pointer_into(reinterpret_cast<uintptr_t>(access.address), access.bytes,
                                                           access.writes, before);
        !user.empty()) {
      static_cast<void>(fake().misuse(cuda::Result::kInvalidValue,
                                      std::string("race: the ") + (access.writes ? "receive" : "send") +
                                          " buffer holds bytes that " + user +
                                          " has a pointer into, and no event and no wait orders the two"));
      return Status::kUnhandledCudaError;
    }
  ++fake().counted.collectives;
  const std::string name = c.text();
  const fake_cuda::Work work = fake().next_work(*call.stream, name);
  fake().noted({.kind = fake_cuda::Enqueued::Kind::kCollective,
                .name = name,
                .bytes = c.traffic(ranks_),
                .communicator = nonce(),
                .sequence = operation->number},
               {});
  if (fake().push(
          *call.stream, name, accesses, [=, this] { send(*operation); }, true,
          [=, this] { return may_send(*operation); }) != cuda::Result::kSuccess)
    return Status::kUnhandledCudaError;
  for (const fake_cuda::Access& access : accesses)  // what is written comes last
    fake().races.watch(reinterpret_cast<uintptr_t>(access.address), access.bytes, access.writes, work);
  static_cast<void>(fake().push(
      *call.stream, name, {}, [=, this] { receive(*operation); }, true, [=, this] { return may_receive(*operation); }));
  return Status::kSuccess;
}

bool Communicator::may_send(Operation& operation) {
  if (life_ == Life::kAborted) return true;
  return error_ == Status::kSuccess && ended_ == operation.number && clique_->buffer_is_free(operation.number) &&
         passes_fault(operation.process_wide, &operation.late_until);
}

void Communicator::send(Operation& operation) {
  if (life_ == Life::kAborted) return;
  const auto& [c, from, to, stream] = operation.call;
  const size_t bytes = c.reads(rank_) && fake().options.executes ? c.send_bytes(ranks_) : 0;
  if (bytes > 0) std::memcpy(clique_->buffer_for(operation.number, bytes), from, bytes);
  const bool stays = c.kind == Kind::kBroadcast && rank_ == c.root && from == to;
  if (fake().options.executes && !stays) std::memset(to, 0xFF, c.receive_bytes(ranks_));
  operation.sent = true;
  clique_->publish(operation.number, c, bytes);
}

// All ranks have called the same.
bool Communicator::fits(uint64_t number) const {
  for (int rank = 0; rank < ranks_; ++rank)
    if (!(clique_->issued(rank, number).collective == clique_->issued(rank_, number).collective)) return false;
  return true;
}

bool Communicator::may_receive(const Operation& operation) {
  if (life_ == Life::kAborted || operation.ends_early) return true;
  if (error_ != Status::kSuccess) return false;
  const Behaviour& behaviour = Communicators::instance().behaviour();
  if (!clique_->all_have_begun(operation.number)) {
    for (int rank = 0; rank < ranks_; ++rank)
      if (clique_->seat(rank).begun <= operation.number) note_if_gone(rank);
    return false;
  }
  if (!fits(operation.number)) {
    const bool hangs = behaviour.mismatch == Mismatch::kHang ||
                       (behaviour.mismatch == Mismatch::kByChance && mixed(nonce() + operation.number) % 2 == 0);
    if (hangs) return false;
  }
  Sent unused;
  for (int rank = 0; rank < ranks_; ++rank)
    if (!clique_->read(rank, operation.number, &unused)) {
      note_if_gone(rank);
      return false;
    }
  return true;
}

void Communicator::note_if_gone(int rank) {
  if (Communicators::instance().behaviour().peers_show && clique_->is_gone(rank))
    fail(Status::kRemoteError, "rank " + std::to_string(rank) + " has gone");
}

void Communicator::receive(const Operation& operation) {
  if (life_ == Life::kAborted) return;
  const auto& [c, from, to, stream] = operation.call;
  const bool stays = c.kind == Kind::kBroadcast && rank_ == c.root && from == to;
  if (fake().options.executes && !stays) {
    std::vector<Sent> sent(static_cast<size_t>(ranks_));
    for (int rank = 0; rank < ranks_; ++rank)
      if (c.kind != Kind::kBroadcast || rank == c.root)
        clique_->read(rank, operation.number, &sent[static_cast<size_t>(rank)]);
    compute(c, rank_, sent, static_cast<std::byte*>(to));
  }
  ended_ = operation.number + 1;
  clique_->own().ended = ended_;
}

// ---- All of them

Communicators& Communicators::instance() {
  static auto* communicators = [] {
    auto* made = new Communicators;
    fake().on_reset = [made] { *made = {}; };
    return made;
  }();
  return *communicators;
}

Communicator* Communicators::make(cuda::OpaqueContext* context, int ranks, int rank, bool blocking) {
  all_.push_back(std::make_unique<Communicator>(context, ranks, rank, blocking));
  return all_.back().get();
}
bool Communicators::knows(const Communicator* communicator) const {
  return std::any_of(all_.begin(), all_.end(), [&](const auto& made) { return made.get() == communicator; });
}

const Communicator* Communicators::other_of_this_thread(const Communicator& communicator) const {
  for (const auto& other : all_)
    if (other.get() != &communicator && other->nonce() == communicator.nonce() &&
        other->life() == Communicator::Life::kInUse && other->caller == std::this_thread::get_id())
      return other.get();
  return nullptr;
}

const Behaviour& Communicators::behaviour() {
  if (!behaviour_.has_value()) {
    const char* const variable = std::getenv("RONDO_FAKE_NCCL");
    behaviour_ = Behaviour::parse(!fake().options.nccl.empty() ? fake().options.nccl
                                  : variable == nullptr        ? ""
                                                               : variable);
  }
  return *behaviour_;
}

}  // namespace rondo::fake_nccl
