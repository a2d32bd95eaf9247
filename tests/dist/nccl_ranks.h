// Ranks with a CUDA device each, as threads of one process, on the fakes of the driver and of NCCL.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "rondo/dist/groups/nccl_library.h"
#include "rondo/dist/groups/process_group.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::test {

class NcclRanks {
 public:
  // `faults`: what goes wrong in NCCL (fake_nccl/faults.h).
  explicit NcclRanks(int n, uint64_t seed = 1, const std::string& faults = "")
      : n_(n), cuda_({.seed = seed, .devices = n, .nccl = faults}) {
    dist::forget_nccl();
  }
  ~NcclRanks() { dist::forget_nccl(); }
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;

  int size() const { return n_; }
  FakeCuda& cuda() { return cuda_; }
  dist::GroupOptions options(int rank, std::chrono::milliseconds timeout = kPatient) const {
    return {.timeout = timeout, .device = cuda_.device(rank)};
  }
  // What each rank throws; "" if nothing.
  std::vector<std::string> run(const std::function<void(const dist::Environment&)>& fn) { return run_ranks(n_, fn); }
  // With the group of all ranks; every rank must end without an error.
  void with_groups(const std::function<void(dist::ProcessGroup&, Device)>& fn) {
    const std::vector<std::string> errors = run([&](const dist::Environment& e) {
      const auto group = dist::ProcessGroup::connect(e, options(e.rank));
      fn(*group, cuda_.device(e.rank));
    });
    for (size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
  }

 private:
  const int n_;
  FakeCuda cuda_;
};

#define RONDO_SKIP_WITHOUT_NCCL()                                               \
  {                                                                             \
    const ::rondo::test::NcclRanks one(1);                                      \
    std::string why_not;                                                        \
    if (::rondo::dist::find_nccl(&why_not) == nullptr) GTEST_SKIP() << why_not; \
  }                                                                             \
  static_assert(true)

}  // namespace rondo::test
