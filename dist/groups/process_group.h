// ProcessGroup: the processes of a job, and what they compute together.
//
//   const auto group = dist::ProcessGroup::connect(dist::Environment::from_process(), {.device = device});
//   dist::Work sum = group->all_reduce(gradients, dist::ReduceOp::kAverage, "gradients of step 3");
//   ...                                     // runs meanwhile, beside the computation
//   sum.wait();                             // gradients is now the average, with the same bits on every rank
//   group->check_sequence("", "end of step 3");
//
// Every rank calls the same collectives in the same order; those of host tensors run in that order, and those of a
// device's tensors in theirs, on its communication stream. A group without GroupOptions::device takes host tensors
// only.
//
// A tensor in flight belongs to its collective, which keeps it alive: neither read nor write it before wait().
// After an error the group cannot be used any more; make a new one, and load the last checkpoint.
//
// Thread safety: one thread issues the collectives of all groups; Work may be waited for anywhere.
//
// More at the end of this file: Note [Two kinds of collectives], [Where an error surfaces], [A device after an error],
// [Several groups], [The end of a group].
#pragma once

#include <memory>
#include <mutex>  // std::chrono::milliseconds, without all that <chrono> brings
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
  // How long a rank may be behind the others, in connecting and in every collective. More than a year is a year.
  std::chrono::milliseconds timeout{300'000};
  // Whose tensors the group takes beside host tensors. Other ranks may have another one of its kind. A device of host
  // memory is as none.
  std::optional<Device> device = {};
  // Collectives of device tensors: compares each one on the host, and waits for that, before it is enqueued. For
  // finding a mistake: much slower.
  bool compare_each = false;
};

class ProcessGroup;
class SequenceRecord;

// An exchange that check_sequence() began.
class SequenceCheck {
 public:
  // The texts of all ranks, in the order of the ranks. Throws MismatchError on every rank if their collectives differ.
  // Where texts did not fit into the first exchange, or the sequences differ, this is a collective: all ranks call it
  // at the same place among their collectives of host tensors.
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
  // Meets the other processes of the job. Throws DistError; TimeoutError names the ranks that did not come. All ranks
  // have the same options, but for the number of the device: otherwise MismatchError on every rank. With a
  // device, and more than one process: Error on every rank if one has no NCCL (at least 2.18). In connect.cc.
  static std::shared_ptr<ProcessGroup> connect(const Environment& environment, GroupOptions options = {});
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // The device whose tensors the group takes beside host tensors.
  virtual std::optional<Device> device() const { return std::nullopt; }

  // The message of the group's first error; empty as long as collectives can run. Waits, at most a few seconds, while
  // the cause is being found. Any thread may ask.
  virtual std::string failure() { return ""; }
  // Throws ConnectionError, which repeats that message, once the group has failed. `what`: what cannot be done now.
  void check_usable(std::string_view what);

  // Collectives. Tensors are dense, in host memory or on the group's device, and have the same shape and dtype on every
  // rank. `name` is for messages, and the ranks compare it (its first 80 bytes). A tensor that does not fit throws
  // Error here.

  // In place. dtypes: f64, f32, bf16, f16; i64 and i32 for kSum only. In host memory bf16 and f16 are added and divided
  // in f32, and rounded once; on a device they are added as NCCL does it, which may round after every addition.
  virtual Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) = 0;
  // Overwrites `tensor` with the tensor of rank `root`. Any dtype.
  virtual Work broadcast(const Tensor& tensor, int root, std::string_view name) = 0;
  // out (world_size, ...) receives `in` (...) of every rank. Any dtype. `in` may be row `rank` of `out`.
  virtual Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) = 0;
  // out (...) receives the sum or average over the ranks of row `rank` of `in` (world_size, ...). dtypes and rounding
  // as all_reduce. Sums are made in an order of their own: bits may differ from all_reduce's, not from run to run.
  virtual Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) = 0;
  // Done when every rank has called it. A collective of the hosts: it says nothing of what devices have done by then.
  virtual Work barrier(std::string_view name) = 0;

  // Compares the device collectives of all ranks so far, in one exchange of 32 bytes between the hosts, and returns the
  // `text` of every rank (at most 4 KB). `reserved`, the same on all ranks: texts of up to so many bytes (at least 8)
  // travel with that exchange; two more follow if one is longer. Throws as SequenceCheck::wait(), and names `name` if a
  // rank does not come.
  std::vector<std::string> check_sequence(std::string_view text, std::string_view name, int64_t reserved = 0);
  // The same in two parts: the hosts exchange while this rank goes on. The group has to outlive the check.
  SequenceCheck begin_check(std::string_view text, std::string_view name, int64_t reserved = 0);

  // A group of these ranks, in this order: rank i of it is ranks[i]. A collective of all ranks of this group, of hosts;
  // null on a rank that is not among them. It has the same device and timeout, and fails on its own. Its messages count
  // ranks as the job does. Throws Error if a rank is named twice or is not there, MismatchError if ranks name others.
  virtual std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks, std::string_view name);

 protected:
  ProcessGroup() = default;

 private:
  friend class SequenceCheck;
  // What check_sequence() compares; null: there are no device collectives.
  virtual SequenceRecord* sequence() { return nullptr; }
  // The sequences differ: no collective can run any more.
  virtual void fail_mismatched(const std::string& /*sentence*/) {}
  // The rank in the job of rank `rank`, for messages.
  virtual int rank_in_job(int rank) const { return rank; }
};

// Returns the `text` of every rank, in the order of the ranks. Waits. Each text is cut to `max_bytes`.
std::vector<std::string> gather_texts(ProcessGroup& group, std::string_view text, int64_t max_bytes,
                                      std::string_view name);

}  // namespace rondo::dist
#pragma GCC visibility pop

// Note [Two kinds of collectives]
// - Host tensors: a communication thread sends them over TCP. Before a byte of a tensor moves, the ranks compare what
//   they are about to do. If they do not agree, that collective throws MismatchError on every rank: it names the first
//   rank that differs and what that rank calls.
// - Tensors of GroupOptions::device: they are only enqueued (NCCL), and no message goes between the hosts. Each rank
//   keeps a record of what it has called. check_sequence() compares the records in one small exchange on the host, at
//   best while the device computes: call it once per step, before anything uses the step's results. It throws
//   MismatchError on every rank, and names the rank and the first collective that differs. Until then a collective that
//   differs may hang, or leave wrong numbers: that is how NCCL is. GroupOptions::compare_each compares each one before
//   it is enqueued.
//
// Note [Where an error surfaces]
// TimeoutError names a rank that does not come in time, ConnectionError a rank that has ended. A rank that has died is
// noticed within a second. A collective of a device is late when `timeout` has passed since the device came to it.
// After an error every later collective, of host and device, fails at once and repeats the first error's message; from
// then on failure() says what happened.
// - A collective of host tensors throws its error in wait().
// - One of device tensors goes on after wait() has returned, so its error surfaces at the first of these that comes
//   after it: wait() or synchronize() of any Work of the device, check_sequence(), and every call that waits for the
//   device (item(), to_vector(), rondo::synchronize()).
// DistributedDataParallel (its part of backward, finish(), check_parameters()) and ShardedOptimizer (wait(),
// state_dict(), the optimizer's step()) throw every time.
//
// Note [A device after an error]
// The communicator is aborted, so that no kernel of NCCL waits for ever; what its collectives wrote is of no use. The
// host is ahead of the device: steps that it enqueued behind the aborted collective may have run on what that
// collective left there. So do not use the parameters that the device holds. Every read of the device's tensors throws
// the error, also when it is the second one. A program that starts over in the same process destroys the group, calls
// rondo::synchronize(), which throws the error for the last time, and loads a checkpoint: Note [Failed devices] in
// runtime/device/device_failure.h. A group that is destroyed while its collectives are under way makes its device fail,
// too.
//
// Note [Several groups]
// Two groups of the same ranks, such as a group and a subgroup of it, can deadlock on a device if two threads issue
// their collectives. NCCL's rule: all ranks enqueue the collectives of all communicators in the same order. So one
// thread issues them all.
//
// Note [The end of a group]
// Destruction is bounded. Collectives of host tensors that have not begun fail. The destructor waits up to 2 s for a
// collective that moves data already, and up to 3 s for those of a device, which are then aborted. While an exception
// unwinds it waits for none of them, but up to 1 s for the abort. In the rank that keeps the store (no launcher) it
// waits up to 5 s more, so that the others can ask the store what went wrong. In a fork of the process the group cannot
// be used: collectives throw Error. There its destruction waits for nothing, and the other ranks see nothing of it.
