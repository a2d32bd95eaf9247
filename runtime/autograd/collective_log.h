// CollectiveLog: the collectives that code has made, for code that runs twice. The other processes know of one run, so
// the second one must send nothing (Note [Collectives are effects] in op.h).
//
//   CollectiveLog log;
//   { CollectiveScope note(CollectiveScope::kNote, log); y = fn(x); }
//   { CollectiveScope replay(CollectiveScope::kReplay, log); y = fn(x); }  // gets the sums of the first run
//
// Not thread safe; a scope is of its thread.
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "rondo/runtime/op/communicator.h"
#include "rondo/runtime/tensor/tensor.h"

namespace rondo {

// Messages in the order in which they were sent. Two runs may cut them differently (neighbours travel together, or do
// not), so what counts is the order of the elements.
struct CollectiveLog {
  struct Message {
    int64_t communicator;
    Tensor operand, sum;  // [n]; the operand only with `operands`
  };
  std::vector<Message> messages;
  std::exception_ptr error;  // of the call after these; null: none failed
  bool operands = false;     // set by the caller before the run: what was sent is kept, too
};

// Reads a log from its beginning.
class CollectiveReader {
 public:
  explicit CollectiveReader(const CollectiveLog& log) : log_(&log) {}
  // Gives at most `n` of the elements that come next; they lie in one message. Nothing is left: an empty message.
  // Throws Error if the next message is of another communicator or dtype.
  CollectiveLog::Message next(int64_t communicator, DType dtype, int64_t n);
  const std::exception_ptr& error() const { return log_->error; }

 private:
  const CollectiveLog* log_;
  size_t message_ = 0;
  int64_t element_ = 0;  // of the message
};

// kNote: collectives of this thread go into the log. kReplay: they get the log's sums, in order, or the error that
// ended it; only what comes after is sent. Scopes nest: what the inner one does not have, the outer one may.
class CollectiveScope {
 public:
  enum Mode : uint8_t { kNote, kReplay, kReplayOnly };
  CollectiveScope(Mode mode, CollectiveLog& log);
  ~CollectiveScope();
  CollectiveScope(const CollectiveScope&) = delete;
  CollectiveScope& operator=(const CollectiveScope&) = delete;

  // Communicator::all_reduce_sum() on a dense tensor, by the scopes of this thread.
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
