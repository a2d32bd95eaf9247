// What the ranks tell each other at the end of a step of DistributedDataParallel, in one exchange.
#pragma once

#include <string>
#include <vector>

#include "rondo/dist/ddp/parcel.h"
#include "rondo/dist/ddp/step_state.h"
#include "rondo/optim/update_facts.h"

namespace rondo::dist {

// A collective. Returns what is wrong on each rank; all empty: the step has ended well. `updates`: that optimizers have
// made since the exchange before. Sets Parcel::somewhere, and RowParcel hears of the other ranks. On a device it
// compares what the ranks have issued, too, and throws as ProcessGroup::check_sequence().
std::vector<std::string> exchange_end_of_step(const StepState& step, std::vector<Parcel>& parcels,
                                              const std::vector<UpdateFacts>& updates);

}  // namespace rondo::dist
