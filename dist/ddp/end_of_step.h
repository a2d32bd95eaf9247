// The exchange at the end of a step of DistributedDataParallel: the ranks tell each other their errors and their
// updates.
#pragma once

#include <string>
#include <vector>

#include "rondo/dist/ddp/bucket_reducer.h"
#include "rondo/dist/ddp/step_state.h"
#include "rondo/optim/update_facts.h"

namespace rondo::dist {

// A collective. Returns the error messages of all ranks: "" for a rank without an error. The step has ended well if all
// messages are empty. `updates`: the updates that the optimizers have made since the last exchange. Sets
// BucketReducer::any_rank_has_gradient, and gives each RowGather the reports of all ranks. On a device, also compares
// the collectives that the ranks have issued, and throws as ProcessGroup::check_sequence().
std::vector<std::string> exchange_end_of_step(const StepState& step, std::vector<BucketReducer>& reducers,
                                              const std::vector<UpdateFacts>& updates);

}  // namespace rondo::dist
