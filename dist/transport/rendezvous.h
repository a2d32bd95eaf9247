// How the ranks of a job find each other in the store, each time they make a process group.
//
// Every rank holds a ticket in the store while it waits: the ticket of a process that ends goes with its connection.
// Rank 0 waits until all tickets are there, and tells each ticket the name of the new group. So a rank that was
// restarted meets the others under its new ticket, whatever it, or they, did before.
#pragma once

#include <string>
#include <vector>

#include "rondo/dist/transport/environment.h"
#include "rondo/dist/transport/store.h"

namespace rondo::dist {

// Some ranks did not come.
class MissingRanksError : public TimeoutError {
 public:
  MissingRanksError(const std::string& message, std::vector<int> missing)
      : TimeoutError(message), ranks(std::move(missing)) {}
  const std::vector<int> ranks;
};

// The prefix of the group's keys in the store, the same on all ranks. Throws MissingRanksError.
std::string meet(Store& store, const Environment& environment, Milliseconds timeout);

}  // namespace rondo::dist
