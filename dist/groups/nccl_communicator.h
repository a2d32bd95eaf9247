// A communicator of NCCL: enqueues collectives of one device's tensors on its communication stream. A thread watches
// them.
//
// Note [Device collectives]. issue() records an event of the compute stream, makes the communication stream wait for
// it, enqueues the collective there, and records an event behind the collective. Work::wait() makes the compute stream
// wait for that second event. So the host waits for nothing, and the device overlaps a collective with everything
// enqueued between the two calls. A tensor in flight is kept alive until the compute stream waits for its collective,
// or until the collective is known to be done: memory is freed in the order of the compute stream (Note [Stream order]
// in runtime/device/backend.h), so its next owner's work comes after the collective.
//
// Note [Watching]. A kernel of NCCL whose peers do not come spins forever, and the device reports no error. So a
// thread asks: has the device reached the first unfinished collective, and when? Is that collective done? Does
// NCCL know of an error? Does the store know of a rank that has ended or failed? Has the host's group failed? When
// one of the answers, or the timeout, shows that the collective cannot complete, the thread finds which rank is to
// blame (PeerStatus::diagnose), tells the launcher and the other ranks, makes the device fail (below), aborts the
// communicator, which ends its kernels, and gives every collective in flight this error. Nothing can be issued
// from then on.
//
// Note [A device with an aborted collective]. The compute stream continues after an abort with meaningless numbers. So
// the device fails before the abort (runtime/device/device_failure.h): from then on every read of its tensors throws
// the error, until the group is destroyed and the program has called rondo::synchronize(). So no loss is printed and no
// checkpoint is written from meaningless numbers.
//
// Thread safety: one thread issues; any thread may wait for a Work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/dist/groups/host_group.h"
#include "rondo/dist/groups/nccl_library.h"
#include "rondo/dist/groups/sequence.h"
#include "rondo/dist/transport/peer_status.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/device/device_failure.h"

namespace rondo::dist {

class DeviceWork;

class NcclCommunicator {
 public:
  struct Options {
    Device device;
    int rank = 0, world_size = 1;  // of this process in the communicator
    Milliseconds timeout{0};
    std::string label;  // names a subgroup in messages
  };

  // Waits until all ranks call it with the same id. `host`: the group of the same ranks, in the same order.
  // Throws TimeoutError, or ConnectionError with NCCL's reason.
  NcclCommunicator(const NcclLibrary& library, const NcclId& id, Options options, std::shared_ptr<HostGroup> host);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Enqueues a collective. Keeps `in` and `out` alive; they may be undefined. Throws DeviceError if the device refuses.
  // If the group has failed, the returned Work already has the error.
  using Enqueue = absl::FunctionRef<NcclResult(const NcclLibrary& library, NcclComm comm, void* stream)>;
  Work issue(const NamedCall& call, const Tensor& out, const Tensor& in, Enqueue enqueue);

  // The main function of the watching thread; returns after close().
  void watch();
  // Waits up to `patience` for collectives in flight. Returns false if the watching thread has not ended by then.
  bool close(bool unwinds, Milliseconds patience);

  // Aborts the collectives in flight; nothing can be issued any more. Any thread.
  void fail_mismatched(const std::string& sentence);
  // Like ProcessGroup::failure(). Not empty from the moment when the device may throw the error or a
  // collective is aborted.
  std::string failure() { return failing_.load() ? await_failure() : ""; }

 private:
  using Clock = std::chrono::steady_clock;
  std::shared_ptr<HostGroup> host();
  void connect(const NcclId& id);
  NcclResult run(Enqueue enqueue, void* stream, const NamedCall& call);
  NcclResult settle(const NamedCall& call);
  void look();
  bool drop_reached();
  std::string library_error();
  void look_for_trouble(DeviceWork& first);
  void post_progress(const NamedCall& call);
  void post_done();
  void fail(const NamedCall& call, bool late, const std::string& error);
  void fail_with(Work::Outcome outcome, const std::string& sentence, const std::vector<int>& causes, bool tell);
  std::string await_failure();
  void fail_device(Work::Outcome outcome, const std::string& sentence);
  void abort() noexcept;
  bool finalize() noexcept;
  void tear_down(bool unwinds);
  std::string text_of(const NamedCall& call) const { return call.text() + options_.label; }
  std::string with_rank(const NamedCall& call) const;

  const NcclLibrary& library_;
  const Options options_;
  const BackendTable& table_;
  const int rank_in_job_;
  std::optional<DeviceFailure> device_failure_;  // made once, by the thread that set failing_
  std::atomic<bool> failing_{false};             // set at the first sign of a failure: nothing can be issued any more

  std::mutex library_mutex_;  // one call of NCCL at a time; guards comm_
  NcclComm comm_ = nullptr;   // null: aborted or destroyed

  std::mutex mutex_;  // guards the members below. Not held while NCCL or the device is called
  std::condition_variable changed_;
  std::shared_ptr<HostGroup> host_;  // null once close() has dropped it
  std::deque<std::shared_ptr<DeviceWork>> in_flight_;
  bool idle_ = false, closing_ = false, unwinds_ = false, ended_ = false;
  std::string failure_;

  std::atomic<uint64_t> posted_{0};  // the number of the last collective that this rank has posted to the others

  // Used by the watching thread only
  NamedCall done_;  // the last collective that is done
  Clock::time_point last_post_, last_look_;
};

}  // namespace rondo::dist
