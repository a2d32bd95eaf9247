// How the ranks agree on one plan of buckets: Note [Bucket order] in bucket.h.
#pragma once

#include <string>

#include "rondo/dist/ddp/bucket.h"
#include "rondo/dist/ddp/shard_takers.h"
#include "rondo/dist/ddp/step_state.h"
#include "rondo/modules/module.h"

namespace rondo::dist {

// A collective. If the ranks' texts differ, throws MismatchError on every rank, which names the first line that
// differs.
void compare_plans(ProcessGroup& group, const std::string& text);

// Makes the plan of buckets in the order of the gradients that rank 0 has observed in this step, and decides which
// gradients travel in two parts from now on. A collective. Throws as compare_plans().
BucketPlan agree_on_plan(const nn::ModuleBase& model, StepState& step, const ShardTakers& takers);

}  // namespace rondo::dist
