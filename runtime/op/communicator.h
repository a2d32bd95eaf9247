// Communicator: how a layer adds up numbers over all processes of a job. dist/ provides one
// (dist/groups/group_communicator.h); the runtime knows this interface only, so that a collective is an op that
// autograd differentiates and a compiled region records (ops::all_reduce_sum).
//
// Thread safety: any thread may look one up. One thread at a time issues collectives, as with a dist::ProcessGroup.
#pragma once

#include <cstdint>

#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo {

class Communicator {
 public:
  // Gives it a number that no other one of this process has or had.
  Communicator();
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  int64_t id() const { return id_; }

  // Replaces `tensor`, dense and the same shape and dtype on every rank, by its sum over all ranks, with the same bits
  // on every rank. What this thread does next with the tensor comes after that.
  virtual void all_reduce_sum(const Tensor& tensor) = 0;

  // Throws Error if it has been destroyed. Whoever calls an op with its number keeps it alive until backward has run.
  static Communicator& of(int64_t id);

 private:
  const int64_t id_;
};

}  // namespace rondo
#pragma GCC visibility pop
