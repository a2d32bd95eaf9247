// Collectives over the proved connections between the ranks of a group (mesh.h). tcp_group.cc does the rest: it names
// and compares the calls, and finds the rank to blame for an error.
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

// Divides n elements into one block for each of `ranks` ranks, as evenly as possible. Block `rank` is [begin, end).
struct Block {
  Block(size_t n, size_t ranks, size_t rank)
      : begin(n / ranks * rank + n % ranks * rank / ranks),
        end(n / ranks * (rank + 1) + n % ranks * (rank + 1) / ranks) {}
  size_t size() const { return end - begin; }
  size_t begin, end;
};

class TcpTransport {
 public:
  // Connects all ranks. `prefix`: begins the store's keys under which the ranks publish their addresses. Throws
  // DistError.
  TcpTransport(Store& store, const std::string& prefix, const Environment& environment, Milliseconds timeout);
  ~TcpTransport();
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  // `all` (world_size times `bytes`) receives `mine` of every rank. Takes log2(world_size) messages. A rank that is
  // early waits in this call for late ranks, so interrupt() can end the call. REQUIRES: the same `bytes` on all ranks.
  void exchange(const void* mine, size_t bytes, void* all);

  // The other collectives throw if a rank ends or the timeout passes. REQUIRES: the same sizes and dtypes on all ranks.
  void broadcast(void* data, size_t bytes, int root);
  // Rank r sends block r of `values` (n elements of `width` bytes each) and receives the other blocks.
  void all_gather(void* values, size_t width, size_t n);
  // sums[i] is the sum over the ranks of element i of this rank's block of `in`, which has n elements of `dtype`.
  // `sums` has the wire dtype. Adds in the order of the ranks, beginning with this rank and wrapping around. `sums` may
  // be this rank's block of `in`.
  void reduce_scatter(const void* in, DType dtype, size_t n, void* sums);

  // Ends an exchange() in progress, and every later one, with ConnectionError.
  void interrupt();
  // Shuts the connections down, so that the other ranks notice at once.
  void close() noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace rondo::dist
