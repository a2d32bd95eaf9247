// What one rank does in a test of several processes.
#pragma once

#include <string>

#include "rondo/tests/fake_cuda/fake_cuda.h"
#include "rondo/tests/fake_nccl/library.h"

namespace rondo::test {

struct Rank {
  FakeCuda& cuda;
  Device device;
  int rank = 0, ranks = 0;
  UniqueId id = {};
};

// True if all is as it should be; it has printed what is not.
bool run_scenario(const std::string& name, Rank& rank);

}  // namespace rondo::test
