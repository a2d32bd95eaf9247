// Collectives over the proved connections between the ranks of a group. Knows nothing of names, agreement or who is to
// blame.
//
// Thread safety: one thread calls the collectives; interrupt() may be called from another.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "rondo/dist/transport/environment.h"
#include "rondo/dist/transport/store.h"
#include "rondo/runtime/base/dtype.h"

namespace rondo::dist {

// n elements in a block for each of `ranks` ranks, as even as they can be: the elements from `begin` to before `end`
// are those of block `rank`.
struct Block {
  Block(size_t n, size_t ranks, size_t rank)
      : begin(n / ranks * rank + n % ranks * rank / ranks),
        end(n / ranks * (rank + 1) + n % ranks * (rank + 1) / ranks) {}
  size_t size() const { return end - begin; }
  size_t begin, end;
};

class TcpTransport {
 public:
  // Connects all ranks. `prefix`: of the keys in the store, where they find each other's addresses. Throws DistError.
  TcpTransport(Store& store, const std::string& prefix, const Environment& environment, Milliseconds timeout);
  ~TcpTransport();
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  // all (world_size times `bytes`) receives `mine` of every rank. In log2(world_size) messages, and interrupt() ends
  // it: here a rank waits for one that is late. REQUIRES: the same `bytes` on all ranks.
  void exchange(const void* mine, size_t bytes, void* all);

  // The rest throw if a rank ends or the timeout is over. REQUIRES: the same sizes and dtypes on all ranks.
  void broadcast(void* data, size_t bytes, int root);
  // Block r of `values`, n elements of `width` bytes, is sent by rank r and received by all others.
  void all_gather(void* values, size_t width, size_t n);
  // sums[i] is the sum over the ranks of element i of this rank's block of `in`, which has n elements of `dtype`. In
  // the wire dtype, in the order of the ranks from this one on. `sums` may be that block of `in`.
  void reduce_scatter(const void* in, DType dtype, size_t n, void* sums);

  // Ends an exchange() that is under way, and every later one, with ConnectionError.
  void interrupt();
  // The other ranks see at once that this one is of no more use.
  void close() noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace rondo::dist
