#include "rondo/dist/groups/nccl_communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/dist/groups/device_work.h"

namespace rondo::dist {
namespace {

// kGlance: how often the thread looks at the collectives in flight. kDoubt: when a collective has run for this long,
// the thread asks the store and the hosts' group about other ranks, and asks again after each further kDoubt. kPost:
// how often it posts its progress.
constexpr Milliseconds kGlance{2}, kDoubt{200}, kPost{50};
// How long the destructor of a group waits for collectives in flight.
constexpr Milliseconds kFinalizing{2'000};

const char* name_of_kind(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce: return "an all_reduce of NCCL";
    case CollectiveKind::kBroadcast: return "a broadcast of NCCL";
    case CollectiveKind::kAllGather: return "an all_gather of NCCL";
    case CollectiveKind::kReduceScatter: return "a reduce_scatter of NCCL";
    default: return "a collective of NCCL";
  }
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclLibrary& library, const NcclId& id, Options options,
                                   std::shared_ptr<HostGroup> host)
    : library_(library),
      options_(std::move(options)),
      table_(backend_of(options_.device)),
      rank_in_job_(host->rank_in_job(options_.rank)),
      host_(std::move(host)) {
  connect(id);
}

NcclCommunicator::~NcclCommunicator() { abort(); }  // after watch() has returned, there is nothing to abort

std::shared_ptr<HostGroup> NcclCommunicator::host() {
  const std::lock_guard lock(mutex_);
  return host_;
}

std::string NcclCommunicator::with_rank(const NamedCall& call) const {
  return absl::StrCat("rank ", rank_in_job_, ": ", text_of(call));
}

// ---- Connecting

void NcclCommunicator::connect(const NcclId& id) {
  PeerStatus* const peers = host_->peers();
  const std::string what = absl::StrCat("rank ", rank_in_job_, ": connecting ", to_string(options_.device),
                                        " over NCCL", options_.label);
  NcclConfig config;
  config.blocking = 0;
  NcclResult result = NcclResult::kSuccess;
  table_.call_library(options_.device.index, Stream::kCommunication, "the connecting of NCCL", [&](void*) {
    result = library_.init_rank(&comm_, options_.world_size, id, options_.rank, &config);
  });
  const Deadline deadline = after(options_.timeout);
  bool late = false, lost = false;
  auto next_look = Clock::now() + kDoubt;
  while (result == NcclResult::kInProgress && comm_ != nullptr) {
    std::this_thread::sleep_for(Milliseconds(1));
    if (library_.async_error(comm_, &result) != NcclResult::kSuccess) result = NcclResult::kInternalError;
    if (result != NcclResult::kInProgress) break;
    if (Clock::now() >= next_look) {
      lost = peers != nullptr && peers->has_lost_one(PeerStatus::Lane::kDevice, 0);
      next_look = Clock::now() + kDoubt;
    }
    late = Clock::now() >= deadline;
    if (late || lost) break;
  }
  if (result == NcclResult::kSuccess && comm_ != nullptr) return;
  const std::string reason = describe(library_, result, comm_);
  abort();
  PeerStatus::Diagnosis diagnosis{absl::StrCat(what, late ? " took too long: " : " failed: ", reason), {}};
  if (peers != nullptr) {
    diagnosis = peers->diagnose(PeerStatus::Lane::kDevice, 0, what, late, options_.timeout, reason);
    peers->fail(diagnosis.sentence, diagnosis.causes);
  }
  host_->give_up(diagnosis.sentence);
  if (late) throw TimeoutError(diagnosis.sentence);
  throw ConnectionError(diagnosis.sentence);
}

// ---- Issuing collectives

Work NcclCommunicator::issue(const NamedCall& call, const Tensor& out, const Tensor& in, Enqueue enqueue) {
  auto work = std::make_shared<DeviceWork>(options_.device, call, out, in);
  const auto lost = [&] {
    work->lose(Work::Outcome::kLost, absl::StrCat(text_of(call), " cannot run: ", await_failure()));
    return Work(work);
  };
  if (failing_.load()) return lost();
  NcclResult result = NcclResult::kSuccess;
  try {
    work->join_communication();
    table_.call_library(options_.device.index, Stream::kCommunication, name_of_kind(call.call.kind),
                        [&](void* stream) { result = run(enqueue, stream, call); });
    if (result == NcclResult::kSuccess) work->enqueued();
  } catch (const Error& e) {
    fail(call, /*late=*/false, e.what());
    throw;
  }
  if (result != NcclResult::kSuccess) {
    // The kernel may have been enqueued, and would wait forever. So the communicator is aborted.
    fail(call, /*late=*/result == NcclResult::kInProgress, describe(library_, result, nullptr));
    return lost();
  }
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) {
      in_flight_.push_back(work);
      wake = std::exchange(idle_, false);
    }
  }
  if (wake) changed_.notify_all();
  else if (failing_.load()) return lost();  // the watching thread may not have seen this collective
  return Work(work);
}

NcclResult NcclCommunicator::run(Enqueue enqueue, void* stream, const NamedCall& call) {
  const std::lock_guard lock(library_mutex_);
  if (comm_ == nullptr) return NcclResult::kInvalidUsage;  // fail() has aborted the communicator meanwhile
  const NcclResult result = enqueue(library_, comm_, stream);
  return result == NcclResult::kInProgress ? settle(call) : result;
}

// Waits until NCCL has enqueued the collective: nothing may be recorded on the stream before that. A non-blocking
// communicator may enqueue in a thread of its own, and the first collectives connect to other ranks. REQUIRES:
// library_mutex_ is held.
NcclResult NcclCommunicator::settle(const NamedCall& call) {
  const auto began = Clock::now();
  bool posted = false;
  for (NcclResult result = NcclResult::kInProgress;;) {
    if (library_.async_error(comm_, &result) != NcclResult::kSuccess) return NcclResult::kInternalError;
    if (result != NcclResult::kInProgress || failing_.load()) return result;
    const auto waited = Clock::now() - began;
    if (waited >= options_.timeout) return result;
    if (waited < Milliseconds(1)) {
      std::this_thread::yield();
      continue;
    }
    if (!posted && waited >= kPost) {
      posted = true;
      posted_ = call.call.number;
      if (const auto group = host(); group != nullptr && group->peers() != nullptr)
        group->peers()->begin(PeerStatus::Lane::kDevice, call.call.number, text_of(call));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// ---- Watching the collectives in flight: Note [Watching]

void NcclCommunicator::watch() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      idle_ = in_flight_.empty();
      const auto has_work = [this] { return closing_ || !in_flight_.empty(); };
      const bool all_told = posted_ >= done_.call.number;
      const bool comes = all_told ? (changed_.wait(lock, has_work), true) : changed_.wait_for(lock, kPost, has_work);
      idle_ = false;
      if (!comes) {
        lock.unlock();
        post_done();
        continue;
      }
      if (!closing_) changed_.wait_for(lock, kGlance, [this] { return closing_; });
      if (closing_) break;
    }
    look();
  }
  tear_down(unwinds_);
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
}

// Removes finished collectives from in_flight_, in order. Returns false if the device reports an error.
bool NcclCommunicator::drop_reached() {
  for (;;) {
    std::shared_ptr<DeviceWork> first;
    {
      const std::lock_guard lock(mutex_);
      if (in_flight_.empty()) return true;
      first = in_flight_.front();
    }
    try {
      if (!first->is_done()) return true;
    } catch (const std::exception& e) {
      fail(first->call(), /*late=*/false, e.what());
      return false;
    }
    const std::lock_guard lock(mutex_);
    if (in_flight_.empty() || in_flight_.front() != first) return true;  // the group failed meanwhile
    done_ = first->call();
    in_flight_.pop_front();
  }
}

void NcclCommunicator::look() {
  if (!drop_reached()) return;
  std::shared_ptr<DeviceWork> first;
  {
    const std::lock_guard lock(mutex_);
    if (in_flight_.empty()) return;
    first = in_flight_.front();
  }
  try {
    look_for_trouble(*first);
  } catch (const std::exception& e) {
    fail(first->call(), /*late=*/false, e.what());
  }
}

// Returns the error that NCCL itself has noticed; empty if there is none.
std::string NcclCommunicator::library_error() {
  const std::unique_lock lock(library_mutex_, std::try_to_lock);
  if (!lock.owns_lock() || comm_ == nullptr) return "";  // settle() is using it, or it was aborted
  NcclResult result = NcclResult::kSuccess;
  if (library_.async_error(comm_, &result) != NcclResult::kSuccess) result = NcclResult::kInternalError;
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return "";
  return describe(library_, result, comm_);
}

// Fails the group if collective `first` cannot complete any more. `first` is the first collective that is not done;
// later ones wait for it.
void NcclCommunicator::look_for_trouble(DeviceWork& first) {
  const NamedCall& call = first.call();
  if (const std::string error = library_error(); !error.empty()) return fail(call, /*late=*/false, error);
  const auto started = first.started();
  const auto now = Clock::now();
  if (!started) {  // the device has not reached it yet, so nothing is late
    if (now - last_post_ >= kPost) post_done();
    return;
  }
  const auto taken = now - *started;
  if (taken >= options_.timeout) {
    post_progress(call);
    return fail(call, /*late=*/true, "");
  }
  if (posted_ != call.call.number && now - last_post_ >= kPost) post_progress(call);
  if (taken < kDoubt || now - last_look_ < kDoubt) return;
  last_look_ = now;
  const std::shared_ptr<HostGroup> group = host();
  if (group == nullptr) return;
  if (const std::string why = group->failure(); !why.empty()) {
    if (failing_.exchange(true)) return;
    return fail_with(Work::Outcome::kLost, absl::StrCat(with_rank(call), " was given up: ", why), {}, /*tell=*/false);
  }
  if (PeerStatus* peers = group->peers())
    if (peers->has_lost_one(PeerStatus::Lane::kDevice, call.call.number))
      fail(call, /*late=*/false, "a rank has ended or failed");
}

void NcclCommunicator::post_progress(const NamedCall& call) {
  const std::shared_ptr<HostGroup> group = host();
  if (group == nullptr || group->peers() == nullptr) return;
  group->peers()->begin(PeerStatus::Lane::kDevice, call.call.number, text_of(call));
  posted_ = call.call.number;
  last_post_ = Clock::now();
}

// Posts the last collective that this rank has finished, so that ranks that wait for it know how far it has come.
void NcclCommunicator::post_done() {
  if (posted_ >= done_.call.number) return;
  post_progress(done_);
  posted_ = done_.call.number;  // also if there are no peers to tell
}

// ---- Failing: Note [Watching]

// Finds which rank is to blame for a collective that cannot complete, and fails with that diagnosis.
void NcclCommunicator::fail(const NamedCall& call, bool late, const std::string& error) {
  if (failing_.exchange(true)) return;
  PeerStatus::Diagnosis diagnosis{
      late ? absl::StrCat(with_rank(call), " did not complete within ", options_.timeout.count(), " ms")
           : absl::StrCat(with_rank(call), " failed: ", error),
      {}};
  bool is_known = false;
  if (const std::shared_ptr<HostGroup> group = host()) {
    if (const std::string why = group->failure(); !why.empty()) {
      diagnosis.sentence = absl::StrCat(with_rank(call), " was given up: ", why);
      is_known = true;
    } else if (PeerStatus* peers = group->peers()) {
      diagnosis = peers->diagnose(PeerStatus::Lane::kDevice, call.call.number, with_rank(call), late, options_.timeout,
                                  error);
    }
  }
  fail_with(late ? Work::Outcome::kLate : Work::Outcome::kLost, diagnosis.sentence, diagnosis.causes, !is_known);
}

void NcclCommunicator::fail_mismatched(const std::string& sentence) {
  if (failing_.exchange(true)) return static_cast<void>(await_failure());
  fail_with(Work::Outcome::kMismatch, sentence, {}, /*tell=*/true);
}

// Fails every collective in flight, and aborts. `tell`: also tells the launcher and the other ranks. REQUIRES: this
// thread has set failing_.
void NcclCommunicator::fail_with(Work::Outcome outcome, const std::string& sentence, const std::vector<int>& causes,
                                 bool tell) {
  const std::shared_ptr<HostGroup> group = host();
  if (tell && group != nullptr && group->peers() != nullptr) group->peers()->fail(sentence, causes);
  fail_device(outcome, sentence);
  std::deque<std::shared_ptr<DeviceWork>> lost;
  {
    const std::lock_guard lock(mutex_);
    failure_ = sentence;
    lost.swap(in_flight_);
  }
  changed_.notify_all();
  for (const auto& work : lost) work->lose(outcome, sentence);
  abort();
  if (group != nullptr) group->give_up(sentence);
}

// Waits for the message of the failure in progress.
std::string NcclCommunicator::await_failure() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !failure_.empty() || ended_; });
  return failure_.empty() ? "the process group was closed" : failure_;
}

// Makes the device fail: from now on reads of its tensors throw. See Note [A device with an aborted collective].
void NcclCommunicator::fail_device(Work::Outcome outcome, const std::string& sentence) {
  std::exception_ptr error;
  switch (outcome) {
    case Work::Outcome::kLate: error = std::make_exception_ptr(TimeoutError(sentence)); break;
    case Work::Outcome::kMismatch: error = std::make_exception_ptr(MismatchError(sentence)); break;
    default: error = std::make_exception_ptr(ConnectionError(sentence));
  }
  device_failure_.emplace(options_.device, std::move(error));
}

void NcclCommunicator::abort() noexcept {
  const std::lock_guard lock(library_mutex_);
  const NcclComm comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return;
  try {
    table_.call_library(options_.device.index, Stream::kCommunication, "the abort of NCCL's collectives",
                        [&](void*) { static_cast<void>(library_.abort(comm)); });
  } catch (const std::exception&) {
    // The device has failed and runs nothing any more. The communicator is freed when the process ends.
  }
}

// ---- Closing

// Finalizes and destroys the communicator. Returns true if every collective in flight has ended on this rank.
bool NcclCommunicator::finalize() noexcept {
  const std::lock_guard lock(library_mutex_);
  if (comm_ == nullptr) return false;
  bool done = false;
  try {
    table_.call_library(options_.device.index, Stream::kCommunication, "the end of NCCL", [&](void*) {
      NcclResult result = library_.finalize(comm_);
      for (const Deadline until = after(kFinalizing); result == NcclResult::kInProgress && Clock::now() < until;) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (library_.async_error(comm_, &result) != NcclResult::kSuccess) result = NcclResult::kInternalError;
      }
      if (result != NcclResult::kSuccess) return;
      done = true;
      static_cast<void>(library_.destroy(std::exchange(comm_, nullptr)));
    });
  } catch (const std::exception&) {
    // The device has failed. The communicator is freed when the process ends, as in abort().
  }
  return done;
}

void NcclCommunicator::tear_down(bool unwinds) {
  if (failing_.load()) return static_cast<void>(await_failure());
  const bool done = !unwinds && finalize();
  if (!done && !drop_reached()) return;  // the device has failed
  std::deque<std::shared_ptr<DeviceWork>> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(in_flight_);
  }
  if (!done) {
    failing_.store(true);
    const auto error_of = [this](const DeviceWork& work) {
      return absl::StrCat(with_rank(work.call()), " was given up: the process group was closed");
    };
    if (!left.empty()) fail_device(Work::Outcome::kLost, error_of(*left.front()));
    for (const auto& work : left) work->lose(Work::Outcome::kLost, error_of(*work));
    abort();
  }
  // Other ranks may still ask how far this rank came before it left.
  if (const std::shared_ptr<HostGroup> group = host(); group != nullptr && group->peers() != nullptr) {
    const uint64_t last = done && !left.empty() ? left.back()->call().call.number : done_.call.number;
    group->peers()->begin(PeerStatus::Lane::kDevice, last, "its last one");
  }
}

bool NcclCommunicator::close(bool unwinds, Milliseconds patience) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  unwinds_ = unwinds;
  if (unwinds) host_ = nullptr;
  changed_.notify_all();
  const bool ended = changed_.wait_for(lock, patience, [this] { return ended_; });
  host_ = nullptr;
  return ended;
}

}  // namespace rondo::dist
