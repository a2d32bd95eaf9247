// CollectiveLog: records the collectives of code that runs twice. The other processes take part in the first run only,
// so the second run sends nothing and gets the recorded sums (Note [Collectives are effects] in op.h).
//
//   CollectiveLog log;
//   { CollectiveScope note(CollectiveScope::kNote, log); y = fn(x); }
//   { CollectiveScope replay(CollectiveScope::kReplay, log); y = fn(x); }  // gets the sums of the first run
//
// Not thread safe; a scope applies to the thread that makes it.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "rondo/runtime/op/communicator.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo {

// Messages in the order in which they were sent. Two runs may split the same elements into messages differently
// (neighbouring collectives may be merged), so only the order of the elements counts.
struct CollectiveLog {
  struct Message {
    int64_t communicator;
    Tensor operand, sum;  // [n]; `operand` only if CollectiveLog::operands is set
  };
  std::vector<Message> messages;
  std::exception_ptr error;  // thrown by the collective after these messages; null: none failed
  bool operands = false;     // set by the caller before the run: operands are kept, too
};

// Reads a log from its beginning.
class CollectiveReader {
 public:
  explicit CollectiveReader(const CollectiveLog& log) : log_(&log) {}
  // Returns at most `n` of the next elements, all from one message; undefined tensors if none is left. Throws Error if
  // the next message is of another communicator or dtype.
  CollectiveLog::Message next(int64_t communicator, DType dtype, int64_t n);
  const std::exception_ptr& error() const { return log_->error; }

 private:
  const CollectiveLog* log_;
  size_t message_ = 0;
  int64_t element_ = 0;  // the next element to read of message `message_`
};

// kNote: runs the collectives of this thread and records them in the log. kReplay: collectives get the log's sums, in
// order, or the error that ended the log; only a collective beyond the log's end is sent. kReplayOnly: like kReplay,
// but a collective beyond the log's end is an Error. Scopes nest: what an inner scope has to send goes through the
// outer scope.
class CollectiveScope {
 public:
  enum Mode : uint8_t { kNote, kReplay, kReplayOnly };
  CollectiveScope(Mode mode, CollectiveLog& log);
  ~CollectiveScope();
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

  // Runs Communicator::all_reduce_sum() on a dense tensor, through the scopes of this thread.
  static void all_reduce_sum(int64_t communicator, const Tensor& tensor);

 private:
  static void all_reduce_sum(CollectiveScope* scope, int64_t communicator, const Tensor& flat);
  void note(int64_t communicator, const Tensor& flat);
  void replay(int64_t communicator, Tensor flat);

  const Mode mode_;
  CollectiveLog& log_;
  CollectiveReader reader_;
  CollectiveScope* const outer_;
};

}  // namespace rondo
