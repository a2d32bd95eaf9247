// How the ranks of a job find each other in the store, each time they make a process group.
//
// Every rank holds a ticket in the store while it waits; the store removes a ticket when its process ends. Rank 0 waits
// until all tickets are there and publishes the name of the new group for each ticket. So a restarted rank, with its
// new ticket, meets the others whatever any of them did before.
#pragma once

#include <string>
#include <vector>

#include "rondo/dist/transport/environment.h"
#include "rondo/dist/transport/store.h"

namespace rondo::dist {

// Some ranks did not come in time.
class MissingRanksError : public TimeoutError {
 public:
  MissingRanksError(const std::string& message, std::vector<int> missing)
      : TimeoutError(message), ranks(std::move(missing)) {}
  const std::vector<int> ranks;
};

// Returns the prefix of the group's keys in the store, the same on all ranks. Throws MissingRanksError.
std::string meet(Store& store, const Environment& environment, Milliseconds timeout);

}  // namespace rondo::dist
