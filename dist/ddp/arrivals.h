// What backward's callbacks have seen in a step of DistributedDataParallel, for its own two files: ddp.cc, and
// ddp_finish.cc for the end of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/row_parcel.h"

namespace rondo::dist {

inline constexpr const char* kDdp = "DistributedDataParallel";  // in messages
inline constexpr int64_t kMaxSentence = 512;                    // of what a rank says to the others

struct DistributedDataParallel::Arrivals : BackwardProgress {
  explicit Arrivals(DistributedDataParallel& ddp) : ddp(ddp) {}
  DistributedDataParallel& ddp;
  std::vector<bool> arrived;      // by parameter
  std::vector<bool> complete;     // by parameter: all of it has arrived, in whatever parts
  std::vector<bool> sent;         // by parameter: the first piece is on its way
  std::vector<bool> delivered;    // by parameter: it has the average
  std::vector<bool> alone;        // by parameter: nobody else sees the memory of the gradient that is sent
  std::vector<Tensor> held;       // by parameter: gradients that wait for finish(), in a step that learns
  std::vector<Tensor> assembled;  // by parameter: averages of pieces, or of the first part (Note [Two parts])

  void start_over(size_t n) {
    order.clear();
    arrived.assign(n, false);
    complete.assign(n, false);
    sent.assign(n, false);
    delivered.assign(n, false);
    alone.assign(n, false);
    held.assign(n, Tensor());
    assembled.assign(n, Tensor());
  }
};

}  // namespace rondo::dist
