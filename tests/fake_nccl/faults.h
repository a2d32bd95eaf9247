// What the fake of NCCL does beside its work: Options::nccl, or RONDO_FAKE_NCCL for whole programs. Parts, separated by
// ':':
//   version=21805     what ncclGetVersion says
//   mismatch=hang     calls that do not fit each other wait for ever; =garbage: each rank computes what it understands.
//                     Without it, chance chooses, the same for all ranks
//   peers=error       a rank that has died or aborted shows as ncclRemoteError on the others. Without it they wait for
//                     ever, as the real library does between devices of one machine
//   stall@R,N         rank R never begins its collective number N
//   late@R,N,MS       it begins so many milliseconds late
//   die@R,N           its process is killed instead
//   error@R,N,E       ncclCommGetAsyncError answers E from then on; the collective never ends
// R is a rank of the collective's communicator, N counts the collectives that a process has issued, from 0. `init` in
// place of N: the communicator's initialisation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/tests/fake_nccl/types.h"

namespace rondo::fake_nccl {

struct Fault {
  enum class What { kStall, kLate, kDie, kError } what{};
  int rank = 0;
  int64_t number = 0;  // kInit: of the initialisation
  int64_t value = 0;   // milliseconds, or the error
};
inline constexpr int64_t kInit = -1;

enum class Mismatch { kByChance, kHang, kGarbage };

struct Behaviour {
  int version = 22809;
  Mismatch mismatch = Mismatch::kByChance;
  bool peers_show = false;
  std::vector<Fault> faults;

  const Fault* find(int rank, int64_t number) const;
  // Ends the process if the text is none of the above.
  static Behaviour parse(const std::string& text);
};

}  // namespace rondo::fake_nccl
