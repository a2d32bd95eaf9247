// ProcessGroup: the processes of a job, and the collectives that they run together.
//
//   const auto group = dist::ProcessGroup::connect(dist::Environment::from_process(), {.device = device});
//   dist::Work sum = group->all_reduce(gradients, dist::ReduceOp::kAverage, "gradients of step 3");
//   ...                                     // computation overlaps with the collective
//   sum.wait();                             // gradients is now the average, with the same bits on every rank
//   group->check_sequence("", "end of step 3");
//
// Every rank calls the same collectives in the same order. Collectives of host tensors run in that order; so do
// collectives of device tensors, on the device's communication stream. A group without GroupOptions::device accepts
// host tensors only.
//
// A tensor in flight belongs to its collective, which keeps it alive: do not read or write it before wait(). After an
// error the group cannot be used any more; make a new group and load the last checkpoint.
//
// Thread safety: one thread issues the collectives of all groups; any thread may wait for a Work.
//
// More at the end of this file: Note [Two kinds of collectives], [Where an error surfaces], [A device after an error],
// [Several groups], [The end of a group].
#pragma once

#include <memory>
#include <mutex>  // std::chrono::milliseconds; <chrono> includes much more
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/groups/collective.h"
#include "rondo/dist/transport/environment.h"
#include "rondo/dist/transport/errors.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

struct GroupOptions {
  // How long a rank may be behind the others, when connecting and in every collective. At most one year.
  std::chrono::milliseconds timeout{300'000};
  // The group accepts tensors of this device and host tensors. Other ranks may have another device of the same kind. A
  // device with host memory (the CPU) is treated as no device.
  std::optional<Device> device = {};
  // Collectives of device tensors: compares each one between the hosts before it is enqueued, and waits for the
  // comparison. Much slower: for debugging.
  bool compare_each = false;
};

class ProcessGroup;
class SequenceRecord;

// A comparison that begin_check() has started.
class SequenceCheck {
 public:
  // Returns the texts of all ranks, in the order of the ranks. Throws MismatchError on every rank if their collectives
  // differ. If texts did not fit into the first exchange, or the sequences differ, wait() is itself a collective: all
  // ranks call it at the same place among their collectives of host tensors.
  std::vector<std::string> wait();

 private:
  friend class ProcessGroup;
  ProcessGroup* group_ = nullptr;
  std::string text_, name_;
  int64_t reserved_ = 0;
  uint64_t count_ = 0;
  Tensor mine_, all_;
  Work work_;
};

class ProcessGroup {
 public:
  // Connects to the other processes of the job. Throws DistError; TimeoutError names the ranks that did not come.
  // Throws MismatchError on every rank if options differ, except for the device's number. With a device and more than
  // one process, throws Error on every rank if one has no NCCL (at least 2.18). Defined in connect.cc.
  static std::shared_ptr<ProcessGroup> connect(const Environment& environment, GroupOptions options = {});
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Returns the device whose tensors the group accepts besides host tensors; nullopt if there is none.
  virtual std::optional<Device> device() const { return std::nullopt; }

  // Returns the message of the group's first error; empty while collectives can run. Waits, at most a few seconds,
  // while the cause is being found. Any thread may call it.
  virtual std::string failure() { return ""; }
  // Throws ConnectionError with the message of failure() once the group has failed. `what`: the caller, for messages.
  void check_usable(std::string_view what);

  // Collectives. Tensors are dense, in host memory or on the group's device, and have the same shape and dtype
  // on every rank. `name` is for messages; the ranks compare its first 80 bytes. These functions throw Error for
  // an unsuitable tensor.

  // Reduces `tensor` in place. dtypes: f64, f32, bf16, f16; i64 and i32 for kSum only. In host memory bf16 and f16 are
  // added and divided in f32, and rounded once; on a device NCCL adds them and may round after every addition.
  virtual Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) = 0;
  // Overwrites `tensor` with the tensor of rank `root`. Any dtype.
  virtual Work broadcast(const Tensor& tensor, int root, std::string_view name) = 0;
  // out (world_size, ...) receives `in` (...) of every rank. Any dtype. `in` may be row `rank` of `out`.
  virtual Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) = 0;
  // out (...) receives the sum or average over the ranks of row `rank` of `in` (world_size, ...). dtypes and rounding
  // as in all_reduce. The order of the additions differs from all_reduce's, so the bits may differ from those of
  // all_reduce, but they do not differ from run to run.
  virtual Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) = 0;
  // Done when every rank has called it. A collective of the hosts: it does not wait for the devices.
  virtual Work barrier(std::string_view name) = 0;

  // Compares the device collectives of all ranks so far, in one exchange of 32 bytes between the hosts, and returns the
  // `text` of every rank (at most 4 KB). `reserved`: texts of up to this many bytes (at least 8) travel with that
  // exchange; if one is longer, two more exchanges follow. `reserved` must be the same on all ranks. Throws like
  // SequenceCheck::wait(); the error for a rank that does not come contains `name`.
  std::vector<std::string> check_sequence(std::string_view text, std::string_view name, int64_t reserved = 0);
  // Starts check_sequence(), and returns at once: this rank continues during the exchange. SequenceCheck::wait()
  // returns the texts. The group must outlive the check.
  SequenceCheck begin_check(std::string_view text, std::string_view name, int64_t reserved = 0);

  // Makes a group of these ranks in this order: its rank i is ranks[i]. All ranks of this group call it (a collective
  // of the hosts); ranks that are not in the list get null. The new group has the same device and timeout, and fails
  // independently. Its messages number ranks as in the job. Throws Error if a rank is listed twice or does not exist,
  // MismatchError if the ranks pass different lists.
  virtual std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks, std::string_view name);

 protected:
  ProcessGroup() = default;

 private:
  friend class SequenceCheck;
  // Returns the record that check_sequence() compares, or null if there are no device collectives.
  virtual SequenceRecord* sequence() { return nullptr; }
  // Called when the sequences differ: no collective can run any more.
  virtual void fail_mismatched(const std::string& /*sentence*/) {}
  // Returns the rank in the job of the group's rank `rank`, for messages.
  virtual int rank_in_job(int rank) const { return rank; }
};

// Returns the `text` of every rank, in the order of the ranks. A collective that waits. Each text is cut to
// `max_bytes`.
std::vector<std::string> gather_texts(ProcessGroup& group, std::string_view text, int64_t max_bytes,
                                      std::string_view name);

}  // namespace rondo::dist
#pragma GCC visibility pop

// Note [Two kinds of collectives]
// - Host tensors: a communication thread sends them over TCP. Before a byte of a tensor moves, the ranks compare what
//   they are about to call. If the calls differ, that collective throws MismatchError on every rank. The error names
//   the first rank that differs and what that rank calls.
// - Tensors of GroupOptions::device: they are only enqueued (NCCL), and no message goes between the hosts. Each rank
//   keeps a record of what it has called. check_sequence() compares the records in one small exchange on the host,
//   ideally while the device computes: call it once per step, before anything uses the step's results. It throws
//   MismatchError on every rank, and names the rank and the first collective that differs. Until then a collective that
//   differs may hang, or leave wrong numbers: NCCL does not check. GroupOptions::compare_each compares each one before
//   it is enqueued.
//
// Note [Where an error surfaces]
// TimeoutError names a rank that does not come in time, ConnectionError a rank that has ended. A rank that has died is
// noticed within a second. A collective of a device is late when `timeout` has passed since the device reached it.
// After an error every later collective, of host and device, fails at once and repeats the first error's message; from
// then on failure() returns that message.
// - A collective of host tensors throws its error from wait().
// - A collective of device tensors may run on after wait() has returned, so its error surfaces at the first of these
//   that follows: wait() or synchronize() of any Work of the device, check_sequence(), and every call that waits for
//   the device (item(), to_vector(), rondo::synchronize()).
// DistributedDataParallel (its part of backward, finish(), check_parameters()) and ShardedOptimizer (wait(),
// state_dict(), the optimizer's step()) throw every time.
//
// Note [A device after an error]
// The communicator is aborted, so that no kernel of NCCL waits forever; what its collectives wrote is useless. The host
// runs ahead of the device: steps enqueued behind the aborted collective may have used what that collective left. So do
// not use the parameters that the device holds. Every read of the device's tensors throws the error, not only the first
// read. A program that starts over in the same process destroys the group, calls rondo::synchronize(), which throws the
// error for the last time, and loads a checkpoint: Note [Failed devices] in runtime/device/device_failure.h. Destroying
// a group while its collectives run also makes its device fail.
//
// Note [Several groups]
// Two groups of the same ranks, such as a group and a subgroup of it, can deadlock on a device if two threads issue
// their collectives. NCCL's rule: all ranks enqueue the collectives of all communicators in the same order. So one
// thread must issue them all.
//
// Note [The end of a group]
// Destruction is bounded. Collectives of host tensors that have not begun fail. The destructor waits up to 2 s for a
// collective that already moves data, and up to 3 s for collectives of a device, which it then aborts. While an
// exception unwinds, it waits for no collective, but up to 1 s for the abort. If there is no launcher, rank 0 keeps the
// store, and its destructor waits up to 5 s more, so that the others can ask the store what went wrong. In a forked
// child the group cannot be used: collectives throw Error, and the destructor waits for nothing and does not affect the
// other ranks.
