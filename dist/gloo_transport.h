// Gloo's collectives over the proved connections between the ranks of a group. Knows nothing of names, agreement or who
// is to blame. Built only with Gloo.
//
// Thread safety: one thread calls the collectives; interrupt() may be called from another.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "rondo/dist/environment.h"
#include "rondo/dist/process_group.h"
#include "rondo/dist/store.h"

namespace rondo::dist {

class GlooTransport {
 public:
  // Connects all ranks. `prefix`: of the keys in the store, where they find each other's addresses. Throws DistError.
  GlooTransport(Store& store, const std::string& prefix, const Environment& environment, Milliseconds timeout);
  ~GlooTransport();
  GlooTransport(const GlooTransport&) = delete;
  GlooTransport& operator=(const GlooTransport&) = delete;

  // all (world_size times `bytes`) receives `mine` of every rank. In log2(world_size) messages, and interrupt() ends
  // it: here a rank waits for one that is late. REQUIRES: the same `bytes` on all ranks.
  void exchange(const void* mine, size_t bytes, void* all);
  // The rest throw if a rank ends or the timeout is over.
  void broadcast(void* data, size_t bytes, int root);
  void all_gather(const void* in, void* out, size_t bytes);
  // sums[i] is the sum over the ranks of element i of block `rank` of `in`, which has a block of n elements of `dtype`
  // for each rank. In the wire dtype, in the order of the ranks from this one on.
  void reduce_scatter(const void* in, DType dtype, void* sums, size_t n);
  // Sums, in place.
  void all_reduce(void* values, DType wire, size_t n);

  // Ends an exchange() that is under way, and every later one, with ConnectionError.
  void interrupt();
  // The other ranks see at once that this one is of no more use.
  void close() noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace rondo::dist
