// Communicator: sums tensors over all processes of a job. dist/ provides one (dist/groups/group_communicator.h);
// the runtime knows this interface only, so that a collective is an op that autograd differentiates and a
// compiled region records (ops::all_reduce_sum).
//
// Thread safety: any thread may call of(). One thread at a time issues collectives, as with a dist::ProcessGroup.
#pragma once

#include <cstdint>

#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo {

class Communicator {
 public:
  // Chooses an id that no other communicator of this process has or had.
  Communicator();
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  int64_t id() const { return id_; }

  // Replaces `tensor`, dense and the same shape and dtype on every rank, by its sum over all ranks, with the same bits
  // on every rank. Later uses of the tensor by this thread see the sum.
  virtual void all_reduce_sum(const Tensor& tensor) = 0;

  // Returns the communicator with this id. Throws Error if it has been destroyed. The caller of an op that takes the id
  // keeps the communicator alive until backward has run.
  static Communicator& of(int64_t id);

 private:
  const int64_t id_;
};

}  // namespace rondo
#pragma GCC visibility pop
