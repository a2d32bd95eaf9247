// Counts what the accesses of a block cost a device (machine.h, Traffic).
#pragma once

#include <cstdint>
#include <vector>

#include "rondo/tests/cuda_on_host/machine.h"

namespace rondo::cuda_on_host {

struct Access {
  int thread, line, piece, bytes;
  uintptr_t address;
  Place place;
};
// `accesses`: of one block, those of each thread in order.
void add_traffic(const std::vector<Access>& accesses, Traffic& traffic);

}  // namespace rondo::cuda_on_host
